"""01/hierarchical_all_reduce: few bytes between nodes, no more than a ring's inside them."""

from __future__ import annotations

import random
from math import inf

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount, ranks_in_words
from dtlab.units.unit01.calls import HierarchicalAllReduce, draw_groups
from dtlab.units.unit01.judges import (
    chunks_pattern,
    judge_result,
    judge_sent,
    judge_subgroups,
    messages,
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


def _per_node(one: Observation) -> int:
    (call,) = one.trial.cases
    assert isinstance(call, HierarchicalAllReduce)
    return call.ranks_per_node


def _sent(one: Observation, *, crossing: bool) -> list[int]:
    """Bytes that each rank sent to other nodes, or inside its own."""
    assert one.trace is not None
    totals, per_node = [0] * _RANKS, _per_node(one)
    for source, target, size, _ in messages(one.trace):
        if (source // per_node != target // per_node) == crossing:
            totals[source] += size
    return totals


def _too_much_between(one: Observation) -> str:
    """To other nodes a rank sends its share of the sums, by a ring."""
    sent, per_node = _sent(one, crossing=True), _per_node(one)
    nodes = _RANKS // per_node
    whole = 2 * (nodes - 1) / nodes * _BYTES
    if max(sent) <= (1 + _SLACK) * whole / per_node:
        return ""
    assert one.trace is not None
    all_sent = messages(one.trace)
    if other_dtype(all_sent):
        advice = other_dtype(all_sent)
    elif all((each.target - each.source) % _RANKS in (1, _RANKS - 1) for each in all_sent):
        advice = "One ring over all ranks knows nothing of nodes: sum within each node first."
    elif min(sent) < max(sent) / 2:
        advice = "The ranks of a node do not share the work: let each sum its part between nodes."
    elif abs(max(sent) - whole) <= _SLACK * whole:
        advice = (
            "The whole tensor travels between nodes: reduce-scatter within the node first, so "
            "that each rank has S/G left to sum between nodes."
        )
    else:
        advice = (
            f"Rank r belongs to node r // ranks_per_node, so node 0 is "
            f"{ranks_in_words(range(per_node))}; between nodes, ranks of the same seat sum their "
            "parts by a ring."
        )
    return (
        f"{one.trial.words(0)}: rank {sent.index(max(sent))} sent {amount(max(sent))} to other "
        f"nodes; it should be at most 2(n-1)/n S/G = {amount(whole / per_node)}. {advice}"
    )


def _too_much_inside(one: Observation) -> str:
    """Inside its node a rank sends what a reduce-scatter and an all-gather take."""
    sent, per_node = _sent(one, crossing=False), _per_node(one)
    most = 2 * (per_node - 1) / per_node * _BYTES
    if max(sent) <= (1 + _SLACK) * most:
        return ""
    assert one.trace is not None
    advice = other_dtype(messages(one.trace)) or (
        "Within the node, reduce-scatter before and all-gather after: send parts, not all of S."
    )
    return (
        f"{one.trial.words(0)}: rank {sent.index(max(sent))} sent {amount(max(sent))} within its "
        f"node; it should be at most 2(G-1)/G S = {amount(most)}. {advice}"
    )


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
                    lambda seen: chunks_pattern(seen, "G"),
                ),
            ),
            Rule("subgroups", 1, judge_subgroups),
            Rule(
                "between",
                2,
                judge_sent(
                    "each rank sends at most 2(n-1)/n S/G to other nodes",
                    _too_much_between,
                    inf,
                    measured=len(_PER_NODE),
                ),
            ),
            Rule(
                "inside",
                2,
                judge_sent(
                    "each rank sends at most 2(G-1)/G S within its node",
                    _too_much_inside,
                    inf,
                    measured=len(_PER_NODE),
                ),
            ),
        ),
    ),
    reference="dtlab.collectives.hierarchical_all_reduce",
)
