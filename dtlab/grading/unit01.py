"""Checks of unit 01, ranks and collectives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.parts import Part
from dtlab.grading.sums import mistake, mistakes
from dtlab.grading.trials import Observation, Trial
from dtlab.grading.words import megabytes, ranks_in_words

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["PARTS"]

# ---------------------------------------------------------------------------- 01/ring_all_reduce

_RANKS = 4  # of the trial in which bytes, neighbours and rounds are counted
_ELEMENTS = 1 << 20  # of float32: 4.2 MB, large against what the connections themselves send
_SLACK = 0.01  # of the bytes that a ring needs
_DISAGREEMENT = 0.02  # of the operating system's count
_OVERHEAD = 1 << 16  # bytes that the connections may send for themselves
_POINT_TO_POINT = {"send", "recv", "isend", "irecv", "recv_any_source", "barrier"}


def _ring_trials(seed: int) -> list[Trial]:
    """The measured trial first; then 1 to 5 ranks, sizes that divide, that do not, and few."""
    draw = random.Random(seed)
    trials = [Trial(_RANKS, (_ELEMENTS,), seed)]
    for ranks in range(1, 6):
        divides = ranks * draw.randint(2, 4)
        uneven = divides + draw.randint(1, max(1, ranks - 1))
        few = draw.randint(1, max(1, ranks - 1))
        trials.append(Trial(ranks, (divides, uneven, few), seed))
    return trials


def _judge_result(seen: Sequence[Observation]) -> Verdict:
    """The sum on every rank, in place, made from send and receive alone."""
    ready_made = _ready_made(seen)
    if ready_made:
        return lost(
            f"{ready_made} does the work for you, and a finished collective does not count: "
            "build the sum from dist.isend and dist.recv."
        )
    wrong = [sentence for one in sorted(seen, key=_by_ranks) for sentence in mistakes(one)]
    if wrong:
        return lost("\n".join([wrong[0], *_pattern(seen)]))
    return ok(
        "the sum is right and in place on 1, 2, 3, 4 and 5 ranks, also when the size does not "
        "divide and with fewer elements than ranks"
    )


def _judge_bytes(seen: Sequence[Observation]) -> Verdict:
    """2(N-1)/N of the tensor leaves each rank, and the operating system counted the same."""
    waiting = _cannot_measure(seen)
    if waiting:
        return waiting
    trace = _trace(seen)
    sent = [trace.bytes_sent(rank) for rank in range(_RANKS)]
    for rank, payload in enumerate(sent):
        wire = trace.bytes_wire(rank)
        if wire is not None and abs(wire - payload) > max(_OVERHEAD, _DISAGREEMENT * wire):
            return lost(
                f"rank {rank} handed {megabytes(payload)} to send, but {megabytes(wire)} left it "
                "as the operating system counts: send everything with torch.distributed."
            )
    tensor, need = 4 * _ELEMENTS, _ring_bytes()
    if all(abs(payload - need) <= _SLACK * need for payload in sent):
        return ok(f"each rank sent {megabytes(max(sent))} = 2(N-1)/N x {megabytes(tensor)}")
    return lost(
        f"{_who_sent(sent)}; a ring needs 2(N-1)/N x {megabytes(tensor)} = {megabytes(need)}. "
        f"{_byte_advice(trace, sent)}"
    )


def _judge_neighbours(seen: Sequence[Observation]) -> Verdict:
    """A rank talks to the rank before it and the rank after it only."""
    waiting = _cannot_measure(seen) or _moved_too_little(seen)
    if waiting:
        return waiting
    trace = _trace(seen)
    for rank in range(_RANKS):
        around = {(rank - 1) % _RANKS, (rank + 1) % _RANKS}
        others = sorted(trace.peers(rank) - around)
        if others:
            return lost(
                f"rank {rank} talks to {ranks_in_words(others)} too; in a ring of {_RANKS} it "
                f"sends to rank {(rank + 1) % _RANKS} and receives from rank "
                f"{(rank - 1) % _RANKS} only."
            )
    return ok("only the two neighbours talk")


def _judge_rounds(seen: Sequence[Observation]) -> Verdict:
    """No more than 2(N-1) rounds, since each costs the latency of a message."""
    waiting = _cannot_measure(seen) or _moved_too_little(seen)
    if waiting:
        return waiting
    rounds = max(_trace(seen).rounds(rank) for rank in range(_RANKS))
    goal = 2 * (_RANKS - 1)
    if rounds <= goal:
        return ok(f"{rounds} rounds on {_RANKS} ranks; a ring needs 2(N-1) = {goal}")
    return lost(
        f"{rounds} rounds on {_RANKS} ranks; a ring needs 2(N-1) = {goal}, N-1 to sum and N-1 to "
        "hand the sums round. Each round costs a latency: send a whole chunk in one message."
    )


# What the judges have in common ---------------------------------------------------------------


def _ready_made(seen: Sequence[Observation]) -> str:
    """The first finished collective that was called; empty where none was."""
    for one in seen:
        if one.finished:
            return f"dtlab.collectives.{one.finished[0]}"
        used = one.trace.ops() if one.trace is not None else []
        counters = used if isinstance(used, list) else [used]
        names = sorted({name for counter in counters for name in counter} - _POINT_TO_POINT)
        if names:
            return f"dist.{names[0]}"
    return ""


def _cannot_measure(seen: Sequence[Observation]) -> Verdict | None:
    """Why the measured trial says nothing, None where it does."""
    if _ready_made(seen):
        return blocked("judged once your own code moves the data")
    if seen[0].trace is None:
        return blocked(f"judged once the call comes back on {_RANKS} ranks")
    return None


def _moved_too_little(seen: Sequence[Observation]) -> Verdict | None:
    """A few bytes sent to a neighbour are no all-reduce yet."""
    enough = (1 - _SLACK) * _ring_bytes()
    sent = [_trace(seen).bytes_sent(rank) for rank in range(_RANKS)]
    if min(sent) >= enough or not mistakes(seen[0]):
        return None
    return blocked("judged once the sum is right, or enough data moves for one")


def _trace(seen: Sequence[Observation]) -> Trace:
    trace = seen[0].trace
    assert trace is not None  # _cannot_measure has said so
    return trace


def _ring_bytes() -> float:
    return 2 * (_RANKS - 1) / _RANKS * 4 * _ELEMENTS


def _by_ranks(one: Observation) -> tuple[int, int]:
    return one.trial.world_size, min(one.trial.sizes)


# What to say ------------------------------------------------------------------------------------


def _pattern(seen: Sequence[Observation]) -> list[str]:
    """What the right and the wrong calls have in common, where that says where to look."""
    right = [one for one in seen if not mistakes(one)]
    counts = sorted({one.trial.world_size for one in right})
    if counts == [1, 2]:
        return ["Right on 1 and 2 ranks only: a chunk takes N-1 rounds to meet every rank."]
    uneven = all(_only_uneven_is_wrong(one) for one in seen)
    if uneven:
        return ["Right where the size divides by N: let chunks differ (tensor.tensor_split(N))."]
    return []


def _only_uneven_is_wrong(one: Observation) -> bool:
    sizes, ranks = one.trial.sizes, one.trial.world_size
    if one.error is not None:
        return not one.hung and one.failed_size in sizes and one.failed_size % ranks != 0
    return all(not mistake(one, case) for case, size in enumerate(sizes) if size % ranks == 0)


def _who_sent(sent: Sequence[int]) -> str:
    if max(sent) - min(sent) <= _SLACK * max(sent):
        return f"each rank sent {megabytes(max(sent))}"
    busiest = max(range(len(sent)), key=lambda rank: sent[rank])
    return (
        f"rank {busiest} sent {megabytes(sent[busiest])} and others down to {megabytes(min(sent))}"
    )


def _byte_advice(trace: Trace, sent: Sequence[int]) -> str:
    """What to look at, from how much was sent and how large a message was."""
    tensor, need, most, sends = 4 * _ELEMENTS, _ring_bytes(), max(sent), trace.sends(0)
    if most - min(sent) > _SLACK * most:
        return "The ranks do not share the work: let each one pass on one chunk in every round."
    if sends and most / sends > (1 - _SLACK) * tensor:
        return "You pass the whole tensor on in every round: pass one chunk."
    if abs(most - 2 * need) <= _SLACK * need:
        return "That is twice as much: send the tensor's own dtype, 4 bytes for an element."
    if abs(most - need / 2) <= _SLACK * need:
        return "That is one half of the ring: N-1 rounds sum, and N-1 hand the sums round."
    return (
        "Some chunks never travel." if most < need else "Some chunks travel further than needed."
    )


PARTS = (
    Part(
        name="01/ring_all_reduce",
        symbol="ring_all_reduce",
        grade_id="ring_all_reduce-check",
        minutes=30,
        difficulty=2,
        check=Check(
            trials=_ring_trials,
            rules=(
                Rule("result", 4, _judge_result),
                Rule("bytes", 3, _judge_bytes),
                Rule("neighbours", 2, _judge_neighbours),
                Rule("rounds", 1, _judge_rounds),
            ),
        ),
        reference="dtlab.collectives.ring_all_reduce",
    ),
)
