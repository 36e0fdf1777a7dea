"""Broken training scripts: what a learner says of one, and the mended one, judged on ranks.

    mend.py        the part: a diagnosis, compared with a run of the broken script; the mended one
    symptoms.py    a table of symptoms, each measured in a run
    lines.py       the line at fault, by its number or its text
    cases.py       a script as a check runs it: model, data, and what it does
    judges.py      what a mended script has to do on ranks
    training.py    whether it has trained as one process does, or what it did instead
    reference.py   what a training comes to in one process

The scripts themselves, their symptoms and trials are the units'.
"""
