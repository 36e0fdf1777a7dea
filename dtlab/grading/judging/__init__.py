"""The judge: runs a learner's cells in a sandbox, and keeps secrets outside it.

    judge.py     a notebook's cells, its answers, its points
    patience.py  others come first where a cell takes long
    walled.py    the bench on which checks see an answer there
"""
