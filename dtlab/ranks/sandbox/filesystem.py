"""The file system of a sandbox: a separate root with the files that Python and dtlab need.

    root of the machine            root in the sandbox
    /  home  course  gradebook     /  usr  lib  etc (a few files)       read-only
                                      Python, its packages, dtlab       read-only
                                      tmp  home/learner  dev/shm        empty, in memory, limited
"""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from dtlab.ranks.sandbox import kernel_calls as kernel

__all__ = ["EXCHANGE", "HOME", "change_root", "of_instructors", "own_scratch"]

HOME = "/home/learner"
EXCHANGE = "/usr/local/share/nbgrader"  # where nbgrader keeps submissions
_SCRATCH = ("/tmp", HOME, "/dev/shm")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/sys/devices/system")
_SETTINGS = (
    "ld.so.cache", "ld.so.conf", "localtime", "fonts", "ssl", "alternatives", "mime.types",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")
_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/run")


@functools.cache
def readable_folders() -> tuple[Path, ...]:
    """The folders with the code that ranks need: Python, installed packages, dtlab itself."""
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = {Path(sysconfig.get_path(name)) for name in names}
    folders |= {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent}
    folders.add(Path(__file__).resolve().parents[2])
    if site.ENABLE_USER_SITE:
        folders.add(Path(site.getusersitepackages()))
    folders |= {folder.resolve() for folder in folders}
    return tuple(sorted(folder for folder in folders if folder.is_dir()))


def change_root(user: int, scratch: int, hidden: Sequence[str]) -> None:
    """Replace the root of the file system by one with only the needed files. Raises OSError.

    `user` is the notebook's user id. Scratch folders hold `scratch` bytes each. Files and folders
    in `hidden` are hidden, although a visible folder contains them.
    """
    folders = readable_folders()
    root = _mount_point(folders)
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.mount_private()
    os.umask(0o022)
    kernel.mount_scratch(root, 4 * 2**20, mode="755")
    for name in _SCRATCH:
        Path(root + name).mkdir(parents=True, exist_ok=True)
        kernel.mount_scratch(root + name, scratch)
    for source, is_link in _to_show(folders):
        _show(source, Path(root), is_link)
    for name in (*hidden, *map(str, of_instructors())):
        _hide(Path(root + name))
    _devices(root)
    Path(root, "proc").mkdir()
    kernel.mount_proc(f"{root}/proc")
    for name, text in _settings(user).items():
        path = Path(root, "etc", name)
        path.write_text(text)
        path.chmod(0o644)
    kernel.change_root(root)


def of_instructors() -> list[Path]:
    """Solutions and tests beside dtlab, if it runs from a checkout, which could be visible."""
    checkout = Path(__file__).resolve().parents[3]
    names = ("solutions", "tests") if (checkout / "pyproject.toml").exists() else ()
    return [checkout / name for name in names]


def _mount_point(folders: Sequence[Path]) -> str:
    """A folder that contains none of `folders`, so that the new root can be mounted there."""
    for place in map(Path, _MOUNT_POINTS):
        if place.is_dir() and not any(folder.is_relative_to(place) for folder in folders):
            return str(place)
    raise OSError(f"{', '.join(_MOUNT_POINTS)} are all in use or do not exist")


def _settings(user: int) -> dict[str, str]:
    learner = f"learner:x:{user}:{user}::{HOME}:/bin/sh"
    return {
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",  # no other sources
        "passwd": f"root:x:0:0::/:/bin/false\n{learner}\n",
    }


def _to_show(folders: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield the visible paths, outer folders first, and whether each is a symbolic link."""
    for name in _SYSTEM:
        if Path(name).exists():
            yield Path(name), Path(name).is_symlink()
    for name in _SETTINGS:
        if Path("/etc", name).exists():
            yield Path("/etc", name), False
    shown: list[Path] = [Path("/usr")]
    for folder in folders:
        if not any(folder.is_relative_to(outer) for outer in shown):
            shown.append(folder)
            yield folder, False


def _show(source: Path, root: Path, is_link: bool) -> None:
    target = root / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_link:
        target.symlink_to(os.readlink(source))
        return
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    kernel.bind_readonly(str(source.resolve()), str(target))


def _hide(path: Path) -> None:
    if path.is_dir():
        kernel.mount_scratch(str(path), 4096, mode="555")
    elif path.exists():
        kernel.bind_readonly("/dev/null", str(path), devices=True)


def _devices(root: str) -> None:
    for name in _DEVICES:
        target = Path(root, "dev", name)
        target.touch()
        kernel.bind_readonly(f"/dev/{name}", str(target), devices=True)
    for name, to in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        Path(root, "dev", name).symlink_to(f"/proc/self/{to}")


def own_scratch(size: int) -> None:
    """Mount new scratch folders. Code that ranks need, if it is inside them, keeps its paths."""
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.mount_private()
    inside = [folder for folder in readable_folders() if any(map(folder.is_relative_to, _SCRATCH))]
    opened = [(folder, os.open(folder, os.O_PATH)) for folder in inside]
    for name in _SCRATCH:
        kernel.mount_scratch(name, size)
    for folder, fd in opened:
        folder.mkdir(parents=True, exist_ok=True)
        kernel.bind_readonly(f"/proc/self/fd/{fd}", str(folder))
        os.close(fd)
