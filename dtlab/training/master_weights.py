"""Master weights: bf16 or fp16 parameters that train as if they were fp32.

bf16 stores 7 mantissa bits: just below 1 its numbers are 1/256 = 0.0039 apart. An update of less
than half of that is lost by rounding, in every step:

    bf16 alone         1.000 - 0.001 = 1.000    1.000 - 0.001 = 1.000    1.000 - 0.001 = 1.000
    master, in fp32    1.000 - 0.001 = 0.999    0.999 - 0.001 = 0.998    0.998 - 0.001 = 0.997
    its copy in bf16                   1.000                    0.996                    0.996

So the optimizer steps a copy in fp32, where small updates accumulate, and the model computes with
the rounded copy.

Micikevicius et al. 2018, "Mixed precision training", section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["MasterWeights", "cast_gradients", "naive_master_step", "write_back"]

HALF = (torch.float16, torch.bfloat16)


# Naive: the work of each step ---------------------------------------------------------


def naive_master_step(
    optimizer: Optimizer, parameters: list[nn.Parameter], masters: list[nn.Parameter]
) -> None:
    """Take one step of an optimizer made for `masters`, fp32 copies of `parameters`."""
    cast_gradients(parameters, masters)
    optimizer.step()
    write_back(parameters, masters)


def cast_gradients(parameters: Iterable[nn.Parameter], masters: Iterable[nn.Parameter]) -> None:
    """Set the gradient of each master to that of its parameter, in fp32."""
    for parameter, master in zip(parameters, masters, strict=True):
        gradient = parameter.grad
        master.grad = None if gradient is None else gradient.to(master.dtype)


@torch.no_grad()
def write_back(parameters: Iterable[nn.Parameter], masters: Iterable[nn.Parameter]) -> None:
    """Set each parameter to the value of its master, rounded to the parameter's format."""
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.copy_(master)


# As an optimizer ----------------------------------------------------------------------


class MasterWeights(Optimizer):
    """An optimizer for bf16 and fp16 parameters that keeps, and steps, fp32 copies of them.

        optimizer = MasterWeights(model.parameters(), AdamW, lr=3e-5)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    Any optimizer of `torch.optim` can be used, with parameter groups, schedules and closures. Its
    state is fp32 too. Parameters in other formats are stepped directly. A tied parameter has one
    master. With a loss scaler, cast the gradients first, so that they are divided and clipped in
    fp32:

        scaler.scale(loss).backward()
        optimizer.cast_gradients()
        scaler.unscale_(optimizer)
        clip_grad_norm_(optimizer.masters, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    Args:
        params: parameters, or parameter groups, as for any optimizer.
        optimizer_class: a class of `torch.optim`.
        optimizer_arguments: its arguments.

    Raises: TypeError if `optimizer_class` is not an optimizer class, or `params` is one tensor.
    """

    def __init__(
        self, params: Any, optimizer_class: type[Optimizer], **optimizer_arguments: Any
    ) -> None:
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
            raise TypeError(f"Pass a class of torch.optim and its arguments, not "
                            f"{optimizer_class!r}.")  # fmt: skip
        self._master: dict[nn.Parameter, nn.Parameter] = {}
        self._cast = False  # whether the masters have this step's gradients
        groups = _as_groups(params)
        self.optimizer = optimizer_class([*map(self._with_masters, groups)], **optimizer_arguments)
        super().__init__(self.optimizer.param_groups, self.optimizer.defaults)
        self._share_state()

    @property
    def masters(self) -> list[nn.Parameter]:
        """The parameters that the optimizer steps: fp32 copies, and those that need no copy."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _with_masters(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a parameter group in which masters replace all 16-bit parameters."""
        given = group["params"]
        if isinstance(given, set):
            return group  # a set has no order: the optimizer raises an error
        given = dict.fromkeys([given] if isinstance(given, Tensor) else given)  # each only once
        return {**group, "params": [self._master_of(parameter) for parameter in given]}

    def _master_of(self, parameter: Any) -> Any:
        if isinstance(parameter, tuple):  # with its name
            return parameter[0], self._master_of(parameter[1])
        if getattr(parameter, "dtype", None) not in HALF:
            return parameter
        if parameter not in self._master:
            copy = parameter.detach().float()
            self._master[parameter] = nn.Parameter(copy, parameter.requires_grad)
        return self._master[parameter]

    def _share_state(self) -> None:
        """Share state and groups with the inner optimizer: a schedule then changes its rates."""
        self.state, self.param_groups = self.optimizer.state, self.optimizer.param_groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, as `Optimizer.add_param_group` does."""
        if not any(param_group is group for group in self.optimizer.param_groups):
            self.optimizer.add_param_group(self._with_masters(param_group))

    def cast_gradients(self) -> None:
        """Copy the gradients to the masters, in fp32; `step` calls this if you have not."""
        cast_gradients(self._master, self._master.values())
        self._cast = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the masters, and write them back, rounded. Returns the optimizer's result."""
        if closure is None and not self._cast:
            self.cast_gradients()
        loss = self.optimizer.step(closure and self._on_masters(closure))
        write_back(self._master, self._master.values())
        self._drop_gradients()
        return loss

    def _on_masters(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that computes at the masters' values; LBFGS calls it several times."""

        def at_masters() -> Any:
            write_back(self._master, self._master.values())
            loss = closure()
            self.cast_gradients()
            return loss

        return at_masters

    def _drop_gradients(self) -> None:
        for master in self._master.values():
            master.grad = None
        self._cast = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the model's parameters and of the masters."""
        self._drop_gradients()
        for parameter in [*self._master, *self.masters]:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.detach_().zero_()

    def read_parameters(self) -> None:
        """Copy the model's parameters to the masters, after you have changed the parameters."""
        write_back(self._master.values(), self._master)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state and the masters; the parameters have rounded values."""
        masters = [master.detach() for master in self._master.values()]
        return {**self.optimizer.state_dict(), "masters": masters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state, and set the model's parameters to the masters.

        Raises: ValueError if the number or the shapes of the masters differ.
        """
        saved = [tuple(tensor.shape) for tensor in state_dict.get("masters", ())]
        here = [tuple(tensor.shape) for tensor in self._master]
        if saved != here:
            raise ValueError(
                f"This optimizer has {len(here)} 16-bit parameters, of shapes {here}; the state "
                f"has {len(saved)} masters, of shapes {saved}."
            )
        self.optimizer.load_state_dict(state_dict)
        self._share_state()
        write_back(self._master.values(), state_dict["masters"])
        write_back(self._master, self._master.values())


def _as_groups(params: Any) -> list[Any]:
    if isinstance(params, Tensor):
        raise TypeError("Pass a list of parameters, or of parameter groups, not one tensor.")
    given = list(params)
    return given if not given or isinstance(given[0], dict) else [{"params": given}]
