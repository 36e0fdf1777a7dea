"""Answers to 08/tile_conv: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


class Halo(torch.autograd.Function):
    """The right halo; `back` says how backward treats what the halo's gradients are."""

    @staticmethod
    def forward(ctx, tile, width, exchange, back):
        ctx.args = width, exchange, back
        above, below = exchange(tile[..., :width, :], tile[..., -width:, :])
        return torch.cat([above, tile, below], -2)

    @staticmethod
    def backward(ctx, gradient):
        width, exchange, back = ctx.args
        own = gradient[..., width:-width, :].clone()
        first, last = gradient[..., :width, :], gradient[..., -width:, :]
        back(own, width, exchange, first, last)
        return own, None, None, None


def sent_back(own, width, exchange, first, last):
    above, below = exchange(first, last)
    own[..., :width, :] += above
    own[..., -width:, :] += below


class Shared(torch.autograd.Function):
    """A parameter; its gradient is summed over the ranks, and divided."""

    @staticmethod
    def forward(ctx, parameter, divide):
        ctx.divide = divide
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total / (dist.get_world_size() if ctx.divide else 1), None


def shared(parameter, divide=False):
    return Shared.apply(parameter, divide)


def halo_of(size, dilation):
    return dilation * (size - 1) // 2


def convolved(
    tile, weight, bias, dilation, exchange, *, back=sent_back, share=shared, width=halo_of, pad=0
):
    rows, columns = (halo_of(size, dilation) for size in weight.shape[-2:])
    rows = width(weight.shape[-2], dilation)
    if rows > 0:
        tile = Halo.apply(tile, rows, exchange, back)
    return F.conv2d(tile, share(weight), share(bias), padding=(pad, columns), dilation=dilation)


def right(tile, weight, bias, dilation, exchange):
    return convolved(tile, weight, bias, dilation, exchange)


# Wrong ------------------------------------------------------------------------------------------


def untouched(tile, weight, bias, dilation, exchange):
    raise NotImplementedError()


def returns_nothing(tile, weight, bias, dilation, exchange):
    right(tile, weight, bias, dilation, exchange)


def each_tile_alone(tile, weight, bias, dilation, exchange):
    """Pads with zeros where the neighbours' rows belong."""
    rows, columns = (halo_of(size, dilation) for size in weight.shape[-2:])
    return F.conv2d(tile, shared(weight), shared(bias), padding=(rows, columns), dilation=dilation)


def padded_twice(tile, weight, bias, dilation, exchange):
    pad = halo_of(weight.shape[-2], dilation)
    return convolved(tile, weight, bias, dilation, exchange, pad=pad)


def without_dilation(tile, weight, bias, dilation, exchange):
    return convolved(tile, weight, bias, dilation, exchange, width=lambda k, d: (k - 1) // 2)


def dilation_left_out(tile, weight, bias, dilation, exchange):
    """Everywhere: the size is right, the numbers are not."""
    return convolved(tile, weight, bias, 1, exchange)


def halo_swapped(tile, weight, bias, dilation, exchange):
    return convolved(tile, weight, bias, dilation, lambda *rows: exchange(*rows[::-1]))


def no_bias(tile, weight, bias, dilation, exchange):
    return convolved(tile, weight, 0 * bias, dilation, exchange)


def gradients_stay_in_the_halo(tile, weight, bias, dilation, exchange):
    return convolved(tile, weight, bias, dilation, exchange, back=lambda *_: None)


def autograd_is_trusted(tile, weight, bias, dilation, exchange):
    """Concatenates what arrives."""
    rows, columns = (halo_of(size, dilation) for size in weight.shape[-2:])
    if rows:
        with torch.no_grad():
            above, below = exchange(tile[..., :rows, :], tile[..., -rows:, :])
        tile = torch.cat([above, tile, below], -2)
    return F.conv2d(tile, shared(weight), shared(bias), padding=(0, columns), dilation=dilation)


def added_at_the_other_border(tile, weight, bias, dilation, exchange):
    def back(own, width, exchange, first, last):
        above, below = exchange(first, last)
        own[..., :width, :] += below
        own[..., -width:, :] += above

    return convolved(tile, weight, bias, dilation, exchange, back=back)


def copied_not_added(tile, weight, bias, dilation, exchange):
    def back(own, width, exchange, first, last):
        above, below = exchange(first, last)
        if above.any():
            own[..., :width, :] = above
        if below.any():
            own[..., -width:, :] = below

    return convolved(tile, weight, bias, dilation, exchange, back=back)


def own_gradients_kept(tile, weight, bias, dilation, exchange):
    """Adds the halo's gradients to its own border."""

    def back(own, width, exchange, first, last):
        own[..., :width, :] += first
        own[..., -width:, :] += last

    return convolved(tile, weight, bias, dilation, exchange, back=back)


def weights_of_the_own_tile(tile, weight, bias, dilation, exchange):
    return convolved(tile, weight, bias, dilation, exchange, share=lambda parameter: parameter)


def mean_of_the_weights(tile, weight, bias, dilation, exchange):
    return convolved(
        tile, weight, bias, dilation, exchange, share=lambda one: shared(one, divide=True)
    )


def bias_of_the_own_tile(tile, weight, bias, dilation, exchange):
    return convolved(
        tile, weight, bias, dilation, exchange, share=lambda p: p if p.dim() == 1 else shared(p)
    )


def minus_zero(tile, weight, bias, dilation, exchange):
    """-0: is the whole tile."""
    rows, columns = (halo_of(size, dilation) for size in weight.shape[-2:])
    tile = Halo.apply(tile, rows, exchange, sent_back)
    return F.conv2d(tile, shared(weight), shared(bias), padding=(0, columns), dilation=dilation)


def one_row_at_least(tile, weight, bias, dilation, exchange):
    """A halo of one row that the kernel does not use, cut off afterwards at one end only."""
    if weight.shape[-2] > 1:
        return right(tile, weight, bias, dilation, exchange)
    return convolved(tile, weight, bias, dilation, exchange, width=lambda *_: 1)[..., :-2, :]


def twice_as_wide(tile, weight, bias, dilation, exchange):
    """Sends each row of the halo twice, and throws one away."""

    def twice(to_above, to_below):
        doubled = [torch.cat([rows, rows], -2) for rows in (to_above, to_below)]
        above, below = exchange(*doubled)
        width = to_above.shape[-2]
        return above[..., :width, :], below[..., :width, :]

    return convolved(tile, weight, bias, dilation, twice)


def exchanged_twice(tile, weight, bias, dilation, exchange):
    def back(own, width, exchange, first, last):
        exchange(first, last)
        sent_back(own, width, exchange, first, last)

    return convolved(tile, weight, bias, dilation, exchange, back=back)


# Right ------------------------------------------------------------------------------------------


class WholeConvolution(torch.autograd.Function):
    """One function with a hand-written backward."""

    @staticmethod
    def forward(ctx, tile, weight, bias, dilation, exchange):
        rows, columns = (dilation * (size - 1) // 2 for size in weight.shape[-2:])
        padded = tile
        if rows:
            above, below = exchange(tile[..., :rows, :], tile[..., -rows:, :])
            padded = torch.cat([above, tile, below], -2)
        ctx.save_for_backward(padded, weight, bias)
        ctx.args = rows, columns, dilation, exchange
        return F.conv2d(padded, weight, bias, padding=(0, columns), dilation=dilation)

    @staticmethod
    def backward(ctx, gradient):
        rows, columns, dilation, exchange = ctx.args
        with torch.enable_grad():
            padded, weight, bias = (one.detach().requires_grad_() for one in ctx.saved_tensors)
            y = F.conv2d(padded, weight, bias, padding=(0, columns), dilation=dilation)
        of_padded, *of_weights = torch.autograd.grad(y, (padded, weight, bias), gradient)
        for one in of_weights:
            dist.all_reduce(one)
        if rows:
            above, below = exchange(of_padded[..., :rows, :], of_padded[..., -rows:, :])
            of_padded = of_padded[..., rows:-rows, :].clone()
            of_padded[..., :rows, :] += above
            of_padded[..., -rows:, :] += below
        return of_padded, *of_weights, None, None


def by_one_function(tile, weight, bias, dilation, exchange):
    return WholeConvolution.apply(tile, weight, bias, dilation, exchange)


def by_hooks(tile, weight, bias, dilation, exchange):
    """Hooks on the parameters; the tile's halo by an autograd function."""

    def add_up(gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total

    weight, bias = weight * 1, bias * 1
    weight.register_hook(add_up)
    bias.register_hook(add_up)
    return convolved(tile, weight, bias, dilation, exchange, share=lambda parameter: parameter)


RIGHT = [right, by_one_function, by_hooks]

WRONG = {
    untouched: {"output": "is not written yet"},
    returns_nothing: {"output": "returns NoneType"},
    each_tile_alone: {"output": "at the border of the tile"},
    padded_twice: {"output": "Which sides has conv2d still to pad?"},
    without_dilation: {"output": "Which sides has conv2d still to pad?"},
    dilation_left_out: {"output": "Are weight, bias and dilation"},
    halo_swapped: {"output": "at the border of the tile"},
    no_bias: {"output": "Are weight, bias and dilation"},
    gradients_stay_in_the_halo: {"tile": "from this rank's outputs alone"},
    autograd_is_trusted: {"tile": "from this rank's outputs alone"},
    added_at_the_other_border: {"tile": "What do the neighbours compute"},
    copied_not_added: {"tile": "What do the neighbours compute"},
    own_gradients_kept: {"tile": "What do the neighbours compute"},
    weights_of_the_own_tile: {"weights": "from this rank's outputs alone"},
    mean_of_the_weights: {"weights": "it is the mean over the ranks"},
    bias_of_the_own_tile: {"weights": "gradient of the bias"},
    minus_zero: {"narrow": "needs 0 more above and below"},
    one_row_at_least: {"narrow": "rows differ from those of one process"},
    twice_as_wide: {"bytes": "Are more rows exchanged"},
    exchanged_twice: {"bytes": "Are more rows exchanged"},
}

DIMS = "the same dim of four, or both in another order"
DTYPE = "autograd converts a gradient to the dtype of its tensor"
ORDER = "nothing depends on this order"
OWN = "the convolution makes this gradient for this function alone"
SAME = "the same numbers in the same place"
EQUIVALENT = {
    "return torch.cat([above, tile, below], -2) -> "
    "return torch.cat([above, tile, below], 2)": DIMS,
    "own = gradient[..., width:-width, :].clone() -> "
    "own = gradient[..., width:-width, :].clone().double()": DTYPE,
    "own = gradient[..., width:-width, :].clone() -> own = gradient[..., width:-width, :]": OWN,
    "own[..., :width, :] += above; own[..., -width:, :] += below -> "
    "own[..., -width:, :] += below; own[..., :width, :] += above": ORDER,
    "own[..., :width, :] += above -> own[..., :width, :] = own[..., :width, :] + above": SAME,
    "own[..., -width:, :] += below -> own[..., -width:, :] = own[..., -width:, :] + below": SAME,
    "total = gradient.clone() -> total = gradient.clone().double()": DTYPE,
    "total = gradient.clone() -> total = gradient": OWN,
    "... // 2 for size in weight.shape[-2:]) -> ... // 2 for size in weight.shape[2:])": DIMS,
    "if rows > 0:; tile = WithHalo.apply(tile, rows, exchange); weight, bias = "
    "(Shared.apply(weight), Shared.apply(bias)) -> "
    "weight, bias = (Shared.apply(weight), Shared.apply(bias)); if rows > 0:; tile = "
    "WithHalo.apply(tile, rows, exchange)": ORDER,
}
