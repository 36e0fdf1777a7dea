"""Mutants of reference solutions, made by machine: one that a check lets pass is a hole in it.

    solutions/01_.../level-2.ipynb          the instructor's solution of a part
      └── sources.py   its text, and the names that its cell finds in the notebook
            └── engine.py   one mutant for each place that a mutator of catalogue.py fits
                  └── proof.py   dtlab.check on each: killed, equivalent, or survived

`make mutants UNIT=01` prints the tables, `python -m tests.mutants --list` the mutators. Mutants
that no check can tell from the solution are listed with the reason as `equivalent` in the part's
file under `tests/known_answers/`, which also holds the wrong and right answers that people give.
"""
