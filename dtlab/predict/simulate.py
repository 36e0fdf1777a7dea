"""Runs a pipeline schedule on paper: when each action starts and ends, and what of it is a bubble.

              total = the longest rank, from its first start to its last end
    rank 0    |F F F . . . B F B . B . B|        busy: F, B, I and W; . idle
    rank 1      |F F . B F B F B . B|            ideal = busy, the mean of all ranks

    bubble of="total"   (total - ideal) / total        idle share; Zero Bubble's rate
    bubble of="ideal"   (total - ideal) / ideal        Megatron-LM's (p - 1) / m

An action starts when its rank is free and what it needs is there: at once on the same rank, after
`communication` seconds from another one. A message takes nobody's time, and they all travel at
once (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from dtlab.predict.simulated import Actions, Times, tabulate
from dtlab.schedules import Action, as_schedule, validate
from dtlab.schedules.actions import Row
from dtlab.trace import Trace
from dtlab.trace.columns import COMPUTE, NO_THREAD, RECV, SEND, Columns, Floats, Ints

__all__ = ["Costs", "bubble", "peak_in_flight", "simulate"]

PerStage = float | Sequence[float]
SPANS = ("forward", "backward", "backward_input", "backward_weight")  # F, B, I, W in a trace
_NAMES = [*SPANS, "send", "recv"]


@dataclass(frozen=True)
class Costs:
    """Seconds of a microbatch on a stage, each a number, or one for each stage.

    `communication` is for a message that leaves the stage, forwards or backwards. A backward in
    one piece, B, takes `backward_input` and `backward_weight`.
    """

    forward: PerStage
    backward_input: PerStage
    backward_weight: PerStage
    communication: PerStage = 0.0

    def of_stages(self, num_stages: int) -> Floats:
        """A row for each of F, B, I, W and communication, a column for each stage.

        Raises: ValueError for another number of stages, and for seconds below 0.
        """
        rows = [self._row(name, num_stages) for name in vars(self)]
        forward, first, second, communication = rows
        return np.stack((forward, first + second, first, second, communication))

    def _row(self, name: str, num_stages: int) -> Floats:
        given = np.asarray(getattr(self, name), dtype=np.float64)
        if given.ndim > 1 or (given.ndim == 1 and len(given) != num_stages):
            raise ValueError(
                f"Costs: {name} is a number, or one for each of {num_stages} stages, not "
                f"{getattr(self, name)!r}."
            )
        if not (np.isfinite(given) & (given >= 0)).all():
            raise ValueError(f"Costs: {name} is seconds from 0 on, not {getattr(self, name)!r}.")
        return np.broadcast_to(given, (num_stages,))


def simulate(schedule: Iterable[Row], costs: Costs) -> Trace:
    """The trace that a schedule would leave: spans as `run_schedule` records them, and messages.

    Messages are in it where they take time: a rank waits in "recv" from the moment its message is
    sent, wherever it does not compute.
    Raises: ScheduleError, with every fault, for a schedule that cannot run; ValueError for costs
    that do not fit it.
    """
    rows = as_schedule(schedule)
    actions = tabulate(rows)
    times = None if actions is None else actions.run(costs.of_stages(actions.num_stages))
    if actions is None or times is None:
        validate(rows)
        raise AssertionError("a schedule that cannot be simulated passed as valid")
    return Trace.from_columns(_columns(actions, times), world_size=len(rows))


def _columns(actions: Actions, times: Times) -> Columns:
    """Spans, then sends, then receives; sorted by their start."""
    travels = np.flatnonzero(times.delay > 0)
    sources = actions.need[travels]
    sent = times.end[sources]
    count, messages = len(actions.rank), len(travels)
    start = np.concatenate((times.start, sent, sent))
    end = np.concatenate((times.end, *[sent + times.delay[travels]] * 2))
    order = np.argsort(start, kind="stable")
    here, there = actions.rank[sources], actions.rank[travels]
    peers = np.concatenate((np.zeros(count, np.int64), 1 + there, 1 + here))
    role = np.repeat([COMPUTE, SEND, RECV], [count, messages, messages])
    name = np.concatenate((actions.kind, *(np.full(messages, number) for number in (4, 5))))
    none = np.zeros(len(start), np.int64)
    waits = np.flatnonzero(role[order] == RECV)
    about = np.concatenate((np.arange(count), sources, sources))[order]
    return Columns(
        np.concatenate((actions.rank, here, there))[order], role[order], name[order],
        peers[order], none, none, none, none, start[order], end[order],
        _Extras(actions.stage[about], actions.microbatch[about], role[order]),
        waits, start[order][waits], end[order][waits], np.full(len(waits), NO_THREAD),
        _NAMES, [(), *((rank,) for rank in range(int(actions.rank.max()) + 1))], [("", ())],
    )  # fmt: skip


class _Extras(Sequence[Mapping[str, Any]]):
    """What each event is about, made when somebody looks at it."""

    def __init__(self, stage: Ints, microbatch: Ints, role: Ints) -> None:
        self._stage, self._microbatch, self._role = stage, microbatch, role

    def __len__(self) -> int:
        return len(self._stage)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Extras(self._stage[index], self._microbatch[index], self._role[index])
        about = {"stage": int(self._stage[index]), "microbatch": int(self._microbatch[index])}
        return about | ({"blocked": []} if self._role[index] == SEND else {})


def bubble(trace: Trace, of: Literal["total", "ideal"] = "total") -> float:
    """The share of a pipeline's time that is no work: of the total, or of the ideal time.

    Taken from what `simulate` predicts or `run_schedule` records. The total is the time of the
    longest rank, from its first start to its last end, and the ideal what a rank computes, as the
    mean of all ranks: (total - ideal) / total, or (total - ideal) / ideal.
    Raises: ValueError for a trace without forward and backward, or another denominator.
    """
    if of not in ("total", "ideal"):
        raise ValueError(f'bubble: of is "total" or "ideal", not {of!r}.')
    columns = trace.columns
    numbers = [number for number, name in enumerate(columns.names) if name in SPANS]
    rows = np.flatnonzero((columns.role == COMPUTE) & np.isin(columns.name, numbers))
    if not len(rows):
        raise ValueError(f"This trace has no span named {', '.join(SPANS)}.")
    rows = rows[np.argsort(columns.rank[rows], kind="stable")]
    _, firsts = np.unique(columns.rank[rows], return_index=True)
    start, end = columns.start[rows], columns.end[rows]
    spans = np.maximum.reduceat(end, firsts) - np.minimum.reduceat(start, firsts)
    total, ideal = float(spans.max()), float((end - start).sum() / len(firsts))
    return (total - ideal) / (total if of == "total" else ideal)


def peak_in_flight(schedule: Iterable[Row]) -> list[int]:
    """For each rank the most microbatches that it holds at once, over all its stages.

    Their activations are held from F until B, or until W where the two halves are apart.
    """
    return [_most_held(row) for row in as_schedule(schedule)]


def _most_held(row: Sequence[Action]) -> int:
    held = most = 0
    for action in row:
        held += {"F": 1, "I": 0}.get(action.kind, -1)
        most = max(most, held)
    return most
