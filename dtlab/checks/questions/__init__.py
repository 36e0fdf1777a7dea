"""Questions of Level I as data: numbers and choices that a learner fills in.

    quantities.py   parses a number with its unit
    shapes.py       compares the shape of an answer: a number, a list, a list for each rank
    kinds.py        kinds of answers (number, choice, set of choices) and how they are judged
    answers.py      a part that consists of questions
    declared.py     short functions that declare such a part
    waits.py        judges a learner's diagnosis of a deadlock
"""
