"""Checks of the backends: launch ranks and verify the result of an all-reduce."""

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
MOST_GPUS = 8  # most ranks in the check of NCCL: sums over more are not exact, see trial.py
_LIMIT = 60.0  # seconds for the function on the ranks
_SEE = f'{shlex.quote(sys.executable)} -c "import dtlab; print(dtlab.launch(int))"'


def gloo(visit: Visit) -> Iterator[Finding]:
    """Check two ranks on gloo, and whether the kernel counts the bytes that they send."""
    if not visit.torch.get("gloo"):
        return  # the check of torch reports this
    run = yield from _tried("gloo", ranks=2)
    if run is not None:
        yield _counted(run)


def nccl(visit: Visit) -> Iterator[Finding]:
    """Check NCCL with a rank on each GPU that torch sees, if there is a GPU."""
    gpus = len(visit.torch.get("devices", ()))
    if not gpus or visit.torch["hip"]:
        return
    if not visit.torch["nccl"]:
        message = f"torch {visit.torch['version']} was built without NCCL: ranks run on the CPU"
        yield note(AREA, "nccl", message, ranks=0)
        return
    yield from _tried("nccl", ranks=min(gpus, MOST_GPUS))


def _tried(backend: str, ranks: int) -> Generator[Finding, None, Run | None]:
    """Launch ranks on a backend and yield one finding; return the Run, or None if it failed."""
    from dtlab.ranks.launch import inplace
    from dtlab.ranks.launch.launcher import launch

    if inplace.environment_is_set():
        message = f"not tried: {', '.join(inplace.NEEDED)} are set, as in a rank of an existing "
        message += "process group. If this process is not such a rank:"
        yield note(AREA, backend, message, f"unset {' '.join(inplace.NEEDED)}", ranks=0)
        return None
    try:
        run = launch(trial.all_reduce, ELEMENTS, backend == "nccl", world_size=ranks,
                     backend=backend, timeout=_LIMIT)  # fmt: skip
    except DtlabError as error:
        message = f"{_so_many(ranks)} failed: {_short(error)}. To see the full error:"
        repair = _SEE if backend == "gloo" else f"NCCL_DEBUG=INFO {_SEE}"
        yield wrong(AREA, backend, message, repair, ranks=ranks, error=str(error))
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
        message = f"{_so_many(run.world_size)}: {errors} elements of the sum are wrong"
        repair = "NCCL_P2P_DISABLE=1 dtlab doctor" if backend == "nccl" else _SEE
        return wrong(AREA, backend, message, repair, **value)
    message = f"{_so_many(run.world_size)}, the sum is correct; an all-reduce of "
    message += f"{4 * ELEMENTS / 1e6:g} MB takes {value['all_reduce_seconds'] * 1e3:.3g} ms"
    return ok(AREA, backend, message, **value)


def _counted(run: Run) -> Finding:
    counts = run.trace.bytes_wire() if run.trace is not None else [None]
    sent = [count for count in counts if count is not None]
    if len(sent) == len(counts) and all(sent):
        message = f"the kernel counts them: rank 0 sent {sent[0] / 1e6:.3g} MB"
        return ok(AREA, "bytes sent", message, counted=True, rank_0_bytes=sent[0])
    message = "the kernel does not count them (netlink sock_diag): criteria about traffic use the "
    message += "recorded calls instead"
    repair = "sudo modprobe -a inet_diag tcp_diag" if system.LINUX else ""
    return note(AREA, "bytes sent", message, repair, counted=False, rank_0_bytes=None)


def _so_many(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def _short(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")[:300]
