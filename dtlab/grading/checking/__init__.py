"""The grading kit: trials on ranks, cases, and the criteria that judge what was observed.

    checks.py      a check as data: what is run, which criteria are judged, for how many points
    trials.py      a run of the learner's function on real ranks, and what a judge may see of it
    bench.py       where it runs: on the learner's machine, or behind walls
    warm.py        what is slow to import, made ready before the clock runs
    mends.py       a broken program: what is said of it, and the mended one
    defences.py    a written answer, which a person grades by a rubric
    waits.py       who waits for whom, as a learner says and as the watcher finds
    topics.py      trials that show one thing
    groups.py      a function called on several groups of ranks at a time
    marks.py       what happened on a rank inside a mark
    nets.py        models that checks draw; modules.py makes them
    gradients.py   whether two gradients are the same, and a step of training
    sums.py        what is wrong with a sum, as far as the numbers tell
    finished.py    finished code called where the answer is to be the learner's own
    unseen.py      traffic that the recorder did not see
"""
