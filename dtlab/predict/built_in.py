"""The algorithm that the emulated interconnect assumes for each built-in collective.

A library for real hardware chooses among several algorithms; here each collective always uses

    all_reduce                   a flat ring in the order of the ranks    2(N-1) rounds of S/N
    reduce_scatter, all_gather   the same ring                            N-1 rounds of S/N
    all_to_all                   pairwise: in round k each rank sends     N-1 rounds of S/N
                                 to the k-th rank on its right
    broadcast, reduce            a chain along the ring, in small pieces  (N-1) a + S/B seconds
    gather, scatter              directly through the root's port         a + (N-1)/N S/B seconds
    barrier                      empty messages at distance 1, 2, 4, ...  log2 N rounds of 0 bytes

N is the number of ranks. S is the bytes of the full tensor on one rank, or of all sends of one
rank in an all-to-all. A message of m bytes takes a + m/B seconds. "Rounds of S/N" are rounds in
which each message has S/N bytes. A round takes as long as its slowest link, so a flat ring over
several nodes runs at the speed of the link between nodes. On one node these are the closed forms
of `communication.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dtlab.predict.hardware import Cluster

__all__ = ["Route", "collective_seconds"]

Pair = tuple[int, int]  # ranks: from, to


class Route:
    """The messages of one collective among `ranks`, reduced to what determines its time.

    `pairs` are the (from, to) pairs that exchange messages. `root` is a global rank.
    Raises: ValueError for an unknown operation.
    """

    def __init__(
        self, operation: str, cluster: Cluster, ranks: Sequence[int], root: int = -1
    ) -> None:
        n, ring = len(ranks), _shifted(ranks, 1)
        self.operation, self.ranks = operation, n
        if operation in ("all_reduce", "reduce_scatter", "all_gather"):
            rounds = [ring] * ((n - 1) * (2 if operation == "all_reduce" else 1))
        elif operation == "all_to_all":
            rounds = [_shifted(ranks, k) for k in range(1, n)]
        elif operation in ("barrier", "monitored_barrier"):
            rounds = [_shifted(ranks, 1 << k) for k in range((n - 1).bit_length())]
        elif operation in ("broadcast", "reduce"):
            end = 1 if operation == "broadcast" else 0  # the root receives or sends nothing
            rounds = [[pair for pair in ring if pair[end] != root]]
        elif operation in ("gather", "scatter"):
            non_roots = [rank for rank in ranks if rank != root]
            inward = operation == "gather"
            rounds = [[(rank, root) if inward else (root, rank) for rank in non_roots]]
        else:
            raise ValueError(f"{operation!r} is not a known collective.")
        rounds = [] if n == 1 else rounds
        self.pairs = {pair for pairs in rounds[:n] for pair in pairs}
        links = {pair: cluster.link(*pair) for pair in self.pairs}
        self._used = Counter(links.values())
        self._rounds = Counter(frozenset(links[pair] for pair in pairs) for pairs in rounds)

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of the collective, without the cluster's slowdown.

        `nbytes` is the size of the full tensor on one rank; for an all-to-all, of its sends.
        """
        used, piece = self._used, nbytes / self.ranks
        if not used:  # a single rank
            return 0.0
        if self.operation in ("broadcast", "reduce"):
            slowest = min(link.bandwidth for link in used)
            return sum(link.latency * hops for link, hops in used.items()) + nbytes / slowest
        if self.operation in ("gather", "scatter"):  # the ports of both levels work concurrently
            return max(link.seconds(peers * piece) for link, peers in used.items())
        if self.operation.endswith("barrier"):
            piece = 0.0
        return sum(
            count * max(link.seconds(piece) for link in links)
            for links, count in self._rounds.items()
        )


def collective_seconds(
    operation: str,
    nbytes: float,
    cluster: Cluster,
    ranks: Sequence[int] | None = None,
    root: int | None = None,
) -> float:
    """Return the seconds of a built-in collective on an emulated cluster, without its slowdown.

    `operation` is a name in torch.distributed ("all_reduce", "all_gather", ...). `nbytes` is the
    size of the full tensor on one rank, or for an all-to-all of all sends of one rank. `ranks` are
    the members of the group, by default all ranks; `root` is one of them, by default the first.
    Raises: ValueError for an unknown operation, or ranks outside the cluster.
    """
    members = range(cluster.size) if ranks is None else ranks
    return Route(operation, cluster, members, members[0] if root is None else root).seconds(nbytes)


def _shifted(ranks: Sequence[int], distance: int) -> list[Pair]:
    """Return the messages of a round in which every rank sends `distance` places to its right."""
    n = len(ranks)
    return [(ranks[i], ranks[(i + distance) % n]) for i in range(n)]
