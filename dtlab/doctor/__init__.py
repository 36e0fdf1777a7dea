"""`dtlab doctor`: a diagnosis of this machine: what it can do, and how to repair what is wrong.

    checkup.py     runs the checks one after the other, each in a thread with a time limit
      machine.py     processors, memory, shared memory, loopback, /proc
      software.py    Python, dtlab's packages, torch, matplotlib, JupyterLab
      gpus.py        GPUs, MIG, links, peer access     ◄── smi.py parses nvidia-smi
      backends.py    launches ranks on gloo and NCCL   ◄── trial.py runs on the ranks
      course.py      nbgrader, its settings and its gradebook, the disk
    visit.py       results shared by several checks; subprocesses with a time limit
      probe.py       imports torch and other modules in a separate process
    show.py        findings as text and as JSON

This process imports neither torch nor NumPy, so the doctor also works if they are broken.
"""

from __future__ import annotations

from dtlab.doctor.checkup import examine
from dtlab.doctor.finding import Finding

__all__ = ["Finding", "examine"]
