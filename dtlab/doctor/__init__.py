"""`dtlab doctor`: what this machine can do, what is wrong with it, and how to repair it.

    checkup.py     the checks, one after the other, each in a thread and with a time limit
      machine.py     processors, memory, shared memory, loopback, /proc
      software.py    Python, dtlab's packages, torch, matplotlib, JupyterLab
      gpus.py        cards, MIG, links, peer access    ◄── smi.py reads nvidia-smi
      backends.py    ranks, tried for real             ◄── trial.py runs on them
      course.py      nbgrader, its settings and its gradebook, the disk
    visit.py       what several checks ask once; programs that may hang
      probe.py       asks torch and others, in a process of its own
    show.py        findings as text and as JSON

Finding out needs neither torch nor NumPy in this process: where they are broken, it says so.
"""

from __future__ import annotations

from dtlab.doctor.checkup import examine
from dtlab.doctor.finding import Finding

__all__ = ["Finding", "examine"]
