"""The collectives of torch.distributed, built from send and receive alone.

`dtlab/simple.py` has the sum through a root and over a ring. `ring_all_reduce` here sends the same
chunks in the same rounds. It also posts each receive before the message is due, so that no sender
waits for its receiver, and it takes any reduction, dtype and group. The other all-reduces compute
the same sum at other costs. A message of S bytes takes a + S/B seconds (a: latency in seconds, B:
one-way bandwidth in bytes/s). To reduce S bytes, N ranks that send and receive at the same time
need

    naive                2(N-1) (a + S/B)                everything passes through one rank
    ring                 2(N-1) a + 2(N-1)/N S/B         fewest bytes per rank, only two neighbours
    tree                 2 log2 N (a + S/B)              log2 N partners
    recursive doubling   log2 N (a + S/B)                fewest rounds: for small tensors
    halving-doubling     2 log2 N a + 2(N-1)/N S/B       the ring's bytes in fewer rounds
    hierarchical         rings in and across nodes       fewest bytes between nodes

Each function works in place and returns None once this rank's part is done. It accepts what its
counterpart in torch.distributed accepts: any number of ranks, every dtype and reduction that gloo
supports, empty tensors and subgroups. On a rank outside `group` it only warns. A tensor that is
not contiguous goes through a contiguous copy. Before anything is sent, a reduction that the dtype
does not support raises TypeError, and sizes that do not match raise ValueError.
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
    check_sizes,
    combine,
    divide_if_average,
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
    "run_labelled",
    "tree_all_reduce",
    "tree_broadcast",
]


Body = TypeVar("Body", bound=Callable[..., None])


def _all_reduce(body: Body) -> Body:
    """Wrap the body of an all-reduce: check the op, flatten the tensor, skip non-members."""

    @functools.wraps(body)
    def call(tensor: Tensor, op: Op = SUM, group: Group = None, *rest: Any, **kwargs: Any) -> None:
        if is_member(group, body.__name__):
            combine(op, tensor)  # raises TypeError if the dtype does not support op
            with flattened(tensor) as flat:
                body(flat, op, group, *rest, **kwargs)

    return cast(Body, call)


@_all_reduce
def naive_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: rank 0 receives all tensors, adds them, and sends the sum.

        1 ─┐           ┌─> 1
        2 ─┼─> 0: sum ─┼─> 2      rank 0 sends and receives (N-1) S bytes, every other rank S
        3 ─┘           └─> 3

    Cost: 2(N-1) (a + S/B), because everything passes through the one link of rank 0.
    """
    rank, n, add = dist.get_rank(group), dist.get_world_size(group), combine(op, tensor)
    if rank > 0:
        dist.send(tensor, group=group, group_dst=0)
        dist.recv(tensor, group=group, group_src=0)
        return
    received = scratch_rows(tensor)[0]
    for source in range(1, n):
        dist.recv(received, group=group, group_src=source)
        add(tensor, received, out=tensor)
    divide_if_average(tensor, op, n)
    for target in range(1, n):
        dist.send(tensor, group=group, group_dst=target)


@_all_reduce
def ring_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: cut it into N chunks; in each round send one to the right.

    The table shows which chunk each rank sends, here with four ranks:

                    rank 0  rank 1  rank 2  rank 3
        round 1        3       0       1       2      reduce-scatter: add the received chunk
        round 2        2       3       0       1      to this rank's copy of it; after round 3
        round 3        1       2       3       0      chunk r is complete on rank r
        round 4        0       1       2       3      all-gather: overwrite this rank's copy
        round 5        3       0       1       2      with the received chunk
        round 6        2       3       0       1

    Cost: 2(N-1) a + 2(N-1)/N S/B. In any all-reduce, some rank sends at least as many bytes. All
    ranks get the same bits.
    Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    ranks, rank = range(dist.get_world_size(group)), dist.get_rank(group)
    chunks = tensor.tensor_split(len(ranks))
    with _all_gather_after(chunks, group, ranks):  # gathers when the block ends
        pending_sends = _reduce_scatter(chunks, chunks, op, group, ranks)
        divide_if_average(chunks[rank], op, len(ranks))
    pending_sends.flush()


def _reduce_scatter(
    chunks: Sequence[Tensor], sums: Sequence[Tensor], op: Op, group: Group, ranks: Sequence[int]
) -> Inbox:
    """Reduce-scatter over the ring `ranks`: its r-th rank gets the sum of chunk r in `sums[r]`.

    `sums` may be `chunks`. Call `flush` on the returned inbox before you change `chunks` again:
    the last send may still be in flight.
    """
    n, index = len(ranks), ranks.index(dist.get_rank(group))
    arriving = [(index - 2 - k) % n for k in range(n - 1)]
    inbox = Inbox(group, [ranks[index - 1]] * (n - 1), [chunks[i] for i in arriving], scratch=True)
    message, add = chunks[index - 1], combine(op, chunks[0])
    for i in arriving:
        received = inbox.take(while_sending=message, to=ranks[(index + 1) % n])
        message = add(chunks[i], received, out=sums[i])
    return inbox


@contextmanager
def _all_gather_after(
    chunks: Sequence[Tensor], group: Group, ranks: Sequence[int]
) -> Iterator[None]:
    """All-gather over the ring `ranks` when the block ends; its r-th rank must then have chunk r.

    The receives are posted before the block runs, into chunks that the block still adds to and
    sends. This is safe: a complete chunk contains this rank's summand, so it arrives only after
    this rank has sent that summand.
    """
    n, index = len(ranks), ranks.index(dist.get_rank(group))
    arriving = [chunks[(index - 1 - k) % n] for k in range(n - 1)]
    inbox = Inbox(group, [ranks[index - 1]] * (n - 1), arriving, tag=1)
    yield
    message = chunks[index]
    for _ in arriving:
        message = inbox.take(while_sending=message, to=ranks[(index + 1) % n])
    inbox.flush()


def ring_reduce_scatter(output: Tensor, input: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `input` over all ranks and leave its r-th of N equal chunks in `output` on rank r.

    This is the first half of `ring_all_reduce`. `input` is not changed; `output` may be this
    rank's chunk of it. Cost for S bytes in `input`: (N-1) a + (N-1)/N S/B.
    """
    if not is_member(group, "ring_reduce_scatter"):
        return
    ranks, rank = range(dist.get_world_size(group)), dist.get_rank(group)
    check_sizes("ring_reduce_scatter", input, output, len(ranks))
    combine(op, input)  # raises TypeError if the dtype does not support op
    with flattened(output) as chunk:
        chunks = input.detach().contiguous().view(-1).tensor_split(len(ranks))
        sums = list(scratch_rows(chunk, len(ranks)))
        sums[rank] = chunk
        if len(ranks) == 1:
            chunk.copy_(chunks[0])  # no message will fill it
        _reduce_scatter(chunks, sums, op, group, ranks).flush()
        divide_if_average(chunk, op, len(ranks))


def ring_all_gather(output: Tensor, input: Tensor, group: Group = None) -> None:
    """Concatenate the `input` of all ranks into `output`, on every rank.

    This is the second half of `ring_all_reduce`. `input` may be this rank's chunk of `output`.
    Cost for S bytes in `output`: (N-1) a + (N-1)/N S/B.
    """
    if not is_member(group, "ring_all_gather"):
        return
    ranks, rank = range(dist.get_world_size(group)), dist.get_rank(group)
    check_sizes("ring_all_gather", output, input, len(ranks))
    with flattened(output) as gathered:
        chunks = gathered.tensor_split(len(ranks))
        with _all_gather_after(chunks, group, ranks):
            chunks[rank].copy_(input.detach().reshape(-1))


@_all_reduce
def tree_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: up a binomial tree to rank 0, then down again.

        distance 1    0 <── 1   2 <── 3   4 <── 5   6 <── 7
        distance 2    0 <────── 2         4 <────── 6
        distance 4    0 <──────────────── 4                   the way up; arrows show messages

    Cost: 2 log2 N (a + S/B). Thakur, Rabenseifner & Gropp 2005, "Optimization of collective
    communication operations in MPICH".
    """
    rank, n, add = dist.get_rank(group), dist.get_world_size(group), combine(op, tensor)
    children = _tree_children(rank, n)
    inbox = Inbox(group, children, [tensor] * len(children), scratch=True)
    for _ in children:
        add(tensor, inbox.take(), out=tensor)
    if rank > 0:
        dist.send(tensor, group=group, group_dst=_tree_parent(rank))
    else:
        divide_if_average(tensor, op, n)
    _broadcast(tensor, 0, group)


def tree_broadcast(tensor: Tensor, src: int, group: Group = None) -> None:
    """Copy `tensor` of the global rank `src` to all ranks, along a binomial tree.

    This is the second half of `tree_all_reduce`, with `src` as the root. Cost: log2 N (a + S/B).
    Raises: ValueError if `src` is not in `group`.
    """
    if is_member(group, "tree_broadcast"):
        n = dist.get_world_size(group)
        root = src if group is None else dist.get_group_rank(group, src)
        if not 0 <= root < n:  # get_group_rank checks only groups other than the default group
            raise ValueError(f"tree_broadcast: src={src!r} is not one of the {n} ranks.")
        with flattened(tensor) as flat:
            _broadcast(flat, root, group)


def _broadcast(tensor: Tensor, root: int, group: Group) -> None:
    """Broadcast along the binomial tree of `root`: receive from parent, send to children."""
    n = dist.get_world_size(group)
    position = (dist.get_rank(group) - root) % n
    if position > 0:
        dist.recv(tensor, group=group, group_src=(_tree_parent(position) + root) % n)
    for child in reversed(_tree_children(position, n)):  # the largest subtree first
        dist.send(tensor, group=group, group_dst=(child + root) % n)


def _tree_parent(position: int) -> int:
    """Return the parent in a binomial tree: `position` without its lowest set bit."""
    return position & (position - 1)


def _tree_children(position: int, n: int) -> list[int]:
    """Return the positions whose parent is `position` in a binomial tree of n positions.

    They are position + d for each power of two d below the lowest set bit of `position`. Position
    0 has no set bit, so d may be any power of two below n.
    """
    lowest_bit = position & -position or n
    distances = (1 << k for k in range(n.bit_length()))
    return [position + d for d in distances if d < lowest_bit and position + d < n]


@_all_reduce
def recursive_doubling_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: exchange sums with a partner at distance 1, 2, 4, ...

        distance 1    0 <──> 1   2 <──> 3   4 <──> 5   6 <──> 7     sums of 2 ranks
        distance 2    0 <───────> 2         4 <───────> 6           sums of 4; so do 1-3, 5-7
        distance 4    0 <─────────────────> 4                       sums of 8; so do 1-5, ...

    Cost: log2 N (a + S/B). If N is not a power of two, let P be the largest power of two below N:
    each rank P + r first sends its tensor to rank r and receives the sum at the end, which adds
    2 (a + S/B). Thakur et al. 2005.
    """
    with _fold_to_power_of_two(tensor, op, group) as partners:
        inbox = Inbox(group, partners, [tensor] * len(partners), scratch=True)
        for partner in partners:
            received = inbox.take(while_sending=tensor, to=partner)
            inbox.flush()  # wait for the send: the next line changes the tensor
            combine(op, tensor)(tensor, received, out=tensor)


@contextmanager
def _fold_to_power_of_two(tensor: Tensor, op: Op, group: Group) -> Iterator[list[int]]:
    """Reduce on P ranks only: fold each rank P + r into rank r, its twin.

    P is the largest power of two up to N. Yields this rank's partners at distance 1, 2, 4, ...;
    the list is empty on a folded rank, which receives the result after the block.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    rounds = n.bit_length() - 1
    twin = rank ^ (1 << rounds)
    if twin < rank:
        dist.send(tensor, group=group, group_dst=twin)
        yield []
        dist.recv(tensor, group=group, group_src=twin)
        return
    if twin < n:
        received = Inbox(group, [twin], [tensor], scratch=True).take()
        combine(op, tensor)(tensor, received, out=tensor)
    yield [rank ^ (1 << k) for k in range(rounds)]
    divide_if_average(tensor, op, n)
    if twin < n:
        dist.send(tensor, group=group, group_dst=twin)


@_all_reduce
def halving_doubling_all_reduce(tensor: Tensor, op: Op = SUM, group: Group = None) -> None:
    """Reduce `tensor` over all ranks: exchange halves, quarters, ..., then gather the sums.

                       rank 0    rank 1    rank 2    rank 3
        swap halves    0 1 . .   0 1 . .   . . 2 3   . . 2 3    the chunks that each rank keeps
        swap quarters  0 . . .   . 1 . .   . . 2 .   . . . 3    summing; then the same swaps in
                                                                reverse gather the finished sums
    Cost: 2 log2 N a + 2(N-1)/N S/B, and 2 (a + S/B) more if N is not a power of two, as in
    recursive doubling. Rabenseifner's algorithm, Thakur et al. 2005.
    """
    with _fold_to_power_of_two(tensor, op, group) as near_to_far:
        far_to_near = near_to_far[::-1]
        part, kept, outgoing = tensor, list[Tensor](), list[Tensor]()
        for partner in far_to_near:
            lower, upper = part.tensor_split(2)
            part, sent = (upper, lower) if dist.get_rank(group) > partner else (lower, upper)
            kept.append(part)
            outgoing.append(sent)
        reduce_inbox = Inbox(group, far_to_near, kept, scratch=True)
        # Posting these receives now is safe, as in `_all_gather_after`.
        gather_inbox = Inbox(group, near_to_far, outgoing[::-1], tag=1)
        for partner, half, sent in zip(far_to_near, kept, outgoing, strict=True):
            received = reduce_inbox.take(while_sending=sent, to=partner)
            combine(op, tensor)(half, received, out=half)
        for partner, half in zip(near_to_far, kept[::-1], strict=True):
            gather_inbox.take(while_sending=half, to=partner)
        reduce_inbox.flush()
        gather_inbox.flush()


@_all_reduce
def hierarchical_all_reduce(
    tensor: Tensor, op: Op = SUM, group: Group = None, ranks_per_node: int | None = None
) -> None:
    """Reduce `tensor` over all ranks and send few bytes between nodes of `ranks_per_node` ranks.

        node 0: 0 ── 1      1. reduce-scatter inside each node: S/G bytes of sums on each rank
                │    │      2. ring all-reduce of these sums among ranks of the same local rank
        node 1: 2 ── 3      3. all-gather inside each node

    G is `ranks_per_node`; None means torchrun's LOCAL_WORLD_SIZE. Cost for n nodes with links
    a1, B1 inside and a2, B2 between nodes:
    2(G-1) a1 + 2(G-1)/G S/B1 + 2(n-1) a2 + 2(n-1)/n (S/G)/B2.
    Raises: ValueError if the number of ranks is not a multiple of G.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if ranks_per_node is None:
        ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", n))
    if ranks_per_node < 1 or n % ranks_per_node:
        raise ValueError(
            f"hierarchical_all_reduce: {n} ranks do not fill nodes of {ranks_per_node}. "
            f"Pass a ranks_per_node that divides {n}."
        )
    node, local_rank = divmod(rank, ranks_per_node)
    inside = range(rank - local_rank, rank - local_rank + ranks_per_node)
    across = range(local_rank, n, ranks_per_node)
    parts = tensor.tensor_split(len(inside))
    pieces = parts[local_rank].tensor_split(len(across))
    with _all_gather_after(parts, group, inside):
        _reduce_scatter(parts, parts, op, group, inside).flush()  # the next step changes `parts`
        with _all_gather_after(pieces, group, across):
            _reduce_scatter(pieces, pieces, op, group, across).flush()
            divide_if_average(pieces[node], op, n)


def pairwise_all_to_all(output: Tensor, input: Tensor, group: Group = None) -> None:
    """Send chunk r of `input` to rank r, and receive chunk r of `output` from rank r.

    In round k each rank sends to the k-th rank to its right and receives from the k-th to its
    left, so no link carries two messages at once. Equals `torch.distributed.all_to_all_single`
    with equal splits. Cost for S bytes in `input`: (N-1) a + (N-1)/N S/B. Thakur et al. 2005.
    """
    if not is_member(group, "pairwise_all_to_all"):
        return
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    check_sizes("pairwise_all_to_all", input, output, 1)
    if input.numel() % n:
        raise ValueError(
            f"pairwise_all_to_all: {input.numel()} elements cannot be cut into {n} equal chunks, "
            f"one for each rank. Pad input and output."
        )
    if output.untyped_storage().data_ptr() == input.untyped_storage().data_ptr():
        input = input.clone()  # received chunks must not overwrite chunks that are not sent yet
    with flattened(output) as flat:
        incoming = flat.tensor_split(n)
        outgoing = input.detach().contiguous().view(-1).tensor_split(n)
        incoming[rank].copy_(outgoing[rank])
        sources = [(rank - k) % n for k in range(1, n)]
        inbox = Inbox(group, sources, [incoming[source] for source in sources])
        for target in ((rank + k) % n for k in range(1, n)):
            inbox.take(while_sending=outgoing[target], to=target)
        inbox.flush()


# Labelled data ----------------------------------------------------------------------------------


_LABELLED = (
    "broadcast", "scatter", "gather", "reduce", "all_gather", "reduce_scatter", "all_to_all",
    "all_reduce",
)  # fmt: skip


def run_labelled(name: str) -> tuple[Tensor | None, Tensor | None]:
    """Run PyTorch's collective on labelled data; return this rank's tensors before and after.

    Of N ranks, rank r has 10^r times 1, 2, ..., N, so each digit of a result belongs to one rank's
    values. The root, if the collective has one, is rank 0. A tensor is None if the collective does
    not use this rank's input, or gives this rank no result.

    Raises: ValueError for a name that is not one of the eight collectives in `_LABELLED`.
    """
    if name not in _LABELLED:
        raise ValueError(f"{name!r} is unknown. The collectives are {', '.join(_LABELLED)}.")
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(1, n + 1) * 10**rank
    all_pieces, piece, row = mine.new_zeros(n * n), mine.new_zeros(1), mine.clone()
    is_root = rank == 0
    if name == "broadcast":
        dist.broadcast(row, src=0)
        return mine if is_root else None, row
    if name == "scatter":
        dist.scatter(piece, list(mine.split(1)) if is_root else None, src=0)
        return mine if is_root else None, piece
    if name == "gather":
        dist.gather(mine, list(all_pieces.split(n)) if is_root else None, dst=0)
        return mine, all_pieces if is_root else None
    if name == "reduce":
        dist.reduce(row, dst=0)
        return mine, row if is_root else None
    if name == "all_gather":
        dist.all_gather(list(all_pieces.split(n)), mine)
        return mine, all_pieces
    if name == "reduce_scatter":
        dist.reduce_scatter_single(piece, mine)
        return mine, piece
    if name == "all_to_all":
        dist.all_to_all_single(row, mine)
        return mine, row
    dist.all_reduce(row)
    return mine, row
