"""`dtlab grade`: grades the submissions of a class.

    command.py           what it prints, and how it is stopped;  lines.py: in which words
      grade.py           what is to be done, one after the other: plan, judge, book
        submissions.py   what was handed in
        engines.py       where it is judged: here, or on_ray.py: on a cluster
          tasks.py       one submission: mended where it is broken, and judged;  server.py: the
                         processes that it takes
        booking.py       into nbgrader's gradebook, through its own steps
        verdicts.py      what each part earned and why, kept beside the gradebook
    alone.py             one notebook, for nbgrader's own command and formgrader

Nothing here is imported by what learners use.
"""
