"""Answers to 10/clip_mesh: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist


def gradients_of(parameters):
    return [one.grad for one in parameters if one.grad is not None]


def share(parameter, groups):
    """What an element of this rank counts, so that over tensor and pipeline it counts once."""
    copies = 1 if parameter.kind == "sharded" else dist.get_world_size(groups["tensor"])
    return 1 / (2 * copies if parameter.tied else copies)


def squares(parameters, groups, share=share):
    total = torch.zeros(())
    for one in parameters:
        if one.grad is not None:
            total += one.grad.square().sum() * share(one, groups)
    return total


def norm_of(parameters, groups, share=share, axes=("tensor", "pipeline")):
    total = squares(parameters, groups, share)
    for axis in axes:
        dist.all_reduce(total, group=groups[axis])
    return total.sqrt()


def cut(parameters, max_norm, norm):
    if norm > max_norm:
        for gradient in gradients_of(parameters):
            gradient *= max_norm / norm
    return norm


def right(parameters, max_norm, groups):
    return cut(parameters, max_norm, norm_of(parameters, groups))


# Wrong ------------------------------------------------------------------------------------------


def untouched(parameters, max_norm, groups):
    raise NotImplementedError()


def of_pytorch(parameters, max_norm, groups):
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)


def returns_nothing(parameters, max_norm, groups):
    right(parameters, max_norm, groups)


def over_the_world(parameters, max_norm, groups):
    """Data ranks have equal gradients, and each counts them."""
    total = squares(parameters, groups)
    dist.all_reduce(total)
    return cut(parameters, max_norm, total.sqrt())


def without_the_root(parameters, max_norm, groups):
    total = norm_of(parameters, groups) ** 2
    return cut(parameters, max_norm, total)


def the_norm_after(parameters, max_norm, groups):
    right(parameters, max_norm, groups)
    return norm_of(parameters, groups)


def copies_on_each_tensor_rank(parameters, max_norm, groups):
    def share(one, groups):
        return 0.5 if one.tied else 1

    return cut(parameters, max_norm, norm_of(parameters, groups, share))


def shards_of_this_rank_only(parameters, max_norm, groups):
    def share(one, groups):
        return 0.5 if one.tied else 1

    return cut(parameters, max_norm, norm_of(parameters, groups, share, ["pipeline"]))


def shards_counted_as_copies(parameters, max_norm, groups):
    def share(one, groups):
        return (0.5 if one.tied else 1) / dist.get_world_size(groups["tensor"])

    return cut(parameters, max_norm, norm_of(parameters, groups, share))


def partial_ones_as_shards(parameters, max_norm, groups):
    """They were parts before they were reduced; now each tensor rank has the sum."""

    def share_of(one, groups):
        return 1 if one.kind == "partial" else share(one, groups)

    return cut(parameters, max_norm, norm_of(parameters, groups, share_of))


def each_stage_alone(parameters, max_norm, groups):
    def share(one, groups):
        copies = 1 if one.kind == "sharded" else dist.get_world_size(groups["tensor"])
        return 1 / copies

    return cut(parameters, max_norm, norm_of(parameters, groups, share, ["tensor"]))


def sum_of_the_stages_norms(parameters, max_norm, groups):
    norm = norm_of(parameters, groups, axes=["tensor"])
    dist.all_reduce(norm, group=groups["pipeline"])
    return cut(parameters, max_norm, norm)


def tied_twice(parameters, max_norm, groups):
    def share(one, groups):
        return 1 if one.kind == "sharded" else 1 / dist.get_world_size(groups["tensor"])

    return cut(parameters, max_norm, norm_of(parameters, groups, share))


def tied_left_out(parameters, max_norm, groups):
    def share_of(one, groups):
        return 0 if one.tied else share(one, groups)

    return cut(parameters, max_norm, norm_of(parameters, groups, share_of))


def tied_always_as_shards(parameters, max_norm, groups):
    """Only its stages share it; but a table may be a copy on each tensor rank too."""

    def share_of(one, groups):
        return 0.5 if one.tied else share(one, groups)

    return cut(parameters, max_norm, norm_of(parameters, groups, share_of))


def never_cuts(parameters, max_norm, groups):
    return norm_of(parameters, groups)


def each_rank_by_its_own_norm(parameters, max_norm, groups):
    norm = norm_of(parameters, groups)
    if norm > max_norm:
        norms = [gradient.norm() for gradient in gradients_of(parameters)]
        cut(parameters, max_norm, torch.stack(norms).norm())
    return norm


def shards_only_are_cut(parameters, max_norm, groups):
    norm = norm_of(parameters, groups)
    cut([one for one in parameters if one.kind == "sharded"], max_norm, norm)
    return norm


def always_to_max_norm(parameters, max_norm, groups):
    norm = norm_of(parameters, groups)
    for gradient in gradients_of(parameters):
        gradient *= max_norm / norm
    return norm


def expects_all_gradients(parameters, max_norm, groups):
    total = sum(one.grad.square().sum() * share(one, groups) for one in parameters)
    for axis in ("tensor", "pipeline"):
        dist.all_reduce(total, group=groups[axis])
    return cut(parameters, max_norm, total.sqrt())


def zeros_where_missing(parameters, max_norm, groups):
    for one in parameters:
        if one.grad is None:
            one.grad = torch.zeros_like(one)
    return right(parameters, max_norm, groups)


def stays_away_without_gradients(parameters, max_norm, groups):
    if not gradients_of(parameters):
        return torch.zeros(())
    return right(parameters, max_norm, groups)


def an_all_reduce_for_each_parameter(parameters, max_norm, groups):
    """Right as long as all stages have as many parameters with a gradient: so pad the list."""
    total = torch.zeros(())
    for number in range(8):
        square = squares(parameters[number : number + 1], groups)
        for axis in ("tensor", "pipeline"):
            dist.all_reduce(square, group=groups[axis])
        total += square
    return cut(parameters, max_norm, total.sqrt())


def gathers_all_shards(parameters, max_norm, groups):
    """Puts the dense gradients together, to take their norm."""
    total, ranks = torch.zeros(()), dist.get_world_size(groups["tensor"])
    for one in parameters:
        gradient = torch.zeros_like(one) if one.grad is None else one.grad
        every = [gradient]
        if one.kind == "sharded":
            every = [torch.empty_like(gradient) for _ in range(ranks)]
            dist.all_gather(every, gradient, group=groups["tensor"])
        total += torch.cat(every).square().sum() * (0.5 if one.tied else 1)
    dist.all_reduce(total, group=groups["pipeline"])
    return cut(parameters, max_norm, total.sqrt())


# Right ------------------------------------------------------------------------------------------


def one_all_reduce_over_the_world(parameters, max_norm, groups):
    total = squares(parameters, groups).double() / dist.get_world_size(groups["data"])
    dist.all_reduce(total)
    norm = float(total.sqrt())
    scale = min(1.0, max_norm / (norm + 1e-6))
    for one in parameters:
        if one.grad is not None:
            one.grad = one.grad * scale
    return norm


def the_first_rank_counts_copies(parameters, max_norm, groups):
    """A copy counts on the first tensor rank and on the first stage, and elsewhere not at all."""

    def share(one, groups):
        is_copy = one.kind != "sharded" and dist.get_rank(groups["tensor"]) > 0
        return not is_copy and not (one.tied and dist.get_rank(groups["pipeline"]) > 0)

    norm = norm_of(parameters, groups, share, ["pipeline", "tensor"])
    return cut(parameters, max_norm, norm)


def three_sums(parameters, max_norm, groups):
    """Shards, copies and tied ones added up apart, and all stages gathered."""
    shards, copies = torch.zeros(2)
    for one in parameters:
        if one.grad is None:
            continue
        square = torch.linalg.vector_norm(one.grad) ** 2 / (1 + one.tied)
        if one.kind == "sharded":
            shards += square
        else:
            copies += square
    dist.all_reduce(shards, group=groups["tensor"])
    every = [torch.zeros(()) for _ in range(dist.get_world_size(groups["pipeline"]))]
    dist.all_gather(every, shards + copies, group=groups["pipeline"])
    return cut(parameters, max_norm, torch.stack(every).sum().sqrt())


RIGHT = [right, one_all_reduce_over_the_world, the_first_rank_counts_copies, three_sums]

WRONG = {
    untouched: {"data": "is not written yet"},
    returns_nothing: {"data": "returns NoneType"},
    over_the_world: {"data": "Data ranks have the same gradients"},
    without_the_root: {"data": "That is the square of the norm"},
    the_norm_after: {"data": "the norm after clipping"},
    of_pytorch: {"tensor": "what this rank holds", "pipeline": "what this rank holds"},
    copies_on_each_tensor_rank: {"tensor": "are not sharded count on each"},
    shards_of_this_rank_only: {"tensor": "what this rank holds"},
    shards_counted_as_copies: {"tensor": "Shards count only in part"},
    partial_ones_as_shards: {"tensor": "count more than once"},
    each_stage_alone: {"pipeline": "what this rank holds"},
    sum_of_the_stages_norms: {"pipeline": "Squares add up, not norms"},
    tied_twice: {"tied": "counts on both of its stages"},
    tied_left_out: {"tied": "not at all"},
    tied_always_as_shards: {"tied": "the tied embedding is equal"},
    never_cuts: {"scaled": "times what it was"},
    each_rank_by_its_own_norm: {"scaled": "by the same factor"},
    shards_only_are_cut: {"scaled": "times what it was"},
    always_to_max_norm: {"kept": "1 times what it was"},
    expects_all_gradients: {"missing": "NoneType"},
    zeros_where_missing: {"missing": "has a gradient now"},
    stays_away_without_gradients: {"missing": "Rank 1 did not call"},
    an_all_reduce_for_each_parameter: {"calls": "calls 16 collectives"},
    gathers_all_shards: {"calls": "Send one number"},
}

WIDER = "more digits than are needed"
ORDER = "the order makes no difference to a sum, or to parameters scaled one by one"
ALSO = "the same numbers under the same name"
EDGE = "at the limit itself the factor is 1"
EQUIVALENT = {
    "total = torch.zeros(()) -> total = torch.zeros(()).double()": WIDER,
    "line 5: for parameter in parameters: -> for parameter in reversed(parameters):": ORDER,
    "total += parameter.grad.square().sum() / holders -> total = total + "
    "parameter.grad.square().sum() / holders": ALSO,
    "dist.all_reduce(total, group=groups['tensor']); dist.all_reduce(total, "
    "group=groups['pipeline']) -> dist.all_reduce(total, group=groups['pipeline']); "
    "dist.all_reduce(total, group=groups['tensor'])": ORDER,
    "if norm > max_norm: -> if norm >= max_norm:": EDGE,
    "line 15: for parameter in parameters: -> for parameter in reversed(parameters):": ORDER,
    "parameter.grad *= max_norm / norm -> "
    "parameter.grad = parameter.grad * (max_norm / norm)": ALSO,
}
