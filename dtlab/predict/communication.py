"""Communication times: the alpha-beta model, and closed forms of the collectives.

A message of S bytes takes a + S/B seconds (a: latency in seconds, B: one-way bandwidth in
bytes/s): see `Link.seconds`. The time of a collective is that of its rounds of such messages, one
after the other. A ring all-reduce takes 2(N-1) rounds with messages of S/N bytes:

    operation (N ranks, S bytes)     seconds
    ring all-reduce                  2(N-1) a + 2(N-1)/N S/B
    reduce-scatter, all-gather       (N-1) a + (N-1)/N S/B      S: the whole tensor
    all-to-all                       (N-1) a + (N-1)/N S/B      S: what one rank sends
    broadcast, reduce                (N-1) a + S/B              along a chain, in small pieces
    gather, scatter                  a + (N-1)/N S/B            all through the root's port
    barrier                          (log2 N) a

Sizes may be NumPy arrays; then times are arrays too. The formulas assume that every rank can send
and receive at the same time and that no two messages share a port: Thakur, Rabenseifner & Gropp
2005, "Optimization of collective communication operations in MPICH".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtlab.predict.hardware import Cluster, Link, Numbers
from dtlab.predict.units import check_bytes, check_count, check_whole, is_number

__all__ = [
    "BucketTime",
    "Cluster",
    "Gradient",
    "Link",
    "Traffic",
    "algorithm_bandwidth",
    "all_gather_seconds",
    "all_to_all_seconds",
    "barrier_seconds",
    "broadcast_seconds",
    "bucket_times",
    "bus_bandwidth",
    "bus_factor",
    "check_stage",
    "exposed_seconds",
    "fit_link",
    "flat_ring_all_reduce_seconds",
    "gather_seconds",
    "halving_doubling_all_reduce_seconds",
    "hierarchical_all_reduce_seconds",
    "naive_all_reduce_seconds",
    "recursive_doubling_all_reduce_seconds",
    "reduce_scatter_seconds",
    "reduce_seconds",
    "ring_all_reduce_seconds",
    "scatter_seconds",
    "tree_all_reduce_seconds",
    "tree_broadcast_seconds",
    "zero_traffic",
]

# ------------------------------------------------------------------------------------ all-reduce


def naive_all_reduce_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds of an all-reduce through one rank: 2(N-1)(a + S/B)."""
    return 2 * (check_count("ranks", ranks) - 1) * link.seconds(nbytes)


def ring_all_reduce_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds of a ring: 2(N-1) a + 2(N-1)/N S/B (Patarasuk & Yuan 2009)."""
    return 2 * _rounds_of_chunks(nbytes, ranks, link)


def tree_all_reduce_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds up and down a binomial tree: 2 (log2 N) (a + S/B), log2 N rounded up."""
    return 2 * tree_broadcast_seconds(nbytes, ranks, link)


def recursive_doubling_all_reduce_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return (log2 N) (a + S/B), log2 N rounded down; plus 2 (a + S/B) unless N = 2, 4, 8, ..."""
    rounds = check_count("ranks", ranks).bit_length() - 1
    return (rounds + _beyond_power_of_two(ranks)) * link.seconds(nbytes)


def halving_doubling_all_reduce_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return 2 (log2 N) a + 2(N-1)/N S/B, for the largest power of two that is at most N.

    If N is not a power of two, folding the other ranks adds 2 (a + S/B) (Thakur et al. 2005).
    """
    rounds = check_count("ranks", ranks).bit_length() - 1
    halves = 2 * rounds * link.latency + (2 - 2 / (1 << rounds)) * nbytes / link.bandwidth
    return halves + _beyond_power_of_two(ranks) * link.seconds(nbytes)


def hierarchical_all_reduce_seconds(nbytes: Numbers, cluster: Cluster) -> Numbers:
    """Return the seconds of rings inside nodes and across nodes, over a full cluster.

    2(G-1) a1 + 2(G-1)/G S/B1 + 2(n-1) a2 + 2(n-1)/n (S/G)/B2 for n nodes of G ranks, where a1, B1
    are those of the link inside nodes and a2, B2 of the link between nodes. The ring across nodes
    joins ranks with the same local rank. `Cluster.slowdown` is not included. Compared with one
    flat ring this gains up to G times. Compared with a ring over each of G adapters, as NCCL
    builds them, it gains little or nothing for large S.
    """
    inside, share = cluster.gpus_per_node, nbytes / cluster.gpus_per_node
    between = ring_all_reduce_seconds(share, cluster.nodes, cluster.inter)
    return ring_all_reduce_seconds(nbytes, inside, cluster.intra) + between


def flat_ring_all_reduce_seconds(nbytes: Numbers, cluster: Cluster) -> Numbers:
    """Return the seconds of one ring over a full cluster: the slowest link limits every round.

    2(N-1) a + 2(N-1)/N S/B with the link between nodes, or on one node with the link inside.
    `Cluster.slowdown` is not included. The formula assumes a barrier after each round. Without
    it, earlier messages hide part of the slow link's latency; the limit is 2(N-1)/N S/B + a.
    """
    slowest = cluster.inter if cluster.nodes > 1 else cluster.intra
    return ring_all_reduce_seconds(nbytes, cluster.size, slowest)


# ------------------------------------------------------------------------- the other collectives


def reduce_scatter_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return a ring's seconds: (N-1) a + (N-1)/N S/B, with S the whole tensor in bytes."""
    return _rounds_of_chunks(nbytes, ranks, link)


def all_gather_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return a ring's seconds: (N-1) a + (N-1)/N S/B, with S the whole tensor in bytes."""
    return _rounds_of_chunks(nbytes, ranks, link)


def all_to_all_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds of pairwise rounds: (N-1) a + (N-1)/N S/B; S is what one rank sends."""
    return _rounds_of_chunks(nbytes, ranks, link)


def broadcast_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds along a chain: (N-1) a + S/B; 0 for one rank.

    This is the limit of many small pieces, whose latencies overlap.
    """
    hops = check_count("ranks", ranks) - 1
    return hops * link.latency + min(hops, 1) * nbytes / link.bandwidth


def reduce_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds of a broadcast in reverse: (N-1) a + S/B."""
    return broadcast_seconds(nbytes, ranks, link)


def tree_broadcast_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds down a binomial tree: (log2 N) (a + S/B), log2 N rounded up."""
    return (check_count("ranks", ranks) - 1).bit_length() * link.seconds(nbytes)


def gather_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds of messages through the root's port: a + (N-1)/N S/B; 0 for one rank.

    S is the size of the root's result, including its own part.
    """
    senders = check_count("ranks", ranks) - 1
    return min(senders, 1) * link.latency + senders / ranks * nbytes / link.bandwidth


def scatter_seconds(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds of a gather in reverse: a + (N-1)/N S/B."""
    return gather_seconds(nbytes, ranks, link)


def barrier_seconds(ranks: int, link: Link) -> float:
    """Return (log2 N) a, log2 N rounded up: empty messages to ranks at distance 1, 2, 4, ...

    Hensgen, Finkel & Manber 1988, "Two algorithms for barrier synchronization".
    """
    return (check_count("ranks", ranks) - 1).bit_length() * link.latency


def _rounds_of_chunks(nbytes: Numbers, ranks: int, link: Link) -> Numbers:
    """Return the seconds of N-1 rounds with messages of S/N: (N-1) a + (N-1)/N S/B."""
    return (check_count("ranks", ranks) - 1) * link.seconds(nbytes / ranks)


def _beyond_power_of_two(ranks: int) -> int:
    """Return the number of messages that fold extra ranks into a power of two, and answer them."""
    return 2 if ranks & (ranks - 1) else 0


# ------------------------------------------------------------------------------- from measurements

_FACTORS: dict[str, Callable[[int], float]] = {  # `bus_factor` names the sources
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,  # through the root's link
    "scatter": lambda n: (n - 1) / n,  # through the root's link
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send": lambda n: 1.0,
}


def bus_factor(operation: str, ranks: int) -> float:
    """Return the factor that turns S/t into the bandwidth of one link, such as 2(N-1)/N.

    S is the size in bytes, t the seconds, N the number of ranks. `operation` is a name in
    torch.distributed. Raises: ValueError for an operation without a factor.
    Source: nccl-tests, doc/PERFORMANCE.md; for gather, scatter and send the `GetBw` functions of
    src/gather.cu, src/scatter.cu and src/sendrecv.cu.
    """
    if operation not in _FACTORS:
        names = ", ".join(_FACTORS)
        raise ValueError(f"{operation!r} has no bus bandwidth factor. These have one: {names}.")
    return _FACTORS[operation](check_count("ranks", ranks))


def algorithm_bandwidth(nbytes: Numbers, seconds: Numbers) -> Numbers:
    """Return S/t in bytes/s, the caller's bandwidth; S is the size of the tensor on one rank."""
    return nbytes / seconds


def bus_bandwidth(operation: str, nbytes: Numbers, seconds: Numbers, ranks: int) -> Numbers:
    """Return the bytes/s on one rank's link: S/t times `bus_factor`."""
    return bus_factor(operation, ranks) * nbytes / seconds


def fit_link(sizes_in_bytes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Return the link, t = a + S/B, with the least relative errors for measured messages.

    Errors are relative, because the largest sizes alone would determine a least-squares fit of
    seconds. The fit minimizes the sum of absolute errors, not of squared errors, so that a few
    disturbed measurements change little (iteratively reweighted least squares). a and 1/B are at
    least 0.
    Raises: ValueError for fewer than two different sizes, times that are not above 0, or times
    that do not grow with the size.
    """
    size, time = np.asarray(sizes_in_bytes, dtype=float), np.asarray(seconds, dtype=float)
    if size.shape != time.shape or size.ndim != 1 or len(np.unique(size)) < 2:
        raise ValueError(
            "fit_link needs one time for each size, and at least two different sizes; got "
            f"{size.size} sizes, {len(np.unique(size))} different, and {time.size} times."
        )
    if not (np.isfinite(time).all() and (time > 0).all() and (size >= 0).all()):
        raise ValueError("fit_link needs sizes of 0 or more (bytes) and times above 0 (seconds).")
    terms = np.column_stack((1 / time, size / time))  # (a + S/B) / t, which should be 1
    latency, per_byte = _least_absolute_errors(terms)
    if latency < 0:
        latency, per_byte = 0.0, _least_absolute_errors(terms[:, 1:])[0]
    if per_byte * np.ptp(size) <= 1e-9 * time.max():  # no growth except by rounding
        raise ValueError(
            "The times do not grow with the sizes, so they determine no bandwidth. "
            "Measure larger messages."
        )
    return Link(float(latency), float(1 / per_byte))


def _least_absolute_errors(terms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the x that minimizes sum |terms x - 1|."""
    scale = terms.max(axis=0)  # the columns differ by ten orders of magnitude
    weight = np.ones(len(terms))
    for _ in range(100):
        root = np.sqrt(weight)[:, None]
        x = np.linalg.lstsq(terms / scale * root, root[:, 0], rcond=None)[0]
        weight = 1 / np.maximum(np.abs(terms / scale @ x - 1), 1e-6)
    return np.asarray(x / scale)


# Traffic of ZeRO ---------------------------------------------------------------------------------


def check_stage(stage: int) -> int:
    """Return `stage`, a ZeRO stage. Raises: ValueError if it is not 0, 1, 2 or 3."""
    if not is_number(stage) or stage not in (0, 1, 2, 3):
        raise ValueError(f"stage must be 0 (no sharding), 1, 2 or 3, not {stage!r}.")
    return int(stage)


@dataclass(frozen=True)
class Traffic:
    """The traffic of one rank in a step.

    `parameter_passes` and `gradient_passes` count how often all parameters, and all gradients,
    pass around the ring.
    """

    num_params: int
    world_size: int
    parameter_passes: int
    gradient_passes: int

    @property
    def passes(self) -> int:
        """All passes: the 2, 3, k + 1 or 3k of the papers, which count (N-1)/N as 1."""
        return self.parameter_passes + self.gradient_passes

    @property
    def elements(self) -> float:
        """Elements that one rank sends: (N-1)/N of all elements in each pass."""
        return self.passes * self.num_params * (self.world_size - 1) / self.world_size

    def nbytes(self, bytes_per_parameter: float, bytes_per_gradient: float) -> float:
        """Return the bytes that one rank sends, given the bytes per element of both kinds.

        Raises: ValueError for bytes below 0.
        """
        total = self.parameter_passes * check_bytes("bytes_per_parameter", bytes_per_parameter)
        total += self.gradient_passes * check_bytes("bytes_per_gradient", bytes_per_gradient)
        return total * self.num_params * (self.world_size - 1) / self.world_size


def zero_traffic(
    num_params: float,
    stage: int,
    world_size: int,
    num_microbatches: int = 1,
    *,
    gradients_everywhere: bool = False,
    reshard_after_forward: bool = True,
) -> Traffic:
    """Return what each rank sends in a step of k microbatches, at ZeRO stage 0 to 3.

    In one pass around the ring each rank sends (N-1)/N of all elements, half of an all-reduce
    (Rajbhandari et al. 2020, "ZeRO", section 7). Passes in one step:
        k microbatches          parameters   gradients   all
        stage 0                      0            2         2      one all-reduce
        stage 1                      1            1         2      reduce-scatter, step, all-gather
        stage 1, DDP's gradients     1            2         3      all-reduce, step, broadcast
        stage 2                      1            k       k + 1    reduced for every microbatch
        stage 3                     2k            k        3k      gathered forward and backward
        stage 3, kept gathered       k            k        2k      gathered in forward only

    Stages 0 and 1 accumulate whole gradients and reduce them once; DDP does this with `no_sync`.
    `gradients_everywhere` is stage 1 as in DDP with PyTorch's `ZeroRedundancyOptimizer`: all ranks
    get all averaged gradients, and each broadcasts the parameters that it has stepped.
    `reshard_after_forward` is the option of `fully_shard`: if it is False, stage 3 keeps gathered
    parameters until the end of backward, so all ranks hold whole parameters during that time.
    Raises: ValueError for an invalid stage or count, or an option that the stage does not have.
    """
    params, ranks = check_whole("num_params", num_params), check_count("world_size", world_size)
    k = check_count("num_microbatches", num_microbatches)
    stage = check_stage(stage)
    if gradients_everywhere and stage != 1:
        raise ValueError(f"gradients_everywhere is an option of ZeRO stage 1, not {stage}.")
    if not reshard_after_forward and stage != 3:
        raise ValueError(f"reshard_after_forward is an option of ZeRO stage 3, not {stage}.")
    parameters, gradients = [(0, 2), (1, 1), (1, k), (2 * k, k)][stage]
    if gradients_everywhere:
        gradients = 2
    if not reshard_after_forward:
        parameters = k
    return Traffic(params, ranks, parameters, gradients)


# -------------------------------------------------------------- overlap with the backward pass
#
# Overlap of gradient communication with the backward pass, bucket by bucket.
#
#     backward    layer 4 | layer 3 | layer 2 | layer 1 |
#     bucket 0            |-- all-reduce --|            :
#     bucket 1                      ready :|-- all-reduce --|
#                                                       :...: exposed
#
# A bucket is closed once it has enough bytes. It is ready when backward has computed its last
# gradient; its all-reduce starts then, or when the previous all-reduce ends: S. Li et al. 2020,
# "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2.


class Gradient(NamedTuple):
    """The seconds of backward for a layer, and the bytes of the layer's gradients."""

    seconds: float
    nbytes: float


class BucketTime(NamedTuple):
    """Bytes of a bucket, and its times in seconds from the start of backward.

    `ready` is the time of its last gradient; its all-reduce runs from `start` to `end`.
    """

    nbytes: float
    ready: float
    start: float
    end: float


def bucket_times(
    gradients: Sequence[Gradient],
    bucket_bytes: float,
    ranks: int,
    link: Link,
    *,
    first_bucket_bytes: float | None = None,
) -> list[BucketTime]:
    """Return the times of the buckets of one backward pass, on a ring of `ranks`.

    `gradients` are in the order in which backward computes them: the last layer's first. A bucket
    is closed once it has `bucket_bytes`, or `first_bucket_bytes` if it is the first. The times
    assume that communication does not slow backward down.
    Raises: ValueError for a bucket size that is not above 0, or gradients with values below 0.
    """
    limit = bucket_bytes if first_bucket_bytes is None else first_bucket_bytes
    if not (bucket_bytes > 0 and limit > 0):
        raise ValueError(f"A bucket needs more than 0 bytes, not {min(bucket_bytes, limit)!r}.")
    if any(gradient.seconds < 0 or gradient.nbytes < 0 for gradient in gradients):
        raise ValueError("Seconds and bytes of gradients must be 0 or more.")
    buckets: list[BucketTime] = []
    now = free = nbytes = 0.0
    for number, gradient in enumerate(gradients):
        now, nbytes = now + gradient.seconds, nbytes + gradient.nbytes
        if nbytes >= limit or number == len(gradients) - 1:
            start = max(now, free)
            free = start + ring_all_reduce_seconds(nbytes, ranks, link)
            buckets.append(BucketTime(nbytes, now, start, free))
            nbytes, limit = 0.0, bucket_bytes
    return buckets


def exposed_seconds(
    gradients: Sequence[Gradient],
    bucket_bytes: float,
    ranks: int,
    link: Link,
    *,
    first_bucket_bytes: float | None = None,
) -> float:
    """Return the seconds from the end of backward to the end of the last bucket."""
    buckets = bucket_times(
        gradients, bucket_bytes, ranks, link, first_bucket_bytes=first_bucket_bytes
    )
    return buckets[-1].end - sum(grad.seconds for grad in gradients) if buckets else 0.0
