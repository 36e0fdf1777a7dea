"""01/hierarchical_all_reduce: write an all-reduce that sends few bytes between nodes."""

from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING

from dtlab.checks.functions.checks import Check, Rule
from dtlab.checks.functions.criteria import Seen
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import amount, ranks_in_words
from dtlab.units.unit01.calls import HierarchicalAllReduce, draw_groups
from dtlab.units.unit01.judges import (
    Message,
    calls_of,
    messages,
    other_dtype,
    rule_of_messages,
    rule_of_result,
    rule_of_subgroups,
    sizes_pattern,
)

if TYPE_CHECKING:
    from dtlab.trace import Trace

_RANKS = 6  # number of ranks in the trials that count bytes
_PER_NODE = (2, 3)  # ranks per node; one such trial for each
_BYTES = 6 << 18  # size of the tensor in these trials, float32: 1.6 MB
_SLACK = 0.01


def _trials(seed: int) -> list[Trial]:
    """Trials that count bytes, trials with several node sizes, and one on a subgroup."""
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


def _traffic_rule(*, crossing: bool) -> Rule:
    """A limit on the bytes that each rank sends to other nodes (`crossing`) or within its node."""
    name, where, formula = "inside", "within its node", "2(G-1)/G S"
    if crossing:
        name, where, formula = "between", "to other nodes", "2(n-1)/n S/G"

    def wrong(call: HierarchicalAllReduce, trace: Trace) -> str:
        per_node, all_sent = call.ranks_per_node, messages(trace)
        sent = [0] * _RANKS
        for source, target, size, _ in all_sent:
            if (source // per_node != target // per_node) == crossing:
                sent[source] += size
        parts, share = (_RANKS // per_node, _BYTES / per_node) if crossing else (per_node, _BYTES)
        most = 2 * (parts - 1) / parts * share
        if max(sent) <= (1 + _SLACK) * most:
            return ""
        advice = "Reduce-scatter first and all-gather last: send chunks, not all of S."
        if crossing:
            advice = _advice(all_sent, sent, per_node)
        worst = sent.index(max(sent))
        return (
            f"{call}: rank {worst} sent {amount(sent[worst])} {where}; it should be "
            f"at most {formula} = {amount(most)}. {other_dtype(all_sent) or advice}"
        )

    right = f"each rank sends at most {formula} {where}"
    return rule_of_messages(name, 2, right, wrong, inf, measured=len(_PER_NODE))


def _advice(all_sent: list[Message], sent: list[int], per_node: int) -> str:
    """Advice on too many bytes between nodes, by the messages and by the bytes of each rank."""
    nodes = _RANKS // per_node
    whole = 2 * (nodes - 1) / nodes * _BYTES
    if all((m.target - m.source) % _RANKS in (1, _RANKS - 1) for m in all_sent):
        return "You run one ring over all ranks, which ignores nodes: sum within each node first."
    if min(sent) < max(sent) / 2:
        return "The ranks of a node do not share the work: let each sum its chunk between nodes."
    if abs(max(sent) - whole) <= _SLACK * whole:
        return (
            "You send the whole tensor between nodes: reduce-scatter within the node first, so "
            "that each rank has S/G left to sum between nodes."
        )
    first = ranks_in_words(range(per_node))
    return (
        f"Rank r belongs to node r // ranks_per_node, so node 0 is {first}. Between nodes, the "
        "ranks with equal r % ranks_per_node sum their chunks in a ring."
    )


def _pattern(seen: Seen) -> str:
    """Advice if only some sizes are right, or only nodes of one rank, or only a single node."""
    flat, single, wrong = set(), set(), set()  # numbers of the runs
    for number, run in enumerate(seen):
        (per_node,) = {getattr(call, "ranks_per_node", 1) for call in calls_of(run)}
        ranks = run.trial.world_size
        flat |= {number} if per_node == 1 < ranks else set()
        single |= {number} if per_node == ranks > 1 else set()
        wrong |= {number} if run.mistakes else set()
    if not (flat and single) or sizes_pattern(seen, "G"):
        return sizes_pattern(seen, "G")
    if not (flat | single) & wrong:
        return (
            "Right if every node has one rank, and if there is only one node. Between the nodes, "
            "the ranks in seat s sum part s of the tensor, which is complete in their node."
        )
    if not flat & wrong:
        return "Right if every node has one rank: look at the two steps inside a node."
    if not single & wrong:
        return "Right if there is only one node: look at the all-reduce between the nodes."
    return ""


PART = Part(
    name="01/hierarchical_all_reduce",
    level=2,
    title="A hierarchical all-reduce",
    minutes=30,
    difficulty=3,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            rule_of_result(
                3,
                "the sum is right and in place on up to 6 ranks, in nodes of 1, 2 and 3",
                _pattern,
            ),
            rule_of_subgroups(1),
            _traffic_rule(crossing=True),
            _traffic_rule(crossing=False),
        ),
    ),
    reference="dtlab.collectives.hierarchical_all_reduce",
)
