"""`dtlab alike`: lists submissions that may be copies of each other, for a person to read.

    pairs.py        what is compared, and how alike two answers are
    tokens.py       a cell's code without what costs nothing to change
    sidebyside.py   the command `dtlab alike`
"""
