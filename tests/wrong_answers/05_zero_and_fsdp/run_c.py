"""Answers to 05/run_c: whole parameters of every step are kept.

An answer is a function without arguments that returns what is handed in.
"""

import functools
import io

import torch
import torch.nn.functional as F
from torch.optim import SGD

from dtlab.parallel.zero import Zero3
from dtlab.parallel.zero.fully_sharded import NaiveZero3
from dtlab.units.unit05.runs_scripts import Layer, train_c
from tests.wrong_answers.diagnoses import numbers_near
from tests.wrong_answers.sharded_runs import changes_alike

SAID = {"number": 110248, "line": 12}


def trained(model, batches, after, at_end, wrap=Zero3, rate=0.1):
    """What comes after each step, and at the end, gets the sharded model and a list to keep."""
    sharded = wrap(model, blocks=Layer)
    optimizer = SGD(sharded.parameters(), lr=rate)
    losses, kept = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(sharded(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after(sharded, kept, len(losses))
    with torch.no_grad():
        at_end(sharded, kept, len(losses))
    return losses


@torch.no_grad()
def add(sharded, kept, count):
    if not kept:
        kept += [torch.zeros_like(one) for one in sharded.parameters()]
    for total, piece in zip(kept, sharded.parameters(), strict=True):
        total += piece


def divide(sharded, kept, count):
    for total, piece in zip(kept, sharded.parameters(), strict=True):
        piece.copy_(total / count)


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def right(model, batches):
    return trained(model, batches, add, divide)


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": right}


# Wrong ------------------------------------------------------------------------------------------


def a_ranks_part():
    return said(number=55124)


def all_steps():
    return said(number=5 * 110248)


def elements():
    return said(number=27562)


def in_16_bits():
    return said(number="55124")


def the_line_of_the_losses():
    return said(line=11)


def the_line_of_the_mean():
    return said(line="sharded.load_state_dict(mean)")


def a_function_alone():
    return right


@fixed
def not_written(model, batches):
    raise NotImplementedError()


@fixed
def still_broken(model, batches):
    return train_c(model, batches)


def whole(sharded, kept, count):
    kept.append(sharded.full_state_dict())


def whole_sum(sharded, kept, count):
    state = sharded.full_state_dict()
    kept[:] = [{name: kept[0][name] + one for name, one in state.items()} if kept else state]


def load_mean(sharded, kept, count):
    sharded.load_state_dict({name: one / count for name, one in kept[0].items()})


@fixed
def a_whole_sum(model, batches):
    """It does not grow, and every rank has all of it."""
    return trained(model, batches, whole_sum, load_mean)


@fixed
def pieces_of_every_step(model, batches):
    """A share only, but of each step."""

    def keep(sharded, kept, count):
        kept.append([one.detach().clone() for one in sharded.parameters()])

    def mean(sharded, kept, count):
        for piece, *own in zip(sharded.parameters(), *kept, strict=True):
            piece.copy_(sum(own) / count)

    return trained(model, batches, keep, mean)


@fixed
def kept_and_not_used(model, batches):
    def keep(sharded, kept, count):
        keep.states = [*getattr(keep, "states", []), sharded.full_state_dict()]
        add(sharded, kept, count)

    return trained(model, batches, keep, divide)


@fixed
def numpy_copies_of_every_step(model, batches):
    def keep(sharded, kept, count):
        kept.append({name: one.numpy().copy() for name, one in sharded.full_state_dict().items()})

    def mean(sharded, kept, count):
        means = {name: sum(one[name] for one in kept) / count for name in kept[0]}
        sharded.load_state_dict({name: torch.from_numpy(one) for name, one in means.items()})

    return trained(model, batches, keep, mean)


@fixed
def a_whole_sum_in_numpy(model, batches):
    def keep(sharded, kept, count):
        state = {name: one.numpy() for name, one in sharded.full_state_dict().items()}
        kept[:] = [{name: kept[0][name] + one if kept else 1 * one for name, one in state.items()}]

    def mean(sharded, kept, count):
        state = {name: torch.from_numpy(one) / count for name, one in kept[0].items()}
        sharded.load_state_dict(state)

    return trained(model, batches, keep, mean)


@fixed
def lists_of_every_step(model, batches):
    def keep(sharded, kept, count):
        kept.append([one.tolist() for one in sharded.parameters()])

    def mean(sharded, kept, count):
        for piece, *own in zip(sharded.parameters(), *kept, strict=True):
            piece.copy_(sum(torch.tensor(one) for one in own) / count)

    return trained(model, batches, keep, mean)


@fixed
def written_to_memory(model, batches):
    """As files that are none."""

    def keep(sharded, kept, count):
        file = io.BytesIO()
        torch.save([one.detach() for one in sharded.parameters()], file)
        kept.append(file.getvalue())

    def mean(sharded, kept, count):
        steps = [torch.load(io.BytesIO(one)) for one in kept]
        for piece, *own in zip(sharded.parameters(), *steps, strict=True):
            piece.copy_(sum(own) / count)

    return trained(model, batches, keep, mean)


@fixed
def a_sum_with_its_graph(model, batches):
    def keep(sharded, kept, count):
        pieces = list(sharded.parameters())
        kept[:] = [a + b for a, b in zip(kept or [0.0] * len(pieces), pieces, strict=True)]

    return trained(model, batches, keep, divide)


@fixed
def a_sum_in_place_with_its_graph(model, batches):
    def keep(sharded, kept, count):
        kept[:] = kept or [torch.zeros_like(one) for one in sharded.parameters()]
        for total, piece in zip(kept, sharded.parameters(), strict=True):
            total += piece

    return trained(model, batches, keep, divide)


@fixed
def losses_with_their_graphs(model, batches):
    sharded = Zero3(model, blocks=Layer)
    optimizer = SGD(sharded.parameters(), lr=0.1)
    losses, kept = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        losses.append(F.cross_entropy(sharded(images), labels))
        losses[-1].backward()
        optimizer.step()
        add(sharded, kept, len(losses))
    with torch.no_grad():
        divide(sharded, kept, len(losses))
    return [one.item() for one in losses]


@fixed
def the_last_step(model, batches):
    return trained(model, batches, lambda *_: None, lambda *_: None)


@fixed
def the_sum(model, batches):
    return trained(model, batches, add, lambda sharded, kept, count: divide(sharded, kept, 1))


@fixed
def without_the_first_step(model, batches):
    def later(sharded, kept, count):
        if count > 1:
            add(sharded, kept, count)

    def mean(sharded, kept, count):
        divide(sharded, kept, count - 1)

    return trained(model, batches, later, mean)


@fixed
def views_of_the_pieces(model, batches):
    """They are all the last one."""

    def keep(sharded, kept, count):
        kept[:] = [one.detach() for one in sharded.parameters()]

    return trained(model, batches, keep, lambda sharded, kept, count: divide(sharded, kept, 1))


@fixed
def a_mean_that_forgets(model, batches):
    def keep(sharded, kept, count):
        pieces = [one.detach() for one in sharded.parameters()]
        kept[:] = [(a + b) / 2 for a, b in zip(kept or pieces, pieces, strict=True)]

    return trained(model, batches, keep, lambda sharded, kept, count: divide(sharded, kept, 1))


@fixed
def another_rate(model, batches):
    return trained(model, batches, add, divide, rate=0.05)


# Right ------------------------------------------------------------------------------------------


@fixed
def a_sum_of_pieces(model, batches):
    return right(model, batches)


@fixed
def a_running_mean(model, batches):
    def keep(sharded, kept, count):
        pieces = [one.detach() for one in sharded.parameters()]
        if not kept:
            kept += [torch.zeros_like(one) for one in pieces]
        for mean, piece in zip(kept, pieces, strict=True):
            mean.lerp_(piece, 1 / count)

    def leave(sharded, kept, count):
        for mean, piece in zip(kept, sharded.parameters(), strict=True):
            piece.data.copy_(mean)

    return trained(model, batches, keep, leave, wrap=NaiveZero3)


@fixed
def a_sum_in_numpy(model, batches):
    """A share, in place: it does not matter who has the memory."""

    def keep(sharded, kept, count):
        kept[:] = kept or [one.detach().numpy() * 0.0 for one in sharded.parameters()]
        for total, piece in zip(kept, sharded.parameters(), strict=True):
            total += piece.detach().numpy()

    def leave(sharded, kept, count):
        for total, piece in zip(kept, sharded.parameters(), strict=True):
            piece.copy_(torch.from_numpy(total / count))

    return trained(model, batches, keep, leave)


def said_by_text():
    return said(number="110248", line="after.append(sharded.full_state_dict())")


RIGHT = [a_sum_of_pieces, a_running_mean, a_sum_in_numpy, said_by_text]

WRONG = {
    a_ranks_part: {"number": "a rank's own pieces"},
    all_steps: {"number": "that is all steps together"},
    elements: {"number": "those are elements"},
    in_16_bits: {"number": "a rank's own pieces"},
    the_line_of_the_losses: {"line": "does what it should here"},
    the_line_of_the_mean: {"line": "which variable still holds them in the next step?"},
    a_function_alone: {"number": "run_c must be a dict"},
    not_written: {"memory": "not_written is not written yet"},
    still_broken: {"memory": "bytes more before the last batch"},
    a_whole_sum: {"memory": "Is the mean whole?"},
    pieces_of_every_step: {"memory": "bytes more before the last batch"},
    kept_and_not_used: {"memory": "bytes more before the last batch"},
    numpy_copies_of_every_step: {"memory": "of them in NumPy's arrays"},
    a_whole_sum_in_numpy: {"memory": "Is the mean whole?"},
    lists_of_every_step: {"memory": "other Python objects take"},
    written_to_memory: {"memory": "other Python objects take"},
    a_sum_with_its_graph: {"memory": "still has its graph"},
    a_sum_in_place_with_its_graph: {"memory": "still has its graph"},
    losses_with_their_graphs: {"memory": "the graph reaches back through all steps"},
    the_last_step: {"training": "It has the parameters of the last step"},
    the_sum: {"training": "is not the mean over the steps"},
    without_the_first_step: {"training": "is not the mean over the steps"},
    views_of_the_pieces: {"training": "It has the parameters of the last step"},
    a_mean_that_forgets: {"training": "is not the mean over the steps"},
    another_rate: {"training": "Change only what is broken"},
}

_SAID = "diagnosis_c = {'number': 110248, 'line': 12}"
_KEPT = "for piece, total in zip(sharded.parameters(), sums, strict=True):; "
_SUM, _COPY = "total += piece.detach()", "piece.data.copy_(total / len(losses))"
_NOTED = "losses.append(loss.item())"
EQUIVALENT = {
    **numbers_near(_SAID, 110248),
    **changes_alike("sharded"),
    "... ([], [torch.zeros_like(piece) for piece in sharded.parameters()]) -> "
    "... ([], [torch.zeros_like(piece).double() for piece in sharded.parameters()])": (
        "a rank's part of a sum may be more exact than it has to be"
    ),
    f"{_NOTED}; {_KEPT}{_SUM} -> {_KEPT}{_SUM}; {_NOTED}": "neither needs the other",
    f"{_SUM} -> {_SUM}; for images, labels in batches:; ...": "batches come once only",
    f"{_COPY} -> piece.data = total / len(losses)": "the mean's own memory is a piece too",
    f"{_COPY} -> {_COPY}; {_KEPT}{_COPY}": "what is copied twice is the same",
}
