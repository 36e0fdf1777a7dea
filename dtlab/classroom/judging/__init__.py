"""The judge: runs a learner's cells in a sandbox and judges the answers outside it.

    judge.py       runs the cells of a notebook, judges its answers, gives points
    cells.py       runs the ungraded cells in a sandbox
    patience.py    lets other tasks go first while a cell runs for a long time
    isolated.py    the bench that runs an answer's functions in a sandbox
    rank_needs.py  what such a function's ranks have of the units, which judge answers
    turns.py       one judge at a time uses what a process has only once: random generators, dtype
"""
