"""Grades a single notebook, as `nbgrader autograde` and formgrader request it.

The judge uses the warm server of this process. The server stays for the next notebook; it ends
with the process, or after ten idle minutes.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from nbformat import NotebookNode

from dtlab.classroom import verdicts
from dtlab.classroom.judging.judge import WARM, judge
from dtlab.classroom.verdicts import Record
from dtlab.ranks.launch.client import SERVER

__all__ = ["judge_alone"]


def judge_alone(
    notebook: NotebookNode, folder: Path, assignment: str, student: str, name: str
) -> None:
    """Judges a notebook of a submission, in place, and stores the verdict.

    Parts that were judged before keep their seeds. The stored record has no key, since the
    submission was not read as a whole; `dtlab grade` therefore judges it again.
    """
    before = verdicts.read(folder, assignment, student)
    record = before or Record(
        assignment, student, "", secrets.randbelow(2**31), version("dtlab"), 0.0, 0.0, {}
    )
    seeds = {part: verdict.seed for part, verdict in record.parts.items()}
    SERVER.include(*WARM)
    begun = time.monotonic()
    judged = judge(notebook, SERVER, student=student, seed=record.seed, seeds=seeds)
    verdicts.write(
        folder,
        replace(
            record,
            key="",
            version=version("dtlab"),
            seconds=time.monotonic() - begun,
            cell_seconds=judged.cell_seconds,
            notebooks={**record.notebooks, name: tuple(judged.verdicts)},
            notes={**record.notes, name: tuple(judged.notes)},
            missing=tuple(judged.missing),
        ),
    )
