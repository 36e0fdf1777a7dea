"""Compares the operations of all ranks; detects and explains deadlocks.

`find_deadlock` in `dtlab/simple.py` is the idea: a table of what each rank is blocked in, and the
circle of ranks in it. This package also sees mismatches, groups, threads, and waits inside C++:

    announcer.py   writes each operation of a rank to shared memory (board.py)
    matching.py    tells which operations complete or do not match, and which ranks are blocked
    watcher.py     reads the board while the ranks run, and returns a finding
    deadlocks.py   a finding in words, with its cause;  explain.py: the error of a launch
    early.py       tensors that were touched before the rank had waited
"""
