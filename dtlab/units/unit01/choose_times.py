"""How long each all-reduce of `dtlab.collectives` takes on a network of two levels."""

from __future__ import annotations

from collections.abc import Callable

from dtlab.predict import (
    Cluster,
    Link,
    collective_seconds,
    halving_doubling_all_reduce_seconds,
    hierarchical_all_reduce_seconds,
    recursive_doubling_all_reduce_seconds,
    tree_all_reduce_seconds,
)

__all__ = ["ALGORITHMS", "best_seconds", "seconds_of"]


def _naive(nbytes: float, cluster: Cluster) -> float:
    """Rank 0 talks to the other ranks of its node, and to all others between nodes."""
    inside = cluster.gpus_per_node - 1
    between = cluster.size - cluster.gpus_per_node
    once = inside * cluster.intra.seconds(nbytes) + between * cluster.inter.seconds(nbytes)
    return float(2 * once)


def _ring(nbytes: float, cluster: Cluster) -> float:
    return collective_seconds("all_reduce", nbytes, cluster)


def _on_both_levels(
    seconds: Callable[[float, int, Link], float],
) -> Callable[[float, Cluster], float]:
    """Whole tensors at distance 1, 2, 4, ...: partners are in the node, then in other nodes."""

    def total(nbytes: float, cluster: Cluster) -> float:
        inside = seconds(nbytes, cluster.gpus_per_node, cluster.intra)
        return inside + seconds(nbytes, cluster.nodes, cluster.inter)

    return total


def _halving_doubling(nbytes: float, cluster: Cluster) -> float:
    """The far partners get the large halves: S/n is left for the node."""
    left, inside = nbytes / cluster.nodes, cluster.gpus_per_node
    between = halving_doubling_all_reduce_seconds(nbytes, cluster.nodes, cluster.inter)
    return between + halving_doubling_all_reduce_seconds(left, inside, cluster.intra)


_SECONDS: dict[str, Callable[[float, Cluster], float]] = {
    "naive": _naive,
    "ring": _ring,
    "tree": _on_both_levels(tree_all_reduce_seconds),
    "recursive_doubling": _on_both_levels(recursive_doubling_all_reduce_seconds),
    "halving_doubling": _halving_doubling,
    "hierarchical": hierarchical_all_reduce_seconds,
}
ALGORITHMS = tuple(_SECONDS)


def seconds_of(algorithm: str, nbytes: float, cluster: Cluster) -> float:
    """How long an all-reduce of `dtlab.collectives` takes over all ranks, without the slowdown.

    For nodes and GPUs in each that are powers of two, and links that are no slower in the node
    than between nodes. For small tensors in a ring it is a bound: as if every round of every rank
    took the slow link.
    """
    return _SECONDS[algorithm](nbytes, cluster)


def best_seconds(nbytes: float, cluster: Cluster) -> float:
    """How long the fastest of them takes."""
    return min(seconds_of(name, nbytes, cluster) for name in ALGORITHMS)
