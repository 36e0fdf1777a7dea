"""`dtlab grade`: grades the submissions of a class.

    command.py           progress display and cancellation;  lines.py: the text of the report
      grade.py           grades all submissions: plans, judges, and books each one
        submissions.py   reads the submitted files
        engines.py       where submissions are judged: here, or with on_ray.py on a cluster
          tasks.py       repairs and judges one submission;  server.py: the warm server for it
        booking.py       writes results into the gradebook, with nbgrader's steps
        verdicts.py      stores the points of each part and their reasons beside the gradebook
    alone.py             grades one notebook, for `nbgrader autograde` and formgrader

    statistics.py        `dtlab statistics`;  intake.py: archives of Moodle and Canvas

Code that learners use does not import this package.
"""
