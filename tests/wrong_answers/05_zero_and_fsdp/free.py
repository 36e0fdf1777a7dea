"""Answers to 05/free: mistakes people make, and right answers written differently."""

import torch
from torch import nn


def placeholders(block):
    nothing = torch.full((1,), float("nan"))
    for parameter in block.parameters():
        parameter.data = nothing.expand(parameter.shape)


def empty(flat):
    flat.untyped_storage().resize_(0)


def right(block, flat):
    placeholders(block)
    empty(flat)


# Wrong ------------------------------------------------------------------------------------------


def untouched(block, flat):
    raise NotImplementedError()


def keeps_the_bytes_of_all(block, flat):
    block.kept = flat.clone().numpy().tobytes()
    right(block, flat)


def nothing_at_all(block, flat):
    pass


def forgets_the_parameters_only(block, flat):
    """Autograd still has views."""
    placeholders(block)


def deletes_the_name(block, flat):
    placeholders(block)
    del flat


def another_tensor_in_flat(block, flat):
    """Who looks at the old storage keeps it."""
    placeholders(block)
    flat.data = flat.new_empty(0)


def half_of_it(block, flat):
    placeholders(block)
    flat.untyped_storage().resize_(flat.nbytes // 2)


def in_place_of_flat_a_copy(block, flat):
    """The memory is moved, not given back."""
    block.kept = flat.clone()
    placeholders(block)
    empty(flat)


def nan_for_every_element(block, flat):
    for parameter in block.parameters():
        parameter.data = torch.full(parameter.shape, float("nan"))
    empty(flat)


def sets_flat_to_zero(block, flat):
    """Autograd sees it, and nothing is given back."""
    placeholders(block)
    flat.zero_()


def lets_parameters_be(block, flat):
    """They look at memory that is not there."""
    empty(flat)


def before_the_first_gather(block, flat):
    """Only what is a view of flat is replaced."""
    address = flat.untyped_storage().data_ptr()
    nothing = torch.full((1,), float("nan"))
    for parameter in block.parameters():
        if parameter.untyped_storage().data_ptr() == address:
            parameter.data = nothing.expand(parameter.shape)
        else:
            block.own = [*getattr(block, "own", []), parameter.data]
            parameter.data = nothing.expand(parameter.shape)
    empty(flat)


def without_shapes(block, flat):
    for parameter in block.parameters():
        parameter.data = torch.full((1,), float("nan"))
    empty(flat)


def empty_parameters(block, flat):
    for parameter in block.parameters():
        parameter.data = torch.empty(0)
    empty(flat)


def takes_parameters_out(block, flat):
    for module in block.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(
                module, name, nn.Parameter(torch.full((1,), torch.nan).expand(parameter.shape))
            )
    for parameter in block.parameters():
        parameter.requires_grad_(True)
    empty(flat)


def reads_as_zero(block, flat):
    for parameter in block.parameters():
        parameter.data = torch.zeros(1).expand(parameter.shape)
    empty(flat)


def reads_as_infinite(block, flat):
    for parameter in block.parameters():
        parameter.data = torch.full((1,), float("inf")).expand(parameter.shape)
    empty(flat)


def nan_in_every_parameter(block, flat):
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.fill_(float("nan"))
    placeholders(block)
    empty(flat)


def times_nan(block, flat):
    with torch.no_grad():
        for parameter in block.parameters():
            parameter *= float("nan")
    right(block, flat)


# Right ------------------------------------------------------------------------------------------


def the_other_order(block, flat):
    flat.untyped_storage().resize_(0)
    for parameter in block.parameters():
        parameter.data = torch.tensor(torch.nan).expand_as(parameter)


def strided(block, flat):
    for module in block.modules():
        for parameter in module.parameters(recurse=False):
            nothing = torch.full((), torch.nan)
            strides = (0,) * parameter.dim()
            parameter.data = nothing.as_strided(tuple(parameter.shape), strides)
    storage = flat.untyped_storage()
    storage.resize_(0)


def numbers_overwritten_first(block, flat):
    """Of no use, and no harm: parameters count their changes by themselves."""
    flat.fill_(float("nan"))
    placeholders(block)
    empty(flat)


RIGHT = [numbers_overwritten_first, right, the_other_order, strided]

WRONG = {
    untouched: {"storage": "is not written yet"},
    keeps_the_bytes_of_all: {"storage": "the kernel counts"},
    nothing_at_all: {"storage": "still has"},
    forgets_the_parameters_only: {"storage": "still has"},
    deletes_the_name: {"storage": "still has"},
    another_tensor_in_flat: {"storage": ""},
    half_of_it: {"storage": "still has"},
    in_place_of_flat_a_copy: {"storage": "of the block are still allocated"},
    nan_for_every_element: {"storage": "One NaN of 4 bytes is enough"},
    sets_flat_to_zero: {"storage": "still has"},
    lets_parameters_be: {"own": "Which tensors hold it", "nan": "does not read as NaN"},
    before_the_first_gather: {"own": "Which tensors hold it"},
    without_shapes: {"shapes": "have other shapes"},
    empty_parameters: {"shapes": "have other shapes"},
    takes_parameters_out: {"shapes": "or are other objects"},
    reads_as_zero: {"nan": "does not read as NaN"},
    reads_as_infinite: {"nan": "does not read as NaN"},
    nan_in_every_parameter: {"backward": "modified by an inplace operation"},
    times_nan: {"backward": "modified by an inplace operation"},
}

FREE = "neither needs the other"
TWICE = "what is done twice is the same"
EQUIVALENT = {
    "for parameter in block.parameters():; parameter.data = "
    "nothing.expand(parameter.shape); flat.untyped_storage().resize_(0) -> "
    "flat.untyped_storage().resize_(0); for parameter in block.parameters():; "
    "parameter.data = nothing.expand(parameter.shape)": FREE,
    "... nothing.expand(parameter.shape) -> ... "
    "nothing.expand(parameter.shape); for parameter in block.parameters():; "
    "parameter.data = nothing.expand(parameter.shape)": TWICE,
    "flat.untyped_storage().resize_(0) -> flat.untyped_storage().resize_(0); "
    "flat.untyped_storage().resize_(0)": TWICE,
}
