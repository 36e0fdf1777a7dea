"""`dtlab alike`: lists similar submissions, for a person to compare.

    pairs.py        computes how similar two answers are
    tokens.py       converts code to tokens without names, comments and layout
    sidebyside.py   the command `dtlab alike`
"""
