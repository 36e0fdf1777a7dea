"""Check of the backends: launches ranks and verifies the result of an all-reduce."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from dtlab.doctor import trial
from dtlab.doctor.finding import Finding, note, ok, wrong
from dtlab.doctor.visit import Visit
from dtlab.errors import DtlabError
from dtlab.ranks import system

if TYPE_CHECKING:
    from dtlab.ranks.launch.launcher import Run

__all__ = ["gloo", "nccl"]

AREA = "ranks"
ELEMENTS = 1_000_000  # of 4 bytes
MOST_GPUS = 8  # ranks that are tried on NCCL: sums of more are not exact, see trial.py
_LIMIT = 60.0  # seconds for the function on the ranks
_SEE = f'{shlex.quote(sys.executable)} -c "import dtlab; print(dtlab.launch(int))"'


def gloo(visit: Visit) -> Iterator[Finding]:
    """Two ranks on gloo; and whether the kernel counts the bytes that they send."""
    if not visit.torch.get("gloo"):
        return  # torch's own finding says why
    run = yield from _tried("gloo", ranks=2)
    if run is not None:
        yield _counted(run)


def nccl(visit: Visit) -> Iterator[Finding]:
    """A rank on each GPU that torch sees, one at least."""
    gpus = len(visit.torch.get("devices", ()))
    if not gpus or visit.torch["hip"]:
        return
    if not visit.torch["nccl"]:
        told = f"torch {visit.torch['version']} was built without it: ranks run on the CPU"
        yield note(AREA, "nccl", told, ranks=0)
        return
    yield from _tried("nccl", ranks=min(gpus, MOST_GPUS))


def _tried(backend: str, ranks: int) -> Generator[Finding, None, Run | None]:
    """One finding; returns the Run, or None."""
    from dtlab.ranks.launch import inplace
    from dtlab.ranks.launch.launcher import launch

    if inplace.environment_is_set():
        told = f"not tried: {', '.join(inplace.NEEDED)} are set, so this is taken for a rank of a "
        told += "group that is there already. If it is none:"
        yield note(AREA, backend, told, f"unset {' '.join(inplace.NEEDED)}", ranks=0)
        return None
    try:
        run = launch(trial.all_reduce, ELEMENTS, backend == "nccl", world_size=ranks,
                     backend=backend, timeout=_LIMIT)  # fmt: skip
    except DtlabError as error:
        told = f"{_so_many(ranks)} failed: {_short(error)}. To see all of it:"
        mend = _SEE if backend == "gloo" else f"NCCL_DEBUG=INFO {_SEE}"
        yield wrong(AREA, backend, told, mend, ranks=ranks, error=str(error))
        return None
    yield _judged(backend, run)
    return run


def _judged(backend: str, run: Run) -> Finding:
    errors = sum(count for count, _ in run.values)
    value = {
        "ranks": run.world_size,
        "all_reduce_bytes": 4 * ELEMENTS,
        "all_reduce_seconds": max(seconds for _, seconds in run.values),
        "launch_seconds": run.seconds,
        "wrong_elements": errors,
    }
    if errors:
        told = f"{_so_many(run.world_size)}: {errors} elements of the sums are wrong"
        mend = "NCCL_P2P_DISABLE=1 dtlab doctor" if backend == "nccl" else _SEE
        return wrong(AREA, backend, told, mend, **value)
    told = f"{_so_many(run.world_size)}, sums are right; {4 * ELEMENTS / 1e6:g} MB all-reduced in "
    told += f"{value['all_reduce_seconds'] * 1e3:.3g} ms"
    return ok(AREA, backend, told, **value)


def _counted(run: Run) -> Finding:
    counts = run.trace.bytes_wire() if run.trace is not None else [None]
    sent = [count for count in counts if count is not None]
    if len(sent) == len(counts) and all(sent):
        told = f"the kernel counts them: {sent[0] / 1e6:.3g} MB left rank 0"
        return ok(AREA, "bytes sent", told, counted=True, rank_0_bytes=sent[0])
    told = "the kernel does not count them (netlink sock_diag): criteria about traffic fall back "
    told += "on what the recorder saw"
    mend = "sudo modprobe -a inet_diag tcp_diag" if system.LINUX else ""
    return note(AREA, "bytes sent", told, mend, counted=False, rank_0_bytes=None)


def _so_many(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def _short(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")[:300]
