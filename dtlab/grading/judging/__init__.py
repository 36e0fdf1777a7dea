"""The judge: runs a learner's cells behind walls, and holds all that they must not see.

    judge.py     a notebook's cells, its answers, its points
    patience.py  others come first where a cell takes long
    walled.py    the bench on which checks see an answer there
"""
