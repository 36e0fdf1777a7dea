"""Answers to 08/run_b: a causal mask that is for other tokens than those of the block.

An answer is a function without arguments that returns what is handed in.
"""

import functools
import math

import torch
import torch.distributed as dist

from dtlab.parallel.context import gathered_attention, ring_attention, tokens_of
from dtlab.units.unit08.runs_scripts import attend

SAID = {"number": 24, "line": 12}


def zigzag(rank, ranks, count):
    """The positions of a rank's tokens."""
    return tokens_of(rank, ranks, ranks * count, zigzag=True)


def as_run_on(rank, ranks, count):
    """The tokens as the broken program has them."""
    runs = torch.arange(ranks * count).chunk(2 * ranks)
    return torch.cat([runs[rank], runs[ranks + rank]])


def in_one_piece(rank, ranks, count):
    return torch.arange(rank * count, (rank + 1) * count)


def pass_on(block, to, source):
    arriving = torch.empty_like(block)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, block, to), dist.P2POp(dist.irecv, arriving, source),
    ])  # fmt: skip
    for work in works:
        work.wait()
    return arriving


def attended(q, k, v, causal, tokens=zigzag, turn=-1, masked=None, way=1, rounds=0):
    """Ring attention. The block of a round is taken for that of rank `rank + turn * round`.

    `masked` says which pairs of positions do not count; `way` is the direction of the ring;
    `rounds` more rounds send the blocks further than needed.
    """
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), q.shape[-2]
    block, sizes = torch.cat([k, v], -1), [k.shape[-1], v.shape[-1]]
    result, total = torch.zeros_like(v), v.new_full((*v.shape[:-1], 1), -math.inf)
    queries = tokens(rank, ranks, count).unsqueeze(1)
    for step in range(ranks):
        keys, values = block.split(sizes, -1)
        scores = q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            source = (rank + turn * step) % ranks
            there = tokens(source, ranks, count)
            hidden = masked(queries, there, source) if masked else there > queries
            scores = scores.masked_fill(hidden, -math.inf)
        together = torch.logaddexp(total, scores.logsumexp(-1, keepdim=True))
        result = result * (total - together).exp() + (scores - together).exp() @ values
        total = together
        if step < ranks - 1 + rounds:
            block = pass_on(block, (rank + way) % ranks, (rank - way) % ranks)
    return result


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": attended}


# Wrong ------------------------------------------------------------------------------------------


def no_pair():
    return said(number=0)


def both_kinds_of_pairs():
    return said(number=48)


def pairs_of_a_rank():
    return said(number=6)


def all_later_pairs():
    return said(number=120)


def the_line_of_the_mask():
    return said(line=14)


def the_line_of_the_softmax():
    return said(line="together = torch.logaddexp(total, scores.logsumexp(-1, keepdim=True))")


def a_function_alone():
    return attended


@fixed
def not_written(q, k, v, causal):
    raise NotImplementedError()


@fixed
def still_broken(q, k, v, causal):
    return attend(q, k, v, causal)


@fixed
def only_the_source(q, k, v, causal):
    return attended(q, k, v, causal, tokens=as_run_on)


@fixed
def only_the_tokens(q, k, v, causal):
    return attended(q, k, v, causal, turn=1)


@fixed
def tokens_in_one_piece(q, k, v, causal):
    return attended(q, k, v, causal, tokens=in_one_piece)


@fixed
def masked_in_the_block(q, k, v, causal):
    """Each block as if it were its own."""
    return attended(
        q, k, v, causal, masked=lambda a, b, _: torch.ones(len(a), len(b)).triu(1).bool()
    )


@fixed
def later_ranks_left_out(q, k, v, causal):
    """As with tokens in one piece: what a later rank has is later."""

    def masked(queries, there, source):
        hidden = there > queries
        return torch.full_like(hidden, True) if source > dist.get_rank() else hidden

    return attended(q, k, v, causal, masked=masked)


@fixed
def not_to_itself(q, k, v, causal):
    """A token attends to those before it only; the first one to itself."""
    return attended(q, k, v, causal, masked=lambda a, b, _: (b > a) | ((b == a) & (a > 0)))


@fixed
def not_masked(q, k, v, causal):
    return attended(q, k, v, False)


@fixed
def always_masked(q, k, v, causal):
    return attended(q, k, v, True)


@fixed
def without_the_ranks_of_the_middle(q, k, v, causal):
    """Right on two ranks: the blocks are known to be those of the next rank."""
    return attended(q, k, v, causal, masked=lambda a, b, source: b > a, turn=1)


@fixed
def the_order_of_the_ring_and_of_the_source(q, k, v, causal):
    """Two changes that undo each other."""
    return attended(q, k, v, causal, way=-1)


@fixed
def finished_code(q, k, v, causal):
    return ring_attention(*(x[None] for x in (q, k, v)), causal=causal, zigzag=True)[0]


@fixed
def finished_with_all_keys(q, k, v, causal):
    return gathered_attention(*(x[None] for x in (q, k, v)), causal=causal, zigzag=True)[0]


@fixed
def rows_of_one_head(q, k, v, causal):
    return attended(q, k, v, causal)[:1, :, :1]


@fixed
def all_keys(q, k, v, causal):
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), q.shape[-2]
    found = []
    for x in (k, v):
        parts = [torch.empty_like(x.contiguous()) for _ in range(ranks)]
        dist.all_gather(parts, x.contiguous())
        found.append(torch.cat(parts, -2))
    scores = q @ found[0].transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        keys = torch.cat([zigzag(r, ranks, count) for r in range(ranks)])
        later = keys > zigzag(rank, ranks, count).unsqueeze(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ found[1]


@fixed
def once_more_around(q, k, v, causal):
    """The block goes home, and its keys are used no more."""
    return attended(q, k, v, causal, rounds=1)


@fixed
def to_every_rank(q, k, v, causal):
    """Each rank sends its block to all others."""
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), q.shape[-2]
    block = torch.cat([k, v], -1)
    scores, values = [], []
    for step in range(ranks):
        source = (rank - step) % ranks
        there = pass_on(block, (rank + step) % ranks, source) if step else block
        keys, value = there.split([k.shape[-1], v.shape[-1]], -1)
        found = q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            later = zigzag(source, ranks, count) > zigzag(rank, ranks, count).unsqueeze(1)
            found = found.masked_fill(later, -math.inf)
        scores.append(found)
        values.append(value)
    return torch.cat(scores, -1).softmax(-1) @ torch.cat(values, -2)


# Right, written differently ---------------------------------------------------------------------


@fixed
def both_lines(q, k, v, causal):
    return attended(q, k, v, causal)


@fixed
def the_other_way_around(q, k, v, causal):
    """The blocks go to the left, and so the source is the one that the program names."""
    return attended(q, k, v, causal, way=-1, turn=1)


@fixed
def positions_travel_too(q, k, v, causal):
    """A block brings the positions of its tokens."""
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), q.shape[-2]
    own = zigzag(rank, ranks, count)
    there, block, sizes = own, torch.cat([k, v], -1), [k.shape[-1], v.shape[-1]]
    weighted, sums, top = 0, 0, q.new_full((*q.shape[:-1], 1), -math.inf)
    for step in range(ranks):
        keys, values = block.split(sizes, -1)
        scores = q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(there > own.unsqueeze(1), -math.inf)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, before = (scores - new).exp(), (top - new).exp()
        weighted = weighted * before + weights @ values
        sums, top = sums * before + weights.sum(-1, keepdim=True), new
        if step < ranks - 1:
            to, source = (rank + 1) % ranks, (rank - 1) % ranks
            block, there = pass_on(block, to, source), pass_on(there, to, source)
    return weighted / sums


def text_of_a_line():
    return said(line="positions = [torch.cat([runs[r], runs[ranks + r]]) for r in range(ranks)]")


RIGHT = [both_lines, the_other_way_around, positions_travel_too, text_of_a_line]

PAIRS = "of a query and a later key have a weight"
WRONG = {
    no_pair: {"number": "the number in one process"},
    both_kinds_of_pairs: {"number": "Leave them out"},
    pairs_of_a_rank: {"number": "the mean of a rank"},
    all_later_pairs: {"number": "How many have a weight?"},
    the_line_of_the_mask: {"line": "does what it should here"},
    the_line_of_the_softmax: {"line": "does what it should here"},
    a_function_alone: {"number": "must be a dict"},
    not_written: {"whole": "not written yet"},
    still_broken: {"two": "of rank 1, with key"},
    only_the_source: {"two": PAIRS},
    only_the_tokens: {"more": "of rank 1, with key"},
    tokens_in_one_piece: {"two": PAIRS},
    masked_in_the_block: {"two": PAIRS},
    later_ranks_left_out: {"two": "0 pairs of a query and a later key"},
    not_to_itself: {"two": "0 pairs of a query and a later key"},
    not_masked: {"two": PAIRS},
    always_masked: {"whole": "without a causal mask"},
    without_the_ranks_of_the_middle: {"more": PAIRS},
    the_order_of_the_ring_and_of_the_source: {"more": PAIRS},
    finished_code: {"whole": "does the work for you"},
    finished_with_all_keys: {"whole": "does the work for you"},
    rows_of_one_head: {"whole": "not what is asked for", "two": "not what is asked for"},
    all_keys: {"ring": "all_gather"},
    once_more_around: {"ring": "On a ring a rank sends"},
    to_every_rank: {"ring": "its messages are with ranks 1"},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_WIDE = "it is float64 already"
_ORDER = "neither needs the other"
_ONE = "one row for all queries, which broadcasts"
_SAME = "the same for both orders"

EQUIVALENT = {
    "... zigzag=True) for r in range(ranks)] -> ... zigzag=True) for r in range(ranks + 1)]": (
        "the tokens of one rank more are not used"
    ),
    "... (torch.zeros_like(v), v.new_full((*v.shape[:-1], 1), -math.inf)) -> "
    "... (torch.zeros_like(v), v.new_full((*v.shape[:-0], 1), -math.inf))": _ONE,
    "... (torch.zeros_like(v), v.new_full((*v.shape[:-1], 1), -math.inf)) -> "
    "... (torch.zeros_like(v), v.new_full((*v.shape[:-1 + 1], 1), -math.inf))": _ONE,
    "result, total = (torch.zeros_like(v), v.new_full((*v.shape[:-1], 1), ... -> "
    "result, total = (torch.zeros_like(v).double(), v.new_full((*v.shape[:-1], 1), ...": _WIDE,
    "result, total = (torch.zeros_like(v), v.new_full((*v.shape[:-1], 1), ... -> "
    "result, total = (v, v.new_full((*v.shape[:-1], 1), ...": "times exp(-inf), so 0",
    "scores = q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1]) -> "
    "scores = q @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1])": _SAME,
    "later = positions[(rank - step) % ranks] > positions[rank].unsqueeze(1) -> "
    "later = positions[rank - step] > positions[rank].unsqueeze(1)": (
        "a negative index counts from the end"
    ),
    "together = torch.logaddexp(total, scores.logsumexp(-1, keepdim=True)) -> "
    "together = torch.logaddexp(scores.logsumexp(-1, keepdim=True), total)": _SAME,
    "total = together; if step < ranks - 1:; ... -> "
    "if step < ranks - 1:; arriving = torch.empty_like(block); ...": _ORDER,
    "arriving = torch.empty_like(block) -> arriving = torch.empty_like(block).double()": _WIDE,
    "for work in works: -> for work in reversed(works):": _ORDER,
    "for work in works:; work.wait(); block = arriving -> "
    "block = arriving; for work in works:; work.wait()": "two names of one tensor",
}
