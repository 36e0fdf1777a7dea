"""Which submissions look like copies of each other: a list for a human to look at.

    pairs.py        what is compared, and how alike two answers are
    tokens.py       a cell's code without what costs nothing to change
    sidebyside.py   the command `dtlab alike`
"""
