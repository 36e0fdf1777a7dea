"""The collectives of torch.distributed, built from send and receive alone.

`simple_ring_all_reduce` shows the ring in 15 lines. Below it, every all-reduce gives the same sum,
and each costs less somewhere than the one before. A message of S bytes takes a + S/B seconds (a:
latency in seconds, B: one-way bandwidth in bytes/s); N ranks that each send and receive at the
same time need

    naive                2(N-1) (a + S/B)                everything through one rank
    ring                 2(N-1) a + 2(N-1)/N S/B         fewest bytes, two neighbours only
    tree                 2 log2 N (a + S/B)              log2 N partners
    recursive doubling   log2 N (a + S/B)                fewest messages: for small tensors
    halving-doubling     2 log2 N a + 2(N-1)/N S/B       the ring's bytes in fewer messages
    hierarchical         rings in and across nodes       fewest bytes between nodes

Each function works in place and returns None once this rank's part is done. It takes what its
counterpart in torch.distributed takes: any number of ranks, every dtype and reduction that gloo
has, empty tensors, subgroups; a rank outside `group` is warned and does nothing. Tensors need not
be contiguous: they go through a contiguous copy. Before anything is sent, a reduction that the
dtype does not have raises TypeError, and sizes that do not fit each other raise ValueError.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.messages import (
    SUM,
    Group,
    Inbox,
    Op,
    average,
    check_sizes,
    combine,
    flattened,
    is_member,
    scratch_rows,
)

__all__ = [
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "naive_all_reduce",
    "pairwise_all_to_all",
    "recursive_doubling_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "simple_ring_all_reduce",
    "tree_all_reduce",
    "tree_broadcast",
]


def simple_ring_all_reduce(tensor: Tensor, group: Group = None) -> None:
    """Sum a contiguous tensor over all ranks, in place: the ring in its simplest form.

    The ranks stand in a ring, and the tensor is cut into N chunks. In each of 2(N-1) rounds a rank
    sends one chunk to its right neighbour and receives another from its left one. In the first
    half of the rounds it adds what arrives; then chunk r is complete on rank r. In the second half
    it keeps what arrives. Use `ring_all_reduce` for anything but reading.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.tensor_split(n)
    for k in range(2 * (n - 1)):
        outgoing, incoming = chunks[(rank - 1 - k) % n], chunks[(rank - 2 - k) % n]
        received = torch.empty_like(incoming)
        sending: Any = dist.isend(outgoing, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        if k < n - 1:
            incoming += received
        else:
            incoming.copy_(received)
        sending.wait()  # before this rank changes the chunk that it has just sent


# All collectives, for every size, dtype, reduction and group ------------------------------------

Body = TypeVar("Body", bound=Callable[..., None])


def _all_reduce(body: Body) -> Body:
    """What all-reduces share: a body sees a flat, contiguous tensor, and members of the group."""

    @functools.wraps(body)
    def call(tensor: Tensor, op: Op = SUM, group: Group = None, *rest: Any, **kwargs: Any) -> None:
        if is_member(group, body.__name__):
            combine(op, tensor)  # refuses what the dtype does not have
            with flattened(tensor) as flat:
                body(flat, op, group, *rest, **kwargs)

    return cast(Body, call)


@_all_reduce
def naive_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: rank 0 collects, adds up, and hands the sum out.

        1 ─┐           ┌─> 1
        2 ─┼─> 0: sum ─┼─> 2      rank 0 sends and receives (N-1) S bytes, every other rank S
        3 ─┘           └─> 3

    Cost: 2(N-1) (a + S/B), for everything goes through the one link of rank 0.
    """
    me, n, add = dist.get_rank(group), dist.get_world_size(group), combine(op, tensor)
    if me > 0:
        dist.send(tensor, group=group, group_dst=0)
        dist.recv(tensor, group=group, group_src=0)
        return
    theirs = scratch_rows(tensor)[0]
    for source in range(1, n):
        dist.recv(theirs, group=group, group_src=source)
        add(tensor, theirs, out=tensor)
    average(tensor, op, n)
    for target in range(1, n):
        dist.send(tensor, group=group, group_dst=target)


@_all_reduce
def ring_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: cut it into N chunks; in each round pass one to the right.

    The number of the chunk that each rank passes on, here with four ranks:

                    rank 0  rank 1  rank 2  rank 3
        round 0        3       0       1       2      reduce-scatter: add what arrives to
        round 1        2       3       0       1      the own chunk of that number
        round 2        1       2       3       0
        round 3        0       1       2       3      all-gather: chunk r is complete on
        round 4        3       0       1       2      rank r; keep what arrives as it is
        round 5        2       3       0       1

    Cost: 2(N-1) a + 2(N-1)/N S/B; no all-reduce can send fewer bytes. All ranks get the same bits.
    Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    ranks, me = range(dist.get_world_size(group)), dist.get_rank(group)
    chunks = tensor.tensor_split(len(ranks))
    with _all_gather_half(chunks, group, ranks):
        adding = _reduce_scatter_half(chunks, chunks, op, group, ranks)
        average(chunks[me], op, len(ranks))
    adding.flush()


def _reduce_scatter_half(
    chunks: Sequence[Tensor], sums: Sequence[Tensor], op: Op, group: Group, ranks: Sequence[int]
) -> Inbox:
    """Leave the sum of every rank's chunk r in `sums[r]` of the r-th of `ranks`, a ring of N.

    `sums` may be `chunks` themselves. What is sent last may still be under way: to be flushed.
    """
    n, me = len(ranks), ranks.index(dist.get_rank(group))
    arriving = [(me - 2 - k) % n for k in range(n - 1)]
    inbox = Inbox(group, [ranks[me - 1]] * (n - 1), [chunks[i] for i in arriving], scratch=True)
    message, add = chunks[me - 1], combine(op, chunks[0])
    for i in arriving:
        theirs = inbox.take(while_sending=message, to=ranks[(me + 1) % n])
        message = add(chunks[i], theirs, out=sums[i])
    return inbox


@contextmanager
def _all_gather_half(
    chunks: Sequence[Tensor], group: Group, ranks: Sequence[int]
) -> Iterator[None]:
    """Once the block has completed chunk r on the r-th of `ranks`: bring it to all of them.

    The receives stand before the block runs, in chunks that it still adds up and sends. That is
    safe: a complete chunk can arrive only after this rank's part of it has left.
    """
    n, me = len(ranks), ranks.index(dist.get_rank(group))
    arriving = [chunks[(me - 1 - k) % n] for k in range(n - 1)]
    inbox = Inbox(group, [ranks[me - 1]] * (n - 1), arriving, tag=1)
    yield
    message = chunks[me]
    for _ in arriving:
        message = inbox.take(while_sending=message, to=ranks[(me + 1) % n])
    inbox.flush()


def ring_reduce_scatter(output: Tensor, input: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `input` over all ranks and leave its r-th of N equal chunks in `output` on rank r.

    The first half of `ring_all_reduce`. `input` stays as it is; `output` may be this rank's chunk
    of it. Cost, S bytes in `input`: (N-1) a + (N-1)/N S/B.
    """
    if not is_member(group, "ring_reduce_scatter"):
        return
    ranks, me = range(dist.get_world_size(group)), dist.get_rank(group)
    check_sizes("ring_reduce_scatter", input, output, len(ranks))
    combine(op, input)
    with flattened(output) as mine:
        chunks = input.detach().contiguous().view(-1).tensor_split(len(ranks))
        sums = list(scratch_rows(mine, len(ranks)))
        sums[me] = mine if len(ranks) > 1 else mine.copy_(chunks[0])
        _reduce_scatter_half(chunks, sums, op, group, ranks).flush()
        average(mine, op, len(ranks))


def ring_all_gather(output: Tensor, input: Tensor, group: Group = None) -> None:
    """Put the `input` of all ranks one after the other into `output`, on every rank.

    The second half of `ring_all_reduce`. `input` may be this rank's chunk of `output`.
    Cost, S bytes in `output`: (N-1) a + (N-1)/N S/B.
    """
    if not is_member(group, "ring_all_gather"):
        return
    ranks, me = range(dist.get_world_size(group)), dist.get_rank(group)
    check_sizes("ring_all_gather", output, input, len(ranks))
    with flattened(output) as gathered:
        chunks = gathered.tensor_split(len(ranks))
        with _all_gather_half(chunks, group, ranks):
            chunks[me].copy_(input.detach().reshape(-1))


@_all_reduce
def tree_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: up a binomial tree to rank 0, then down again.

        distance 1    0 <── 1   2 <── 3   4 <── 5   6 <── 7
        distance 2    0 <────── 2         4 <────── 6
        distance 4    0 <──────────────── 4                   the way up

    Cost: 2 log2 N (a + S/B). Thakur, Rabenseifner & Gropp 2005, "Optimization of collective
    communication operations in MPICH".
    """
    me, n, add = dist.get_rank(group), dist.get_world_size(group), combine(op, tensor)
    children = _children(me, n)
    inbox = Inbox(group, children, [tensor] * len(children), scratch=True)
    for _ in children:
        add(tensor, inbox.take(), out=tensor)
    if me > 0:
        dist.send(tensor, group=group, group_dst=me & (me - 1))
    else:
        average(tensor, op, n)
    _broadcast(tensor, 0, group)


def tree_broadcast(tensor: Tensor, src: int, group: Group = None) -> None:
    """Copy `tensor` of the global rank `src` to all ranks; each that has it helps to spread it.

    The second half of `tree_all_reduce`, with `src` for rank 0. Cost: log2 N (a + S/B).
    Raises: ValueError where `src` is not in `group`.
    """
    if is_member(group, "tree_broadcast"):
        root = src if group is None else dist.get_group_rank(group, src)
        with flattened(tensor) as flat:
            _broadcast(flat, root, group)


def _broadcast(tensor: Tensor, root: int, group: Group) -> None:
    """Down the binomial tree from `root`: receive from the parent, send to the children."""
    n = dist.get_world_size(group)
    place = (dist.get_rank(group) - root) % n
    if place > 0:
        parent = place & (place - 1)  # the number without its lowest bit
        dist.recv(tensor, group=group, group_src=(parent + root) % n)
    for child in reversed(_children(place, n)):  # the largest subtree first
        dist.send(tensor, group=group, group_dst=(child + root) % n)


def _children(place: int, n: int) -> list[int]:
    """In a binomial tree of n: the numbers with one bit more, below the lowest of `place`."""
    distances = (1 << k for k in range(n.bit_length()))
    return [place + d for d in distances if d < (place & -place or n) and place + d < n]


@_all_reduce
def recursive_doubling_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: swap sums with a partner at distance 1, 2, 4, ...

        distance 1    0 <──> 1   2 <──> 3   4 <──> 5   6 <──> 7     sums of 2 ranks
        distance 2    0 <───────> 2         4 <───────> 6           sums of 4; so do 1-3, 5-7
        distance 4    0 <─────────────────> 4                       sums of 8; so do 1-5, ...

    Cost: log2 N (a + S/B); where N is not a power of two, each rank beyond the last one first adds
    its part to a partner below and in the end gets the sum: 2 (a + S/B) more. Thakur et al. 2005.
    """
    with _power_of_two(tensor, op, group) as partners:
        inbox = Inbox(group, partners, [tensor] * len(partners), scratch=True)
        for partner in partners:
            theirs = inbox.take(while_sending=tensor, to=partner)
            inbox.flush()  # the tensor must have left before it changes
            combine(op, tensor)(tensor, theirs, out=tensor)


@contextmanager
def _power_of_two(tensor: Tensor, op: Op, group: Group) -> Iterator[list[int]]:
    """Fold ranks beyond the last power of two into partners below, and hand them the result.

    Yields this rank's partners at distance 1, 2, 4, ...: none for a rank that was folded.
    """
    me, n = dist.get_rank(group), dist.get_world_size(group)
    rounds = n.bit_length() - 1
    twin = me ^ (1 << rounds)
    if twin < me:
        dist.send(tensor, group=group, group_dst=twin)
        yield []
        dist.recv(tensor, group=group, group_src=twin)
        return
    if twin < n:
        theirs = Inbox(group, [twin], [tensor], scratch=True).take()
        combine(op, tensor)(tensor, theirs, out=tensor)
    yield [me ^ (1 << k) for k in range(rounds)]
    average(tensor, op, n)
    if twin < n:
        dist.send(tensor, group=group, group_dst=twin)


@_all_reduce
def halving_doubling_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: swap halves, quarters, ..., then gather the sums again.

                       rank 0    rank 1    rank 2    rank 3
        swap halves    0 1 . .   0 1 . .   . . 2 3   . . 2 3    the chunks whose sums each rank
        swap quarters  0 . . .   . 1 . .   . . 2 .   . . . 3    goes on with; then all swaps again,
                                                                backwards, with the finished sums
    Cost: 2 log2 N a + 2(N-1)/N S/B, and 2 (a + S/B) more where N is not a power of two, as in
    recursive doubling. Rabenseifner's algorithm, Thakur et al. 2005.
    """
    with _power_of_two(tensor, op, group) as near_to_far:
        part, kept, given, far_to_near = tensor, [], [], near_to_far[::-1]
        for partner in far_to_near:
            lower, upper = part.tensor_split(2)
            part, other = (upper, lower) if dist.get_rank(group) > partner else (lower, upper)
            kept.append(part)
            given.append(other)
        inbox = Inbox(group, far_to_near, kept, scratch=True)
        complete = Inbox(group, near_to_far, given[::-1], tag=1)  # safe as in `_all_gather_half`
        for partner, mine, other in zip(far_to_near, kept, given, strict=True):
            theirs = inbox.take(while_sending=other, to=partner)
            combine(op, tensor)(mine, theirs, out=mine)
        for partner, mine in zip(near_to_far, kept[::-1], strict=True):
            complete.take(while_sending=mine, to=partner)
        inbox.flush()
        complete.flush()


@_all_reduce
def hierarchical_all_reduce(
    tensor: Tensor, op: Op = SUM, group: Group = None, ranks_per_node: int | None = None
) -> None:
    """Reduce `tensor` over all ranks with few bytes between nodes of G = `ranks_per_node` ranks.

        node 0: 0 ── 1      1. reduce-scatter inside each node: S/G bytes of sums on each rank
                │    │      2. ring all-reduce of those among ranks of the same seat
        node 1: 2 ── 3      3. all-gather inside each node

    `ranks_per_node=None` is torchrun's LOCAL_WORLD_SIZE. Cost, n nodes, links a1, B1 inside and
    a2, B2 between: 2(G-1) a1 + 2(G-1)/G S/B1 + 2(n-1) a2 + 2(n-1)/n (S/G)/B2.
    Raises: ValueError where the number of ranks is not a multiple of G.
    """
    me, n = dist.get_rank(group), dist.get_world_size(group)
    if ranks_per_node is None:
        ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", n))
    if ranks_per_node < 1 or n % ranks_per_node:
        raise ValueError(
            f"hierarchical_all_reduce: {n} ranks do not fill nodes of {ranks_per_node}. "
            f"Pass a ranks_per_node that divides {n}."
        )
    node, seat = divmod(me, ranks_per_node)
    inside = range(me - seat, me - seat + ranks_per_node)
    across = range(seat, n, ranks_per_node)
    parts = tensor.tensor_split(len(inside))
    pieces = parts[seat].tensor_split(len(across))
    with _all_gather_half(parts, group, inside):
        _reduce_scatter_half(parts, parts, op, group, inside).flush()
        with _all_gather_half(pieces, group, across):
            _reduce_scatter_half(pieces, pieces, op, group, across).flush()
            average(pieces[node], op, n)


def pairwise_all_to_all(output: Tensor, input: Tensor, group: Group = None) -> None:
    """Send chunk r of `input` to rank r; chunk r of `output` is what came from rank r.

    In round k each rank sends to the k-th rank to its right and receives from the k-th to its
    left, so no link carries two messages at once. As `torch.distributed.all_to_all_single` with
    equal splits. Cost, S bytes in `input`: (N-1) a + (N-1)/N S/B. Thakur et al. 2005.
    """
    if not is_member(group, "pairwise_all_to_all"):
        return
    me, n = dist.get_rank(group), dist.get_world_size(group)
    check_sizes("pairwise_all_to_all", input, output, 1)
    if input.numel() % n:
        raise ValueError(
            f"pairwise_all_to_all: {input.numel()} elements cannot be cut into {n} equal chunks, "
            f"one for each rank. Pad input and output."
        )
    if output.untyped_storage().data_ptr() == input.untyped_storage().data_ptr():
        input = input.clone()  # what arrives must not overwrite what is still to be sent
    with flattened(output) as flat:
        incoming = flat.tensor_split(n)
        outgoing = input.detach().contiguous().view(-1).tensor_split(n)
        incoming[me].copy_(outgoing[me])
        sources = [(me - k) % n for k in range(1, n)]
        inbox = Inbox(group, sources, [incoming[source] for source in sources])
        for target in ((me + k) % n for k in range(1, n)):
            inbox.take(while_sending=outgoing[target], to=target)
        inbox.flush()
