"""Answers to 10/reduce_gradients: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist


def total(gradient, group):
    dist.all_reduce(gradient, group=group)


def mean(gradient, group):
    dist.all_reduce(gradient, group=group)
    gradient /= dist.get_world_size(group)


def right(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


# Wrong ------------------------------------------------------------------------------------------


def untouched(parameters, groups):
    raise NotImplementedError()


def nothing(parameters, groups):
    pass


def sum_over_data(parameters, groups):
    for parameter in parameters:
        total(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def no_mean_over_data(parameters, groups):
    for parameter in parameters:
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def not_in_place(parameters, groups):
    """The mean is a new tensor that nothing refers to."""
    for parameter in parameters:
        gradient = parameter.grad.clone()
        mean(gradient, groups["data"])


def data_only(parameters, groups):
    """Loses both kinds of parts."""
    for parameter in parameters:
        mean(parameter.grad, groups["data"])


def partial_left_out(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def partial_as_mean(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            mean(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def partial_over_the_world(parameters, groups):
    """Right as long as the pipeline has one stage."""
    for parameter in parameters:
        if parameter.kind == "partial":
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size(groups["data"])
        else:
            mean(parameter.grad, groups["data"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def shards_summed_too(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind != "equal":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def shards_averaged(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "sharded" and not parameter.tied:
            mean(parameter.grad, groups["tensor"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def replicated_summed(parameters, groups):
    """All that is not sharded; equal gradients too."""
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind != "sharded" and not parameter.tied:
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def equal_for_partial(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "equal" and not parameter.tied:
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def tied_left_out(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])


def tied_as_mean(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            mean(parameter.grad, groups["embedding"])


def tied_over_the_pipeline(parameters, groups):
    """Hangs where the pipeline has a stage between its ends, which has no table."""
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["pipeline"])


def tied_takes_no_mean(parameters, groups):
    """Of the tied table, the data ranks' gradients are left apart."""
    for parameter in parameters:
        if parameter.tied:
            total(parameter.grad, groups["embedding"])
            continue
        mean(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])


def tied_on_the_first_stage_only(parameters, groups):
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            dist.reduce(parameter.grad, group=groups["embedding"], group_dst=0)
            if dist.get_rank(groups["embedding"]) == 1:
                parameter.grad /= 2


def equal_averaged_too(parameters, groups):
    """The mean of equal gradients is right, and sends them all for nothing."""
    for parameter in parameters:
        mean(parameter.grad, groups["data"])
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        elif parameter.kind == "equal":
            mean(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def over_data_twice(parameters, groups):
    """The mean of means is the mean."""
    for _ in range(2):
        for parameter in parameters:
            mean(parameter.grad, groups["data"])
    for parameter in parameters:
        if parameter.kind == "partial":
            total(parameter.grad, groups["tensor"])
        if parameter.tied:
            total(parameter.grad, groups["embedding"])


def over_the_world(parameters, groups):
    """Zeros for the shards of other ranks: one all-reduce over all ranks makes it right."""
    data, tensor = dist.get_world_size(groups["data"]), dist.get_world_size(groups["tensor"])
    for parameter in parameters:
        if dist.get_world_size(groups["pipeline"]) > 1:
            mean(parameter.grad, groups["data"])
            if parameter.kind == "partial":
                total(parameter.grad, groups["tensor"])
            if parameter.tied:
                total(parameter.grad, groups["embedding"])
            continue
        shards = torch.zeros(tensor, *parameter.shape)
        shards[dist.get_rank(groups["tensor"])] = parameter.grad
        dist.all_reduce(shards)
        own = shards[dist.get_rank(groups["tensor"])] / data
        parameter.grad = shards.sum(0) / data if parameter.kind == "partial" else own


# Right ------------------------------------------------------------------------------------------


def in_buckets(parameters, groups):
    """One all-reduce for each group."""

    def reduce(chosen, group):
        if chosen:
            flat = torch.cat([one.grad.flatten() for one in chosen])
            dist.all_reduce(flat, group=group)
            for one, part in zip(chosen, flat.split([one.numel() for one in chosen]), strict=True):
                one.grad = part.view_as(one).clone()

    reduce([one for one in parameters if one.tied], groups["embedding"])
    reduce([one for one in parameters if one.kind == "partial"], groups["tensor"])
    reduce(parameters, groups["data"])
    for one in parameters:
        one.grad /= dist.get_world_size(groups["data"])


def scaled_first(parameters, groups):
    replicas = dist.get_world_size(groups["data"])
    for parameter in parameters:
        parameter.grad.div_(replicas)
        names = ["data"] + ["tensor"] * (parameter.kind == "partial")
        for name in names + ["embedding"] * parameter.tied:
            dist.all_reduce(parameter.grad, group=groups[name])


def ends_of_the_pipeline(parameters, groups):
    """Both ends send each other their copies; started together, waited for last."""
    work = []
    for parameter in parameters:
        parameter.grad = parameter.grad / dist.get_world_size(groups["data"])
        work.append(dist.all_reduce(parameter.grad, group=groups["data"], async_op=True))
    for one in work:
        one.wait()
    pipeline = groups["pipeline"]
    peer = dist.get_world_size(pipeline) - 1 - dist.get_rank(pipeline)
    for parameter in parameters:
        if parameter.kind == "partial":
            dist.all_reduce(parameter.grad, group=groups["tensor"])
        if parameter.tied:
            other = torch.empty_like(parameter.grad)
            sending = dist.isend(parameter.grad, group=pipeline, group_dst=peer)
            dist.recv(other, group=pipeline, group_src=peer)
            sending.wait()
            parameter.grad = parameter.grad + other


RIGHT = [right, in_buckets, scaled_first, ends_of_the_pipeline]

WRONG = {
    untouched: {"data": "is not written yet"},
    nothing: {"data": "it is unchanged"},
    no_mean_over_data: {"data": "it is unchanged"},
    not_in_place: {"data": "it is unchanged"},
    sum_over_data: {"data": "the sum over the data group, not the mean"},
    data_only: {"partial": "this rank's tokens only", "tied": "Add both copies"},
    partial_left_out: {"partial": "Sum the parts over the tensor group"},
    partial_as_mean: {"partial": "the mean over the tensor group"},
    partial_over_the_world: {"partial": "pipeline=2"},
    shards_summed_too: {"sharded": "different parts of the weight", "tied": "the sum over"},
    shards_averaged: {"sharded": "different parts of the weight"},
    replicated_summed: {"equal": "equal gradients"},
    equal_for_partial: {"equal": "equal gradients", "partial": "tokens only"},
    tied_left_out: {"tied": "Add both copies"},
    tied_as_mean: {"tied": "the mean of both copies"},
    tied_over_the_pipeline: {"tied": "pipeline=3"},
    tied_takes_no_mean: {"tied": ""},
    tied_on_the_first_stage_only: {"tied": ""},
    equal_averaged_too: {"bytes": "Between ranks"},
    over_data_twice: {"bytes": "for each sum takes"},
    over_the_world: {"bytes": "ranks 0 to 3"},
}

ORDER = "sums and the division by a number may come in any order, the same on all ranks"
EQUIVALENT = {
    "for parameter in parameters: -> for parameter in reversed(parameters):": ORDER,
    "dist.all_reduce(gradient, group=groups['data']); gradient /= "
    "dist.get_world_size(groups['data']) -> gradient /= dist.get_world_size(groups['data']); "
    "dist.all_reduce(gradient, group=groups['data'])": ORDER,
    "gradient /= dist.get_world_size(groups['data']); if parameter.kind == 'partial':; "
    "dist.all_reduce(gradient, group=groups['tensor']) -> if parameter.kind == 'partial':; "
    "dist.all_reduce(gradient, group=groups['tensor']); gradient /= "
    "dist.get_world_size(groups['data'])": ORDER,
    "if parameter.kind == 'partial':; dist.all_reduce(gradient, group=groups['tensor']); ... "
    "-> if parameter.tied:; dist.all_reduce(gradient, group=groups['embedding']); ...": ORDER,
}
