"""Loss scaling: keeps small gradients representable in fp16.

    scaler = DynamicLossScaler()
    scaler.scale(loss).backward()     # every gradient is `scale` times as large
    scaler.unscale_(optimizer)        # divide gradients by `scale`, before you clip or inspect
    clip_grad_norm_(parameters, 1.0)
    scaler.step(optimizer)            # skipped if a gradient is inf or NaN
    scaler.update()

A large scale saves small gradients but turns large ones into inf, and no single scale suits a
whole run. So the dynamic scaler adapts: it raises the scale after `growth_interval` good steps in
a row (here 2), and lowers it after each overflow, whose step is skipped. In this example gradients
overflow at a scale of 16:

    step              0    1    2    3    4    5    6    7
    scale             8    8   16    8    8   16    8    8
    gradients        ok   ok  inf   ok   ok  inf   ok   ok
    good in a row     1    0    0    1    0    0    1    0    (after the step; 2 is set to 0)

`StaticLossScaler` is the idea alone: a fixed scale, and no clipping. `DynamicLossScaler` adds the
adaptation, `unscale_` for clipping, several optimizers, several ranks, and PyTorch's states.

Several ranks must skip the same steps, or their parameters differ from then on. In data
parallelism they do: gradients are averaged before the scaler checks them, and a sum with inf
or NaN is inf or NaN, so one rank's overflow is in all ranks' gradients. No message is needed. If
each rank holds a different part of the gradients (sharding), one rank's overflow is not in the
other ranks' gradients: pass `group`, and the ranks exchange the result.

Micikevicius et al. 2018, "Mixed precision training", section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from dtlab.torch_internals import sparse_values
from dtlab.training.metrics import device_of

__all__ = ["DynamicLossScaler", "StaticLossScaler", "gradients_of", "has_overflowed"]

Losses = TypeVar("Losses", Tensor, list[Tensor], tuple[Tensor, ...])


# Simple: one scale for the whole run ---------------------------------------------------


class StaticLossScaler:
    """Multiplies the loss by a fixed `scale`, divides the gradients, and skips overflowed steps.

    Raises: ValueError for a scale that is not above 0.
    """

    def __init__(self, scale: float = 2.0**16) -> None:
        self._scale = _checked_scale(scale)

    def scale(self, loss: Tensor) -> Tensor:
        """Return the scaled loss, on which to call `backward`."""
        return _scaled(loss, self._scale)

    def step(self, optimizer: Optimizer) -> bool:
        """Divide the gradients, and step if all are finite. Returns whether they are finite."""
        gradients = list(gradients_of(optimizer))
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        for gradient in gradients:
            gradient.mul_(1 / self._scale)
        if finite:
            optimizer.step()
        return finite


# The same with a scale that adapts, and with PyTorch's interface ---------------------------------


class DynamicLossScaler:
    """A loss scale that doubles after 2000 good steps in a row and halves at each overflow.

    It behaves like PyTorch's `torch.amp.GradScaler`, with the same constants, and their states can
    be exchanged. Call `scale`, `unscale_` (if you clip gradients), `step` for each optimizer, and
    `update` once: in this order, in each iteration.

    Args:
        init_scale: the initial scale.
        growth_factor, backoff_factor: the scale is multiplied by these to grow and to shrink.
        growth_interval: number of good steps in a row after which the scale grows.
        group: ranks that hold different gradients of one model, and must skip the same steps. They
            all-reduce three numbers in `unscale_`. None: each rank decides from its own gradients,
            as in one process and in data parallelism.

    Raises: ValueError for a scale that is not above 0, a growth not above 1, a backoff that is not
    between 0 and 1, or an interval below 1.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        group: ProcessGroup | None = None,
    ) -> None:
        self.group = group
        self._has_scaled = False  # whether a loss has been scaled
        self._overflowed: dict[Optimizer, bool | None] = {}  # since `update`; None: no gradients
        self._stepped: set[Optimizer] = set()
        self._set(init_scale, growth_factor, backoff_factor, growth_interval, 0)

    def _set(self, scale: float, growth: float, backoff: float, interval: int, good: int) -> None:
        if not growth > 1:
            raise ValueError(f"growth_factor must be above 1, not {growth!r}.")
        if not 0 < backoff < 1:
            raise ValueError(f"backoff_factor must be between 0 and 1, not {backoff!r}.")
        if interval < 1:
            raise ValueError(f"growth_interval must be 1 step or more, not {interval!r}.")
        self._scale = _to_fp32(_checked_scale(scale))
        self._growth_factor, self._backoff_factor = growth, backoff
        self._growth_interval, self._growth_tracker = interval, good

    def get_scale(self) -> float:
        """Return the factor by which `scale` multiplies the next loss."""
        return self._scale

    def scale(self, losses: Losses) -> Losses:
        """Multiply the loss, or each loss of a list, tuple or named tuple, by the scale.

        Raises: TypeError for anything else.
        """
        self._has_scaled = True
        if isinstance(losses, Tensor):
            return _scaled(losses, self._scale)
        if isinstance(losses, (list, tuple)):
            scaled: Any = [self.scale(loss) for loss in losses]
            make: Any = type(losses)
            result: Losses = make(*scaled) if hasattr(losses, "_fields") else make(scaled)
            return result
        raise TypeError(
            f"A loss must be a tensor, or a list or tuple of tensors, not {type(losses).__name__}."
        )

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place, after all are computed.

        Call this before you clip gradients or inspect their size: until then they are `scale`
        times too large. If you have not called this method, `step` does.

        Raises: RuntimeError if no loss was scaled, after `step`, and for a second call since
        `update`. ValueError for gradients in fp16, because the division would make them underflow.
        """
        self._must_have_scaled("unscale_")
        if optimizer in self._stepped:
            raise RuntimeError(
                "unscale_ was called after step. Call it before step, or call update in between."
            )
        if optimizer in self._overflowed:
            raise RuntimeError(
                "The gradients of this optimizer are unscaled already: a second call would divide "
                "them by the scale again. Call update first, once per iteration."
            )
        gradients = list(gradients_of(optimizer))
        counts = [len(gradients), sum(gradient.dtype == torch.half for gradient in gradients)]
        overflows = int(has_overflowed(gradients))
        num_gradients, num_half, overflows = self._over_ranks([*counts, overflows])
        if num_half:
            raise ValueError(
                f"{num_half} gradients are fp16 and would underflow when divided by the scale. "
                "Keep the parameters in fp32 and compute under autocast, or use MasterWeights."
            )
        inverse = _to_fp32(1 / self._scale) if self._scale else math.inf
        for gradient in gradients:
            gradient.mul_(inverse)
        self._overflowed[optimizer] = bool(overflows) if num_gradients else None

    def _over_ranks(self, numbers: list[int]) -> list[int]:
        """Sum the numbers over the group, so that all ranks get one rank's overflow or error."""
        if self.group is None:
            return numbers
        sums = torch.tensor(numbers, device=device_of(self.group))
        dist.all_reduce(sums, group=self.group)
        return list(map(int, sums.tolist()))

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Call `optimizer.step(*args, **kwargs)` and return its result; skip it after an overflow.

        Raises: RuntimeError for a second call since `update`, for an optimizer without gradients,
        and for a closure, whose gradients would not be unscaled. ValueError as in `unscale_`.
        """
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError(
                "step got a closure, which would compute new gradients that are not unscaled. "
                "Call step without a closure."
            )
        self._must_have_scaled("step")
        if optimizer in self._stepped:
            raise RuntimeError("This optimizer has stepped already. Call update once in between.")
        if optimizer not in self._overflowed:
            self.unscale_(optimizer)
        overflowed = self._overflowed[optimizer]
        if overflowed is None:
            raise RuntimeError(
                "No parameter of this optimizer has a gradient. Call backward first; with "
                "MasterWeights, also call cast_gradients."
            )
        self._stepped.add(optimizer)
        return None if overflowed else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the scale of the next iteration; an overflow in any optimizer shrinks it.

        `new_scale` sets the scale directly. Raises: RuntimeError if no gradients were inspected
        since the last call; ValueError for a `new_scale` that is not above 0.
        """
        self._must_have_scaled("update")
        overflows = [flag for flag in self._overflowed.values() if flag is not None]
        if new_scale is not None:
            self._scale = _to_fp32(_checked_scale(float(new_scale)))
        elif not overflows:
            raise RuntimeError(
                "update was called before any gradients were inspected. Call step first."
            )
        elif any(overflows):
            self._scale = _to_fp32(self._scale * self._backoff_factor)
            self._growth_tracker = 0
        else:
            self._count_a_good_step()
        self._overflowed, self._stepped = {}, set()

    def _count_a_good_step(self) -> None:
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            larger = _to_fp32(self._scale * self._growth_factor)
            self._scale = larger if math.isfinite(larger) else self._scale
            self._growth_tracker = 0

    def _must_have_scaled(self, name: str) -> None:
        if not self._has_scaled:
            raise RuntimeError(
                f"{name} was called before a loss was scaled. Call scaler.scale(loss).backward() "
                "first."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return scale, factors and counter, with the names of PyTorch's `GradScaler`."""
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state of a scaler, ours or PyTorch's.

        Raises: ValueError if a value is missing, or is not valid for the constructor.
        """
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(f"This is not a loss scaler's state: it lacks {sorted(missing)}.")
        # state_dict() lists its keys in the order of the parameters of _set
        self._set(*(state_dict[name] for name in self.state_dict()))


def _scaled(loss: Tensor, scale: float) -> Tensor:
    """Return the scaled loss; a loss without dims in fp16 becomes fp32.

    In fp16, any loss above 1 times 65536 would be inf. PyTorch promotes a product with an fp32
    tensor to fp32 if neither tensor has dims, but not a product with a Python number.
    """
    return loss * torch.full((), scale, dtype=torch.float32, device=loss.device)


def _checked_scale(scale: float) -> float:
    if not 0 < scale < math.inf:
        raise ValueError(f"A loss scale must be a number above 0, not {scale!r}.")
    return float(scale)


def _to_fp32(number: float) -> float:
    """Round the scale to fp32, as PyTorch does: too large a number becomes inf."""
    return torch.tensor(number, dtype=torch.float64).float().item()


# Whether gradients are finite: the naive way checks every element, the fast way checks sums -----


def gradients_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield all gradients of an optimizer's parameters; for sparse gradients, their values."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient = parameter.grad.detach()
                yield sparse_values(gradient) if gradient.is_sparse else gradient


def has_overflowed(gradients: Sequence[Tensor]) -> bool:
    """Return whether any element of any tensor is inf or NaN.

    One inf or NaN makes a sum inf or NaN, so a finite sum proves that all elements are finite, and
    is much faster to check. Large finite elements can also have an infinite sum. So if a sum is
    not finite, all elements are checked.
    """
    if not gradients:
        return False
    device = gradients[0].device
    sums = torch.stack([gradient.sum().to(device, torch.float32) for gradient in gradients])
    if bool(torch.isfinite(sums).all()):
        return False
    return not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
