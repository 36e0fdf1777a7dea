"""The grading kit: trials on ranks, cases, and the criteria that judge what was observed.

    checks.py      a check as data: trials to run, criteria to judge, their points
    trials.py      runs a learner's function on real ranks, and returns what a judge may see
    criteria.py    what is wrong with it, by criterion
    bench.py       where functions run: on the learner's machine, or in a sandbox
    defences.py    written answers, which a person grades by a rubric
    groups.py      subgroups of ranks on which a function is called at the same time
    nets.py        models that checks draw; modules.py builds them
    values.py      whether gradients and sums over ranks are right
    resident.py    memory that an answer keeps, as the kernel counts it
    finished.py    calls of library functions that solve the exercise
    unseen.py      traffic that the recorder did not see
"""
