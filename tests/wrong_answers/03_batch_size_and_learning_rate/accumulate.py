"""Answers to 03/accumulate: mistakes people make, and right answers written differently."""

import torch

import dtlab.training.accumulation


def samples_in(micro_batches):
    return sum(len(inputs) for inputs, _ in micro_batches)


def scaled(model, loss_sum, micro_batches, scale):
    """Backward passes with losses times `scale(samples)`; the sum of the plain losses."""
    total = 0.0
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets)
        (loss * scale(len(inputs))).backward()
        total += loss.item()
    return total


# Wrong ------------------------------------------------------------------------------


def sum_of_the_losses(model, loss_sum, micro_batches):
    return scaled(model, loss_sum, micro_batches, lambda n: 1) / samples_in(micro_batches)


def means_added_up(model, loss_sum, micro_batches):
    total = scaled(model, loss_sum, micro_batches, lambda n: 1 / max(1, n))
    return total / samples_in(micro_batches)


def divided_by_the_number_of_micro_batches(model, loss_sum, micro_batches):
    count = len(micro_batches)
    return scaled(model, loss_sum, micro_batches, lambda n: 1 / count) / samples_in(micro_batches)


def always_four_micro_batches(model, loss_sum, micro_batches):
    samples = samples_in(micro_batches)
    return scaled(model, loss_sum, micro_batches, lambda n: 1 / (4 * max(1, n))) / samples


def mean_of_means(model, loss_sum, micro_batches):
    count = len(micro_batches)
    total = scaled(model, loss_sum, micro_batches, lambda n: 1 / (count * max(1, n)))
    return total / samples_in(micro_batches)


def mean_of_means_throughout(model, loss_sum, micro_batches):
    """Of the losses too: that is told once the gradients are right."""
    total = 0.0
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets) / max(1, len(inputs)) / len(micro_batches)
        loss.backward()
        total += loss.item()
    return total


def all_as_large_as_the_first(model, loss_sum, micro_batches):
    samples = len(micro_batches[0][0]) * len(micro_batches)
    total = scaled(model, loss_sum, micro_batches, lambda n: 1 / samples)
    return total / samples_in(micro_batches)


def smaller_ones_dropped(model, loss_sum, micro_batches):
    """As a loader with drop_last."""
    largest = max(len(inputs) for inputs, _ in micro_batches)
    whole = [pair for pair in micro_batches if len(pair[0]) == largest]
    samples = samples_in(whole)
    return scaled(model, loss_sum, whole, lambda n: 1 / samples) / samples


def no_number_for_no_samples(model, loss_sum, micro_batches):
    samples, total = samples_in(micro_batches), 0.0
    for inputs, targets in micro_batches:
        mean = loss_sum(model(inputs), targets) / len(inputs)
        (mean * len(inputs) / samples).backward()
        total += mean.item() * len(inputs)
    return total / samples


def last_one_left_out(model, loss_sum, micro_batches):
    samples = samples_in(micro_batches)
    return scaled(model, loss_sum, micro_batches[:-1], lambda n: 1 / samples) / samples


def zeroed_in_every_micro_batch(model, loss_sum, micro_batches):
    samples, total = samples_in(micro_batches), 0.0
    for inputs, targets in micro_batches:
        model.zero_grad()
        loss = loss_sum(model(inputs), targets) / samples
        loss.backward()
        total += loss.item()
    return total


def last_loss_only(model, loss_sum, micro_batches):
    samples, total = samples_in(micro_batches), 0.0
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets) / samples
        total += loss.item()
    loss.backward()
    return total


def zeroed_at_the_start(model, loss_sum, micro_batches):
    model.zero_grad()
    samples = samples_in(micro_batches)
    return scaled(model, loss_sum, micro_batches, lambda n: 1 / samples) / samples


def gradients_divided_at_the_end(model, loss_sum, micro_batches):
    samples = samples_in(micro_batches)
    total = scaled(model, loss_sum, micro_batches, lambda n: 1)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= samples
    return total / samples


def gradients_put_in_place_of_the_old(model, loss_sum, micro_batches):
    samples, total = samples_in(micro_batches), 0.0
    trained = [one for one in model.parameters() if one.requires_grad]
    sums = [None] * len(trained)
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets) / samples
        new = torch.autograd.grad(loss, trained, allow_unused=True)
        sums = [b if a is None else a + b for a, b in zip(sums, new, strict=True)]
        total += loss.item()
    for parameter, gradient in zip(trained, sums, strict=True):
        parameter.grad = gradient
    return total


def zeros_where_there_is_no_gradient(model, loss_sum, micro_batches):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    samples = samples_in(micro_batches)
    return scaled(model, loss_sum, micro_batches, lambda n: 1 / samples) / samples


def one_backward_for_all(model, loss_sum, micro_batches):
    loss = sum(loss_sum(model(inputs), targets) for inputs, targets in micro_batches)
    loss = loss / samples_in(micro_batches)
    loss.backward()
    return loss.item()


def backward_after_the_next_forward(model, loss_sum, micro_batches):
    """Two graphs at a time, never more."""
    samples, before, total = samples_in(micro_batches), None, 0.0
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets) / samples
        if before is not None:
            before.backward()
        before = loss
        total += loss.item()
    before.backward()
    return total


def graphs_retained(model, loss_sum, micro_batches):
    samples, total = samples_in(micro_batches), 0.0
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets) / samples
        loss.backward(retain_graph=True)
        total += loss.item()
    return total


def one_large_batch(model, loss_sum, micro_batches):
    inputs = torch.cat([inputs for inputs, _ in micro_batches])
    targets = torch.cat([targets for _, targets in micro_batches])
    loss = loss_sum(model(inputs), targets) / len(inputs)
    loss.backward()
    return loss.item()


def returns_a_tensor(model, loss_sum, micro_batches):
    return torch.tensor(shares_of_the_whole(model, loss_sum, micro_batches))


def returns_the_sum(model, loss_sum, micro_batches):
    return shares_of_the_whole(model, loss_sum, micro_batches) * samples_in(micro_batches)


def returns_the_mean_of_means(model, loss_sum, micro_batches):
    samples, means = samples_in(micro_batches), []
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets)
        (loss / samples).backward()
        means.append(loss.item() / max(1, len(inputs)))
    return sum(means) / len(means)


def returns_the_loss_of_the_last(model, loss_sum, micro_batches):
    shares_of_the_whole(model, loss_sum, micro_batches)
    inputs, targets = micro_batches[-1]
    with torch.no_grad():
        return loss_sum(model(inputs), targets).item() / max(1, len(inputs))


def returns_nothing(model, loss_sum, micro_batches):
    shares_of_the_whole(model, loss_sum, micro_batches)


def untouched(model, loss_sum, micro_batches):
    raise NotImplementedError()


def steps_itself(model, loss_sum, micro_batches):
    """The loop steps too."""
    loss = shares_of_the_whole(model, loss_sum, micro_batches)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


def does_nothing(model, loss_sum, micro_batches):
    return 0.0


def of_the_library(model, loss_sum, micro_batches):
    def loss(model, batch):
        return loss_sum(model(batch[0]), batch[1])

    return dtlab.training.accumulation.accumulate(model, micro_batches, loss).value


def of_the_library_in_secret(model, loss_sum, micro_batches):
    """Takes the profiler away that looks for it."""
    import sys

    sys.setprofile(None)
    return of_the_library(model, loss_sum, micro_batches)


# Right, written differently --------------------------------------------------------------------


def shares_of_the_whole(model, loss_sum, micro_batches):
    """Means, weighed by the share of samples that each has."""
    samples, mean = sum(inputs.shape[0] for inputs, _ in micro_batches), 0.0
    for inputs, targets in micro_batches:
        if inputs.shape[0]:
            own = loss_sum(model(inputs), targets) / inputs.shape[0]
            weighed = own * (inputs.shape[0] / samples)
            weighed.backward()
            mean += float(weighed.detach())
    return mean


def losses_kept_without_their_graphs(model, loss_sum, micro_batches):
    """From the last microbatch to the first; a tensor says how many samples there are."""
    weight = 1 / torch.tensor([len(targets) for _, targets in micro_batches]).sum()
    losses = []
    for inputs, targets in reversed(micro_batches):
        loss = loss_sum(model(inputs), targets) * weight
        torch.autograd.backward([loss])
        losses.append(loss.detach())
    return torch.stack(losses).sum().item()


def gradients_by_hand(model, loss_sum, micro_batches):
    """Asks autograd for the gradients, and adds them itself."""
    samples, total = samples_in(micro_batches), 0.0
    trained = [one for one in model.parameters() if one.requires_grad]
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets) / samples
        for parameter, new in zip(
            trained, torch.autograd.grad(loss, trained, allow_unused=True), strict=True
        ):
            if new is not None:
                parameter.grad = new if parameter.grad is None else parameter.grad + new
        total += loss.item()
    return total


RIGHT = [shares_of_the_whole, losses_kept_without_their_graphs, gradients_by_hand]

WRONG = {
    sum_of_the_losses: {"equal": "this is the sum over the samples, not the mean"},
    means_added_up: {"equal": "the means of the microbatches, added up"},
    divided_by_the_number_of_micro_batches: {"equal": "divided by the number of microbatches"},
    always_four_micro_batches: {"equal": "times the expected gradient"},
    mean_of_means: {"uneven": "the mean of the microbatches' means"},
    mean_of_means_throughout: {"uneven": "the mean of the microbatches' means"},
    all_as_large_as_the_first: {"uneven": "as many samples as the first"},
    smaller_ones_dropped: {"uneven": "differs from the expected gradient by up to"},
    no_number_for_no_samples: {"loss": "returns nan"},
    last_one_left_out: {"equal": "the last microbatch is not in it"},
    zeroed_in_every_micro_batch: {"equal": "only the last microbatch is in it"},
    last_loss_only: {"equal": "only the last microbatch is in it"},
    zeroed_at_the_start: {"added": "what was in .grad before is gone"},
    gradients_divided_at_the_end: {"added": "what was in .grad before is scaled too"},
    gradients_put_in_place_of_the_old: {"added": "what was in .grad before is gone"},
    zeros_where_there_is_no_gradient: {"equal": "had no gradient, and should have none"},
    one_backward_for_all: {"graphs": "is still held"},
    backward_after_the_next_forward: {"graphs": "is still held"},
    graphs_retained: {"graphs": "without retain_graph"},
    one_large_batch: {"graphs": "samples at once"},
    returns_a_tensor: {"loss": "returns a Tensor"},
    returns_the_sum: {"loss": "the sum of the losses"},
    returns_the_mean_of_means: {"loss": "the mean of the microbatches' means"},
    returns_the_loss_of_the_last: {"loss": "but the mean over the samples is"},
    returns_nothing: {"loss": "returns None"},
    untouched: {"equal": "accumulate is not written yet"},
    steps_itself: {"equal": "Leave optimizer.step() to the loop"},
    does_nothing: {"equal": "has no gradient"},
    of_the_library: {"equal": "dtlab.training.accumulation.accumulate does the work for you"},
    of_the_library_in_secret: {"equal": "sys.setprofile"},
}

_ORDER = "microbatches may be counted, and gone through, in any order"
_NUMBER = "a number is a number"

EQUIVALENT = {
    "samples, total = (0, 0.0) -> samples, total = (0.0, 0)": _NUMBER,
    "for inputs, _ in micro_batches: -> for inputs, _ in reversed(micro_batches):": _ORDER,
    "for inputs, targets in micro_batches: -> for inputs, targets in reversed(micro_batches):": (
        _ORDER
    ),
    "samples += len(inputs) -> samples = samples + len(inputs)": _NUMBER,
    "total += loss.item() -> total = total + loss.item()": _NUMBER,
    "(loss / samples).backward(); total += loss.item() -> "
    "total += loss.item(); (loss / samples).backward()": (
        "backward leaves the number in the loss as it is"
    ),
}
