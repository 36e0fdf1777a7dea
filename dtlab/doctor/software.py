"""The software: Python, dtlab and what it needs, torch, matplotlib, JupyterLab."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from dtlab.doctor.finding import Finding, note, ok, wrong
from dtlab.doctor.visit import Visit, pip_install

__all__ = ["jupyterlab", "matplotlib", "packages", "python", "torch"]

AREA = "software"
OLDEST, NEWEST = (3, 11), (3, 13)


def python(_: Visit) -> Iterator[Finding]:
    """Its version, and where it lies."""
    value = {"version": platform.python_version(), "executable": sys.executable}
    told = f"{value['version']}, {sys.executable}"
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        yield ok(AREA, "Python", told, **value)
    else:
        told += ": dtlab needs 3.11 to 3.13. Make the environment anew with one of them"
        yield wrong(AREA, "Python", told, "make clean && make lab PYTHON=python3.12", **value)


def packages(_: Visit) -> Iterator[Finding]:
    """The packages that dtlab asks for are there, in the versions that it asks for."""
    root = Path(__file__).resolve().parents[2]
    try:
        distribution = metadata.distribution("dtlab")
    except metadata.PackageNotFoundError:
        told = "is not installed, only its source is on sys.path: 'dtlab' is no command"
        yield note(AREA, "dtlab", told, pip_install("-e", str(root)), version=None, lacking=[],
                   folder=str(root))  # fmt: skip
        return
    lacking = [one for text in distribution.requires or [] if (one := _lacking(text))]
    value = {"version": distribution.version, "lacking": lacking, "folder": str(root)}
    if lacking:
        told = f"{distribution.version}; lacks {', '.join(lacking)}"
        yield wrong(AREA, "dtlab", told, pip_install(*lacking), **value)
    else:
        yield ok(AREA, "dtlab", f"{distribution.version}, with all packages that it needs",
                 **value)  # fmt: skip


def _lacking(text: str) -> str | None:
    """A requirement that is not met here, as pip takes it; None for one that is, or is extra."""
    from packaging.requirements import Requirement

    asked = Requirement(text)
    if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
        return None
    try:
        there = metadata.version(asked.name)
    except metadata.PackageNotFoundError:
        there = None
    met = there is not None and asked.specifier.contains(there, prereleases=True)
    return None if met else f"{asked.name}{asked.specifier}"


def torch(visit: Visit) -> Iterator[Finding]:
    """Whether it can be imported, what it was built for, and which backends are in it."""
    seen = visit.torch
    if "trouble" in seen:
        told = f"cannot be imported: {seen['trouble']}"
        mend = pip_install("--force-reinstall", "torch>=2.13")
        yield wrong(AREA, "torch", told, mend, version=None)
        return
    build = f"CUDA {seen['cuda']}" if seen["cuda"] else "a CPU build"
    build = f"ROCm {seen['hip']}" if seen["hip"] else build
    value = {name: seen[name] for name in ("version", "cuda", "hip", "gloo", "nccl")}
    if not seen["gloo"]:
        lacks = "torch.distributed" if not seen["distributed"] else "the backend gloo"
        told = f"{seen['version']} was built without {lacks}: no rank can run"
        mend = pip_install("--force-reinstall", "torch>=2.13")
        yield wrong(AREA, "torch", told, mend, **value)
        return
    with_nccl = f", NCCL {seen['nccl']}" if seen["nccl"] else ""
    yield ok(AREA, "torch", f"{seen['version']}, {build}{with_nccl}", **value)


def matplotlib(visit: Visit) -> Iterator[Finding]:
    """What figures are drawn with."""
    yield _importable(visit, "matplotlib", "matplotlib", "matplotlib>=3.9")


def jupyterlab(visit: Visit) -> Iterator[Finding]:
    """JupyterLab, and its command beside this Python or on PATH."""
    seen = _importable(visit, "JupyterLab", "jupyterlab", "jupyterlab>=4.2")
    beside = str(Path(sys.executable).parent)
    if seen.status == "ok" and not (shutil.which("jupyter", path=beside) or
                                    shutil.which("jupyter")):  # fmt: skip
        told = f"{seen.message}, but its command 'jupyter' is not to be found"
        mend = pip_install("--force-reinstall", "jupyter_core")
        yield wrong(AREA, seen.name, told, mend, **seen.value)
    else:
        yield seen


def _importable(visit: Visit, name: str, module: str, requirement: str) -> Finding:
    seen = visit.probe(module)
    if "trouble" in seen:
        told = f"cannot be imported: {seen['trouble']}"
        mend = pip_install("--force-reinstall", requirement)
        return wrong(AREA, name, told, mend, version=None)
    return ok(AREA, name, seen["version"], version=seen["version"])
