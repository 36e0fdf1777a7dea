"""Checks of learners' functions: trials on ranks, cases, and criteria that judge the observations.

    checks.py      a check as data: trials to run, criteria to judge, their points
    trials.py      runs a learner's function on real ranks and returns an observation
    criteria.py    judges the criteria from the faults that cases report
    bench.py       where functions run: on the learner's machine, or in a sandbox
    defences.py    written answers, which a person grades by a rubric
    groups.py      subgroups of ranks on which a function is called at the same time
    nets.py        descriptions of models that checks draw; modules.py builds them
    values.py      whole numbers that show which ranks' values a sum contains
    resident.py    memory that an answer keeps, as the kernel counts it
    finished.py    detects calls of library functions that solve the exercise
    unseen.py      finds traffic that the recorder did not see
"""
