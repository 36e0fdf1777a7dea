"""`launch` in a process that is already a rank, as under torchrun.

The function runs in this process, and the ranks gather their return values, so that the same
notebook or script gives the same `run.values` everywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtlab.errors import LaunchError
from dtlab.ranks import system
from dtlab.ranks.protocol import mixed_seed
from dtlab.trace import Trace

if TYPE_CHECKING:
    from dtlab.predict import Cluster

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment_is_set() -> bool:
    """Whether this process was started as a rank, by torchrun or a similar launcher."""
    return all(name in os.environ for name in NEEDED)


def run(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    world_size: int | None,
    backend: str | None,
    trace: bool,
    seed: int,
    begun: float,
    cluster: Cluster | None = None,
    seed_by_rank: bool = False,
) -> dict[str, Any]:
    """Run `fn(*args)` here and return the fields of `Run`.

    Raises RankError on all ranks if `fn` raises on one of them, and LaunchError if `world_size` or
    `cluster` does not fit these ranks.
    """
    import torch
    import torch.distributed as dist

    _check_world_size(world_size)
    if cluster is not None:
        raise LaunchError(
            "cluster= emulates links between ranks that launch starts itself, but this process is "
            f"one of {os.environ['WORLD_SIZE']} ranks that were started already (WORLD_SIZE is "
            "set). Leave cluster out: these ranks communicate over real links."
        )
    backend = _join(backend)
    torch.manual_seed(mixed_seed(seed, dist.get_rank()) if seed_by_rank else seed)
    recorder, traffic = _start_recording(trace)
    printed = _Tee(sys.stdout)
    value, failure = None, None
    with contextlib.redirect_stdout(printed):
        try:
            value = fn(*args)
        except BaseException as error:  # noqa: BLE001  sent to the other ranks before it is raised
            failure = error
    records = recorder.stop() if recorder else None
    wire = traffic.total([os.getpid()])[0] if traffic else None
    mine = (None if failure else value, printed.getvalue(), records, wire, _in_words(failure))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    columns = [list(column) for column in zip(*everyone, strict=True)]
    values, stdout, all_records, wires, failures = columns
    _raise_together(failures, failure, values, stdout)
    return {
        "values": values,
        "stdout": stdout,
        "trace": Trace.from_records(all_records, wires) if trace else None,
        "seconds": time.perf_counter() - begun,
        "backend": backend,
    }


def _check_world_size(world_size: int | None) -> None:
    actual = int(os.environ["WORLD_SIZE"])
    if world_size is not None and world_size != actual:
        raise LaunchError(
            f"launch got world_size={world_size}, but this process is one of {actual} ranks "
            "that were started already (WORLD_SIZE is set). Leave world_size out, or start "
            f"{world_size} processes."
        )


def _join(backend: str | None) -> str:
    """Initialise the process group, unless the learner has done so; return its backend."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        if backend is None:
            enough = system.has_nvidia_driver() and torch.cuda.device_count() >= local_size
            backend = system.WITH_GPUS if enough else "gloo"
        if "nccl" in backend:
            torch.cuda.set_device(local_rank)
        dist.init_process_group(backend)
        atexit.register(_leave)
    return str(dist.get_backend())


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _start_recording(trace: bool) -> tuple[Any, Any]:
    if not trace:
        return None, None
    import torch.distributed as dist

    from dtlab.ranks.record.counters import Traffic
    from dtlab.ranks.record.recorder import Recorder

    recorder, traffic = Recorder(dist.get_rank()), Traffic(int(os.environ["MASTER_PORT"]))
    traffic.start([os.getpid()])
    dist.barrier()
    recorder.start()
    return recorder, traffic


def _in_words(failure: BaseException | None) -> Any:
    if failure is None:
        return None
    from dtlab.ranks.launch.process import describe

    return describe(failure)


def _raise_together(
    failures: list[Any], error: BaseException | None, values: list[Any], stdout: list[str]
) -> None:
    from dtlab.ranks.watch import explain

    if any(failures):
        by_rank = {r: explain.of_exception(failed) for r, failed in enumerate(failures) if failed}
        raise explain.rank_error(by_rank, [], values, stdout) from error


class _Tee(io.StringIO):
    """Keeps the written text, and also writes it to `stream`."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._stream.flush()
