"""Answers to 04/scaled_backward: mistakes people make, and right answers written differently."""

import math

import torch

from dtlab.training.loss_scaling import StaticLossScaler, has_overflowed


def gradients_of(optimizer):
    """All gradients that there are."""
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    return [one.grad for one in parameters if one.grad is not None]


def divided(optimizer, scale):
    for gradient in gradients_of(optimizer):
        gradient /= scale


def bad(optimizer):
    return any(not gradient.isfinite().all() for gradient in gradients_of(optimizer))


# Wrong ------------------------------------------------------------------------------------------


def untouched(loss, optimizer, scale):
    raise NotImplementedError()


def without_a_scale(loss, optimizer, scale):
    loss.backward()
    return bad(optimizer)


def gradients_scaled_after_backward(loss, optimizer, scale):
    """What fp16 has lost is lost."""
    loss.backward()
    for gradient in gradients_of(optimizer):
        gradient *= scale
    divided(optimizer, scale)
    return bad(optimizer)


def scaled_in_fp16(loss, optimizer, scale):
    """inf at once: the scale is no number of fp16."""
    (loss.half() * torch.tensor(scale).half()).backward()
    divided(optimizer, scale)
    return bad(optimizer)


def divides_the_loss(loss, optimizer, scale):
    (loss / scale).backward()
    for gradient in gradients_of(optimizer):
        gradient *= scale
    return bad(optimizer)


def never_goes_backward(loss, optimizer, scale):
    divided(optimizer, scale)
    return bad(optimizer)


def never_divides(loss, optimizer, scale):
    (loss * scale).backward()
    return bad(optimizer)


def multiplies_again(loss, optimizer, scale):
    (loss * scale).backward()
    for gradient in gradients_of(optimizer):
        gradient *= scale
    return bad(optimizer)


def divides_twice(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    divided(optimizer, scale)
    return bad(optimizer)


def divides_the_first_gradient_only(loss, optimizer, scale):
    (loss * scale).backward()
    gradients_of(optimizer)[0].div_(scale)
    return bad(optimizer)


def divides_copies(loss, optimizer, scale):
    (loss * scale).backward()
    for gradient in gradients_of(optimizer):
        gradient = gradient / scale
    return bad(optimizer)


def divides_the_parameters(loss, optimizer, scale):
    (loss * scale).backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data /= scale
    return bad(optimizer)


def divides_the_parameters_too(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data /= scale
    return bad(optimizer)


def steps_too(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    optimizer.step()
    return bad(optimizer)


def the_usual_scale(loss, optimizer, scale):
    """65536, whatever is given, in backward alone."""
    (loss * 2.0**16).backward()
    divided(optimizer, scale)
    return bad(optimizer)


def the_first_group_only(loss, optimizer, scale):
    (loss * scale).backward()
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:
            parameter.grad /= scale
    return bad(optimizer)


def without_asking_for_none(loss, optimizer, scale):
    (loss * scale).backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad /= scale
    return bad(optimizer)


def zeros_where_there_is_no_gradient(loss, optimizer, scale):
    (loss * scale).backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    divided(optimizer, scale)
    return bad(optimizer)


def asks_for_nan_only(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    return any(gradient.isnan().any() for gradient in gradients_of(optimizer))


def asks_for_inf_only(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    return any(gradient.isinf().any() for gradient in gradients_of(optimizer))


def equal_to_inf(loss, optimizer, scale):
    """Neither -inf nor NaN."""
    (loss * scale).backward()
    divided(optimizer, scale)
    return any((gradient == math.inf).any() for gradient in gradients_of(optimizer))


def the_first_gradient_is_looked_at(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    return not gradients_of(optimizer)[0].isfinite().all()


def the_last_one_counts(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    overflow = False
    for gradient in gradients_of(optimizer):
        overflow = not gradient.isfinite().all()
    return overflow


def looks_at_the_loss(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    return not loss.isfinite()


def returns_nothing(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)


def returns_what_is_bad(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    return [gradient for gradient in gradients_of(optimizer) if not gradient.isfinite().all()]


def says_whether_all_is_well(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    return not bad(optimizer)


def always_an_alarm(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    return True


def beyond_fp16(loss, optimizer, scale):
    """Gradients are fp32 by then."""
    (loss * scale).backward()
    divided(optimizer, scale)
    return any(not (gradient.abs() <= 65504).all() for gradient in gradients_of(optimizer))


def by_the_norm(loss, optimizer, scale):
    """Squares of large numbers are inf."""
    (loss * scale).backward()
    divided(optimizer, scale)
    return not all(one.square().sum().isfinite() for one in gradients_of(optimizer))


def library(loss, optimizer, scale):
    scaler = StaticLossScaler(scale)
    scaler.scale(loss).backward()
    return not scaler.step(optimizer)


def asks_the_library(loss, optimizer, scale):
    (loss * scale).backward()
    divided(optimizer, scale)
    return has_overflowed(gradients_of(optimizer))


def pytorch(loss, optimizer, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    return bad(optimizer)


# Right, written differently ---------------------------------------------------------------------


def in_place(loss, optimizer, scale):
    (loss * scale).backward()
    overflow = bad(optimizer)
    divided(optimizer, scale)
    return overflow


def new_tensors(loss, optimizer, scale):
    loss.mul(scale).backward()
    overflow = torch.zeros((), dtype=torch.bool)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            parameter.grad = parameter.grad.mul(1 / scale)
            overflow |= parameter.grad.isnan().any() | parameter.grad.isinf().any()
    return overflow


def started_with_the_scale(loss, optimizer, scale):
    """backward begins with a gradient of the loss: 1 if nothing is said."""
    loss.backward(torch.full_like(loss, scale))
    gradients = gradients_of(optimizer)
    torch._foreach_div_(gradients, scale)
    return sum(int((gradient - gradient != 0).sum()) for gradient in gradients)


RIGHT = [in_place, new_tensors, started_with_the_scale]

LOST = "all gradients are 0. In fp16"
WRONG = {
    untouched: {"survives": "scaled_backward is not written yet"},
    without_a_scale: {"survives": LOST},
    gradients_scaled_after_backward: {"survives": LOST},
    scaled_in_fp16: {"survives": "How large is the scaled loss?"},
    divides_the_loss: {"survives": LOST},
    never_goes_backward: {"survives": "4 of 4 parameters have no gradient"},
    never_divides: {"unscaled": "That is the scale: after backward"},
    multiplies_again: {"unscaled": "That is the scale squared"},
    divides_twice: {"unscaled": "the gradients were divided twice"},
    divides_the_first_gradient_only: {"unscaled": "3 of 4 gradients are not divided"},
    divides_copies: {"unscaled": "That is the scale: after backward"},
    divides_the_parameters: {"unscaled": "That is the scale: after backward"},
    divides_the_parameters_too: {"unscaled": "a parameter has changed"},
    steps_too: {"unscaled": "the optimizer stepped 1 time"},
    the_usual_scale: {"unscaled": "times those of the loss"},
    the_first_group_only: {"groups": "gradients are not divided by the scale"},
    without_asking_for_none: {"groups": "unsupported operand"},
    zeros_where_there_is_no_gradient: {"groups": "leave it at None"},
    asks_for_nan_only: {"overflow": "inf counts too"},
    asks_for_inf_only: {"overflow": "NaN counts too"},
    equal_to_inf: {"overflow": "it returns False"},
    the_first_gradient_is_looked_at: {"overflow": "every element of every gradient"},
    the_last_one_counts: {"overflow": "it returns False"},
    looks_at_the_loss: {"overflow": "True means that the step must be skipped"},
    returns_nothing: {"overflow": "it returns None, not True or False"},
    returns_what_is_bad: {"overflow": "it returns a list, not True or False"},
    says_whether_all_is_well: {"overflow": "it returns False", "finite": "Return True only if"},
    always_an_alarm: {"finite": "it returns True, although every gradient is finite"},
    beyond_fp16: {"finite": "Large numbers do not overflow in fp32"},
    by_the_norm: {"finite": "the sum of their squares may be inf"},
    library: {"survives": "dtlab.training.loss_scaling.StaticLossScaler does the work"},
    asks_the_library: {"survives": "dtlab.training.loss_scaling.has_overflowed does the work"},
    pytorch: {"survives": "torch.amp.grad_scaler.GradScaler does the work"},
}

ORDER = "the order in which gradients are divided is free"
EQUIVALENT = {
    "overflow = False; (loss * scale).backward() -> (loss * scale).backward(); overflow = False": (
        "neither needs the other"
    ),
    "for group in optimizer.param_groups: -> "
    "for group in reversed(optimizer.param_groups):": ORDER,
    "for parameter in group['params']: -> for parameter in reversed(group['params']):": ORDER,
    "parameter.grad /= scale; if not parameter.grad.isfinite().all():; overflow = True -> "
    "if not parameter.grad.isfinite().all():; overflow = True; parameter.grad /= scale": (
        "inf and NaN stay what they are when they are divided"
    ),
    "parameter.grad /= scale -> parameter.grad = parameter.grad / scale": (
        "the optimizer looks at `.grad` when it steps: any tensor there will do"
    ),
}
