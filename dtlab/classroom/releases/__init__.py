"""Assignments of chosen levels and parts, with chosen points and a due date.

    solutions/01_name/level-N.ipynb  ── cutting.py ──>  source/week-3/01_level_N.ipynb
                                     ── nbgrader ────>  release/week-3/, a line in gradebook.db

    release.py    the command `dtlab release UNIT`
    wanted.py     parses the levels, parts and points that an instructor types
    cutting.py    reduces a notebook to the chosen parts
    publish.py    writes the assignment into a course folder, or changes nothing if that fails

The repository has solutions/; a course folder has source/, release/ and the gradebook.
"""
