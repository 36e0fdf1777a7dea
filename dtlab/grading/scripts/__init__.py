"""Broken training scripts: what a learner says of one, and the mended one, judged on ranks.

    mend.py           the part: a diagnosis, compared with a run; the mended script
    mends.py          the same for programs that do not train
    lines.py          the line at fault, by its number or its text
    symptoms.py       a table of symptoms, each measured in a run
    run.py            a training as a check runs it: model, batches, what is noted, one process

Data-parallel training on a data set, whose samples a script shares out itself:

    cases.py          what such a script is given, and which samples ranks take
    reference.py      what it comes to in one process, or what the ranks did instead
    judges.py         what a mended script has to do on ranks
    data_parallel.py  symptoms that several such scripts may have

The scripts are in the units, as a notebook shows them. A check runs a script on ranks, to compare
a diagnosis with what really happens. A line has the number that it has in the notebook's cell: the
one with `def` is line 1.
"""
