"""Assignments of chosen levels and parts, with other weights and a due date of their own.

    solutions/01_name/level-N.ipynb  ── cutting.py ──>  source/week-3/level-N.ipynb
                                     ── nbgrader ────>  release/week-3/, a line in gradebook.db

    release.py    the command `dtlab release UNIT`
    wanted.py     what is asked for, as an instructor types it
    publish.py    writes it into a course folder, or leaves all as it was

The solutions are the repository's; source/, release/ and the gradebook are in a course folder.
"""
