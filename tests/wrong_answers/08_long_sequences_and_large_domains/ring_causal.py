"""Answers to 08/ring_causal: mistakes people make, and right answers written differently."""

import math

import torch
import torch.distributed as dist


def swap(block, to, source):
    arriving = torch.empty_like(block)
    send = dist.isend(block, to)
    dist.recv(arriving, source)
    send.wait()
    return arriving


def attend(out, total, scores, v):
    after = torch.logaddexp(total, scores.logsumexp(-1))
    old = (total - after).exp().unsqueeze(-1)
    return out * old + (scores - after.unsqueeze(-1)).exp() @ v, after


def later(scores, diagonal=1):
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal)
    return scores.masked_fill(hidden, -math.inf)


def halves(source, rank, half):
    """Visible queries and keys of a block of another rank."""
    if source < rank:
        return slice(None), slice(0, half)
    return slice(half, None) if source > rank else slice(None), slice(None)


def ring(q, k, v, halves=halves, own=later, sends=0, step_to=1):
    rank, ranks, half = dist.get_rank(), dist.get_world_size(), q.shape[-2] // 2
    out, total = torch.zeros_like(q), torch.full(q.shape[:-1], -math.inf)
    block = torch.stack([k, v])
    for step in range(ranks):
        k, v = block
        source = (rank - step_to * step) % ranks
        chosen = halves(source, rank, half)
        if chosen is not None:
            queries, keys = chosen
            scores = q[..., queries, :] @ k[..., keys, :].transpose(-2, -1) / q.shape[-1] ** 0.5
            scores = own(scores) if source == rank else scores
            out[..., queries, :], total[..., queries] = attend(
                out[..., queries, :], total[..., queries], scores, v[..., keys, :]
            )
        if step < ranks - 1 + sends and ranks > 1:
            block = swap(block, (rank + step_to) % ranks, (rank - step_to) % ranks)
    return out


def right(q, k, v):
    return ring(q, k, v)


def positions(rank, ranks, tokens):
    half = tokens // 2
    early = torch.arange(rank * half, (rank + 1) * half)
    late = torch.arange((2 * ranks - 1 - rank) * half, (2 * ranks - rank) * half)
    return torch.cat([early, late])


# Wrong ------------------------------------------------------------------------------------------


def untouched(q, k, v):
    raise NotImplementedError()


def no_mask(q, k, v):
    return ring(q, k, v, lambda *_: (slice(None), slice(None)), own=lambda scores: scores)


def own_block_unmasked(q, k, v):
    return ring(q, k, v, own=lambda scores: scores)


def sees_one_token_ahead(q, k, v):
    return ring(q, k, v, own=lambda scores: later(scores, 2))


def does_not_see_itself(q, k, v):
    return ring(q, k, v, own=lambda scores: later(scores, 0))


def the_other_triangle(q, k, v):
    return ring(q, k, v, own=lambda scores: later(scores.flip(-1)).flip(-1))


def as_in_order(q, k, v):
    """Skips later ranks, and takes everything of earlier ones."""

    def all_or_nothing(source, rank, half):
        return (slice(None), slice(None)) if source <= rank else None

    return ring(q, k, v, all_or_nothing)


def earlier_ranks_whole(q, k, v):
    """Their late runs are later than everything here."""

    def chosen(source, rank, half):
        return halves(source, rank, half) if source >= rank else (slice(None), slice(None))

    return ring(q, k, v, chosen)


def later_ranks_whole(q, k, v):
    def chosen(source, rank, half):
        return halves(source, rank, half) if source <= rank else (slice(None), slice(None))

    return ring(q, k, v, chosen)


def late_keys_of_earlier_ranks(q, k, v):
    def chosen(source, rank, half):
        return (slice(None), slice(half, None)) if source < rank else halves(source, rank, half)

    return ring(q, k, v, chosen)


def early_queries_see_later_ranks(q, k, v):
    def chosen(source, rank, half):
        return (slice(0, half), slice(None)) if source > rank else halves(source, rank, half)

    return ring(q, k, v, chosen)


def earlier_and_later_swapped(q, k, v):
    return ring(q, k, v, lambda source, rank, half: halves(rank, source, half))


def one_block_of_later_ranks(q, k, v):
    """Leaves their late runs out, which the late queries see."""

    def chosen(source, rank, half):
        if source > rank:
            return slice(half, None), slice(0, half)
        return halves(source, rank, half)

    return ring(q, k, v, chosen)


def nothing_but_masks(q, k, v, hide=-1e30):
    """The mask of positions, on all scores."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    out, total = torch.zeros_like(q), torch.full(q.shape[:-1], -math.inf)
    block, mine = torch.stack([k, v]), positions(rank, ranks, q.shape[-2])
    for step in range(ranks):
        k, v = block
        theirs = positions((rank - step) % ranks, ranks, q.shape[-2])
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mine.unsqueeze(1) < theirs, hide)
        out, total = attend(out, total, scores, v)
        if step < ranks - 1:
            block = swap(block, (rank + 1) % ranks, (rank - 1) % ranks)
    return out


def minus_infinity(q, k, v):
    """The total of nothing is -inf."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = positions(rank, ranks, q.shape[-2])
    parts, block = [], torch.stack([k, v])
    for step in range(ranks):
        theirs = positions((rank - step) % ranks, ranks, q.shape[-2])
        scores = q @ block[0].transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mine.unsqueeze(1) < theirs, -math.inf)
        parts.append((scores.softmax(-1) @ block[1], scores.logsumexp(-1, keepdim=True)))
        if step < ranks - 1:
            block = swap(block, (rank + 1) % ranks, (rank - 1) % ranks)
    weights = torch.stack([total for _, total in parts]).softmax(0)
    return sum(weight * out for weight, (out, _) in zip(weights, parts, strict=True))


def masks_later_ranks(q, k, v):
    """Skips keys of earlier ranks, and masks the queries for later ones."""
    rank, ranks, half = dist.get_rank(), dist.get_world_size(), q.shape[-2] // 2
    out, total = torch.zeros_like(q), torch.full(q.shape[:-1], -math.inf)
    block = torch.stack([k, v])
    for step in range(ranks):
        source = (rank - step) % ranks
        keys = slice(0, half) if source < rank else slice(None)
        k, v = block[..., keys, :]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = later(scores) if source == rank else scores
        new, after = attend(out, total, scores, v)
        if source > rank:
            new[..., :half, :], after[..., :half] = out[..., :half, :], total[..., :half]
        out, total = new, after
        if step < ranks - 1:
            block = swap(block, (rank + 1) % ranks, (rank - 1) % ranks)
    return out


def to_the_left(q, k, v):
    return ring(q, k, v, step_to=-1)


def once_more_round(q, k, v):
    return ring(q, k, v, sends=1)


def gathered(q, k, v):
    """All keys on all ranks, as in Llama 3, and the mask of positions."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty(2, *k.shape) for _ in range(ranks)]
    dist.all_gather(parts, torch.stack([k, v]))
    order = torch.cat([positions(other, ranks, k.shape[-2]) for other in range(ranks)])
    mask = positions(rank, ranks, k.shape[-2]).unsqueeze(1) >= order
    k, v = torch.cat(parts, -2)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)


# Right ------------------------------------------------------------------------------------------


def runs_apart(q, k, v):
    """Each pair of runs on its own: four cases."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    state = [[torch.zeros_like(part), None] for part in q.chunk(2, -2)]
    block = torch.stack([k, v])
    for step in range(ranks):
        source = (rank - step) % ranks
        for number, part in enumerate(q.chunk(2, -2)):
            place = (rank, 2 * ranks - 1 - rank)[number]
            for other, there in enumerate(block.chunk(2, -2)):
                key_place = (source, 2 * ranks - 1 - source)[other]
                if key_place > place:
                    continue
                scores = part @ there[0].transpose(-2, -1) / math.sqrt(q.shape[-1])
                scores = later(scores) if key_place == place else scores
                out, total = state[number]
                if total is None:
                    total = torch.full(out.shape[:-1], -math.inf)
                state[number] = list(attend(out, total, scores, there[1]))
        if step < ranks - 1:
            block = swap(block, (rank + 1) % ranks, (rank - 1) % ranks)
    return torch.cat([out for out, _ in state], -2)


def own_block_last(q, k, v):
    """Sends at once, and collects outputs with their totals; a softmax over blocks at the end."""
    rank, ranks, half = dist.get_rank(), dist.get_world_size(), q.shape[-2] // 2
    outs = torch.zeros(ranks, *q.shape)
    totals = torch.full((ranks, *q.shape[:-1]), -math.inf)
    block = torch.stack([k, v])
    for step in range(ranks):
        arriving, works = torch.empty_like(block), []
        if step < ranks - 1:
            works = [
                dist.isend(block, (rank + 1) % ranks),
                dist.irecv(arriving, (rank - 1) % ranks),
            ]
        source = (rank - step) % ranks
        rows = slice(half, None) if source > rank else slice(None)
        columns = slice(0, half) if source < rank else slice(None)
        scores = torch.einsum("bhqd,bhkd->bhqk", q[..., rows, :], block[0][..., columns, :])
        scores = scores / math.sqrt(q.shape[-1])
        scores = later(scores) if source == rank else scores
        outs[step][..., rows, :] = scores.softmax(-1) @ block[1][..., columns, :]
        totals[step][..., rows] = scores.logsumexp(-1)
        for work in works:
            work.wait()
        block = arriving
    return (outs * totals.softmax(0).unsqueeze(-1)).sum(0)


RIGHT = [right, runs_apart, own_block_last]

WRONG = {
    untouched: {"own": "is not written yet"},
    no_mask: {"own": "over all keys, without a mask"},
    own_block_unmasked: {"own": "over all keys, without a mask"},
    sees_one_token_ahead: {"own": "Which keys does the first token see"},
    does_not_see_itself: {"own": "Does each token see itself?"},
    the_other_triangle: {"own": "Which keys does the first token see"},
    as_in_order: {"result": "its own keys alone"},
    earlier_ranks_whole: {"result": "which of the four pairs"},
    later_ranks_whole: {"result": "which of the four pairs"},
    late_keys_of_earlier_ranks: {"result": "which of the four pairs"},
    early_queries_see_later_ranks: {"result": "which of the four pairs"},
    earlier_and_later_swapped: {"result": "which of the four pairs"},
    one_block_of_later_ranks: {"result": "which of the four pairs"},
    minus_infinity: {"result": "-inf - (-inf) is NaN"},
    nothing_but_masks: {"work": "8 are enough"},
    masks_later_ranks: {"work": "2 in each other one"},
    to_the_left: {"wire": "sends to its right neighbour only"},
    once_more_round: {"wire": "do not send it on"},
    gathered: {"work": "are enough", "wire": "calls all_gather"},
}

DIMS = "the same dim of four, or both in another order"
MASK = "the mask is the same for each head, or spread over them"
ORDER = "nothing depends on this order"
SUM = "a sum"
EQUIVALENT = {
    "... dist.get_world_size(), q.shape[-2] // 2) -> "
    "... dist.get_world_size(), q.shape[2] // 2)": DIMS,
    "if step < ranks - 1:; works.append(dist.isend(block, (rank + 1) % ranks)); ... -> "
    "source = (rank - step) % ranks; if step < ranks - 1:; ...": ORDER,
    "works.append(dist.isend(block, (rank + 1) % ranks)); works.append(dist.irecv(arriving, "
    "(rank - 1) % ranks)) -> "
    "works.append(dist.irecv(arriving, (rank - 1) % ranks)); works.append(dist.isend(block, "
    "(rank + 1) % ranks))": ORDER,
    "... q[..., rows, :] @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) -> "
    "... q[..., rows, :] @ k.transpose(2, -1) / math.sqrt(q.shape[-1])": DIMS,
    "... q[..., rows, :] @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) -> "
    "... q[..., rows, :] @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])": DIMS,
    "hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) -> "
    "hidden = torch.ones(scores.shape[-3:], dtype=torch.bool).triu(1)": MASK,
    "hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) -> "
    "hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)": MASK,
    "hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) -> "
    "hidden = torch.ones(scores.shape[-2 - 1:], dtype=torch.bool).triu(1)": MASK,
    "hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) -> "
    "hidden = torch.ones(scores.shape[:], dtype=torch.bool).triu(1)": MASK,
    "after = torch.logaddexp(total[..., rows], scores.logsumexp(-1)) -> "
    "after = torch.logaddexp(scores.logsumexp(-1), total[..., rows])": SUM,
    "total[..., rows] = after; for work in works:; work.wait() -> "
    "for work in works:; work.wait(); total[..., rows] = after": ORDER,
    "for work in works: -> for work in reversed(works):": ORDER,
    "for work in works:; work.wait(); block = arriving -> "
    "block = arriving; for work in works:; work.wait()": ORDER,
}
