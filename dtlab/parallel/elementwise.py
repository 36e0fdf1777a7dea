"""Which optimizers may step a part of a parameter as if it were a parameter of its own.

    whole      optimizer([a a a a a a a a a a a a], [b b b])
    one rank   optimizer([a a a a a])
    another    optimizer([a a a a a a a], [b b b])           the same numbers, or refused

SGD and Adam pass: what becomes of an element depends on that element and its gradients alone. An
optimizer that takes a norm, factors a matrix, or needs a closure does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["defaults_of_elementwise"]

_STEPS, _CUT = 3, 5


def defaults_of_elementwise(
    optimizer_class: Callable[..., torch.optim.Optimizer],
    options: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, Any],
    device: torch.device,
) -> dict[str, Any]:
    """The optimizer's default options, once it has shown on a few numbers that it can be cut.

    The rule is tried, so it holds for classes of your own: with each of `options`, those of a
    parameter group, three steps on two small parameters must be the same as those on their parts.

    Raises: TypeError where they are not; and what the class itself says of its arguments.
    """
    if not (
        isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)
    ):
        raise TypeError(
            f"optimizer_class={optimizer_class!r} is not a class of optimizers. Pass the class, "
            "and its arguments after it: (model.parameters(), torch.optim.Adam, lr=1e-3)."
        )
    whole = [torch.linspace(-2, 2, 12, device=device).double().view(4, 3),
             torch.linspace(1, 3, 3, device=device).double().view(3, 1)]  # fmt: skip
    defaults: dict[str, Any] = {}
    for group in options:
        settings = _moving({**arguments}), _moving({**group})
        optimizer = _made(optimizer_class, whole, *settings)
        defaults = optimizer_class([torch.zeros(2, 2, device=device)], **arguments).defaults
        try:
            wanted = _stepped(optimizer)
            parts = [[whole[0].flatten()[:_CUT]], [whole[0].flatten()[_CUT:], whole[1]]]
            got = [
                _stepped(_made(optimizer_class, part, *settings), n)
                for n, part in enumerate(parts)
            ]
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(_refusal(optimizer_class, f"says: {error}")) from error
        change = wanted - torch.cat([one.flatten() for one in whole])
        differ = (torch.cat(got) - wanted).abs().max()
        if not differ <= 1e-6 * change.abs().max():
            raise TypeError(_refusal(optimizer_class, "does something else with them"))
    return defaults


def _refusal(optimizer_class: type, why: str) -> str:
    name = optimizer_class.__name__
    return (
        f"{name} does not work element by element: given the parts of a parameter, as ranks "
        f"have them, it {why.rstrip('.')}. Take one that does, as SGD, Adam or AdamW, or keep "
        f"whole parameters on every rank: DataParallel, and {name} itself."
    )


def _moving(options: dict[str, Any]) -> dict[str, Any]:
    """A rate of 0, as a warm-up may begin with, would hide what the optimizer does."""
    if "lr" in options and not isinstance(options["lr"], Tensor) and options["lr"] == 0:
        options["lr"] = 0.1
    return options


def _made(
    optimizer_class: Callable[..., torch.optim.Optimizer],
    tensors: Sequence[Tensor],
    arguments: Mapping[str, Any],
    group: Mapping[str, Any],
) -> torch.optim.Optimizer:
    copies = [torch.nn.Parameter(one.clone()) for one in tensors]
    return optimizer_class([{**group, "params": copies}], **arguments)


def _stepped(optimizer: torch.optim.Optimizer, part: int | None = None) -> Tensor:
    """All elements after some steps, whose gradients are drawn for all, or cut from those."""
    parameters = optimizer.param_groups[0]["params"]
    begin, length = {None: (0, 15), 0: (0, _CUT), 1: (_CUT, 15 - _CUT)}[part]
    for step in range(_STEPS):
        drawn = torch.randn(15, generator=torch.Generator().manual_seed(step)).double()
        pieces = torch.split(drawn[begin : begin + length], [p.numel() for p in parameters])
        for parameter, gradient in zip(parameters, pieces, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.device)
        optimizer.step()
    return torch.cat([one.detach().flatten() for one in parameters])
