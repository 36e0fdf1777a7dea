"""Repairs submitted notebooks, so that a broken file does not cost points.

    repaired.py      makes a valid notebook from a submission and the released notebook
    recognition.py   matches submitted cells with released cells, even if names or order changed
    needed.py        finds deleted imports and helpers that other cells need
    written.py       finds texts outside the cell that a person grades
    salvage.py       recovers cells from a file that may not be valid JSON
    found.py         reads one cell, even if its fields are not those of a notebook
    walker.py        parses JSON with missing or damaged pieces
"""
