"""Questions as data: numbers, choices and predictions that a learner fills in.

    quantities.py   reads a number with its unit
    shapes.py       reads a list, a table or a dictionary of them
    kinds.py        the kinds of questions, and what makes an answer right
    answers.py      a part that is made of questions
    numbers.py      a question that asks for a number, in a line
"""
