"""Answers to 09/top_k: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist


def largest(tensor, k):
    return tensor.flatten().abs().topk(k).indices


def gathered(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def mean_of(values, places, like):
    """The mean over ranks, from values and places that are sent as int32."""
    places, values = gathered(places.int()), gathered(values)
    total = torch.zeros(like.numel())
    total.index_add_(0, places, values)
    return total.view(like.shape) / dist.get_world_size()


def right(gradient, error, k):
    error += gradient
    places = largest(error, k)
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    return mean_of(values, places, error)


# Wrong ------------------------------------------------------------------------------------------


def untouched(gradient, error, k):
    raise NotImplementedError()


def sum_over_ranks(gradient, error, k):
    return right(gradient, error, k) * dist.get_world_size()


def own_elements(gradient, error, k):
    whole = gradient + error
    right(gradient, error, k)
    return whole - error


def largest_with_sign(gradient, error, k):
    error += gradient
    places = error.flatten().topk(k).indices
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    return mean_of(values, places, error)


def absolute_values(gradient, error, k):
    error += gradient
    values, places = error.flatten().abs().topk(k)
    error.view(-1)[places] = 0
    return mean_of(values, places, error)


def one_rank_for_each_place(gradient, error, k):
    """index_copy overwrites what another rank has sent."""
    error += gradient
    places = largest(error, k)
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    total = torch.zeros(error.numel())
    for each, here in zip(
        gathered(places.int()).view(-1, k), gathered(values).view(-1, k), strict=True
    ):
        total[each.long()] = here
    return total.view(error.shape) / dist.get_world_size()


def divided_by_senders(gradient, error, k):
    error += gradient
    places = largest(error, k)
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    places, values = gathered(places.int()), gathered(values)
    total, count = torch.zeros(2, error.numel())
    total.index_add_(0, places, values)
    count.index_add_(0, places, torch.ones_like(values))
    return (total / count.clamp(min=1)).view(error.shape)


def all_of_it(gradient, error, k):
    """The mean of whole gradients."""
    total = gradient.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def places_of_this_rank(gradient, error, k):
    """Gathers the values alone, and adds all of them up at its own places."""
    error += gradient
    places = largest(error, k)
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    total = torch.zeros(error.numel())
    for each in gathered(values).view(-1, k):
        total[places] += each
    return total.view(error.shape) / dist.get_world_size()


def returns_nothing(gradient, error, k):
    right(gradient, error, k)


def error_is_not_changed(gradient, error, k):
    return right(gradient, error.clone(), k)


def cleared(gradient, error, k):
    mean = right(gradient, error, k)
    error.zero_()
    return mean


def a_new_error(gradient, error, k):
    """`error` is another tensor afterwards, which the caller never sees."""
    error = gradient + error
    flat = error.flatten()
    places = largest(error, k)
    values = flat[places]
    flat[places] = 0
    error = flat.view_as(error)
    return mean_of(values, places, error)


def error_keeps_what_was_sent(gradient, error, k):
    whole = gradient + error
    mean = right(gradient, error.clone(), k)
    error.copy_(whole)
    return mean


def error_of_this_step_alone(gradient, error, k):
    """What was left before is forgotten, if it is not sent now."""
    whole = gradient + error
    places = largest(whole, k)
    values = whole.flatten()[places]
    sent = torch.zeros(whole.numel()).index_copy_(0, places, values).view_as(whole)
    error.copy_(gradient - sent)
    return mean_of(values, places, whole)


def error_against_the_mean(gradient, error, k):
    """As PowerSGD keeps it: what differs from the mean of all ranks."""
    whole = gradient + error
    mean = right(gradient, error.clone(), k)
    error.copy_(whole - mean)
    return mean


def keeps_what_was_sent(gradient, error, k):
    whole = gradient + error
    places = largest(whole, k)
    mean = right(gradient, error, k)
    error.zero_()
    error.view(-1)[places] = whole.flatten()[places]
    return mean


def without_what_was_kept(gradient, error, k):
    places = largest(gradient, k)
    values = gradient.flatten()[places]
    error += gradient
    error.view(-1)[places] -= values
    return mean_of(values, places, gradient)


def added_after_the_choice(gradient, error, k):
    """The places are those of the gradient alone; the error is right for what is sent."""
    places = largest(gradient, k)
    error += gradient
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    return mean_of(values, places, error)


def values_of_the_gradient(gradient, error, k):
    """The places are right, and what was kept stays there."""
    places = largest(gradient + error, k)
    values = gradient.flatten()[places]
    error += gradient
    error.view(-1)[places] -= values
    return mean_of(values, places, gradient)


def chosen_from_what_was_kept(gradient, error, k):
    """The choice is that of the old error, as far as there is one."""
    places = largest(error if error.any() else gradient, k)
    error += gradient
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    return mean_of(values, places, error)


def vectors_only(gradient, error, k):
    error += gradient
    places = error.abs().topk(k).indices
    values = error[places]
    error[places] = 0
    return mean_of(values, places, error)


def views_the_gradient(gradient, error, k):
    """A transposed matrix has no view as a vector."""
    whole = gradient.view(-1) + error.view(-1)
    places = whole.abs().topk(k).indices
    values = whole[places]
    whole[places] = 0
    error.copy_(whole.view_as(error))
    return mean_of(values, places, gradient)


def returns_a_vector(gradient, error, k):
    return right(gradient, error, k).flatten()


def places_in_int64(gradient, error, k):
    error += gradient
    places = largest(error, k)
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    places, values = gathered(places), gathered(values)
    total = torch.zeros(error.numel()).index_add_(0, places, values)
    return total.view(error.shape) / dist.get_world_size()


def zeros_travel_too(gradient, error, k):
    """A whole tensor that is zero except in k places."""
    error += gradient
    places = largest(error, k)
    sent = torch.zeros(error.numel())
    sent[places] = error.flatten()[places]
    error.view(-1)[places] = 0
    dist.all_reduce(sent)
    return sent.view(error.shape) / dist.get_world_size()


def values_in_float64(gradient, error, k):
    error += gradient
    places = largest(error, k)
    values = error.flatten()[places]
    error.view(-1)[places] = 0
    total = torch.zeros(error.numel(), dtype=torch.float64)
    total.index_add_(0, gathered(places.int()), gathered(values.double()))
    return total.float().view(error.shape) / dist.get_world_size()


# Right ------------------------------------------------------------------------------------------


def in_one_message(gradient, error, k):
    """Places and the bits of the values, in one tensor."""
    whole = gradient + error
    flat = whole.reshape(-1)
    places = torch.argsort(flat.abs(), descending=True)[:k]
    message = torch.stack([places.int(), flat[places].view(torch.int32)])
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    dist.all_gather(messages, message)
    mean = torch.zeros_like(flat)
    for where, bits in messages:
        mean[where.long()] += bits.view(torch.float32) / len(messages)
    sent = torch.zeros_like(flat).index_copy_(0, places, flat[places])
    error.copy_((flat - sent).view_as(error))
    return mean.view_as(error)


def with_a_mask(gradient, error, k):
    """By a threshold, and with messages from rank to rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    error.add_(gradient)
    mask = error.abs() >= error.abs().flatten().kthvalue(error.numel() - k + 1).values
    places, values = mask.flatten().nonzero().flatten().int(), error[mask]
    error[mask] = 0
    mean = torch.zeros(error.numel())
    for other in range(ranks):
        there = places.clone() if other == rank else torch.empty_like(places)
        what = values.clone() if other == rank else torch.empty_like(values)
        dist.broadcast(there, other)
        dist.broadcast(what, other)
        mean.index_add_(0, there, what)
    return mean.div_(ranks).view(error.shape)


RIGHT = [right, in_one_message, with_a_mask]

WRONG = {
    untouched: {"mean": "is not written yet"},
    sum_over_ranks: {"mean": "this is the sum over the ranks"},
    own_elements: {"mean": "this rank's elements alone"},
    largest_with_sign: {"mean": "Compare absolute values"},
    absolute_values: {"mean": "Send the elements with their signs"},
    one_rank_for_each_place: {"mean": "only one of them counts"},
    divided_by_senders: {"mean": "divide by all"},
    all_of_it: {"mean": "the mean of the whole gradients"},
    places_of_this_rank: {"mean": "where do they belong"},
    returns_nothing: {"mean": "returned is None"},
    error_is_not_changed: {"kept": "it is as it was"},
    cleared: {"kept": "it is zero. Keep what was not sent"},
    a_new_error: {"kept": "it is as it was"},
    error_keeps_what_was_sent: {"kept": "this is everything, also what was sent"},
    error_of_this_step_alone: {"kept": "what was left from the step before is lost"},
    error_against_the_mean: {"kept": "it should be gradient + error, with zeros where"},
    keeps_what_was_sent: {"kept": "this is what was sent"},
    without_what_was_kept: {"fed_back": "this is without what was kept"},
    added_after_the_choice: {"fed_back": "after the elements were chosen"},
    values_of_the_gradient: {"fed_back": "these are the gradient's values"},
    chosen_from_what_was_kept: {"fed_back": "Which k elements has each rank"},
    vectors_only: {"shapes": ""},
    views_the_gradient: {"shapes": "view"},
    returns_a_vector: {"shapes": "not one of shape"},
    places_in_int64: {"bytes": "Send int32"},
    zeros_travel_too: {"bytes": "all_reduce takes whole tensors"},
    values_in_float64: {"bytes": "4 bytes each"},
}

ORDER = "nothing depends on this order"
EMPTY = "empty tensors, all alike"
EQUIVALENT = {
    "... dtype=torch.int32) for _ in range(ranks)] -> "
    "... dtype=torch.int32) for _ in reversed(range(ranks))]": EMPTY,
    "all_values = [torch.empty(k) for _ in range(ranks)] -> "
    "all_values = [torch.empty(k) for _ in reversed(range(ranks))]": EMPTY,
    "all_values = [torch.empty(k) for _ in range(ranks)]; "
    "dist.all_gather(all_places, places.int()) -> "
    "dist.all_gather(all_places, places.int()); "
    "all_values = [torch.empty(k) for _ in range(ranks)]": ORDER,
    "dist.all_gather(all_places, places.int()); dist.all_gather(all_values, flat[places]) -> "
    "dist.all_gather(all_values, flat[places]); dist.all_gather(all_places, places.int())": ORDER,
    "dist.all_gather(all_values, flat[places]); total = torch.zeros_like(flat) -> "
    "total = torch.zeros_like(flat); dist.all_gather(all_values, flat[places])": ORDER,
    "for where, values in zip(all_places, all_values):; total.index_add_(0, where, values); "
    "flat[places] = 0 -> flat[places] = 0; "
    "for where, values in zip(all_places, all_values):; total.index_add_(0, where, values)": ORDER,
    "total.index_add_(0, where, values) -> total.index_add_(-1, where, values)": "a vector",
}
