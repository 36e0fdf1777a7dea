"""`dtlab.bench`: checks its arguments, launches the ranks, and returns what they measured."""

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

OPEN_END: Final = 2**30  # bytes; the largest size where none is asked for
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
    """Measure collectives at growing sizes, torch.distributed's beside ours, as nccl-tests does.

    Tensors are float32, the reduction is a sum, the root is rank 0. Interrupted (Ctrl-C, or the
    notebook's stop button), it returns what was measured so far. Under torchrun it measures the
    ranks that there are, on all nodes, and every rank returns the same.

    Args:
        collectives: names among `COLLECTIVES`, or one text with commas between them.
        ranks: how many to launch. None: as many as there are GPUs if there are several, else 2;
            under torchrun those that there are.
        begin: the smallest size in bytes, or in words: "64 kB", "1MiB". From 4 on, a float32.
        end: the largest one. None: as far as `seconds` for a curve and half of the free memory
            allow, and 1 GiB at most.
        factor: how many times as large the next size is.
        backend: "gloo", or "nccl", which needs a GPU for each rank; None is NCCL where there is
            one for each, else gloo.
        seconds: about how long one curve takes; with an `end` it may take longer.
        check: compare the result of each collective at each size with the expected one.
        ours: functions to measure beside the built-in ones, by the collective's name: called as
            those of `dtlab.collectives`, whose ring, tree and pairwise ones are measured if None.

    Raises:
        DtlabError: something is wished for that cannot be, and what is allowed.
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
    curves = [(one.collective, one.implementation) for one in plan.subjects()]
    if not curves:
        raise DtlabError("send_recv needs two ranks; here is one.")
    with diary.temporary() as path, _unwatched():
        try:
            with diary.shown(path, curves, len(plan.sizes)):
                found = _on_ranks(plan, path)
        except KeyboardInterrupt:
            return Results(diary.read(path), plan.ranks_per_node, stopped=True)
    results = Results(found, plan.ranks_per_node)
    if not plan.open_end:
        largest = max((one.bytes for one in results.measurements), default=0)
        results.left_out = [size for size in plan.sizes if size > largest]
    return results


def _on_ranks(plan: Plan, path: Path) -> list[Measurement]:
    """What all ranks have measured: launched ones, or those that there are, this process one."""
    options: dict[str, Any] = {"backend": plan.backend, "timeout": None, "trace": False}
    if not inplace.environment_is_set():
        run = launch(measure, plan, path, world_size=plan.world_size, **options)
        return list(run.values[0])
    launch(int, **options)  # makes the process group
    return measure(plan, path)  # not launched: an interrupt here must not wait for other ranks


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """Without the watcher, which costs our collectives more than the built-in ones."""
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
    """Bytes from a number or from words. Raises DtlabError that says what is allowed."""
    try:
        found = number_from_words(value, _UNITS) if isinstance(value, str) else value
    except ValueError as error:
        raise DtlabError(f"{name}: {error}") from None
    if not is_number(found) or found < ELEMENT or found == float("inf"):
        raise DtlabError(
            f"{name} is a number of bytes from {ELEMENT} on, which is one float32, or words as "
            f"'64 kB' or '1 MiB'; not {value!r}."
        )
    return found


def _sizes(begin: float | str, end: float | str | None, factor: int) -> tuple[int, ...]:
    """Multiples of four bytes, each `factor` times the one before."""
    low = _bytes("begin", begin)
    high = max(float(OPEN_END), low) if end is None else _bytes("end", end)
    if not isinstance(factor, int) or isinstance(factor, bool) or factor < 2:
        raise DtlabError(f"factor is a whole number from 2 on, not {factor!r}.")
    if high < low:
        raise DtlabError(f"end ({high:,.0f} bytes) is below begin ({low:,.0f} bytes).")
    size, found = int(low) // ELEMENT * ELEMENT, []
    while size <= high:
        found.append(size)
        size *= factor
    return tuple(found)


def _names(collectives: Sequence[str] | str) -> tuple[str, ...]:
    if isinstance(collectives, str):
        return tuple(name.strip() for name in collectives.split(","))
    return tuple(collectives)


def _check(
    names: Sequence[str], functions: Mapping[str, Any], backend: object, seconds: object
) -> None:
    unknown = [name for name in [*names, *functions] if name not in COLLECTIVES]
    if unknown or not names:
        what = f"{unknown[0]!r} is not known" if unknown else "nothing is to be measured"
        raise DtlabError(f"{what}. The collectives are {list_words(COLLECTIVES)}.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DtlabError(f"{twice[0]} is named twice. Name each collective once.")
    if "send_recv" in functions or not all(callable(one) for one in functions.values()):
        raise DtlabError("ours has functions, by the names of collectives other than send_recv.")
    if backend is not None and backend not in _BACKENDS:
        raise DtlabError(f"backend is 'gloo' or 'nccl', or left out; not {backend!r}.")
    if not is_number(seconds) or not 0 < float(seconds) < float("inf"):  # type: ignore[arg-type]
        raise DtlabError(f"seconds is a number above 0, for one curve; not {seconds!r}.")


def _world(ranks: int | None, backend: str | None) -> tuple[int, int]:
    """How many ranks there will be, and how many on a node."""
    if ranks is not None and (
        not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MOST_RANKS
    ):
        raise DtlabError(f"ranks is a whole number from 1 to {MOST_RANKS}, not {ranks!r}.")
    if inplace.environment_is_set():
        there = int(os.environ["WORLD_SIZE"])
        if ranks not in (None, there):
            raise DtlabError(
                f"ranks={ranks} was asked for, but this process is one of {there} ranks that were "
                "started already (WORLD_SIZE is set). Leave ranks out."
            )
        return there, min(there, int(os.environ.get("LOCAL_WORLD_SIZE", there)))
    world_size = ranks or _default_ranks(backend)
    return world_size, world_size


def _default_ranks(backend: str | None) -> int:
    if backend == "gloo" or not system.has_nvidia_driver():
        return DEFAULT_WORLD_SIZE
    import torch

    return max(torch.cuda.device_count(), 1 if backend == "nccl" else DEFAULT_WORLD_SIZE)


def leads() -> bool:
    """Whether this process is the one that prints and writes: rank 0, or the only one."""
    return not inplace.environment_is_set() or os.environ["RANK"] == "0"
