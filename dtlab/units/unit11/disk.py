"""Operations on files of a folder, before each of which a process may die.

    with Disk(folder, proceeds, dies):
        torch.save(state, path)       proceeds("just after opening ..."), proceeds("in torch.save")
        os.replace(path, other)       proceeds("just before os.rename")

11/resumable uses it to kill a run during a save, with files as a kill would leave them.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Disk"]


class Disk:
    """Calls `proceeds` before each operation on a folder's files, in which the process may die.

    `proceeds(words)` is None if it dies. Then a file that is opened for writing is left empty,
    and one that torch.save writes is left half written. Python's audit events show operations.
    """

    EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
              "os.truncate", "shutil.rmtree")  # fmt: skip

    def __init__(
        self, folder: str, proceeds: Callable[[str], Any], dies: Callable[[], Any]
    ) -> None:
        import torch

        self._folder, self._proceeds, self._dies = folder, proceeds, dies
        self._active = False
        self._save = torch.save
        sys.addaudithook(self._on_event)

    def __enter__(self) -> None:
        import torch

        torch.save, self._active = self._half, True

    def __exit__(self, *_: object) -> None:
        import torch

        torch.save, self._active = self._save, False

    def _half(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        """Replaces torch.save; the process may die in the middle of it."""
        # Pickling tensors calls torch.save too, in memory.
        if self._inside(f) or self._inside(getattr(f, "name", None)):
            self._operation("in torch.save", lambda: _write_half(self._save, obj, f))
        self._save(obj, f, *args, **kwargs)

    def _inside(self, path: Any) -> bool:
        """Whether this names something in the folder."""
        named = isinstance(path, str | bytes | os.PathLike)
        return named and os.fsdecode(path).startswith(self._folder)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active or event not in self.EVENTS:
            return
        if not any(map(self._inside, arguments)):
            return
        writes = os.O_WRONLY | os.O_RDWR
        if event != "open":
            self._operation(f"just before {event}", lambda: None)
        elif arguments[2] & writes:
            path = os.fsdecode(arguments[0])
            name = os.path.basename(path)
            self._operation(f"just after opening {name}", lambda: _truncate(path, arguments[2]))

    def _operation(self, words: str, half: Callable[[], None]) -> None:
        self._active = False
        if self._proceeds(words) is None:
            half()
            self._dies()
        self._active = True


def _write_half(save: Callable[..., None], obj: Any, f: Any) -> None:
    """Writes the first half of what torch.save would write."""
    whole = io.BytesIO()
    save(obj, whole)
    part = whole.getvalue()[: whole.tell() // 2]
    if hasattr(f, "write"):
        f.write(part)
        f.flush()
    else:
        Path(f).write_bytes(part)


def _truncate(path: str, flags: int) -> None:
    if flags & os.O_TRUNC:
        Path(path).write_bytes(b"")
