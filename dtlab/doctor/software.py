"""Checks of the software: Python, dtlab and its dependencies, torch, matplotlib, JupyterLab."""

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
    """Check the version of Python, and report its path."""
    value = {"version": platform.python_version(), "executable": sys.executable}
    message = f"{value['version']}, {sys.executable}"
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        yield ok(AREA, "Python", message, **value)
    else:
        message += ": dtlab needs 3.11 to 3.13. Recreate the environment with one of them"
        yield wrong(AREA, "Python", message, "make clean && make lab PYTHON=python3.12", **value)


def packages(_: Visit) -> Iterator[Finding]:
    """Check that the packages that dtlab requires are installed in the required versions."""
    root = Path(__file__).resolve().parents[2]
    try:
        distribution = metadata.distribution("dtlab")
    except metadata.PackageNotFoundError:
        message = "is not installed, only its source is on sys.path: there is no command 'dtlab'"
        yield note(AREA, "dtlab", message, pip_install("-e", str(root)), version=None, lacking=[],
                   folder=str(root))  # fmt: skip
        return
    lacking = [missing for text in distribution.requires or [] if (missing := _lacking(text))]
    value = {"version": distribution.version, "lacking": lacking, "folder": str(root)}
    if lacking:
        message = f"{distribution.version}; these packages are missing: {', '.join(lacking)}"
        yield wrong(AREA, "dtlab", message, pip_install(*lacking), **value)
    else:
        yield ok(AREA, "dtlab", f"{distribution.version}, with all required packages", **value)


def _lacking(text: str) -> str | None:
    """Return an unmet requirement in pip's syntax; None if it is met, or belongs to an extra."""
    from packaging.requirements import Requirement

    required = Requirement(text)
    if required.marker is not None and not required.marker.evaluate({"extra": ""}):
        return None
    try:
        version = metadata.version(required.name)
    except metadata.PackageNotFoundError:
        version = None
    met = version is not None and required.specifier.contains(version, prereleases=True)
    return None if met else f"{required.name}{required.specifier}"


def torch(visit: Visit) -> Iterator[Finding]:
    """Check that torch can be imported, and report its build and its backends."""
    info = visit.torch
    if "trouble" in info:
        message = f"cannot be imported: {info['trouble']}"
        repair = pip_install("--force-reinstall", "torch>=2.13,<2.14")
        yield wrong(AREA, "torch", message, repair, version=None)
        return
    build = f"CUDA {info['cuda']}" if info["cuda"] else "a CPU build"
    build = f"ROCm {info['hip']}" if info["hip"] else build
    value = {name: info[name] for name in ("version", "cuda", "hip", "gloo", "nccl")}
    if not info["gloo"]:
        lacks = "torch.distributed" if not info["distributed"] else "the backend gloo"
        message = f"{info['version']} was built without {lacks}: no rank can run"
        repair = pip_install("--force-reinstall", "torch>=2.13,<2.14")
        yield wrong(AREA, "torch", message, repair, **value)
        return
    with_nccl = f", NCCL {info['nccl']}" if info["nccl"] else ""
    yield ok(AREA, "torch", f"{info['version']}, {build}{with_nccl}", **value)


def matplotlib(visit: Visit) -> Iterator[Finding]:
    """Check that matplotlib, which draws the figures, can be imported."""
    yield _importable(visit, "matplotlib", "matplotlib", "matplotlib>=3.9")


def jupyterlab(visit: Visit) -> Iterator[Finding]:
    """Check that JupyterLab can be imported, and that the command 'jupyter' exists."""
    finding = _importable(visit, "JupyterLab", "jupyterlab", "jupyterlab>=4.2")
    beside = str(Path(sys.executable).parent)
    if finding.status == "ok" and not (shutil.which("jupyter", path=beside) or
                                       shutil.which("jupyter")):  # fmt: skip
        message = f"{finding.message}, but the command 'jupyter' was not found"
        repair = pip_install("--force-reinstall", "jupyter_core")
        yield wrong(AREA, finding.name, message, repair, **finding.value)
    else:
        yield finding


def _importable(visit: Visit, name: str, module: str, requirement: str) -> Finding:
    info = visit.probe(module)
    if "trouble" in info:
        message = f"cannot be imported: {info['trouble']}"
        repair = pip_install("--force-reinstall", requirement)
        return wrong(AREA, name, message, repair, version=None)
    return ok(AREA, name, info["version"], version=info["version"])
