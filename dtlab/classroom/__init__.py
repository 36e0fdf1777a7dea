"""What only instructors use: releases, grading of a class, and nbgrader's settings and plug-ins.

    settings.py          `configure`, for nbgrader_config.py;  plugins.py: what it installs
    notebooks.py         normalises notebooks, and writes nbgrader's metadata from the parts
    releases/            `dtlab assign`: assignments from some parts of a unit

    command.py           `dtlab grade`: progress and cancellation;  lines.py: its report
      grade.py           grades all submissions: plans, judges, and books each one
        received/        submitted files, their times, archives of Moodle and Canvas
        submissions.py   reads them
        workers/         where submissions are judged: here, or on the machines of a Ray cluster
          repair/        makes a valid notebook from any submitted file
          judging/       runs its cells in a sandbox, and judges the answers outside it
          sanitised.py   removes scripts from what an instructor opens in a browser
        late.py          deductions for late work
        booking.py       writes results into the gradebook, with nbgrader's steps
        verdicts.py      stores the points of each part and their reasons beside the gradebook
    single.py            grades one notebook, for `nbgrader autograde` and formgrader

    statistics.py        `dtlab statistics`;  similarity/: `dtlab alike`
    export.py            grades as CSV files for learning platforms

Code that learners use does not import this package: it needs nbgrader, and learners do not.
"""
