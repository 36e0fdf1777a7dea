"""Answers to 04/master_step: mistakes people make, and right answers written differently."""

import torch

from dtlab.training.master_weights import MasterWeights, naive_master_step


def cast(parameters, masters, scale):
    """Gradients for the masters; the parameters' own are gone."""
    for parameter, master in zip(parameters, masters, strict=True):
        master.grad = None if parameter.grad is None else parameter.grad.float() / scale
        parameter.grad = None


def finite(masters):
    return all(m.grad.isfinite().all() for m in masters if m.grad is not None)


def write_back(parameters, masters):
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.data.copy_(master)


def forget(masters):
    for master in masters:
        master.grad = None


def right(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    if steps:
        optimizer.step()
        write_back(parameters, masters)
    forget(masters)
    return steps


# Wrong ------------------------------------------------------------------------------------------


def untouched(optimizer, parameters, masters, scale):
    raise NotImplementedError()


def does_not_step(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    write_back(parameters, masters)
    forget(masters)
    return steps


def does_not_divide(optimizer, parameters, masters, scale):
    return right(optimizer, parameters, masters, 1.0)


def divides_the_masters(optimizer, parameters, masters, scale):
    for master in masters:
        master.data /= scale
    return right(optimizer, parameters, masters, 1.0)


def multiplies(optimizer, parameters, masters, scale):
    return right(optimizer, parameters, masters, 1 / scale)


def gradients_as_they_are(optimizer, parameters, masters, scale):
    """A master in fp32 takes no gradient in bf16."""
    for parameter, master in zip(parameters, masters, strict=True):
        master.grad = parameter.grad
    optimizer.step()
    write_back(parameters, masters)
    return True


def masters_read_back(optimizer, parameters, masters, scale):
    """What was rounded away is gone from the masters too."""
    steps = right(optimizer, parameters, masters, scale)
    for parameter, master in zip(parameters, masters, strict=True):
        master.data.copy_(parameter)
    return steps


def begins_at_the_parameters(optimizer, parameters, masters, scale):
    for parameter, master in zip(parameters, masters, strict=True):
        master.data.copy_(parameter)
    return right(optimizer, parameters, masters, scale)


def assigns_the_master(optimizer, parameters, masters, scale):
    """Then the parameters are in fp32 too."""
    steps = right(optimizer, parameters, masters, scale)
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.data = master.data
    return steps


def the_first_parameter_only(optimizer, parameters, masters, scale):
    return right(optimizer, parameters[:1], masters[:1], scale)


def adds_to_old_gradients(optimizer, parameters, masters, scale):
    for parameter, master in zip(parameters, masters, strict=True):
        if parameter.grad is not None:
            new = parameter.grad.float() / scale
            master.grad = new if master.grad is None else master.grad + new
        parameter.grad = None
    steps = finite(masters)
    if steps:
        optimizer.step()
        write_back(parameters, masters)
    return steps


def steps_twice(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    optimizer.step()
    optimizer.step()
    write_back(parameters, masters)
    forget(masters)
    return True


def never_writes_back(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    if steps:
        optimizer.step()
    forget(masters)
    return steps


def writes_back_before_the_step(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    write_back(parameters, masters)
    if steps:
        optimizer.step()
    forget(masters)
    return steps


def writes_back_the_first(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    if steps:
        optimizer.step()
        write_back(parameters[:1], masters[:1])
    forget(masters)
    return steps


def steps_the_parameters_too(optimizer, parameters, masters, scale):
    """Each goes its own way."""
    gradients = [one.grad for one in parameters]
    cast(parameters, masters, scale)
    steps = finite(masters)
    if steps:
        optimizer.step()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.data -= 2.0**-6 * gradient / scale
    forget(masters)
    return steps


def divides_in_half(optimizer, parameters, masters, scale):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad /= scale
    return right(optimizer, parameters, masters, 1.0)


def never_skips(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    optimizer.step()
    write_back(parameters, masters)
    forget(masters)
    return steps


def asks_for_nan_only(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = not any(m.grad.isnan().any() for m in masters if m.grad is not None)
    if steps:
        optimizer.step()
        write_back(parameters, masters)
    forget(masters)
    return steps


def looks_at_the_first_gradient(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters[:1])
    if steps:
        optimizer.step()
        write_back(parameters, masters)
    forget(masters)
    return steps


def zeros_for_what_overflows(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    for master in masters:
        if master.grad is not None and not steps:
            master.grad.zero_()
    optimizer.step()
    write_back(parameters, masters)
    forget(masters)
    return steps


def gradients_of_zeros_afterwards(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    if steps:
        optimizer.step()
        write_back(parameters, masters)
    optimizer.zero_grad(set_to_none=False)
    return steps


def says_nothing(optimizer, parameters, masters, scale):
    right(optimizer, parameters, masters, scale)


def says_whether_it_skipped(optimizer, parameters, masters, scale):
    return not right(optimizer, parameters, masters, scale)


def always_says_yes(optimizer, parameters, masters, scale):
    right(optimizer, parameters, masters, scale)
    return True


def zeros_for_none(optimizer, parameters, masters, scale):
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return right(optimizer, parameters, masters, scale)


def the_last_gradient_again(optimizer, parameters, masters, scale):
    for parameter, master in zip(parameters, masters, strict=True):
        if parameter.grad is not None:
            master.grad = parameter.grad.float() / scale
        parameter.grad = None
    steps = finite(masters)
    if steps:
        optimizer.step()
        write_back(parameters, masters)
    return steps


def without_asking_for_none(optimizer, parameters, masters, scale):
    for parameter, master in zip(parameters, masters, strict=True):
        master.grad = parameter.grad.float() / scale
        parameter.grad = None
    steps = finite(masters)
    if steps:
        optimizer.step()
        write_back(parameters, masters)
    forget(masters)
    return steps


def keeps_the_masters_gradients(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    steps = finite(masters)
    if steps:
        optimizer.step()
        write_back(parameters, masters)
    return steps


def keeps_the_parameters_gradients(optimizer, parameters, masters, scale):
    gradients = [one.grad for one in parameters]
    steps = right(optimizer, parameters, masters, scale)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return steps


def keeps_them_where_it_skips(optimizer, parameters, masters, scale):
    cast(parameters, masters, scale)
    if not finite(masters):
        return False
    optimizer.step()
    write_back(parameters, masters)
    forget(masters)
    return True


def library(optimizer, parameters, masters, scale):
    naive_master_step(optimizer, parameters, masters)
    return True


def wrapper_of_the_library(optimizer, parameters, masters, scale):
    MasterWeights(parameters, type(optimizer), rate=0.1).step()
    return True


# Right, written differently ---------------------------------------------------------------------


def in_three_loops(optimizer, parameters, masters, scale):
    return right(optimizer, parameters, masters, scale)


@torch.no_grad()
def new_storage(optimizer, parameters, masters, scale):
    """Without a loop for what is bad, and parameters with other memory."""
    pairs = list(zip(parameters, masters, strict=True))
    gradients = [None if p.grad is None else p.grad.to(torch.float32) for p, _ in pairs]
    total = sum(one.sum() for one in gradients if one is not None)
    if total.isfinite():
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = None if gradient is None else gradient.mul_(1 / scale)
        optimizer.step()
        for parameter, master in pairs:
            parameter.data = master.detach().to(parameter.dtype)
    for one in (*parameters, *masters):
        one.grad = None
    return total.isfinite()


RIGHT = [in_three_loops, new_storage]

WRONG = {
    untouched: {"masters": "master_step is not written yet"},
    does_not_step: {"masters": "Does the optimizer step, and with gradients?"},
    does_not_divide: {"masters": "too far by a factor of the scale"},
    divides_the_masters: {"masters": "the masters move"},
    multiplies: {"masters": "times as far as in a step of SGD in fp32"},
    gradients_as_they_are: {"masters": "RuntimeError"},
    masters_read_back: {"masters": "no more digits than bfloat16"},
    begins_at_the_parameters: {"masters": "a master begins at its rounded parameter"},
    assigns_the_master: {"masters": "a parameter is float32, not bfloat16: copy_ rounds"},
    the_first_parameter_only: {"masters": "the masters do not change"},
    adds_to_old_gradients: {"masters": "times as far as in a step of SGD in fp32"},
    steps_twice: {"masters": "times as far as in a step of SGD in fp32"},
    never_writes_back: {"copies": "Write it back after every step"},
    writes_back_before_the_step: {"copies": "a parameter is not its master"},
    writes_back_the_first: {"copies": "a parameter is not its master"},
    steps_the_parameters_too: {"copies": "rounded to bfloat16"},
    divides_in_half: {"small": "In which format do you divide?"},
    never_skips: {"skips": "the masters have changed: skip the step"},
    asks_for_nan_only: {"skips": "the masters have changed: skip the step"},
    looks_at_the_first_gradient: {"skips": "the masters have changed: skip the step"},
    zeros_for_what_overflows: {"skips": "the masters have changed: skip the step"},
    says_nothing: {"skips": "was made, but it returns None"},
    says_whether_it_skipped: {"skips": "was made, but it returns False"},
    always_says_yes: {"skips": "was skipped, but it returns True"},
    zeros_for_none: {"gradients": "not zeros, and not that of an earlier step"},
    the_last_gradient_again: {"gradients": "not zeros, and not that of an earlier step"},
    without_asking_for_none: {"gradients": "has no attribute 'float'"},
    gradients_of_zeros_afterwards: {"gradients": "masters still have gradients"},
    keeps_the_masters_gradients: {"gradients": "masters still have gradients"},
    keeps_the_parameters_gradients: {"gradients": "parameters still have gradients"},
    keeps_them_where_it_skips: {"gradients": "masters still have gradients"},
    library: {"masters": "dtlab.training.master_weights.naive_master_step does the work"},
    wrapper_of_the_library: {"masters": "dtlab.training.master_weights.MasterWeights does"},
}

TWICE = "what is written or forgotten twice is the same"
EQUIVALENT = {
    "parameter.grad = None -> parameter.grad = None; "
    "for parameter, master in zip(parameters, masters, strict=True):; ...": (
        "by the second round there is no gradient, and the masters have theirs"
    ),
    "parameter.copy_(master) -> parameter.copy_(master); for parameter, master in "
    "zip(parameters, masters, strict=True):; parameter.copy_(master)": TWICE,
    "for master in masters: -> for master in reversed(masters):": "the order is free",
    "master.grad = None -> master.grad = None; for master in masters:; master.grad = None": TWICE,
}
