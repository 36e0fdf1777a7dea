"""Answers to 03/measure_noise_scale: mistakes people make, right answers written differently."""

import math

import torch
import torch.distributed as dist

import dtlab.training.learning_rate


def means(gradient, group):
    """The squared norm of the mean gradient, the mean of the squared norms, and the ranks."""
    size = dist.get_world_size(group)
    total, own = gradient.clone(), gradient.double().square().sum()
    dist.all_reduce(total, group=group)
    dist.all_reduce(own, group=group)
    return float((total / size).double().square().sum()), own.item() / size, size


def quotient(variance, signal):
    return variance / signal if signal > 0 else math.inf


def from_two_norms(small, big, batch_small, batch_big):
    """McCandlish et al. 2018, appendix A.1."""
    variance = (small - big) / (1 / batch_small - 1 / batch_big)
    signal = (batch_big * big - batch_small * small) / (batch_big - batch_small)
    return quotient(variance, signal)


# Wrong ------------------------------------------------------------------------------


def variance_of_a_batch(gradient, batch, group=None):
    """Not of one sample."""
    big, small, size = means(gradient, group)
    return from_two_norms(small, big, 1, size)


def divided_by_n(gradient, batch, group=None):
    """The variance of so many numbers, not that which they were drawn from."""
    big, small, size = means(gradient, group)
    variance = batch * (small - big)
    return quotient(variance, big - variance / (batch * size))


def noise_left_in_the_signal(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    return batch * size / (size - 1) * (small - big) / big


def mean_gradient_for_the_true_one(gradient, batch, group=None):
    """Takes the squared norm of the mean for |G|^2 throughout."""
    big, small, _ = means(gradient, group)
    return batch * (small - big) / big


def norms_not_squared(gradient, batch, group=None):
    size = dist.get_world_size(group)
    total, own = gradient.clone(), gradient.norm()
    dist.all_reduce(total, group=group)
    dist.all_reduce(own, group=group)
    big, small = float((total / size).norm()), own.item() / size
    return from_two_norms(small, big, batch, batch * size)


def square_of_the_mean_norm(gradient, batch, group=None):
    size = dist.get_world_size(group)
    total, own = gradient.clone(), gradient.norm()
    dist.all_reduce(total, group=group)
    dist.all_reduce(own, group=group)
    big, small = float((total / size).square().sum()), (own.item() / size) ** 2
    return from_two_norms(small, big, batch, batch * size)


def sum_in_place_of_the_mean(gradient, batch, group=None):
    size = dist.get_world_size(group)
    total, own = gradient.clone(), gradient.double().square().sum()
    dist.all_reduce(total, group=group)
    dist.all_reduce(own, group=group)
    return from_two_norms(own.item() / size, float(total.square().sum()), batch, batch * size)


def own_norm_only(gradient, batch, group=None):
    """Each rank has another value."""
    big, _, size = means(gradient, group)
    return from_two_norms(float(gradient.double().square().sum()), big, batch, batch * size)


def sum_of_the_norms(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    return from_two_norms(small * size, big, batch, batch * size)


def multiplied_by_the_gap(gradient, batch, group=None):
    """Between one over the small and one over the large batch."""
    big, small, size = means(gradient, group)
    variance = (small - big) * (1 / batch - 1 / (batch * size))
    return quotient(variance, big - variance / (batch * size))


def divided_by_the_gap_between_batches(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    variance = (small - big) / (batch * size - batch)
    return quotient(variance, big - variance / (batch * size))


def batches_swapped(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    return from_two_norms(big, small, batch, batch * size)


def turned_over(gradient, batch, group=None):
    """Signal over noise."""
    return 1 / measured(gradient, batch, group)


def variance_only(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    return batch * size * (small - big) / (size - 1)


def two_ranks_assumed(gradient, batch, group=None):
    big, small, _ = means(gradient, group)
    return from_two_norms(small, big, batch, 2 * batch)


def on_the_first_rank_only(gradient, batch, group=None):
    found = measured(gradient, batch, group)
    return found if dist.get_rank(group) == 0 else 0.0


def another_order_on_each_rank(gradient, batch, group=None):
    """Bits differ."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    every = [torch.empty_like(gradient) for _ in range(size)]
    dist.all_gather(every, gradient, group=group)
    every = every[rank:] + every[:rank]
    mean = (sum(every) / size).double()
    small = sum(float(one.double().square().sum()) for one in every) / size
    return from_two_norms(small, float(mean.square().sum()), batch, batch * size)


def below_zero_as_it_comes(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    variance = batch * size * (small - big) / (size - 1)
    return variance / (big - variance / (batch * size))


def zero_where_nothing_is_above(gradient, batch, group=None):
    found = measured(gradient, batch, group)
    return 0.0 if found == math.inf else found


def absolute_values(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    variance = batch * size * (small - big) / (size - 1)
    signal = abs(big - variance / (batch * size))
    return variance / signal if signal else math.inf


def zero_counts_as_a_signal(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    variance = batch * size * (small - big) / (size - 1)
    signal = big - variance / (batch * size)
    return math.inf if signal < 0 else variance / signal


def all_gathered(gradient, batch, group=None):
    size = dist.get_world_size(group)
    every = [torch.empty_like(gradient) for _ in range(size)]
    dist.all_gather(every, gradient, group=group)
    mean = torch.stack(every).double().mean(0)
    spread = sum(float((one - mean).square().sum()) for one in every)
    variance = batch * spread / (size - 1)
    return quotient(variance, float(mean.square().sum()) - variance / (batch * size))


def squares_all_reduced_too(gradient, batch, group=None):
    """The variance of each element, which is more than is asked for."""
    size = dist.get_world_size(group)
    both = torch.stack([gradient, gradient.square()])
    dist.all_reduce(both, group=group)
    mean, squares = (both / size).double()
    variance = batch * size * float((squares - mean.square()).sum()) / (size - 1)
    return quotient(variance, float(mean.square().sum()) - variance / (batch * size))


def travels_as_float64(gradient, batch, group=None):
    return measured(gradient.double(), batch, group)


def all_reduced_in_place(gradient, batch, group=None):
    size, own = dist.get_world_size(group), gradient.double().square().sum()
    dist.all_reduce(gradient, group=group)
    dist.all_reduce(own, group=group)
    gradient /= size
    big = float(gradient.double().square().sum())
    return from_two_norms(own.item() / size, big, batch, batch * size)


def mean_is_another_name(gradient, batch, group=None):
    """The norm is that of the mean by then."""
    mean, size = gradient, dist.get_world_size(group)
    dist.all_reduce(mean, group=group)
    mean /= size
    own = gradient.square().sum() / size
    dist.all_reduce(own, group=group)
    return from_two_norms(own.item(), mean.square().sum().item(), batch, batch * size)


def divided_in_place(gradient, batch, group=None):
    size, own = dist.get_world_size(group), gradient.double().square().sum()
    gradient /= size
    total = gradient.clone()
    dist.all_reduce(total, group=group)
    dist.all_reduce(own, group=group)
    big = float(total.double().square().sum())
    return from_two_norms(own.item() / size, big, batch, batch * size)


def ignores_the_group(gradient, batch, group=None):
    return measured(gradient, batch)


def number_of_all_ranks(gradient, batch, group=None):
    total, own = gradient.clone(), gradient.double().square().sum()
    dist.all_reduce(total, group=group)
    dist.all_reduce(own, group=group)
    size = dist.get_world_size()
    big = float((total / size).double().square().sum())
    return from_two_norms(own.item() / size, big, batch, batch * size)


def norms_of_all_ranks(gradient, batch, group=None):
    size, total = dist.get_world_size(group), gradient.clone()
    own = gradient.double().square().sum()
    dist.all_reduce(total, group=group)
    dist.all_reduce(own)
    big = float((total / size).double().square().sum())
    return from_two_norms(own.item() / dist.get_world_size(), big, batch, batch * size)


def without_a_group(gradient, batch):
    return measured(gradient, batch)


def returns_both_parts(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    variance = batch * size * (small - big) / (size - 1)
    return variance, big - variance / (batch * size)


def untouched(gradient, batch, group=None):
    raise NotImplementedError()


def does_nothing(gradient, batch, group=None):
    return 0.0


def of_the_library(gradient, batch, group=None):
    measure = dtlab.training.learning_rate.gradient_noise_scale
    return measure([[gradient]], batch, group).batch


def below_the_recorder(gradient, batch, group=None):
    size = dist.get_world_size(group)
    total, own = gradient.clone(), gradient.double().square().sum()
    backend = (group or dist.distributed_c10d._get_default_group())._get_backend(
        torch.device("cpu")
    )
    backend.allreduce([total]).wait()
    dist.all_reduce(own, group=group)
    big = float((total / size).double().square().sum())
    return from_two_norms(own.item() / size, big, batch, batch * size)


# Right, written differently --------------------------------------------------------------------


def measured(gradient, batch, group=None):
    big, small, size = means(gradient, group)
    return from_two_norms(small, big, batch, batch * size)


def norm_behind_the_gradient(gradient, batch, group=None):
    """One all-reduce for both: the squared norm travels as one more element."""
    size = dist.get_world_size(group)
    both = torch.cat([gradient, gradient.square().sum()[None]])
    dist.all_reduce(both, group=group)
    both /= size
    big, small = both[:-1].norm().item() ** 2, both[-1].item()
    variance = batch * (small - big) * size / (size - 1)
    signal = (size * big - small) / (size - 1)
    return variance / signal if signal > 0 else float("inf")


def spread_about_the_mean(gradient, batch, group=None):
    """The mean first, and then how far each rank is from it."""
    size = len(dist.get_process_group_ranks(group))
    mean = gradient / size
    dist.all_reduce(mean, group=group)
    spread = (gradient - mean).double().square().sum().reshape(1)
    dist.all_reduce(spread, group=group)
    of_the_mean = spread.item() / (size - 1) / size  # the variance of the mean of all ranks
    signal = mean.double().square().sum().item() - of_the_mean
    return math.inf if signal <= 0 else of_the_mean * batch * size / signal


RIGHT = [measured, norm_behind_the_gradient, spread_about_the_mean]

WRONG = {
    variance_of_a_batch: {"scale": "of one sample"},
    divided_by_n: {"scale": "divide by N - 1"},
    noise_left_in_the_signal: {"scale": "the mean gradient is noisy too"},
    mean_gradient_for_the_true_one: {"scale": "which still contains tr(Sigma) / (N b)"},
    norms_not_squared: {"scale": "square the norms"},
    square_of_the_mean_norm: {"scale": "take the mean of the squared norms"},
    sum_in_place_of_the_mean: {"scale": "of the *sum* of the gradients"},
    multiplied_by_the_gap: {"scale": "by what must you divide their difference"},
    divided_by_the_gap_between_batches: {"scale": "by what must you divide their difference"},
    own_norm_only: {"scale": "the rank's own"},
    sum_of_the_norms: {"scale": ", but "},
    batches_swapped: {"scale": ", but "},
    turned_over: {"scale": "the inverse"},
    variance_only: {"scale": "tr(Sigma) alone"},
    two_ranks_assumed: {"scale": "on 4 ranks"},
    on_the_first_rank_only: {"scale": ", but "},
    another_order_on_each_rank: {"scale": "not the same on all ranks", "traffic": "dist.all_gath"},
    below_zero_as_it_comes: {"signal": "infinite"},
    zero_where_nothing_is_above: {"signal": "infinite"},
    absolute_values: {"signal": "infinite"},
    zero_counts_as_a_signal: {"signal": "division by zero"},
    all_gathered: {"traffic": "dist.all_gather sends"},
    squares_all_reduced_too: {"traffic": "you send the gradient twice"},
    travels_as_float64: {"traffic": "in its own dtype"},
    all_reduced_in_place: {"untouched": "the mean over the ranks"},
    mean_is_another_name: {"scale": ", but ", "untouched": "the mean over the ranks"},
    divided_in_place: {"untouched": "to another tensor"},
    ignores_the_group: {"subgroups": "over all ranks"},
    number_of_all_ranks: {"subgroups": "dist.get_world_size(group)"},
    norms_of_all_ranks: {"subgroups": "to every call"},
    without_a_group: {"subgroups": "takes no `group`"},
    returns_both_parts: {"scale": "returns a tuple"},
    untouched: {"scale": "measure_noise_scale is not written yet"},
    does_nothing: {"scale": ", but ", "traffic": "not all of it was sent"},
    of_the_library: {"scale": "dtlab.training.learning_rate.gradient_noise_scale does the work"},
    below_the_recorder: {"scale": "left it as the operating system counts"},
}

EQUIVALENT = {
    "dist.all_reduce(mean, group=group); dist.all_reduce(norm, group=group) -> "
    "dist.all_reduce(norm, group=group); dist.all_reduce(mean, group=group)":
        "two messages that know nothing of each other, in the same order on every rank",
}
