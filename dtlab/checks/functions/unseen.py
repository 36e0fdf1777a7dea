"""Compares recorded communication with the bytes that the operating system counted.

A rank records its operations in its own process, beside the code that is judged. The bytes that
leave its sockets are counted outside that process. Each function says what does not match; it
returns an empty string if all matches or nothing was counted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dtlab import torch_internals
from dtlab.checks.functions.criteria import Fault, Faulty, Seen, fault, finished_code
from dtlab.checks.functions.groups import Groups
from dtlab.checks.functions.trials import Observation
from dtlab.checks.words import amount

if TYPE_CHECKING:
    from dtlab.trace import Event, Trace

__all__ = ["FOREIGN", "Reducing", "by_luck", "confirmed", "inside_marks", "marked_waits",
           "unseen_collectives", "unseen_messages", "unseen_source"]  # fmt: skip

_ALL_REDUCED = 0.95  # share of the fewest bytes with which all ranks can get the whole sum
_DISAGREEMENT = 0.02  # tolerance, as a share of the operating system's count
_SEND, _RECEIVE = 96, 48  # bytes of gloo's headers, measured; the greeting of a new group has 8
_PER_OPERATION = 128  # most bytes of headers
_PER_PEER = 640  # most bytes of a collective's headers for each peer: 576 measured
_CONNECTIONS = 4096  # most bytes of the greetings of new groups
_FEWEST = 0.45  # share of the bytes that must travel: numbers may be sent with half as many bits
_GREETINGS, _FORGED = 16, 0.25  # bytes for each peer; share of header bytes that may deviate


def confirmed(
    criterion: str, observation: Observation, faults: Iterator[Fault], needed: float = 0
) -> Iterator[Fault]:
    """Yields the faults that records show; if there are none, what contradicts the records.

    Records alone are no evidence: they lie in the rank that is judged. Judges of peers, calls or
    bytes pass their faults through this function. `needed` are the bytes that all ranks together
    must send each other for the result.
    """
    found = False
    for one in faults:
        found = True
        yield one
    if not found and (message := _contradicted(observation, needed)):
        yield criterion, message


def _contradicted(observation: Observation, needed: float) -> str:
    trace, ranks = observation.trace, range(observation.trial.world_size)
    if trace is None:
        return ""
    messages = not {*trace.ops()} - {"send", "recv"}
    unseen = (unseen_messages if messages else unseen_collectives)(observation)
    wire = [trace.bytes_wire(rank) for rank in ranks]
    sent = sum(count for count in wire if count is not None)
    if unseen or None in wire or sent >= _FEWEST * needed:
        return unseen
    return (
        f"{observation.trial.words()}: the results are right, but of the {amount(needed)} that "
        f"ranks must send each other for that, {amount(sent)} were sent: the data came another "
        "way. Send it with torch.distributed."
    )


def unseen_messages(observation: Observation) -> str:
    """Compares bytes sent and counted, for ranks that may only use dist.send and dist.isend."""
    trace = observation.trace
    if trace is None:
        return ""
    for rank in range(observation.trial.world_size):
        sent, wire = trace.bytes_sent(rank), trace.bytes_wire(rank)
        overhead = _CONNECTIONS + _PER_OPERATION * sum(trace.ops(rank).values())
        if wire is not None and abs(wire - sent) > overhead + _DISAGREEMENT * wire:
            return (
                f"{observation.trial.words()}: rank {rank} handed {amount(sent)} to dist.send or "
                f"dist.isend, but {amount(wire)} left it as the operating system counts. Send "
                "everything with these two, where the check can see it."
            )
    if _has_forged_records(trace):
        return (
            f"{observation.trial.words()}: the bytes that the operating system counted between "
            "the ranks are not those of the messages that they recorded. Leave the records alone, "
            "and send with dist.send or dist.isend."
        )
    return _hidden(
        observation, trace, "dist.send and dist.isend", "Send everything with these two"
    )


def unseen_collectives(observation: Observation) -> str:
    """Compares recorded and counted bytes, for ranks that may use all of torch.distributed."""
    trace = observation.trace
    if trace is None:
        return ""
    least, most = ([0.0] * trace.world_size for _ in range(2))
    for event in trace.events:
        if event.kind == "comm":
            lower, upper = _taken(event)
            least[event.rank] += lower
            most[event.rank] += upper
    for rank in range(observation.trial.world_size):
        wire = trace.bytes_wire(rank)
        slack = _CONNECTIONS + _DISAGREEMENT * (wire or 0)
        if wire is not None and least[rank] > wire + slack:
            return _other_bytes(observation, rank, least[rank], wire)
        if wire is not None and wire > most[rank] + slack:
            return _other_bytes(observation, rank, most[rank], wire)
    return _hidden(observation, trace, "the calls of torch.distributed", "Use these alone")


def unseen_source(observation: Observation, what: str, size: float, groups: Groups = ()) -> str:
    """Checks that ranks, or the ranks of each group, sent enough to all-reduce `size` bytes.

    `what` is the subject and verb of the message, such as "the gradients are".
    """
    trace = observation.trace
    if trace is None:
        return ""
    ranks = range(observation.trial.world_size)
    needed = sum(2 * (len(group) - 1) * size for group in groups or (tuple(ranks),))
    wire = [trace.bytes_wire(rank) for rank in ranks]
    sent = sum(count for count in wire if count is not None)
    if None in wire or sent >= _ALL_REDUCED * needed:
        return ""
    return (
        f"{observation.trial.words()}: {what} right, but of the {amount(needed)} that ranks must "
        f"send each other for that, {amount(sent)} were sent: the data came another way. "
        "Use dist.all_reduce."
    )


def _taken(event: Event) -> tuple[float, float]:
    """Returns the fewest and the most bytes that leave a rank for one operation.

    Gloo's all-reduce is a ring. For other collectives only an upper limit is known.
    """
    peers = len(event.peers)
    if event.name == "all_reduce":
        ring = 2 * peers / (peers + 1) * event.bytes
        return ring, ring + _PER_PEER * peers
    if event.name == "recv":
        return 0, _PER_OPERATION
    return 0, (event.bytes + _PER_PEER) * (peers + 1)


def _other_bytes(observation: Observation, rank: int, taken: float, wire: int) -> str:
    return (
        f"{observation.trial.words()}: the calls of rank {rank} take {amount(taken)}, but "
        f"{amount(wire)} left it as the operating system counts. Use dist.all_reduce, where the "
        "check can see it."
    )


def _hidden(observation: Observation, trace: Trace, past: str, instead: str) -> str:
    if not trace.hidden_bytes:
        return ""
    return (
        f"{observation.trial.words()}: {amount(trace.hidden_bytes)} went between the ranks past "
        f"{past}. {instead}, where the check can see it."
    )


def _has_forged_records(trace: Trace) -> bool:
    """Whether the bytes of gloo's headers show other messages than the recorded ones.

    A message has a header, and so has its receiver's answer. Applies only to traces that contain
    only messages, since the bytes of collectives are not known exactly.
    """
    pairs, ranks = trace.wire_pairs, range(trace.world_size)
    if pairs is None or any({*trace.ops(rank)} - {"send", "recv"} for rank in ranks):
        return False
    for rank in ranks:
        partners, most = {*trace.peers(rank), rank}, _GREETINGS * trace.world_size
        if any(rank in pair and not {*pair} <= partners for pair in pairs if pairs[pair] > most):
            return True
        count = trace.ops(rank)
        headers = (trace.bytes_wire(rank) or 0) - trace.bytes_sent(rank)
        expected = _SEND * count["send"] + _RECEIVE * count["recv"]
        if abs(headers - expected) > _FORGED * expected + most:
            return True
    return False


# Cases in which ranks add up what each of them has ----------------------------------------------

FOREIGN = "foreign"  # a fault: the learner's own calls did not produce the result


class Reducing(Faulty):
    """A case whose results are sums over all ranks, or over the ranks of each of its `groups`.

    It reports the fault `FOREIGN` if finished code did the work, or if data moved that the
    recorder did not see.
    """

    groups: Groups

    @property
    @abstractmethod
    def reduced(self) -> Sequence[int]:
        """Bytes that the ranks must sum, one entry for each step."""

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        words = self._foreign(observation)
        if words:
            yield FOREIGN, words

    def _foreign(self, observation: Observation) -> str:
        """A message if the result does not come from the learner's own calls; else empty."""
        hidden = finished_code(observation) or unseen_collectives(observation)
        if hidden or fault([observation], self.topic):
            return hidden
        cases = [case for case in observation.trial.cases if isinstance(case, Reducing)]
        size = sum(sum(case.reduced) for case in cases)
        return unseen_source(observation, "the results are", size, self.groups)


# Events on a rank inside a mark, a span that `dtlab.span` recorded ------------------------------


def inside_marks(trace: Trace | None, rank: int, name: str) -> Iterator[list[Event]]:
    """Yields, for each span of this name on this rank, in order, the events that began in it."""
    events = [event for event in trace.events if event.rank == rank] if trace is not None else []
    for mark in events:
        if mark.name == name:
            yield [event for event in events if mark.start <= event.start <= mark.end]


@contextmanager
def marked_waits() -> Iterator[None]:
    """Marks every wait for an operation as `wait` in the trace, even one that returns at once.

    The recorder itself does not record a wait for an operation that has already ended. Waits with
    the same `extra["handle"]` are for the same operation. A future has a number for each wait,
    since `get_future()` returns another object each time.
    """
    from itertools import count
    from unittest.mock import patch

    import torch.distributed as dist

    from dtlab.trace import span

    numbers, handles = count(), dict[int, tuple[int, Any]]()  # kept, so that ids stay different

    def marked(plain: Any) -> Any:
        def wait(handle: Any, *args: Any, **keywords: Any) -> Any:
            number = next(numbers)
            if isinstance(handle, dist.Work):
                number, _ = handles.setdefault(id(handle), (number, handle))
            with span("wait", handle=number):
                return plain(handle, *args, **keywords)

        return wait

    future = torch_internals.future_class()
    with (
        patch.object(dist.Work, "wait", marked(dist.Work.wait)),
        patch.object(future, "wait", marked(future.wait)),
    ):
        yield


def by_luck(seen: Seen) -> str:
    """A message if a rank does not wait for a transfer that it started; empty if all wait."""
    for run in seen:
        for event in run.trace.events if run.trace is not None else ():
            if event.name in ("send", "recv") and event.extra.get("blocked") == []:
                line = event.extra.get("line")
                return (
                    f"{run.trial.words()}: the result is right, but by luck: rank {event.rank} "
                    f"does not wait for its dist.i{event.name}{f' in line {line}' * bool(line)}. "
                    f"Call wait() on the object that dist.i{event.name} returns: only then is the "
                    "transfer complete."
                )
    return ""
