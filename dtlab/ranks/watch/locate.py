"""Finds the learner's line in the stack of a rank."""

from __future__ import annotations

import functools
import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from dtlab.ranks.protocol import Frame

# Files whose functions are what a rank is waiting in, as its frames show it.
OPERATIONS = (
    os.path.join("torch", "distributed", "distributed_c10d.py"),
    os.path.join("dtlab", "collectives.py"),
    os.path.join("dtlab", "ranks", "record", "recorder.py"),  # `work.wait`, hooked
)
HELPERS = ("_", "wrapper")  # functions in them that are no operation
NOBODYS = ("<frozen", "<string>", "<__array_function__")


def learner_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame in code that the learner wrote; the innermost of all if there is none.

    `frames` are outermost first, as in a traceback.
    """
    own = [frame for frame in frames if is_learners(frame.file)]
    return own[-1] if own else frames[-1] if frames else None


def calling_frame(frames: Sequence[Frame]) -> Frame | None:
    """The learner's frame in another file, or cell, from which the innermost was reached."""
    own = [frame for frame in frames if is_learners(frame.file)]
    return next((frame for frame in reversed(own) if frame.file != own[-1].file), None)


def operation(frames: Sequence[Frame]) -> str:
    """The distributed operation that the frames are in ("recv", ...), or "compute"."""
    names = [
        frame.function
        for frame in frames
        if frame.file.endswith(OPERATIONS) and not frame.function.startswith(HELPERS)
    ]
    return names[0] if names else "compute"


def is_learners(file: str) -> bool:
    """Whether a file is neither Python's, nor an installed package's, nor dtlab's own."""
    return not file.startswith((*NOBODYS, *_foreign_folders()))


def asked_by_learner(frame: FrameType | None) -> bool:
    """Whether a function of torch.distributed was called by the learner, not by torch itself."""
    own = os.path.join("dtlab", "messages.py")
    between = (*OPERATIONS, "c10d_logger.py", "_contextlib.py", own)
    while frame is not None and frame.f_code.co_filename.endswith(between):
        frame = frame.f_back
    return frame is not None and is_learners(frame.f_code.co_filename)


@functools.cache
def _foreign_folders() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    paths.add(str(Path(__file__).absolute().parents[2]))
    return tuple(os.path.join(path, "") for path in paths if path)


def place(frame: Frame | None) -> dict[str, Any]:
    """`file`, `line`, `code` and `cell` of a frame, as `Failure` and `Waiting` take them."""
    if frame is None:
        return {}
    code = linecache.getline(frame.file, frame.line).strip() or None
    cell = _cell_numbers().get(frame.file)
    file = frame.file
    if cell is None and not os.path.relpath(file).startswith(os.pardir):
        file = os.path.relpath(file)
    return {"file": file, "line": frame.line, "code": code, "cell": cell}


def _cell_numbers() -> dict[str, int]:
    """Which notebook cell each of IPython's files stands for; empty outside IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(getattr(shell, "compile", None), "_filename_map", {})
