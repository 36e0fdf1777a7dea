"""Answers to 08/ring_forward: mistakes people make, and right answers written differently."""

import math

import torch
import torch.distributed as dist


def swap(block, to, source):
    """Sends a block and receives another one."""
    arriving = torch.empty_like(block)
    send = dist.isend(block, to)
    dist.recv(arriving, source)
    send.wait()
    return arriving


def neighbours():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % ranks, (rank - 1) % ranks


def attend(out, total, q, k, v, divide=True):
    scores = q @ k.transpose(-2, -1) / (math.sqrt(q.shape[-1]) if divide else 1)
    after = torch.logaddexp(total, scores.logsumexp(-1))
    old = (total - after).exp().unsqueeze(-1)
    return out * old + (scores - after.unsqueeze(-1)).exp() @ v, after


def start(q):
    return torch.zeros_like(q), torch.full(q.shape[:-1], -math.inf)


def ring(q, k, v, attend=attend, rounds=0, sends=0, peers=neighbours, swap=swap):
    """Ring attention; `rounds` and `sends` are so many more than are right."""
    ranks, (right, left) = dist.get_world_size(), peers()
    (out, total), block = start(q), torch.stack([k, v])
    for step in range(ranks + rounds):
        out, total = attend(out, total, q, *block)
        if step < ranks - 1 + sends and ranks > 1:
            block = swap(block, right, left)
    return out


def right(q, k, v):
    return ring(q, k, v)


# Wrong ------------------------------------------------------------------------------------------


def untouched(q, k, v):
    raise NotImplementedError()


def own_block_only(q, k, v):
    return ring(q, k, v, rounds=1 - dist.get_world_size(), sends=-9)


def one_round_too_few(q, k, v):
    return ring(q, k, v, rounds=-1, sends=-1) if dist.get_world_size() > 1 else ring(q, k, v)


def one_round_too_many(q, k, v):
    return ring(q, k, v, rounds=1, sends=1)


def outputs_added(q, k, v):
    def attend_alone(out, total, q, k, v):
        return out + attend(*start(q), q, k, v)[0], total

    return ring(q, k, v, attend_alone)


def outputs_averaged(q, k, v):
    return outputs_added(q, k, v) / dist.get_world_size()


def not_divided(q, k, v):
    return ring(q, k, v, lambda *a: attend(*a, divide=False))


def old_is_not_rescaled(q, k, v):
    def grow(out, total, q, k, v):
        new, after = attend(torch.zeros_like(out), total, q, k, v)
        return out + new, after

    return ring(q, k, v, grow)


def keys_alone_travel(q, k, v):
    (out, total), (right, left) = start(q), neighbours()
    for step in range(dist.get_world_size()):
        out, total = attend(out, total, q, k, v)
        if step < dist.get_world_size() - 1:
            k = swap(k, right, left)
    return out


def queries_travel(q, k, v):
    """Each rank returns what other queries found in its own keys."""
    (out, total), (right, left) = start(q), neighbours()
    for step in range(dist.get_world_size()):
        out, total = attend(out, total, q, k, v)
        if step < dist.get_world_size() - 1:
            q = swap(q, right, left)
    return out


def receives_first(q, k, v):
    def deadlock(block, to, source):
        arriving = torch.empty_like(block)
        dist.recv(arriving, source)
        dist.send(block, to)
        return arriving

    return ring(q, k, v, swap=deadlock)


def overwrites_what_it_sends(q, k, v):
    """One buffer for the block that leaves and for the one that arrives."""

    def same(block, to, source):
        block = block.contiguous()
        works = [dist.irecv(block, source), dist.isend(block, to)]
        for work in works:
            work.wait()
        return torch.zeros_like(block)

    return ring(q, k, v, swap=same)


def to_the_left(q, k, v):
    return ring(q, k, v, peers=lambda: neighbours()[::-1])


def from_every_rank(q, k, v):
    """Each rank sends its own block to all others, one after the other."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    (out, total), block = start(q), torch.stack([k, v])
    out, total = attend(out, total, q, *block)
    for step in range(1, ranks):
        there = swap(block, (rank + step) % ranks, (rank - step) % ranks)
        out, total = attend(out, total, q, *there)
    return out


def gathered_at_once(q, k, v):
    parts = [torch.empty(2, *k.shape) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.stack([k, v]))
    k, v = torch.cat(parts, -2)
    return attend(*start(q), q, k, v)[0]


def once_more_round(q, k, v):
    """The last block is sent on too."""
    return ring(q, k, v, sends=1)


def queries_too(q, k, v):
    """The queries travel with the block, where nobody uses them."""

    def both(block, to, source):
        swap(q, to, source)
        return swap(block, to, source)

    return ring(q, k, v, swap=both)


def keys_in_float64(q, k, v):
    return ring(q, k, v, swap=lambda block, *peers: swap(block.double(), *peers).float())


def all_blocks_kept(q, k, v):
    """Collects them all, and takes one softmax."""
    block, (right, left) = torch.stack([k, v]), neighbours()
    blocks = [block]
    for _ in range(dist.get_world_size() - 1):
        blocks.append(swap(blocks[-1], right, left))
    return attend(*start(q), q, *torch.cat(blocks, -2))[0]


def a_list_of_all_blocks(q, k, v):
    """The softmax is online, and the list keeps everything."""
    block, (right, left) = torch.stack([k, v]), neighbours()
    blocks = [block]
    for _ in range(dist.get_world_size() - 1):
        blocks.append(swap(blocks[-1], right, left))
    out, total = start(q)
    for block in blocks:
        out, total = attend(out, total, q, *block)
    return out


# Right ------------------------------------------------------------------------------------------


def started_before_it_computes(q, k, v):
    """The next block arrives while this one is used."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    (out, total), block = start(q), torch.stack([k, v])
    for step in range(ranks):
        works, arriving = [], None
        if step < ranks - 1:
            arriving = torch.empty_like(block)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, block, (rank + 1) % ranks),
                    dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks),
                ]
            )
        out, total = attend(out, total, q, *block)
        for work in works:
            work.wait()
        block = arriving
    return out


def keys_and_values_apart(q, k, v):
    """Two messages a round; sums relative to the largest score so far."""
    (right, left), ranks = neighbours(), dist.get_world_size()
    most = torch.full((*q.shape[:-1], 1), -math.inf)
    numerator, denominator = torch.zeros_like(q), torch.zeros(*q.shape[:-1], 1)
    for step in range(ranks):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        new = torch.maximum(most, scores.amax(-1, keepdim=True))
        weights, factor = (scores - new).exp(), (most - new).exp()
        numerator = factor * numerator + torch.einsum("bhqk,bhkd->bhqd", weights, v)
        denominator = factor * denominator + weights.sum(-1, keepdim=True)
        most = new
        if step < ranks - 1:
            k, v = swap(k, right, left), swap(v, right, left)
    return numerator / denominator


def even_ranks_send_first(q, k, v):
    """Blocking calls, in two orders."""

    def in_turn(block, to, source):
        arriving = torch.empty_like(block)
        if dist.get_rank() % 2 == 0:
            dist.send(block, to)
            dist.recv(arriving, source)
        else:
            dist.recv(arriving, source)
            dist.send(block, to)
        return arriving

    return ring(q, k, v, swap=in_turn)


RIGHT = [right, started_before_it_computes, keys_and_values_apart, even_ranks_send_first]

WRONG = {
    untouched: {"result": "is not written yet"},
    own_block_only: {"result": "attention over its own keys alone"},
    one_round_too_few: {"result": "How many rounds does the ring take?"},
    one_round_too_many: {"result": "its own block counts twice"},
    outputs_added: {"result": "added up without weights"},
    outputs_averaged: {"result": "this is the mean of the blocks' outputs"},
    not_divided: {"result": "with another scale of the scores"},
    old_is_not_rescaled: {"result": "Does every block count"},
    keys_alone_travel: {"result": "meet its own values only"},
    queries_travel: {"result": "Does every block count"},
    receives_first: {"result": "Post the send first"},
    overwrites_what_it_sends: {"result": "Does every block count"},
    to_the_left: {"peers": "sends to rank 2. In a ring it sends to its right neighbour"},
    from_every_rank: {"peers": "sends to rank 2"},
    gathered_at_once: {"peers": "calls all_gather", "holds": "blocks of keys and values"},
    once_more_round: {"bytes": "do not send it on"},
    queries_too: {"bytes": "What else do you send"},
    keys_in_float64: {"bytes": "Each element has 4 bytes"},
    all_blocks_kept: {"holds": "Drop a block after its round"},
    a_list_of_all_blocks: {"holds": "Drop a block after its round"},
}

BROADCAST = "the total has one element, which is spread over all queries"
DIMS = "the same dim of four, or both in another order"
ORDER = "nothing depends on this order"
SUM = "a sum"
ZERO = "at the first block the factor of the old output is 0"
EQUIVALENT = {
    "... (torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)) -> "
    "... (torch.zeros_like(q), q.new_full(q.shape[:-0], -math.inf))": BROADCAST,
    "... (torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)) -> "
    "... (torch.zeros_like(q), q.new_full(q.shape[:1], -math.inf))": BROADCAST,
    "out, total = (torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)) -> "
    "out, total = (q, q.new_full(q.shape[:-1], -math.inf))": ZERO,
    "... (torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)) -> "
    "... (torch.zeros_like(q), q.new_full(q.shape[:-1 + 1], -math.inf))": BROADCAST,
    "if step < ranks - 1:; works.append(dist.isend(block, (rank + 1) % ranks)); ... -> "
    "k, v = block; if step < ranks - 1:; ...": ORDER,
    "works.append(dist.isend(block, (rank + 1) % ranks)); works.append(dist.irecv(arriving, "
    "(rank - 1) % ranks)) -> "
    "works.append(dist.irecv(arriving, (rank - 1) % ranks)); works.append(dist.isend(block, "
    "(rank + 1) % ranks))": ORDER,
    "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) -> "
    "scores = q @ k.transpose(2, -1) / math.sqrt(q.shape[-1])": DIMS,
    "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) -> "
    "scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])": DIMS,
    "after = torch.logaddexp(total, scores.logsumexp(-1)) -> "
    "after = torch.logaddexp(scores.logsumexp(-1), total)": SUM,
    "total = after; for work in works:; work.wait() -> "
    "for work in works:; work.wait(); total = after": ORDER,
    "for work in works: -> for work in reversed(works):": ORDER,
    "for work in works:; work.wait(); block = arriving -> "
    "block = arriving; for work in works:; work.wait()": ORDER,
}
