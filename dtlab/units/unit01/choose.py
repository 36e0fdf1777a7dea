"""01/choose: choose the fastest all-reduce for each tensor size, on networks of two levels.

A rank calls `choose(nbytes, cluster) -> name`. The check judges the answers by the predictions of
`dtlab.predict`, and by the times of ranks that run the chosen algorithm on an emulated
interconnect. These ranks run only our code, since a learner's code could falsify the times.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Seen, rule
from dtlab.checks.functions.trials import Case, Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import amount, links_of, nodes_of
from dtlab.predict import (
    Cluster,
    Link,
    collective_seconds,
    halving_doubling_all_reduce_seconds,
    hierarchical_all_reduce_seconds,
    recursive_doubling_all_reduce_seconds,
    tree_all_reduce_seconds,
)

__all__ = ["ALGORITHMS", "BUDGET", "NETWORK", "PART", "TABLE", "OnTheWire", "Questions",
           "best_seconds", "seconds_of"]  # fmt: skip

# Predicted time of each all-reduce of `dtlab.collectives` on a network of two levels -------------

ALGORITHMS = (
    "naive", "ring", "tree", "recursive_doubling", "halving_doubling", "hierarchical",
)  # fmt: skip


def seconds_of(algorithm: str, nbytes: float, cluster: Cluster) -> float:
    """Predicted seconds of an all-reduce of `dtlab.collectives` over all ranks, without slowdown.

    Valid if the numbers of nodes and of GPUs per node are powers of two, and links within a node
    are no slower than links between nodes. For small tensors in a ring it is an upper bound: it
    counts the slow link for every round of every rank.

    Raises ValueError if `algorithm` is unknown.
    """
    nodes, per_node = cluster.nodes, cluster.gpus_per_node

    def on_both_levels(seconds: Callable[[float, int, Link], float]) -> float:
        """Seconds if whole tensors go to ranks at distance 1, 2, 4, ..., first inside a node."""
        inside = seconds(nbytes, per_node, cluster.intra)
        return inside + seconds(nbytes, nodes, cluster.inter)

    match algorithm:
        case "naive":  # rank 0 exchanges with the other ranks of its node, then with other nodes
            inside = (per_node - 1) * cluster.intra.seconds(nbytes)
            return 2 * (inside + (nodes - 1) * per_node * cluster.inter.seconds(nbytes))
        case "ring":
            return collective_seconds("all_reduce", nbytes, cluster)
        case "tree":
            return on_both_levels(tree_all_reduce_seconds)
        case "recursive_doubling":
            return on_both_levels(recursive_doubling_all_reduce_seconds)
        case "halving_doubling":  # far partners exchange first; 1/nodes is left within the node
            seconds = halving_doubling_all_reduce_seconds
            inside = seconds(nbytes / nodes, per_node, cluster.intra)
            return inside + seconds(nbytes, nodes, cluster.inter)
        case "hierarchical":
            return hierarchical_all_reduce_seconds(nbytes, cluster)
    raise ValueError(f"{algorithm!r} is none of {', '.join(ALGORITHMS)}")


def best_seconds(nbytes: float, cluster: Cluster) -> float:
    """Predicted seconds of the fastest algorithm."""
    return seconds_of(best_choice(nbytes, cluster), nbytes, cluster)


def best_choice(nbytes: float, cluster: Cluster) -> str:
    """The algorithm with the shortest predicted time."""
    return min(ALGORITHMS, key=lambda name: seconds_of(name, nbytes, cluster))


# The part ----------------------------------------------------------------------------------------

# The network, the all-reduces of one step (bytes, number of calls) and the time budget in
# seconds, as level-3.ipynb gives them.
NETWORK = Cluster(nodes=2, gpus_per_node=4, intra=Link(2e-6, 300e9), inter=Link(5e-6, 25e9))
TABLE = ((1e3, 1000), (64e3, 400), (1e6, 100), (16e6, 20), (256e6, 1))
BUDGET = 30e-3

_NVLINK, _PCIE = (Link(2e-6, 300e9), Link(2e-6, 450e9)), Link(3e-6, 63e9)
_INFINIBAND = (Link(5e-6, 25e9), Link(5e-6, 50e9))
_SIZES = 16  # sizes drawn for each network
_ENOUGH = 1.02  # allowed ratio to the time of the best choice, averaged over the sizes

# Runs on the emulated interconnect: four ranks, a small tensor (the best algorithm takes 0.16 s)
# and a large one (0.2 s). The second best algorithm takes nearly twice as long.
_WIRE = {
    16_000: Cluster(2, 2, Link(2e-6, 300e9), Link(30e-6, 12.5e9), slowdown=4800),
    2_000_000: Cluster(2, 2, Link(2e-6, 300e9), Link(30e-6, 1.25e9), slowdown=230),
}
_TIMES, _TOO_SLOW = 2, 1.5  # the faster of two runs counts; ratio to the best algorithm's time


# Test cases -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Questions(Case):
    """Calls of `choose` for several sizes on one network."""

    cluster: Cluster
    sizes: tuple[float, ...]

    def __str__(self) -> str:
        return f"on {nodes_of(self.cluster)}"

    def given(self, rank: int, world_size: int) -> tuple[Cluster, tuple[float, ...]]:
        return self.cluster, self.sizes

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Cluster, tuple[float, ...]]) -> list[str]:
        cluster, sizes = given
        answers = [fn(nbytes, cluster) for nbytes in sizes]
        return [
            name if isinstance(name, str) and name in ALGORITHMS else repr(name)
            for name in answers
        ]

    def mistake(self, results: Sequence[Any]) -> str:
        for nbytes, name in zip(self.sizes, results[0], strict=True):
            if name not in ALGORITHMS:
                names = ", ".join(ALGORITHMS)
                return f"choose returns {name} for {amount(nbytes)}. Return one of: {names}."
        return ""

    def beside(self, results: Sequence[Any]) -> list[str]:
        lines = (
            f"{amount(nbytes):>9}: {name} {_microseconds(name, nbytes, self.cluster)}; best: "
            f"{best} {_microseconds(best, nbytes, self.cluster)}"
            for nbytes, name in zip(self.sizes, results[0], strict=True)
            for best in [best_choice(nbytes, self.cluster)]
            if name in ALGORITHMS
        )
        return ["\n".join(["what choose returns, with predicted times:", *lines])]


def _microseconds(algorithm: str, nbytes: float, cluster: Cluster) -> str:
    return f"{seconds_of(algorithm, nbytes, cluster) * 1e6:,.1f} µs"


@dataclass(frozen=True)
class OnTheWire(Case):
    """A real run of the algorithm that `choose` returned: start and end of each run on a rank."""

    cluster: Cluster
    nbytes: int
    name: str

    def __str__(self) -> str:
        network = f"{nodes_of(self.cluster)} ({links_of(self.cluster)})"
        return f"{amount(self.nbytes)} on {network}"

    def given(self, rank: int, world_size: int) -> tuple[str, int, int]:
        return self.name, self.nbytes, self.cluster.gpus_per_node

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[str, int, int]) -> Any:
        import torch
        import torch.distributed as dist

        name, nbytes, ranks_per_node = given
        tensor, times = torch.ones(nbytes // 4), []
        for _ in range(_TIMES):
            dist.barrier()
            start = time.perf_counter()
            fn(name, tensor, ranks_per_node)
            times.append((start, time.perf_counter()))
        return times

    def mistake(self, results: Sequence[Any]) -> str:
        return ""

    def measured(self, results: Sequence[Any]) -> float:
        """Seconds of the faster run, from the last rank's start to the last rank's end."""
        runs = zip(*results, strict=True)
        durations = [max(end for _, end in run) - max(start for start, _ in run) for run in runs]
        return float(min(durations))


def _all_reduce(name: str, tensor: Any, ranks_per_node: int) -> None:
    fn = getattr(importlib.import_module("dtlab.collectives"), f"{name}_all_reduce")
    fn(tensor, **({"ranks_per_node": ranks_per_node} if name == "hierarchical" else {}))


class Asked(Trial):
    """A trial whose messages name its network, since the number of ranks does not matter."""

    def words(self, case: int | None = None) -> str:
        if case is None and len(self.cases) > 1:
            return "in calls of choose"
        return f"{self.cases[case or 0]}"


def _trials(seed: int) -> list[Trial]:
    """The table, then drawn networks, then both sizes on the emulated interconnect."""
    draw = random.Random(seed)
    networks = [
        Cluster(8, 8, _NVLINK[1], _INFINIBAND[1]),
        Cluster(draw.choice((4, 8)), 4, _NVLINK[0], _INFINIBAND[0]),
        Cluster(2, 8, _PCIE, _INFINIBAND[1]),
        Cluster(1, draw.choice((4, 8)), _NVLINK[1]),
        Cluster(draw.choice((8, 16)), 1, _NVLINK[0], _INFINIBAND[1]),
        Cluster(32, 4, _PCIE, _INFINIBAND[1]),
    ]
    asked = [Questions(cluster, _drawn_sizes(draw)) for cluster in networks]
    table = Questions(NETWORK, tuple(nbytes for nbytes, _ in TABLE))
    wire = [Questions(cluster, (float(nbytes),)) for nbytes, cluster in _WIRE.items()]
    return [Asked(1, [table, *asked, *wire])]


def _drawn_sizes(draw: random.Random) -> tuple[float, ...]:
    """Bytes from 1 kB to 250 MB, one from each of 16 equal steps on a logarithmic scale."""
    steps = ((number + draw.random()) / _SIZES for number in range(_SIZES))
    return tuple(float(round(10 ** (3 + 5.4 * step))) for step in steps)


def _on_the_wire(seen: Seen) -> list[tuple[Trial, Callable[..., Any]]]:
    """The trials that run the algorithms that `choose` returned for the emulated interconnect."""
    if seen[0].mistakes:
        return []
    names = [results[0][0] for results in seen[0].results[-len(_WIRE) :]]
    return [
        (Asked(cluster.size, [OnTheWire(cluster, nbytes, name)], cluster), _all_reduce)
        for (nbytes, cluster), name in zip(_WIRE.items(), names, strict=True)
    ]


# Judges -----------------------------------------------------------------------------------------


def _named(seen: Seen) -> str:
    """Until when only the first criterion is judged: there is a name for every size."""
    return "choose returns a valid name for every size" if seen[0].mistakes else ""


def _over_budget(seen: Seen) -> str:
    """A message if a name is invalid, or if the table exceeds its time budget; else empty."""
    if seen[0].mistakes:
        return seen[0].mistakes[0]
    if getattr(seen[0].trial.cases[0], "cluster", None) != NETWORK:  # another case, run again
        return ""
    rows = [
        (count * seconds_of(name, nbytes, NETWORK), count, nbytes, name)
        for (nbytes, count), name in zip(TABLE, seen[0].results[0][0], strict=True)
    ]
    total = sum(row[0] for row in rows)
    if total <= BUDGET:
        return ""
    seconds, count, nbytes, name = max(
        rows, key=lambda row: row[0] - row[1] * best_seconds(row[2], NETWORK)
    )
    return (
        f"the step takes {total * 1e3:.1f} ms; the budget is {BUDGET * 1e3:g} ms. You lose most "
        f"time at {amount(nbytes)}: {count} x {name} take {seconds * 1e3:.1f} ms."
    )


def _slow_elsewhere(seen: Seen) -> str:
    """A message if, averaged over sizes, the choices on some network are too slow; else empty."""
    for case, results in zip(seen[0].trial.cases, seen[0].results, strict=True):
        assert isinstance(case, Questions)
        if len(case.sizes) != _SIZES:  # the table, or a size for the emulated interconnect
            continue
        ratios = [
            (seconds_of(name, size, case.cluster) / best_seconds(size, case.cluster), size, name)
            for size, name in zip(case.sizes, results[0], strict=True)
        ]
        mean, (_, size, name) = sum(ratio for ratio, _, _ in ratios) / len(ratios), max(ratios)
        if mean > _ENOUGH:
            return (
                f"{case} ({links_of(case.cluster)}): over {len(ratios)} sizes, your choices take "
                f"{mean:.3f} times as long as the best, on average; {_ENOUGH:g} is allowed. "
                f"The ratio is largest at {amount(size)}, where you choose {name}."
            )
    return ""


def _slow_on_the_wire(seen: Seen) -> str:
    """A message if a real run on the emulated interconnect is too slow; empty otherwise."""
    for observation in seen[1:]:
        (case,) = observation.trial.cases
        assert isinstance(case, OnTheWire)
        if observation.error is not None:
            return observation.trouble
        seconds, slowdown = case.measured(observation.results[0]), case.cluster.slowdown
        best = slowdown * best_seconds(case.nbytes, case.cluster)
        # If the formula calls the choice fast, and the run took longer, the machine was busy.
        predicted = slowdown * seconds_of(case.name, case.nbytes, case.cluster)
        if min(seconds, predicted) > _TOO_SLOW * best:
            took = f"{case.name} took {seconds:.2f} s"
            return f"{case}: {took} on the emulated wire; the best takes {best:.2f} s."
    return ""


PART = Part(
    name="01/choose",
    level=3,
    title="The fastest algorithm",
    minutes=25,
    difficulty=3,
    check=Check(
        trials=_trials,
        then=_on_the_wire,
        rules=(
            rule("budget", 4, "the step is within the budget", also=_over_budget),
            rule(
                "elsewhere",
                4,
                "nearly as fast on other networks too",
                waits=_named,
                also=_slow_elsewhere,
            ),
            rule(
                "wire",
                2,
                "real runs are as fast as predicted",
                waits=_named,
                also=_slow_on_the_wire,
            ),
        ),
    ),
)
