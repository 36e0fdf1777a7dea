"""Repairs submitted notebooks, so that a broken file does not cost points.

    mend.py          the notebook that was released, with the answers found in what was handed in
    recognition.py   which cell is which, whatever became of their names and order
    salvage.py       a tree of cells out of bytes that are no JSON any more
    found.py         cells out of a tree that is no notebook any more
    walker.py        reads JSON with pieces missing
"""
