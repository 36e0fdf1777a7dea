"""01/hierarchical_all_reduce: few bytes between nodes, no more than a ring's inside them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount, ranks_in_words
from dtlab.units.unit01.calls import HierarchicalAllReduce, draw_groups
from dtlab.units.unit01.judges import (
    Message,
    Seen,
    cannot_measure,
    judge_result,
    judge_subgroups,
    messages,
    only_uneven_is_wrong,
    other_dtype,
)

_RANKS = 6  # of the trials in which bytes are counted
_PER_NODE = (2, 3)  # one such trial for each
_BYTES = 6 << 18  # of the tensor in them, float32: 1.6 MB
_SLACK = 0.01


def _trials(seed: int) -> list[Trial]:
    """The measured trials; then nodes of several sizes, and a group over nodes of two ranks."""
    draw = random.Random(seed)
    trials = [
        Trial(_RANKS, [HierarchicalAllReduce(seed, _BYTES // 4, ranks_per_node=per_node)])
        for per_node in _PER_NODE
    ]
    for ranks, per_node in ((1, 1), (2, 1), (3, 3), (4, 2)):
        sizes = (ranks * draw.randint(2, 4), ranks * 2 + 1, draw.randint(1, max(1, ranks - 1)))
        calls = [HierarchicalAllReduce(seed, size, ranks_per_node=per_node) for size in sizes]
        trials.append(Trial(ranks, calls))
    groups = draw_groups(draw, world_size=6, size=4)
    return [*trials, Trial(6, [HierarchicalAllReduce(seed, 11, groups, ranks_per_node=2)])]


@dataclass(frozen=True)
class _Measured:
    """One measured trial: who sent how much inside the node, and to other nodes."""

    words: str
    per_node: int
    sent: list[Message]

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return _RANKS // self.per_node

    @property
    def most_between(self) -> float:
        """Bytes that a rank may send to other nodes: 2(n-1)/n S/G."""
        return 2 * (self.nodes - 1) / self.nodes * _BYTES / self.per_node

    @property
    def most_inside(self) -> float:
        """Bytes that a rank may send inside its node: 2(G-1)/G S."""
        return 2 * (self.per_node - 1) / self.per_node * _BYTES

    def bytes(self, *, crossing: bool) -> list[int]:
        """What each rank sent to other nodes, or inside its own."""
        totals = [0] * _RANKS
        for source, target, size, _ in self.sent:
            if (source // self.per_node != target // self.per_node) == crossing:
                totals[source] += size
        return totals


def _judge_between(seen: Seen) -> Verdict:
    """What each rank sends to other nodes: its share of the sums, by a ring."""
    return _judge(seen, _too_much_between, "each rank sends at most 2(n-1)/n S/G to other nodes")


def _judge_inside(seen: Seen) -> Verdict:
    """What each rank sends inside its node: a reduce-scatter and an all-gather."""
    return _judge(seen, _too_much_inside, "each rank sends at most 2(G-1)/G S within its node")


def _judge(seen: Seen, objection: Callable[[_Measured], str], right: str) -> Verdict:
    measured = []
    for at, per_node in enumerate(_PER_NODE):
        waiting = cannot_measure(seen, at)
        if waiting:
            return waiting
        if seen[at].mistakes:
            return blocked(f"judged once the sum is right on {_RANKS} ranks")
        measured.append(_measure(seen[at], per_node))
    return next((lost(what) for what in map(objection, measured) if what), ok(right))


def _measure(one: Observation, per_node: int) -> _Measured:
    assert one.trace is not None  # `cannot_measure` has said so
    return _Measured(one.trial.words(0), per_node, messages(one.trace))


def _too_much_between(measured: _Measured) -> str:
    sent, most = measured.bytes(crossing=True), measured.most_between
    worst = max(range(_RANKS), key=lambda rank: sent[rank])
    if sent[worst] <= (1 + _SLACK) * most:
        return ""
    return (
        f"{measured.words}: rank {worst} sent {amount(sent[worst])} to other nodes; it should be "
        f"at most 2(n-1)/n S/G = {amount(most)}. {_advice(measured, sent)}"
    )


def _advice(measured: _Measured, sent: list[int]) -> str:
    """Why so much goes between nodes, as far as the amounts tell."""
    nodes, per_node = measured.nodes, measured.per_node

    whole = 2 * (nodes - 1) / nodes * _BYTES
    if other_dtype(measured.sent):
        return other_dtype(measured.sent)
    if all((one.target - one.source) % _RANKS in (1, _RANKS - 1) for one in measured.sent):
        return "One ring over all ranks knows nothing of nodes: sum within each node first."
    if min(sent) < max(sent) / 2:
        return "The ranks of a node do not share the work: let each sum its part between nodes."
    if abs(max(sent) - whole) <= _SLACK * whole:
        return (
            "The whole tensor travels between nodes: reduce-scatter within the node first, so "
            "that each rank has S/G left to sum between nodes."
        )
    first = ranks_in_words(range(per_node))
    return (
        f"Rank r belongs to node r // ranks_per_node, so node 0 is {first}; between nodes, ranks "
        "of the same seat sum their parts by a ring."
    )


def _too_much_inside(measured: _Measured) -> str:
    sent, most = measured.bytes(crossing=False), measured.most_inside
    worst = max(range(_RANKS), key=lambda rank: sent[rank])
    if sent[worst] <= (1 + _SLACK) * most:
        return ""
    advice = other_dtype(measured.sent) or (
        "Within the node, reduce-scatter before and all-gather after: send parts, not all of S."
    )
    return (
        f"{measured.words}: rank {worst} sent {amount(sent[worst])} within its node; it should be "
        f"at most 2(G-1)/G S = {amount(most)}. {advice}"
    )


def _pattern(seen: Seen) -> str:
    if only_uneven_is_wrong(seen):
        return "Right where the size divides by N: let chunks differ (tensor.tensor_split(G))."
    return ""


PART = Part(
    name="01/hierarchical_all_reduce",
    level=2,
    title="An all-reduce for nodes",
    minutes=30,
    difficulty=3,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "result",
                3,
                judge_result(
                    "the sum is right and in place on 1 to 6 ranks, in nodes of 1, 2 and 3",
                    _pattern,
                ),
            ),
            Rule("subgroups", 1, judge_subgroups),
            Rule("between", 2, _judge_between),
            Rule("inside", 2, _judge_inside),
        ),
    ),
    reference="dtlab.collectives.hierarchical_all_reduce",
)
