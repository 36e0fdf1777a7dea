"""Exercises and their checks: a package for each unit, a module for each exercise part.

`unit05/gather.py` defines `PART`, the part 05/gather: its title, points and check. The package's
`PARTS` names its modules in course order. Other modules hold what several parts of a unit share.
`dtlab.checks` finds the units by their names, and knows none of them.
"""
