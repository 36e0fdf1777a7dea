"""Answers to 09/run_b: top-k with an error that is chosen and kept as if it were not there.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.parallel.data import DataParallel
from dtlab.training.compression import TopK
from dtlab.units.unit09.runs_scripts import learn

SAID = {"number": 80, "line": 12}


def sent(values, places):
    """The sum over ranks, as all of them have it: [elements]."""
    ranks = dist.get_world_size()
    all_places = [torch.empty_like(places) for _ in range(ranks)]
    all_values = [torch.empty_like(values) for _ in range(ranks)]
    dist.all_gather(all_places, places)
    dist.all_gather(all_values, values)
    return torch.cat(all_places), torch.cat(all_values)


def largest(gradient, error, k):
    return (gradient + error).abs().topk(k).indices


def largest_gradients(gradient, error, k):
    return gradient.abs().topk(k).indices


def largest_errors(gradient, error, k):
    return error.abs().topk(k).indices


def largest_with_sign(gradient, error, k):
    return (gradient + error).topk(k).indices


def what_was_not_sent(gradient, error, places):
    return (gradient + error).index_fill(0, places, 0)


def the_gradient(gradient, error, places):
    return gradient.index_fill(0, places, 0)


def nothing(gradient, error, places):
    return torch.zeros_like(error)


def all_of_it(gradient, error, places):
    return gradient + error


def learned(
    model, batches, k, choose=largest, keep=what_was_not_sent, key=id, share=None, scale=1.0
):
    """Top-k with error feedback. `choose` and `keep` are the two lines; `key` names an error."""
    optimizer, errors, losses = torch.optim.SGD(model.parameters(), lr=0.1), {}, []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        for parameter in model.parameters():
            gradient = parameter.grad.flatten()
            error = errors.get(key(parameter), torch.zeros_like(gradient))
            places = choose(gradient, error, k)
            values = (gradient + scale * error)[places]
            errors[key(parameter)] = keep(gradient, error, places)
            total = torch.zeros_like(gradient).index_add_(0, *sent(values, places))
            parameter.grad = (total / (share or dist.get_world_size())).view_as(parameter)
        optimizer.step()
        losses.append(loss.item())
    return losses


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": learned}


# Wrong ------------------------------------------------------------------------------------------


def those_that_move():
    return said(number=16)


def none():
    return said(number=0)


def all_but_those_of_a_rank():
    return said(number=90)


def a_share():
    return said(number=80 / 96)


def the_line_of_the_sum():
    return said(line=11)


def the_line_of_the_mean():
    return said(line="parameter.grad = (total / ranks).view_as(parameter)")


def a_function_alone():
    return learned


@fixed
def not_written(model, batches, k):
    raise NotImplementedError()


@fixed
def still_broken(model, batches, k):
    return learn(model, batches, k)


@fixed
def only_the_places(model, batches, k):
    return learned(model, batches, k, keep=the_gradient)


@fixed
def only_the_error(model, batches, k):
    return learned(model, batches, k, choose=largest_gradients)


@fixed
def no_error_feedback(model, batches, k):
    return learned(model, batches, k, keep=nothing)


@fixed
def chosen_by_the_error(model, batches, k):
    return learned(model, batches, k, choose=largest_errors)


@fixed
def without_abs(model, batches, k):
    return learned(model, batches, k, choose=largest_with_sign)


@fixed
def sent_and_kept(model, batches, k):
    return learned(model, batches, k, keep=all_of_it)


@fixed
def half_of_the_error(model, batches, k):
    return learned(model, batches, k, scale=0.5)


@fixed
def not_divided(model, batches, k):
    return learned(model, batches, k, share=1)


@fixed
def errors_by_shape(model, batches, k):
    """Layers of the same shape have one error."""
    return learned(model, batches, k, key=lambda parameter: parameter.shape)


@fixed
def all_elements(model, batches, k):
    """The sum of all elements, of which those that no rank would send are 0."""

    def dense(values, places):
        flat = values.new_zeros(sum(p.numel() for p in model.parameters()))
        flat[places] = values
        dist.all_reduce(flat)
        count = dist.get_world_size()
        return torch.arange(len(flat)), flat * (count / count)

    return exchanged(model, batches, k, dense)


def exchanged(model, batches, k, exchange):
    """As `learned`, with another exchange."""
    before = globals()["sent"]
    globals()["sent"] = lambda values, places: _cut(exchange(values, places), places)
    try:
        return learned(model, batches, k)
    finally:
        globals()["sent"] = before


def _cut(pair, places):
    used = pair[1].nonzero()[:, 0]
    return pair[0][used], pair[1][used]


@fixed
def finished_code(model, batches, k):
    count = next(model.parameters()).numel()
    wrapped = DataParallel(model, compression=TopK(k / count))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@fixed
def losses_of_the_mean(model, batches, k):
    losses = torch.tensor(learned(model, batches, k))
    dist.all_reduce(losses)
    return (losses / dist.get_world_size()).tolist()


# Right, written differently ---------------------------------------------------------------------


@fixed
def both_lines(model, batches, k):
    return learned(model, batches, k)


@fixed
def in_one_message(model, batches, k):
    """Places and values travel together, as numbers of one type."""

    def together(values, places):
        message = torch.stack([places.double(), values.double()])
        messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        dist.all_gather(messages, message)
        both = torch.cat(messages, 1)
        return both[0].long(), both[1].float()

    before = globals()["sent"]
    globals()["sent"] = together
    try:
        return learned(model, batches, k)
    finally:
        globals()["sent"] = before


def text_of_a_line():
    return said(line="error.copy_(parameter.grad)")


RIGHT = [both_lines, in_one_message, text_of_a_line]

STEPS = "Write down for one element what is sent and what is kept"
WRONG = {
    those_that_move: {"number": "that many have changed"},
    none: {"number": "with error feedback it would be none"},
    all_but_those_of_a_rank: {"number": "do not all send the same places"},
    a_share: {"number": "that is a share"},
    the_line_of_the_sum: {"line": "does what it should here"},
    the_line_of_the_mean: {"line": "does what it should here"},
    a_function_alone: {"number": "must be a dict"},
    not_written: {"two": "not written yet"},
    still_broken: {"two": STEPS},
    only_the_places: {"more": STEPS},
    only_the_error: {"two": STEPS},
    no_error_feedback: {"two": STEPS},
    chosen_by_the_error: {"two": ""},
    without_abs: {"two": ""},
    sent_and_kept: {"two": STEPS},
    half_of_the_error: {"two": STEPS},
    not_divided: {"two": ""},
    errors_by_shape: {"layers": ""},
    all_elements: {"bytes": "sends 0.6 MB; places"},
    finished_code: {"two": "does the work for you"},
    losses_of_the_mean: {"two": "returns the losses"},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_ORDER = "neither needs the other"
_EMPTY = "tensors without contents, in a list of the same length"

EQUIVALENT = {
    "optimizer.zero_grad(); loss = F.cross_entropy(model(inputs), targets) -> "
    "loss = F.cross_entropy(model(inputs), targets); optimizer.zero_grad()": _ORDER,
    "optimizer.zero_grad() -> optimizer.zero_grad(); optimizer.zero_grad()": (
        "cleared once more, with the same outcome"
    ),
    "values = whole[places]; error.copy_(whole.view_as(error)) -> "
    "error.copy_(whole.view_as(error)); values = whole[places]": _ORDER,
    "... [torch.empty_like(places) for _ in range(ranks)] -> "
    "... [torch.empty_like(places) for _ in reversed(range(ranks))]": _EMPTY,
    "... [torch.empty_like(values) for _ in range(ranks)] -> "
    "... [torch.empty_like(values) for _ in reversed(range(ranks))]": _EMPTY,
    "all_values = [torch.empty_like(values) for _ in range(ranks)]; "
    "dist.all_gather(all_places, places) -> dist.all_gather(all_places, places); "
    "all_values = [torch.empty_like(values) for _ in range(ranks)]": _ORDER,
    "dist.all_gather(all_places, places); dist.all_gather(all_values, values) -> "
    "dist.all_gather(all_values, values); dist.all_gather(all_places, places)": _ORDER,
    "dist.all_gather(all_values, values); total = torch.zeros_like(whole) -> "
    "total = torch.zeros_like(whole); dist.all_gather(all_values, values)": _ORDER,
    "total.index_add_(0, torch.cat(all_places), torch.cat(all_values)) -> "
    "total.index_add_(-1, torch.cat(all_places), torch.cat(all_values))": "there is only one dim",
    "optimizer.step(); losses.append(loss.item()) -> "
    "losses.append(loss.item()); optimizer.step()": _ORDER,
    "losses.append(loss.item()) -> losses.append(loss.item()); "
    "for inputs, targets in batches:; ...": "batches can be gone through once",
}
