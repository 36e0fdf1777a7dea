"""Broken training scripts: judges a learner's diagnosis and the fixed script on ranks.

    training.py       the check: compares a diagnosis with a run, and judges the fixed script
    broken.py         the same for programs that do not train
    lines.py          judges the faulty line, given by its number or its text
    run.py            a training run of a check: model, batches, results, reference in one process

Data-parallel training on a data set, whose samples a script distributes itself:

    cases.py          the inputs of such a script, and the samples that ranks take
    reference.py      the same training in one process, and known wrong variants
    judges.py         requirements for a fixed script on ranks
    data_parallel.py  trials and criteria that several such scripts share

The units contain the scripts, as shown in the notebooks. A check runs a script on ranks, and
compares a diagnosis with the run. Lines are counted in the notebook's cell: `def` is line 1.
"""
