"""Compares recorded communication with the bytes that the operating system counted.

A rank's records are made in its own process, beside the code that is judged. What left its sockets
is counted from outside. Each function says what does not fit, and is empty where all does, or
where nothing was counted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checking.criteria import Fault, Faulty, fault, finished_code
from dtlab.grading.checking.groups import Groups
from dtlab.grading.checking.trials import Observation
from dtlab.grading.words import amount

if TYPE_CHECKING:
    from dtlab.trace import Event, Trace

__all__ = ["FOREIGN", "Reducing", "inside_marks", "unseen_collectives", "unseen_messages",
           "unseen_source"]  # fmt: skip

_ALL_REDUCED = 0.95  # of the bytes that ranks send each other at least for all of them to have all
_DISAGREEMENT = 0.02  # of the operating system's count
_SEND, _RECEIVE = 96, 48  # bytes of gloo's own, as measured; a greeting of a new group has 8
_PER_OPERATION = 128  # bytes at most
_PER_PEER = 640  # bytes of a collective's own for each other rank at most: 576 measured
_CONNECTIONS = 4096  # bytes that greetings of new groups may take
_GREETINGS, _FORGED = 16, 0.25  # bytes for each peer; the share of headers that may be odd


def unseen_messages(one: Observation) -> str:
    """For ranks that are to send with dist.send and dist.isend alone."""
    trace = one.trace
    if trace is None:
        return ""
    for rank in range(one.trial.world_size):
        sent, wire = trace.bytes_sent(rank), trace.bytes_wire(rank)
        own = _CONNECTIONS + _PER_OPERATION * sum(trace.ops(rank).values())
        if wire is not None and abs(wire - sent) > own + _DISAGREEMENT * wire:
            return (
                f"{one.trial.words()}: rank {rank} handed {amount(sent)} to dist.send or "
                f"dist.isend, but {amount(wire)} left it as the operating system counts. Send "
                "everything with these two, where the check can see it."
            )
    if _has_forged_records(trace):
        return (
            f"{one.trial.words()}: the bytes that the operating system counted between the ranks "
            "are not those of the messages that they recorded. Leave the records alone, and send "
            "with dist.send or dist.isend."
        )
    return _hidden(one, trace, "dist.send and dist.isend", "Send everything with these two")


def unseen_collectives(one: Observation) -> str:
    """For ranks that may use all of torch.distributed, with gloo."""
    trace = one.trace
    if trace is None:
        return ""
    least, most = ([0.0] * trace.world_size for _ in range(2))
    for event in trace.events:
        if event.kind == "comm":
            fewest, all_that_makes_sense = _taken(event)
            least[event.rank] += fewest
            most[event.rank] += all_that_makes_sense
    for rank in range(one.trial.world_size):
        wire = trace.bytes_wire(rank)
        slack = _CONNECTIONS + _DISAGREEMENT * (wire or 0)
        if wire is not None and least[rank] > wire + slack:
            return _other_bytes(one, rank, least[rank], wire)
        if wire is not None and wire > most[rank] + slack:
            return _other_bytes(one, rank, most[rank], wire)
    return _hidden(one, trace, "the calls of torch.distributed", "Use these alone")


def unseen_source(one: Observation, what: str, size: float, groups: Groups = ()) -> str:
    """For ranks that have the sum of `size` bytes over all ranks, or over those of each group.

    Says that too little travelled for that. `what` it is stands at the beginning: "the gradients".
    """
    trace = one.trace
    if trace is None:
        return ""
    ranks = range(one.trial.world_size)
    needed = sum(2 * (len(group) - 1) * size for group in groups or (tuple(ranks),))
    wire = [trace.bytes_wire(rank) for rank in ranks]
    sent = sum(count for count in wire if count is not None)
    if None in wire or sent >= _ALL_REDUCED * needed:
        return ""
    return (
        f"{one.trial.words()}: {what} right, but of the {amount(needed)} that ranks have to send "
        f"each other for that, {amount(sent)} were sent: the data came another way. "
        "Use dist.all_reduce."
    )


def _taken(event: Event) -> tuple[float, float]:
    """The fewest and the most bytes that leave a rank for one operation.

    Gloo's all-reduce is a ring. Of other collectives only the most is known that makes sense.
    """
    others = len(event.peers)
    if event.name == "all_reduce":
        ring = 2 * others / (others + 1) * event.bytes
        return ring, ring + _PER_PEER * others
    if event.name == "recv":
        return 0, _PER_OPERATION
    return 0, (event.bytes + _PER_PEER) * (others + 1)


def _other_bytes(one: Observation, rank: int, taken: float, wire: int) -> str:
    return (
        f"{one.trial.words()}: what rank {rank} called takes {amount(taken)}, but {amount(wire)} "
        "left it as the operating system counts. Use dist.all_reduce, where the check can see it."
    )


def _hidden(one: Observation, trace: Trace, past: str, instead: str) -> str:
    if not trace.hidden_bytes:
        return ""
    return (
        f"{one.trial.words()}: {amount(trace.hidden_bytes)} went between the ranks past {past}. "
        f"{instead}, where the check can see it."
    )


def _has_forged_records(trace: Trace) -> bool:
    """Whether other messages travelled than those recorded, by the bytes of gloo's headers.

    A message has a header, and so has its receiver's answer. Only for traces of nothing but
    messages: what collectives take is not known as exactly.
    """
    pairs, ranks = trace.wire_pairs, range(trace.world_size)
    if pairs is None or any({*trace.ops(rank)} - {"send", "recv"} for rank in ranks):
        return False
    for rank in ranks:
        known, most = {*trace.peers(rank), rank}, _GREETINGS * trace.world_size
        if any(rank in pair and not {*pair} <= known for pair in pairs if pairs[pair] > most):
            return True
        count = trace.ops(rank)
        headers = (trace.bytes_wire(rank) or 0) - trace.bytes_sent(rank)
        wanted = _SEND * count["send"] + _RECEIVE * count["recv"]
        if abs(headers - wanted) > _FORGED * wanted + most:
            return True
    return False


# Cases in which ranks add up what each of them has ----------------------------------------------

FOREIGN = "foreign"  # a fault: the learner's own calls did not bring the result about


class Reducing(Faulty):
    """A case whose results are sums over all ranks, or over those of each of its `groups`.

    It reports the fault `FOREIGN` where finished code did the work, or where the data moved
    past the check.
    """

    groups: Groups

    @property
    @abstractmethod
    def reduced(self) -> Sequence[int]:
        """Bytes that ranks have to add up in each step."""

    def by_trace(self, one: Observation) -> Iterator[Fault]:
        words = self._foreign(one)
        if words:
            yield FOREIGN, words

    def _foreign(self, one: Observation) -> str:
        """What brought the result about, if not the learner's own calls; else empty."""
        hidden = finished_code(one) or unseen_collectives(one)
        if hidden or fault([one], self.topic):
            return hidden
        cases = [case for case in one.trial.cases if isinstance(case, Reducing)]
        size = sum(sum(case.reduced) for case in cases)
        return unseen_source(one, "the results are", size, self.groups)


# What happened on a rank while it was inside a mark, as `dtlab.span` makes one -------------------


def inside_marks(trace: Trace | None, rank: int, name: str) -> Iterator[list[Event]]:
    """For each mark of this name on this rank, in order: what began before it ended."""
    own = [event for event in trace.events if event.rank == rank] if trace is not None else []
    for mark in own:
        if mark.name == name:
            yield [event for event in own if mark.start <= event.start <= mark.end]
