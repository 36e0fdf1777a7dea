"""Answers to 05/clip: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist

from dtlab.parallel.zero.shards import clip_sharded_grad_norm_


def gradients(pieces):
    return [one.grad for one in pieces if one.grad is not None]


def squares(pieces):
    return sum((one.square().sum() for one in gradients(pieces)), torch.zeros(()))


def norm_of_all(pieces):
    total = squares(pieces)
    dist.all_reduce(total)
    return total.sqrt()


def cut(pieces, factor):
    for one in gradients(pieces):
        one *= factor


def right(pieces, max_norm):
    norm = norm_of_all(pieces)
    if norm > max_norm:
        cut(pieces, max_norm / norm)
    return norm


# Wrong ------------------------------------------------------------------------------------------


def untouched(pieces, max_norm):
    raise NotImplementedError()


def of_pytorch(pieces, max_norm):
    return torch.nn.utils.clip_grad_norm_(pieces, max_norm)


def the_ranks_own(pieces, max_norm):
    norm = squares(pieces).sqrt()
    if norm > max_norm:
        cut(pieces, max_norm / norm)
    return norm


def sum_of_norms(pieces, max_norm):
    norm = squares(pieces).sqrt()
    dist.all_reduce(norm)
    if norm > max_norm:
        cut(pieces, max_norm / norm)
    return norm


def sum_of_the_norms_of_pieces(pieces, max_norm):
    norm = sum((one.norm() for one in gradients(pieces)), torch.zeros(()))
    dist.all_reduce(norm)
    if norm > max_norm:
        cut(pieces, max_norm / norm)
    return norm


def norms_of_pieces_in_a_root(pieces, max_norm):
    total = sum((one.norm() for one in gradients(pieces)), torch.zeros(())) ** 2
    dist.all_reduce(total)
    if total.sqrt() > max_norm:
        cut(pieces, max_norm / total.sqrt())
    return total.sqrt()


def mean_of_norms(pieces, max_norm):
    norm = squares(pieces).sqrt()
    dist.all_reduce(norm)
    norm /= dist.get_world_size()
    if norm > max_norm:
        cut(pieces, max_norm / norm)
    return norm


def the_largest(pieces, max_norm):
    norm = squares(pieces).sqrt()
    dist.all_reduce(norm, dist.ReduceOp.MAX)
    if norm > max_norm:
        cut(pieces, max_norm / norm)
    return norm


def without_the_root(pieces, max_norm):
    norm = squares(pieces)
    dist.all_reduce(norm)
    if norm > max_norm:
        cut(pieces, max_norm / norm)
    return norm


def returns_nothing(pieces, max_norm):
    right(pieces, max_norm)


def the_norm_after(pieces, max_norm):
    right(pieces, max_norm)
    return norm_of_all(pieces)


def the_first_piece_only(pieces, max_norm):
    return right(pieces[:1], max_norm)


def never_cuts(pieces, max_norm):
    return norm_of_all(pieces)


def cuts_to_one(pieces, max_norm):
    norm = norm_of_all(pieces)
    if norm > max_norm:
        cut(pieces, 1 / norm)
    return norm


def each_rank_to_max_norm(pieces, max_norm):
    norm, own = norm_of_all(pieces), squares(pieces).sqrt()
    if norm > max_norm:
        cut(pieces, max_norm / own)
    return norm


def each_element(pieces, max_norm):
    norm = norm_of_all(pieces)
    if norm > max_norm:
        for one in gradients(pieces):
            one.clamp_(-max_norm, max_norm)
    return norm


def always_of_max_norm(pieces, max_norm):
    norm = norm_of_all(pieces)
    cut(pieces, max_norm / norm)
    return norm


def cuts_what_is_short(pieces, max_norm):
    """min for max."""
    norm = norm_of_all(pieces)
    cut(pieces, max_norm / min(norm, torch.tensor(max_norm)) if norm < max_norm else
        max_norm / norm)  # fmt: skip
    if norm < max_norm:
        cut(pieces, max_norm / norm)
    return norm


def expects_all_of_them(pieces, max_norm):
    total = sum(one.grad.square().sum() for one in pieces)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for one in pieces:
            one.grad *= max_norm / norm
    return norm


def zeros_where_missing(pieces, max_norm):
    for one in pieces:
        if one.grad is None:
            one.grad = torch.zeros_like(one)
    return right(pieces, max_norm)


def stays_away_without_gradients(pieces, max_norm):
    if not gradients(pieces):
        return torch.zeros(())
    return right(pieces, max_norm)


def by_the_library(pieces, max_norm):
    return clip_sharded_grad_norm_(gradients(pieces), max_norm)


# Right ------------------------------------------------------------------------------------------


def as_pytorch_scales(pieces, max_norm):
    norm = float(norm_of_all(pieces))
    scale = min(1.0, max_norm / (norm + 1e-6))
    for one in pieces:
        if one.grad is not None:
            one.grad.mul_(scale)
    return norm


def norms_of_norms(pieces, max_norm):
    own = [one.norm() for one in gradients(pieces)]
    mine = torch.stack(own).norm() if own else torch.tensor(0.0)
    every = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    norm = torch.stack(every).norm()
    for one in pieces:
        if norm > max_norm and one.grad is not None:
            one.grad = one.grad * (max_norm / norm)
    return norm


RIGHT = [right, as_pytorch_scales, norms_of_norms]

WRONG = {
    untouched: {"norm": "is not written yet"},
    of_pytorch: {"norm": "this rank's pieces only"},
    the_ranks_own: {"norm": "this rank's pieces only"},
    sum_of_norms: {"norm": "the sum of the ranks' norms"},
    mean_of_norms: {"norm": "the mean of the ranks' norms"},
    the_largest: {"norm": "That is the largest norm"},
    without_the_root: {"norm": "That is the square of the norm"},
    returns_nothing: {"norm": "returns NoneType"},
    sum_of_the_norms_of_pieces: {"norm": "a sum of the norms of pieces"},
    norms_of_pieces_in_a_root: {"norm": "a sum of the norms of pieces"},
    the_norm_after: {"norm": "return the norm before it"},
    the_first_piece_only: {"norm": "the first piece of each rank"},
    never_cuts: {"scaled": "Multiply every gradient by"},
    cuts_to_one: {"scaled": "Multiply every gradient by"},
    each_rank_to_max_norm: {"scaled": "Multiply every gradient by"},
    each_element: {"scaled": "Multiply every gradient by"},
    always_of_max_norm: {"kept": "Multiply every gradient by 1"},
    cuts_what_is_short: {"kept": "Multiply every gradient by 1"},
    expects_all_of_them: {"missing": "NoneType"},
    zeros_where_missing: {"missing": "has one now"},
    stays_away_without_gradients: {"missing": ""},
    by_the_library: {"norm": "finished code"},
}

WIDER = "more digits than are asked for"
ORDER = "the order makes no difference to a sum, or to what is set one by one"
ALSO = "another tensor with the same numbers, as good"
EDGE = "at the limit itself the factor is 1"
EQUIVALENT = {
    "total = torch.zeros(()) -> total = torch.zeros(()).double()": WIDER,
    "line 5: for piece in pieces: -> for piece in reversed(pieces):": ORDER,
    "total += piece.grad.square().sum() -> total = total + piece.grad.square().sum()": ALSO,
    "if norm > max_norm: -> if norm >= max_norm:": EDGE,
    "line 11: for piece in pieces: -> for piece in reversed(pieces):": ORDER,
    "piece.grad *= max_norm / norm -> piece.grad = piece.grad * (max_norm / norm)": ALSO,
}
