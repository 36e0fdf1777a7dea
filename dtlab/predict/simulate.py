"""The pipeline simulator: start and end of each action of a schedule, and the bubble.

    1F1B on 3 ranks, 4 microbatches; an action takes 1 s, a message 0 s; "." is 1 s of idle time

    rank 0    |F F F . . B F B . B . B|    total: the longest time of a rank, from its first
    rank 1    |. F F . B F B F B . B .|           start to its last end (12 s)
    rank 2    |. . F B F B F B F B . .|    ideal: the compute time of a rank, mean of all (8 s)

    bubble of="total"   (total - ideal) / total        idle share; Zero Bubble's rate
    bubble of="ideal"   (total - ideal) / ideal        Megatron-LM's (p - 1) / m

An action starts when its rank is free and the action that it needs has ended; if the needed action
runs on another rank, its message takes `communication` seconds more. A forward needs the forward
of the previous stage. A backward (B or I) needs the backward of the next stage, or on the last
stage the forward of the same microbatch. W needs I of the same microbatch and stage. Messages
occupy no rank and do not slow each other down (Qi et al. 2024, "Zero Bubble Pipeline Parallelism",
section 3).

`simulate` in `dtlab/simple.py` returns the start and end of each action. This one also validates
the schedule, takes costs for each stage, computes with NumPy arrays, and returns a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from dtlab.schedules import Action, as_schedule, validate
from dtlab.schedules.actions import KINDS, Row
from dtlab.trace import Trace
from dtlab.trace.columns import COMPUTE, NO_THREAD, RECV, SEND, Columns, Floats, Ints

__all__ = [
    "Actions", "Costs", "Times", "bubble", "peak_in_flight", "simulate", "tabulate",
]  # fmt: skip

PerStage = float | Sequence[float]
SPANS = ("forward", "backward", "backward_input", "backward_weight")  # F, B, I, W in a trace
_NAMES = [*SPANS, "send", "recv"]


@dataclass(frozen=True)
class Costs:
    """Seconds that one microbatch takes on a stage: one number, or a list with one per stage.

    `communication` is for a message that leaves the stage, forwards or backwards. A whole
    backward (B) costs `backward_input` plus `backward_weight`.
    """

    forward: PerStage
    backward_input: PerStage
    backward_weight: PerStage
    communication: PerStage = 0.0

    def of_stages(self, num_stages: int) -> Floats:
        """Return an array: rows F, B, I, W and communication, columns stages.

        Raises: ValueError for a list whose length is not `num_stages`, or seconds below 0.
        """
        rows = [self._row(name, num_stages) for name in vars(self)]
        forward, inputs, weights, communication = rows
        return np.stack((forward, inputs + weights, inputs, weights, communication))

    def _row(self, name: str, num_stages: int) -> Floats:
        given = np.asarray(getattr(self, name), dtype=np.float64)
        if given.ndim > 1 or (given.ndim == 1 and len(given) != num_stages):
            raise ValueError(
                f"Costs: {name} must be a number, or one for each of {num_stages} stages, not "
                f"{getattr(self, name)!r}."
            )
        if not (np.isfinite(given) & (given >= 0)).all():
            raise ValueError(f"Costs: {name} must be 0 or more, not {getattr(self, name)!r}.")
        return np.broadcast_to(given, (num_stages,))


def simulate(schedule: Iterable[Row], costs: Costs) -> Trace:
    """Return a schedule's trace: spans as `pipeline.run_schedule` records them, and messages.

    Messages that take time are events "send" and "recv", from the end of the sending action to the
    arrival. A rank is blocked in "recv" during those parts of the event in which it does not
    compute. Raises: ScheduleError, with every fault, for an invalid schedule; ValueError for costs
    that do not match the schedule.
    """
    rows = as_schedule(schedule)
    actions = tabulate(rows)
    times = None if actions is None else actions.run(costs.of_stages(actions.num_stages))
    if actions is None or times is None:
        validate(rows)
        raise AssertionError("a schedule that cannot be simulated passed as valid")
    return Trace.from_columns(_columns(actions, times), world_size=len(rows))


def _columns(actions: Actions, times: Times) -> Columns:
    """Return spans, then sends, then receives, sorted by their start."""
    delayed = np.flatnonzero(times.delay > 0)
    sources = actions.need[delayed]
    sent = times.end[sources]
    count, messages = len(actions.rank), len(delayed)
    start = np.concatenate((times.start, sent, sent))
    end = np.concatenate((times.end, *[sent + times.delay[delayed]] * 2))
    order = np.argsort(start, kind="stable")
    senders, receivers = actions.rank[sources], actions.rank[delayed]
    peers = np.concatenate((np.zeros(count, np.int64), 1 + receivers, 1 + senders))  # 0: no peer
    role = np.repeat([COMPUTE, SEND, RECV], [count, messages, messages])
    numbers = [_NAMES.index("send"), _NAMES.index("recv")]
    name = np.concatenate((actions.kind, np.repeat(numbers, messages)))
    zeros = np.zeros(len(start), np.int64)
    waits = np.flatnonzero(role[order] == RECV)
    subject = np.concatenate((np.arange(count), sources, sources))[order]
    return Columns(
        rank=np.concatenate((actions.rank, senders, receivers))[order],
        role=role[order],
        name=name[order],
        peers=peers[order],
        group=zeros,
        tag=zeros,
        bytes=zeros,
        thread=zeros,
        start=start[order],
        end=end[order],
        extras=_Extras(actions.stage[subject], actions.microbatch[subject], role[order]),
        blocked_row=waits,
        blocked_start=start[order][waits],
        blocked_end=end[order][waits],
        blocked_thread=np.full(len(waits), NO_THREAD),
        names=_NAMES,
        peer_sets=[(), *((rank,) for rank in range(int(actions.rank.max()) + 1))],
        groups=[("", ())],
    )


class _Extras(Sequence[Mapping[str, Any]]):
    """Stage and microbatch of each event, built when they are accessed."""

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
        # an empty list: no rank waits for its sends
        return about | ({"blocked": []} if self._role[index] == SEND else {})


def bubble(trace: Trace, of: Literal["total", "ideal"] = "total") -> float:
    """Return the idle share of a pipeline's time, relative to the total or to the ideal time.

    The trace may come from `simulate` or from `run_schedule`. The total is the longest time of a
    rank, from its first start to its last end. The ideal is a rank's compute time, averaged over
    all ranks. The bubble is (total - ideal) / total, or (total - ideal) / ideal.
    Raises: ValueError for a trace without spans of forward or backward, for spans that all take no
    time, or for an unknown `of`.
    """
    if of not in ("total", "ideal"):
        raise ValueError(f'bubble: of must be "total" or "ideal", not {of!r}.')
    columns = trace.columns
    numbers = [number for number, name in enumerate(columns.names) if name in SPANS]
    events = np.flatnonzero((columns.role == COMPUTE) & np.isin(columns.name, numbers))
    if not len(events):
        raise ValueError(f"This trace has no span named {', '.join(SPANS)}.")
    events = events[np.argsort(columns.rank[events], kind="stable")]
    _, firsts = np.unique(columns.rank[events], return_index=True)
    start, end = columns.start[events], columns.end[events]
    spans = np.maximum.reduceat(end, firsts) - np.minimum.reduceat(start, firsts)
    total, ideal = float(spans.max()), float((end - start).sum() / len(firsts))
    if ideal == 0:
        raise ValueError("All spans of this trace take 0 seconds, so its bubble is not defined.")
    return (total - ideal) / (total if of == "total" else ideal)


def peak_in_flight(schedule: Iterable[Row]) -> list[int]:
    """Return the largest number of microbatches that each rank holds at once, over its stages.

    Activations are held from F until B, or until W if backward is split.
    """
    return [_most_held(row) for row in as_schedule(schedule)]


def _most_held(row: Sequence[Action]) -> int:
    held = most = 0
    for action in row:
        held += {"F": 1, "I": 0}.get(action.kind, -1)
        most = max(most, held)
    return most


# A schedule as columns of numbers, and its times: in each round all ranks advance by one action --
#
# round   0   1   2   3 ...        in each round, every rank whose next action has its dependency
# rank 0  0F0 0F1 0F2 .            runs that action; the ranks are one NumPy vector
# rank 1  .   1F0 1F1 1B0

_F, _B, _I, _W = range(4)


class Times(NamedTuple):
    """Times of each action in seconds; `delay` is the time of the message that it needs."""

    start: Floats
    end: Floats
    delay: Floats


@dataclass(frozen=True)
class Actions:
    """One entry per action, rank by rank. `need` is the index of the dependency, or -1."""

    rank: Ints
    stage: Ints
    kind: Ints
    microbatch: Ints
    need: Ints
    lengths: Ints
    num_stages: int

    def run(self, costs: Floats) -> Times | None:
        """Return the times with these costs [F, B, I, W, communication] x stage; None if stuck."""
        # Padded arrays have one extra entry after each rank's last action: its need never ends.
        padded_index = np.arange(len(self.rank)) + self.rank
        length = len(self.rank) + len(self.lengths)
        never, nothing = length, length + 1
        end = np.full(length + 2, np.inf)
        end[nothing] = 0.0
        need = np.full(length, never)
        need[padded_index] = np.where(self.need < 0, nothing, self.need + self.rank[self.need])
        away = (self.need >= 0) & (self.rank[self.need] != self.rank)
        delay = np.where(away, costs[4, self.stage[self.need]], 0.0)
        padded_delay, seconds = np.zeros((2, length))
        padded_delay[padded_index], seconds[padded_index] = delay, costs[self.kind, self.stage]
        extra = np.cumsum(self.lengths + 1) - 1
        next_action, free = extra - self.lengths, np.zeros(len(extra))
        started = free == 0
        while started.any():
            ready = end[need[next_action]] + padded_delay[next_action]
            new_end = np.maximum(ready, free) + seconds[next_action]
            end[next_action] = new_end
            started = new_end < np.inf
            np.copyto(free, new_end, where=started)
            next_action += started
        if (next_action < extra).any():
            return None
        start = np.maximum(end[need[padded_index]] + delay, self._previous_end(end[padded_index]))
        return Times(start, end[padded_index], delay)

    def _previous_end(self, end: Floats) -> Floats:
        """Return the end of the previous action on the same rank; 0 for the first action."""
        previous = np.roll(end, 1)
        previous[(np.cumsum(self.lengths) - self.lengths)[self.lengths > 0]] = 0.0
        return previous


def tabulate(rows: Sequence[Sequence[Action]]) -> Actions | None:
    """Return the columns of a schedule, or None if an action is missing, doubled or unknown."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if not lengths.sum():
        return None
    stage, microbatch = (_column(rows, number) for number in (0, 2))
    letters = "".join(map(itemgetter(1), chain.from_iterable(rows)))
    if not set(letters) <= set(KINDS) or min(stage.min(), microbatch.min()) < 0:
        return None
    codes = np.frombuffer(letters.encode(), dtype=np.uint8)
    kind = np.array([KINDS.find(chr(code)) for code in range(128)])[codes]
    rank = np.repeat(np.arange(len(rows)), lengths)
    num_stages, num_microbatches = int(stage.max()) + 1, int(microbatch.max()) + 1
    cell = stage * num_microbatches + microbatch
    place = np.full((4, num_stages * num_microbatches), -1)
    place[kind, cell] = np.arange(len(cell))
    if not _complete(place, len(cell)) or not _one_rank(stage, rank, num_stages):
        return None
    gradient = np.where(place[_B] >= 0, place[_B], place[_I])
    need = np.where(kind == _W, place[_I][cell], -1)
    back = (kind == _B) | (kind == _I)
    next_gradient = gradient[(cell + num_microbatches) % place.shape[1]]
    need = np.where(back, np.where(stage == num_stages - 1, place[_F][cell], next_gradient), need)
    is_later_forward = (kind == _F) & (stage > 0)
    need = np.where(is_later_forward, place[_F][cell - num_microbatches], need)
    return Actions(rank, stage, kind, microbatch, need, lengths, num_stages)


def _column(rows: Sequence[Sequence[Action]], number: int) -> Ints:
    return np.fromiter(map(itemgetter(number), chain.from_iterable(rows)), np.int64)


def _complete(place: Ints, count: int) -> bool:
    """Return whether each stage has each microbatch once: F, and either B or both I and W."""
    exists = place >= 0
    halves = (exists[_I] == exists[_W]).all() and (exists[_B] != exists[_I]).all()
    return bool(exists[_F].all() and halves and exists.sum() == count)


def _one_rank(stage: Ints, rank: Ints, num_stages: int) -> bool:
    home = np.zeros(num_stages, dtype=np.int64)
    home[stage] = rank
    return bool((home[stage] == rank).all())
