"""Answers to 05/reduce: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.collectives import ring_reduce_scatter
from dtlab.parallel.reduce_scatter import exchange_reduce_scatter


def end_to_end(block, piece):
    size = dist.get_world_size()
    every = [torch.zeros_like(p) if p.grad is None else p.grad for p in block.parameters()]
    flat = torch.cat([one.detach().flatten() for one in every])
    return F.pad(flat, (0, len(piece) * size - len(flat)))


def forget(block):
    for parameter in block.parameters():
        parameter.grad = None


def scattered(flat, piece):
    mine = torch.empty(len(piece))
    ring_reduce_scatter(mine, flat)
    return mine


def add(piece, mean):
    piece.grad = mean if piece.grad is None else piece.grad + mean


def right(block, piece):
    mean = scattered(end_to_end(block, piece), piece) / dist.get_world_size()
    forget(block)
    add(piece, mean)


# Wrong ------------------------------------------------------------------------------------------


def reduced_to_rank_0(block, piece):
    """The other ranks read their piece of a tensor that PyTorch leaves undefined there."""
    flat = end_to_end(block, piece)
    dist.reduce(flat, dst=0)
    forget(block)
    add(piece, flat.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size())


def reduced_to_each(block, piece):
    """The mean is right: each rank reads the chunk of which it is the root."""
    chunks = end_to_end(block, piece).chunk(dist.get_world_size())
    for rank, chunk in enumerate(chunks):
        dist.reduce(chunk, dst=rank)
    forget(block)
    add(piece, chunks[dist.get_rank()].clone() / dist.get_world_size())


def untouched(block, piece):
    raise NotImplementedError()


def keeps_the_bytes_of_all(block, piece):
    gradients = [one.grad for one in block.parameters() if one.grad is not None]
    piece.kept = [one.numpy().tobytes() for one in gradients]
    right(block, piece)


def does_nothing(block, piece):
    forget(block)


def the_sum(block, piece):
    mine = scattered(end_to_end(block, piece), piece)
    forget(block)
    add(piece, mine)


def divided_twice(block, piece):
    size = dist.get_world_size()
    mine = scattered(end_to_end(block, piece) / size, piece) / size
    forget(block)
    add(piece, mine)


def the_ranks_own(block, piece):
    flat = end_to_end(block, piece)
    forget(block)
    add(piece, flat.chunk(dist.get_world_size())[dist.get_rank()].clone())


def the_other_way_round(block, piece):
    flat = torch.cat([p.grad.flatten() for p in reversed(list(block.parameters()))
                      if p.grad is not None])  # fmt: skip
    size = dist.get_world_size()
    mean = scattered(F.pad(flat, (0, len(piece) * size - len(flat))), piece) / size
    forget(block)
    add(piece, mean)


def padding_in_front(block, piece):
    size = dist.get_world_size()
    flat = torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel())
                      for p in block.parameters()])  # fmt: skip
    mean = scattered(F.pad(flat, (len(piece) * size - len(flat), 0)), piece) / size
    forget(block)
    add(piece, mean)


def does_not_pad(block, piece):
    flat = torch.cat([p.grad.flatten() for p in block.parameters()])
    mean = scattered(flat, piece) / dist.get_world_size()
    forget(block)
    add(piece, mean)


def the_first_piece(block, piece):
    flat = end_to_end(block, piece)
    dist.all_reduce(flat)
    forget(block)
    add(piece, flat[: len(piece)].clone() / dist.get_world_size())


def returned_only(block, piece):
    mean = scattered(end_to_end(block, piece), piece) / dist.get_world_size()
    forget(block)
    return mean


def all_reduced(block, piece):
    flat, size = end_to_end(block, piece), dist.get_world_size()
    dist.all_reduce(flat)
    forget(block)
    add(piece, flat.chunk(size)[dist.get_rank()].clone() / size)


def by_gloos_own(block, piece):
    flat, mean = end_to_end(block, piece), torch.empty(len(piece))
    dist.reduce_scatter_single(mean, flat)
    forget(block)
    add(piece, mean / dist.get_world_size())


def all_gathered(block, piece):
    flat, size = end_to_end(block, piece), dist.get_world_size()
    every = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(every, flat)
    forget(block)
    add(piece, torch.stack(every).mean(0).chunk(size)[dist.get_rank()].clone())


def keeps_gradients(block, piece):
    mean = scattered(end_to_end(block, piece), piece) / dist.get_world_size()
    add(piece, mean)


def sets_them_to_zero(block, piece):
    mean = scattered(end_to_end(block, piece), piece) / dist.get_world_size()
    for parameter in block.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    add(piece, mean)


def a_view_of_all(block, piece):
    flat, size = end_to_end(block, piece), dist.get_world_size()
    mine = flat.chunk(size)[dist.get_rank()]
    ring_reduce_scatter(mine, flat)
    mine /= size
    forget(block)
    if piece.grad is None:
        piece.grad = mine
    else:
        piece.grad += mine


def skips_what_is_missing(block, piece):
    """What comes after it lies in another place."""
    size = dist.get_world_size()
    flat = torch.cat([p.grad.flatten() for p in block.parameters() if p.grad is not None])
    mean = scattered(F.pad(flat, (0, len(piece) * size - len(flat))), piece) / size
    forget(block)
    add(piece, mean)


def expects_all_of_them(block, piece):
    size = dist.get_world_size()
    flat = torch.cat([p.grad.flatten() for p in block.parameters()])
    mean = scattered(F.pad(flat, (0, len(piece) * size - len(flat))), piece) / size
    forget(block)
    add(piece, mean)


def the_parameters_where_missing(block, piece):
    size = dist.get_world_size()
    flat = torch.cat([(p.detach() if p.grad is None else p.grad).flatten()
                      for p in block.parameters()])  # fmt: skip
    mean = scattered(F.pad(flat, (0, len(piece) * size - len(flat))), piece) / size
    forget(block)
    add(piece, mean)


def the_last_pass_only(block, piece):
    piece.grad = scattered(end_to_end(block, piece), piece) / dist.get_world_size()
    forget(block)


def averages_what_was_there(block, piece):
    mean = scattered(end_to_end(block, piece), piece) / dist.get_world_size()
    forget(block)
    piece.grad = mean if piece.grad is None else (piece.grad + mean) / 2


def by_the_library(block, piece):
    mine = torch.empty(len(piece))
    exchange_reduce_scatter(mine, end_to_end(block, piece))
    forget(block)
    add(piece, mine / dist.get_world_size())


# Right ------------------------------------------------------------------------------------------


def by_messages(block, piece):
    size, rank = dist.get_world_size(), dist.get_rank()
    rows = end_to_end(block, piece).view(size, -1)
    received = torch.empty_like(rows)
    dist.all_to_all_single(received, rows.contiguous())
    forget(block)
    mean = received.sum(0) / size
    assert len(mean) == len(piece) and rank < size
    if piece.grad is None:
        piece.grad = torch.zeros_like(piece)
    piece.grad += mean


def to_one_after_the_other(block, piece):
    size, flat = dist.get_world_size(), end_to_end(block, piece)
    flat /= size
    mine = torch.zeros_like(piece.detach())
    ring_reduce_scatter(mine, flat)
    for parameter in block.parameters():
        del parameter.grad
        parameter.grad = None
    add(piece, mine)


RIGHT = [right, by_messages, to_one_after_the_other]

WRONG = {
    untouched: {"mean": "is not written yet"},
    does_nothing: {"mean": "is missing"},
    the_sum: {"mean": "is the sum over the ranks"},
    divided_twice: {"mean": "is divided twice"},
    the_ranks_own: {"mean": "this rank's own gradient"},
    the_other_way_round: {"mean": "at its parameter's place"},
    padding_in_front: {"mean": "the padding after"},
    does_not_pad: {"mean": ""},
    the_first_piece: {"mean": "is the part of rank 0"},
    returned_only: {"mean": "is missing"},
    reduced_to_rank_0: {"mean": "You call dist.reduce: only rank dst gets the sum"},
    reduced_to_each: {"bytes": "left rank"},
    all_reduced: {"bytes": "left rank"},
    by_gloos_own: {"bytes": "left rank"},
    all_gathered: {"bytes": "left rank"},
    keeps_the_bytes_of_all: {"freed": "the kernel counts"},
    keeps_gradients: {"freed": "whole gradients are left"},
    sets_them_to_zero: {"freed": "whole gradients are left"},
    a_view_of_all: {"freed": "is a view of all gradients"},
    skips_what_is_missing: {"missing": "in its place"},
    expects_all_of_them: {"missing": "NoneType"},
    the_parameters_where_missing: {"missing": "put zeros of its parameter's size"},
    the_last_pass_only: {"adds": "only this pass's gradient"},
    averages_what_was_there: {"adds": "sum the gradients of two passes"},
    by_the_library: {"mean": "finished code"},
}

FREE = "neither needs the other"
ONCE = "gradients that were taken are None in the second round"
ALSO = "another tensor with the same numbers, as good"
EQUIVALENT = {
    "for parameter in block.parameters():; end = start + parameter.numel(); ... "
    "-> mean = torch.empty(len(piece)); for parameter in block.parameters():; "
    "...": FREE,
    "start = end -> start = end; for parameter in block.parameters():; ...": ONCE,
    "mean /= size -> mean = mean / size": ALSO,
}
