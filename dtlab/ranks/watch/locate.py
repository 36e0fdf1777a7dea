"""Finds the learner's line in the stack of a rank."""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import os
import re
import site
import sys
import sysconfig
import tokenize
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from dtlab import torch_internals
from dtlab.ranks.protocol import Frame

# Files whose functions are the operations that a rank can wait in.
OPERATIONS = (
    torch_internals.C10D_FILE,
    os.path.join("dtlab", "collectives.py"),
    os.path.join("dtlab", "ranks", "record", "recorder.py"),  # the hook on `work.wait`
)
HELPERS = ("_", "wrapper")  # prefixes of functions in these files that are not operations
NOBODYS = ("<frozen", "<string>", "<__array_function__", "<eval_with_key>")
# A file that torch.compile has written: its folder repeats the beginning of its name, a hash.
COMPILED = re.compile(r"[/\\](\w\w)[/\\]c\1\w{49}\.py$")


def learner_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame in the learner's code; the innermost of all frames if there is none.

    `frames` are outermost first, as in a traceback.
    """
    learners = [frame for frame in frames if is_learners(frame.file)]
    return learners[-1] if learners else frames[-1] if frames else None


def calling_frame(frames: Sequence[Frame]) -> Frame | None:
    """The learner's frame in another file, or cell, that called the innermost one."""
    learners = [frame for frame in frames if is_learners(frame.file)]
    return next((frame for frame in reversed(learners) if frame.file != learners[-1].file), None)


def operation(frames: Sequence[Frame]) -> str:
    """The name of the distributed operation in the frames ("recv", ...), or "compute"."""
    names = [
        frame.function
        for frame in frames
        if frame.file.endswith(OPERATIONS) and not frame.function.startswith(HELPERS)
    ]
    return names[0] if names else "compute"


def is_learners(file: str) -> bool:
    """Whether a file belongs neither to Python, nor to an installed package, nor to dtlab.

    Code that torch.compile generates is not the learner's either.
    """
    return not (file.startswith((*NOBODYS, *_foreign_folders())) or COMPILED.search(file))


def asked_by_learner(frame: FrameType | None) -> bool:
    """Whether the learner called a function of torch.distributed, and not torch itself."""
    messages = os.path.join("dtlab", "messages.py")
    files = torch_internals.LOGGER_FILE, torch_internals.CONTEXT_FILE
    between = (*OPERATIONS, *files, messages)
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
    """The fields `file`, `line`, `code` and `cell` of `Failure` and `Waiting` for a frame."""
    if frame is None:
        return {}
    code = linecache.getline(frame.file, frame.line).strip() or None
    cell = _cell_numbers().get(frame.file)
    file = frame.file
    if cell is None and file and not os.path.relpath(file).startswith(os.pardir):
        file = os.path.relpath(file)
    return {"file": file, "line": frame.line, "code": code, "cell": cell}


def line_of(operation: str, file: str, line: int) -> int:
    """The line of an operation; in a function that torch.compile has compiled, if it is known.

    The code that torch.compile runs instead of a function has only its first line. If a single
    line of the function calls the operation, it is that one.
    """
    lines = linecache.getlines(file)
    first = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    if not first.startswith(("@", "def ", "async def ")) or operation in first:
        return line
    with contextlib.suppress(SyntaxError, tokenize.TokenError, IndexError):
        block = inspect.getblock(lines[line - 1 :])
        calls = re.compile(rf"\b{operation}\w*\(")
        found = [number for number, text in enumerate(block) if calls.search(text)]
        return line + found[0] if len(found) == 1 else line
    return line


def with_cells(text: str) -> str:
    """A text of a rank in which cells are called by their numbers: "cell 7, line 4"."""
    for file, cell in _cell_numbers().items():
        text = text.replace(f"{file}, line ", f"cell {cell}, line ")
    return text


def _cell_numbers() -> dict[str, int]:
    """The number of the notebook cell for each of IPython's files; empty outside IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(getattr(shell, "compile", None), "_filename_map", {})
