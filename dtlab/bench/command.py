"""`dtlab.bench.bench` and the command `dtlab bench`: check the arguments, launch, and report.

Rank 0 appends each measurement to a temporary file at once. The progress bar follows this file,
and after an interrupt it holds the measurements so far.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from dtlab.bench.measure import ELEMENT, OURS, Plan, measure
from dtlab.bench.results import COLLECTIVES, Measurement, Results
from dtlab.errors import DtlabError
from dtlab.predict.units import is_number
from dtlab.ranks import protocol, system
from dtlab.ranks.launch import inplace
from dtlab.ranks.launch.arguments import DEFAULT_WORLD_SIZE, MOST_RANKS
from dtlab.ranks.launch.launcher import launch
from dtlab.show.words import BYTES, list_words, number_from_words

__all__ = ["bench", "bench_and_tell"]

_OPEN_END: Final = 2**30  # bytes; the largest size if `end` is not given
_UNITS: Final[Mapping[str, float]] = {**BYTES, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_PICTURES: Final = (".png", ".svg")
_EVERY: Final = 0.2  # seconds between two reads of the file of measurements
_DELAY: Final = 2.0  # seconds before the progress bar appears


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
    named = collectives.split(",") if isinstance(collectives, str) else collectives
    names, functions = tuple(name.strip() for name in named), dict(OURS if ours is None else ours)
    sizes = _sizes(begin, end, factor)
    _check(names, functions, backend, seconds)
    world_size, ranks_per_node = _world(ranks, backend)
    plan = Plan(
        names, sizes, world_size, ranks_per_node, backend, float(seconds),
        end is None, check, functions,
    )  # fmt: skip
    if not plan.subjects():
        raise DtlabError("send_recv needs two ranks, but there is only one.")
    with tempfile.TemporaryDirectory(prefix="dtlab-bench-") as folder, _unwatched():
        log = Path(folder, "measurements")
        try:
            with _progress_bar(log, plan):
                results = Results(_on_ranks(plan, log), ranks_per_node)
        except KeyboardInterrupt:
            return Results(_read(log), ranks_per_node, stopped=True)
    if not plan.open_end:
        largest = max((each.bytes for each in results.measurements), default=0)
        results.left_out = [size for size in sizes if size > largest]
    return results


def bench_and_tell(*, json: Path | None, figure: Path | None, **wishes: Any) -> bool:
    """Run `bench(**wishes)`; rank 0 prints the results and writes the files.

    Returns False if the benchmark was stopped or a result was wrong.
    Raises: DtlabError as `bench` does, and, before it starts, for files that cannot be written.
    """
    leads = not inplace.environment_is_set() or os.environ["RANK"] == "0"
    if leads:
        _check_files(json, figure)
    results = bench(**wishes)
    if leads:
        print(results.table())
        if results.links():
            print(f"\nThe links that fit these times, to paste into a cell:\n\n{results.paste()}")
        if json is not None:
            json.write_text(results.to_json() + "\n")
        if figure is not None:
            results.save_figure(figure)
    return not (results.stopped or results.wrong)


# Arguments ---------------------------------------------------------------------------------------


def _check_files(json: Path | None, figure: Path | None) -> None:
    for path in (json, figure):
        if path is not None and not path.absolute().parent.is_dir():
            raise DtlabError(f"{path.name} cannot be written: there is no folder {path.parent}.")
        if path is not None and path.is_dir():
            raise DtlabError(f"{path} is a folder. Give the name of a file.")
    if figure is not None and figure.suffix.lower() not in _PICTURES:
        allowed = " or ".join(_PICTURES)
        raise DtlabError(f"the figure's name must end in {allowed}; {figure.name} does not.")


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
    if backend not in (None, "gloo", "nccl"):
        raise DtlabError(f"backend must be 'gloo' or 'nccl', or left out; not {backend!r}.")
    if not is_number(seconds) or not 0 < float(seconds) < float("inf"):  # type: ignore[arg-type]
        raise DtlabError(f"seconds must be a number above 0, for one curve; not {seconds!r}.")


def _sizes(begin: float | str, end: float | str | None, factor: int) -> tuple[int, ...]:
    """Return multiples of four bytes, each `factor` times the previous one."""
    low = _bytes("begin", begin)
    high = max(float(_OPEN_END), low) if end is None else _bytes("end", end)
    if not isinstance(factor, int) or isinstance(factor, bool) or factor < 2:
        raise DtlabError(f"factor must be a whole number of at least 2, not {factor!r}.")
    if high < low:
        raise DtlabError(f"end ({high:,.0f} bytes) is below begin ({low:,.0f} bytes).")
    size, sizes = int(low) // ELEMENT * ELEMENT, []
    while size <= high:
        sizes.append(size)
        size *= factor
    return tuple(sizes)


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
    if ranks is None:
        ranks = DEFAULT_WORLD_SIZE
        if backend != "gloo" and system.has_nvidia_driver():
            import torch

            ranks = max(torch.cuda.device_count(), 1 if backend == "nccl" else ranks)
    return ranks, ranks


# Ranks and their measurements so far -------------------------------------------------------------


def _on_ranks(plan: Plan, log: Path) -> list[Measurement]:
    """Measure on launched ranks, or on the existing ranks if this process is one of them."""
    options: dict[str, Any] = {"backend": plan.backend, "timeout": None, "trace": False}
    if not inplace.environment_is_set():
        run = launch(measure, plan, log, world_size=plan.world_size, **options)
        return list(run.values[0])
    launch(int, **options)  # creates the process group
    return measure(plan, log)  # called directly: an interrupt must not wait for other ranks


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """Context manager: switch off the watcher, which would slow our collectives the most."""
    already = protocol.UNWATCHED in os.environ
    os.environ.setdefault(protocol.UNWATCHED, "1")
    try:
        yield
    finally:
        if not already:
            del os.environ[protocol.UNWATCHED]


def _read(log: Path) -> list[Measurement]:
    """Return the measurements of all complete lines, in the order in which they were written."""
    if not log.exists():
        return []
    *lines, _ = log.read_text().split("\n")
    return [Measurement(**json.loads(line)) for line in lines]


@contextlib.contextmanager
def _progress_bar(log: Path, plan: Plan) -> Iterator[None]:
    """Context manager: show a bar in a terminal or notebook if the block takes over `_DELAY`."""
    if not (sys.stderr.isatty() or system.in_a_kernel()):
        yield
        return
    curves = [(each.collective, each.implementation) for each in plan.subjects()]
    total, over = len(curves) * len(plan.sizes), threading.Event()
    with tqdm(total=total, unit="size", leave=False, delay=_DELAY, miniters=0) as bar:

        def follow() -> None:
            while not over.wait(_EVERY):
                done = [(each.collective, each.implementation) for each in _read(log)]
                if done:
                    bar.set_description_str(", ".join(done[-1]), refresh=False)
                    before = curves.index(done[-1]) * len(plan.sizes)
                    bar.update(before + done.count(done[-1]) - bar.n)  # shown after the delay

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            over.set()
            follower.join()
