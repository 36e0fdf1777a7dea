"""Answers to 04/checkpoint_every: mistakes people make, and right ones written differently."""

import itertools
from functools import reduce

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint


def in_turn(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def by_ends(layers, ends, x, checkpoint):
    """A checkpoint up to each end, and the rest without one."""
    start = 0
    for end in ends:
        x = checkpoint(in_turn, layers[start:end], x)
        start = end
    return in_turn(layers[start:], x)


# Wrong ------------------------------------------------------------------------------


def no_checkpoint(layers, k, x, checkpoint):
    return in_turn(layers, x)


def the_last_group_too(layers, k, x, checkpoint):
    for start in range(0, len(layers), k):
        x = checkpoint(in_turn, layers[start : start + k], x)
    return x


def the_last_group_too_where_k_divides(layers, k, x, checkpoint):
    return by_ends(layers, range(k, len(layers) + 1, k), x, checkpoint)


def k_groups(layers, k, x, checkpoint):
    size = -(-len(layers) // k)
    return by_ends(layers, range(size, len(layers), size), x, checkpoint)


def one_more_in_each(layers, k, x, checkpoint):
    return by_ends(layers, range(k + 1, len(layers), k + 1), x, checkpoint)


def each_layer_alone(layers, k, x, checkpoint):
    return by_ends(layers, range(1, len(layers) - k + 1), x, checkpoint)


def every_kth_layer(layers, k, x, checkpoint):
    """A checkpoint now and then, as the name may be read."""
    for number, layer in enumerate(layers):
        x = checkpoint(layer, x) if number % k == 0 else layer(x)
    return x


def the_short_group_first(layers, k, x, checkpoint):
    return by_ends(layers, range(len(layers) % k or k, len(layers), k), x, checkpoint)


def the_rest_left_out(layers, k, x, checkpoint):
    for start in range(0, len(layers) // k * k, k):
        x = checkpoint(in_turn, layers[start : start + k], x)
    return x


def groups_that_overlap(layers, k, x, checkpoint):
    """A slice is one layer too long."""
    for start in range(0, len(layers), k):
        x = checkpoint(in_turn, layers[start : start + k + 1], x)
    return x


def returns_nothing(layers, k, x, checkpoint):
    right_by_ends(layers, k, x, checkpoint)


def with_the_loops_variable(layers, k, x, checkpoint):
    """In backward `start` has its last value."""
    last = (len(layers) - 1) // k * k
    for start in range(0, last, k):
        x = checkpoint(lambda x: in_turn(layers[start : start + k], x), x)  # noqa: B023
    return in_turn(layers[last:], x)


def cut_off(layers, k, x, checkpoint):
    for start in range(0, len(layers), k):
        x = checkpoint(in_turn, layers[start : start + k], x.detach())
    return x


def without_gradients(layers, k, x, checkpoint):
    last = (len(layers) - 1) // k * k
    with torch.no_grad():
        x = in_turn(layers[:last], x)
    return in_turn(layers[last:], x)


def all_from_the_start(layers, k, x, checkpoint):
    """Each checkpoint begins with the first layer, and draws new numbers."""
    result = x
    for end in range(k, len(layers), k):
        result = checkpoint(in_turn, layers[:end], x)
    return in_turn(layers[(len(layers) - 1) // k * k :], result)


def one_in_another(layers, k, x, checkpoint):
    if len(layers) <= k:
        return in_turn(layers, x)

    def rest(x):
        return one_in_another(layers[k:], k, in_turn(layers[:k], x), checkpoint)

    return checkpoint(rest, x)


def layers_taken_out(layers, k, x, checkpoint):
    while len(layers) > k:
        group = [layers.pop(0) for _ in range(k)]
        x = checkpoint(in_turn, group, x)
    return in_turn(layers, x)


def for_show(layers, k, x, checkpoint):
    """What comes out of the checkpoints is let go."""
    last = (len(layers) - 1) // k * k
    for start in range(0, last, k):
        with torch.random.fork_rng(devices=[]):
            checkpoint(in_turn, layers[start : start + k], x)
        x = in_turn(layers[start : start + k], x)
    return in_turn(layers[last:], x)


def tried_beforehand(layers, k, x, checkpoint):
    """Every group is run once more, to see its shape."""
    last = (len(layers) - 1) // k * k
    for start in range(0, last, k):
        group = layers[start : start + k]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            shape = in_turn(group, x).shape
        x = checkpoint(in_turn, group, x).view(shape)
    return in_turn(layers[last:], x)


def the_last_one_tried(layers, k, x, checkpoint):
    last = (len(layers) - 1) // k * k
    x = by_ends(layers[:last], range(k, last + 1, k), x, checkpoint)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        in_turn(layers[last:], x)
    return in_turn(layers[last:], x)


def all_where_k_is_large(layers, k, x, checkpoint):
    if k >= len(layers):
        return checkpoint(in_turn, layers, x)
    return by_ends(layers, range(k, len(layers), k), x, checkpoint)


def two_groups_at_least(layers, k, x, checkpoint):
    k = min(k, max(1, len(layers) // 2))
    return by_ends(layers, range(k, len(layers), k), x, checkpoint)


def nothing_where_k_is_1(layers, k, x, checkpoint):
    if k == 1:
        return in_turn(layers, x)
    return by_ends(layers, range(k, len(layers), k), x, checkpoint)


def of_torch(layers, k, x, checkpoint):
    last = (len(layers) - 1) // k * k
    for start in range(0, last, k):
        x = torch_checkpoint(in_turn, layers[start : start + k], x, use_reentrant=False)
    return in_turn(layers[last:], x)


def not_written(layers, k, x, checkpoint):
    raise NotImplementedError()


# Right, written differently ---------------------------------------------------------


def right_by_ends(layers, k, x, checkpoint):
    return by_ends(layers, range(k, len(layers), k), x, checkpoint)


def right_with_groups(layers, k, x, checkpoint):
    numbered = enumerate(layers)
    groups = [
        [layer for _, layer in group]
        for _, group in itertools.groupby(numbered, lambda pair: pair[0] // k)
    ]
    for group in groups[:-1]:
        x = checkpoint(lambda x, group=group: reduce(lambda x, layer: layer(x), group, x), x)
    return reduce(lambda x, layer: layer(x), groups[-1], x)


def right_with_modules(layers, k, x, checkpoint):
    while len(layers) > k:
        group, layers = torch.nn.Sequential(*layers[:k]), layers[k:]
        x = checkpoint(group, x)
    return torch.nn.Sequential(*layers)(x)


RIGHT = [right_by_ends, right_with_groups, right_with_modules]

WRONG = {
    no_checkpoint: {"groups": "checkpoints cover the layers none"},
    the_last_group_too: {"last": "is under a checkpoint too"},
    the_last_group_too_where_k_divides: {"last": "is under a checkpoint too"},
    k_groups: {"groups": "expected: one over each of"},
    one_more_in_each: {"groups": "expected: one over each of"},
    each_layer_alone: {"groups": "expected: one over each of"},
    every_kth_layer: {"groups": "expected: one over each of"},
    the_short_group_first: {"groups": "expected: one over each of"},
    the_rest_left_out: {"equal": "the output"},
    groups_that_overlap: {"equal": "The layers ran in this order: 0, 1, "},
    returns_nothing: {"equal": "checkpoint_every returns None, not the output, a tensor"},
    with_the_loops_variable: {"equal": "pass it as an argument"},
    cut_off: {"equal": "no gradient arrives at x"},
    without_gradients: {"equal": "no gradient arrives at x"},
    all_from_the_start: {"equal": "not that of the layers applied in order"},
    one_in_another: {"groups": "expected: one over each of"},
    layers_taken_out: {"equal": "leave it as it is"},
    for_show: {"groups": "Do you pass the output of each checkpoint on"},
    tried_beforehand: {"runs": "runs 3 times in a step, and 2 is enough"},
    the_last_one_tried: {"runs": "runs 2 times in a step, and 1 is enough"},
    all_where_k_is_large: {"edges": "expected: none"},
    two_groups_at_least: {"edges": "expected: none"},
    nothing_where_k_is_1: {"edges": "checkpoints cover the layers none"},
    of_torch: {"equal": "does the work for you"},
    not_written: {"equal": "checkpoint_every is not written yet"},
}
