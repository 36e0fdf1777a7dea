"""`dtlab.bench`: checks its arguments, launches the ranks, and returns their measurements."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtlab.bench import diary
from dtlab.bench.measure import Plan, measure
from dtlab.bench.names import COLLECTIVES
from dtlab.bench.results import Measurement, Results
from dtlab.bench.subjects import ELEMENT, OURS
from dtlab.errors import DtlabError
from dtlab.predict.units import is_number
from dtlab.ranks import protocol, system
from dtlab.ranks.launch import inplace
from dtlab.ranks.launch.arguments import DEFAULT_WORLD_SIZE, MOST_RANKS
from dtlab.ranks.launch.launcher import launch
from dtlab.show.words import BYTES, list_words, number_from_words

__all__ = ["bench", "leads"]

OPEN_END: Final = 2**30  # bytes; the largest size if `end` is not given
_UNITS: Final[Mapping[str, float]] = {**BYTES, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BACKENDS: Final = ("gloo", "nccl")


def bench(
    collectives: Sequence[str] | str = COLLECTIVES,
    *,
    ranks: int | None = None,
    begin: float | str = 8,
    end: float | str | None = None,
    factor: int = 8,
    backend: str | None = None,
    seconds: float = 2.0,
    check: bool = True,
    ours: Mapping[str, Callable[..., Any]] | None = None,
) -> Results:
    """Measure collectives at increasing sizes as nccl-tests does, torch.distributed's and ours.

    Tensors are float32, the reduction is a sum, the root is rank 0. After an interrupt (Ctrl-C, or
    the notebook's stop button), it returns the measurements so far. Under torchrun it measures the
    existing ranks on all nodes, and every rank returns the same results.

    Args:
        collectives: names among `COLLECTIVES`, or one string of names separated by commas.
        ranks: number of ranks to launch. None: one per GPU if there are several GPUs, else 2;
            under torchrun the existing ranks.
        begin: the smallest size in bytes, or as text: "64 kB", "1MiB". At least 4, one float32.
        end: the largest size. None: limited by `seconds` for a curve, by half of the free memory,
            and by 1 GiB.
        factor: ratio of each size to the previous one.
        backend: "gloo", or "nccl", which needs a GPU for each rank. None: NCCL if there is a GPU
            for each rank, else gloo.
        seconds: approximate time for one curve; with an `end` it may take longer.
        check: compare the result of each collective at each size with the expected one.
        ours: functions to measure beside the built-in ones, keyed by collective, with the
            signatures of `dtlab.collectives`. None: the ring, tree and pairwise functions there.

    Raises:
        DtlabError: an argument is not allowed; the message says what is.
        RankError: a rank failed, as in `launch`.
    """
    sizes = _sizes(begin, end, factor)
    functions = dict(OURS if ours is None else ours)
    names = _names(collectives)
    _check(names, functions, backend, seconds)
    world_size, ranks_per_node = _world(ranks, backend)
    plan = Plan(
        names, sizes, world_size, ranks_per_node, backend, float(seconds),
        end is None, check, functions,
    )  # fmt: skip
    return _carry_out(plan)


def _carry_out(plan: Plan) -> Results:
    curves = [(each.collective, each.implementation) for each in plan.subjects()]
    if not curves:
        raise DtlabError("send_recv needs two ranks, but there is only one.")
    with diary.temporary() as path, _unwatched():
        try:
            with diary.shown(path, curves, len(plan.sizes)):
                measurements = _on_ranks(plan, path)
        except KeyboardInterrupt:
            return Results(diary.read(path), plan.ranks_per_node, stopped=True)
    results = Results(measurements, plan.ranks_per_node)
    if not plan.open_end:
        largest = max((each.bytes for each in results.measurements), default=0)
        results.left_out = [size for size in plan.sizes if size > largest]
    return results


def _on_ranks(plan: Plan, path: Path) -> list[Measurement]:
    """Measure on launched ranks, or on the existing ranks if this process is one of them."""
    options: dict[str, Any] = {"backend": plan.backend, "timeout": None, "trace": False}
    if not inplace.environment_is_set():
        run = launch(measure, plan, path, world_size=plan.world_size, **options)
        return list(run.values[0])
    launch(int, **options)  # creates the process group
    return measure(plan, path)  # called directly: an interrupt must not wait for other ranks


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """Context manager: switch off the watcher, which would slow our collectives the most."""
    before = os.environ.get(protocol.UNWATCHED)
    os.environ[protocol.UNWATCHED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[protocol.UNWATCHED]
        else:
            os.environ[protocol.UNWATCHED] = before


def _bytes(name: str, value: float | str) -> float:
    """Convert a number or text to bytes. Raises a DtlabError that says what is allowed."""
    try:
        size = number_from_words(value, _UNITS) if isinstance(value, str) else value
    except ValueError as error:
        raise DtlabError(f"{name}: {error}") from None
    if not is_number(size) or size < ELEMENT or size == float("inf"):
        raise DtlabError(
            f"{name} must be a number of bytes, at least {ELEMENT} (one float32), or text such as "
            f"'64 kB' or '1 MiB'; not {value!r}."
        )
    return size


def _sizes(begin: float | str, end: float | str | None, factor: int) -> tuple[int, ...]:
    """Return multiples of four bytes, each `factor` times the previous one."""
    low = _bytes("begin", begin)
    high = max(float(OPEN_END), low) if end is None else _bytes("end", end)
    if not isinstance(factor, int) or isinstance(factor, bool) or factor < 2:
        raise DtlabError(f"factor must be a whole number of at least 2, not {factor!r}.")
    if high < low:
        raise DtlabError(f"end ({high:,.0f} bytes) is below begin ({low:,.0f} bytes).")
    size, sizes = int(low) // ELEMENT * ELEMENT, []
    while size <= high:
        sizes.append(size)
        size *= factor
    return tuple(sizes)


def _names(collectives: Sequence[str] | str) -> tuple[str, ...]:
    if isinstance(collectives, str):
        return tuple(name.strip() for name in collectives.split(","))
    return tuple(collectives)


def _check(
    names: Sequence[str], functions: Mapping[str, Any], backend: object, seconds: object
) -> None:
    unknown = [name for name in [*names, *functions] if name not in COLLECTIVES]
    if unknown or not names:
        problem = f"{unknown[0]!r} is not known" if unknown else "there is nothing to measure"
        raise DtlabError(f"{problem}. The collectives are {list_words(COLLECTIVES)}.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DtlabError(f"{twice[0]} is named twice. Name each collective once.")
    if "send_recv" in functions or not all(callable(each) for each in functions.values()):
        raise DtlabError("ours must map names of collectives other than send_recv to functions.")
    if backend is not None and backend not in _BACKENDS:
        raise DtlabError(f"backend must be 'gloo' or 'nccl', or left out; not {backend!r}.")
    if not is_number(seconds) or not 0 < float(seconds) < float("inf"):  # type: ignore[arg-type]
        raise DtlabError(f"seconds must be a number above 0, for one curve; not {seconds!r}.")


def _world(ranks: int | None, backend: str | None) -> tuple[int, int]:
    """Return the number of ranks, and the number of ranks per node."""
    if ranks is not None and (
        not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MOST_RANKS
    ):
        raise DtlabError(f"ranks must be a whole number from 1 to {MOST_RANKS}, not {ranks!r}.")
    if inplace.environment_is_set():
        existing = int(os.environ["WORLD_SIZE"])
        if ranks not in (None, existing):
            raise DtlabError(
                f"ranks={ranks} was given, but this process is one of {existing} ranks that were "
                "started already (WORLD_SIZE is set). Leave ranks out."
            )
        return existing, min(existing, int(os.environ.get("LOCAL_WORLD_SIZE", existing)))
    world_size = ranks or _default_ranks(backend)
    return world_size, world_size


def _default_ranks(backend: str | None) -> int:
    if backend == "gloo" or not system.has_nvidia_driver():
        return DEFAULT_WORLD_SIZE
    import torch

    return max(torch.cuda.device_count(), 1 if backend == "nccl" else DEFAULT_WORLD_SIZE)


def leads() -> bool:
    """Return whether this process prints and writes files: it is rank 0, or the only process."""
    return not inplace.environment_is_set() or os.environ["RANK"] == "0"
