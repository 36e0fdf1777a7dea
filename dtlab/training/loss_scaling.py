"""Loss scaling: keeps small gradients representable in fp16.

    scaler = DynamicLossScaler()
    scaler.scale(loss).backward()     # every gradient comes out `scale` times as large
    scaler.unscale_(optimizer)        # divides them again, in fp32: only now clip, or look at them
    clip_grad_norm_(parameters, 1.0)
    scaler.step(optimizer)            # unless a gradient is inf or NaN
    scaler.update()

A large scale saves the small gradients and turns the large ones into inf. No one scale suits a
whole run. So the dynamic one tries: up after `growth_interval` good steps in a row (here 2), down
after each overflow, whose step is skipped. Here gradients overflow at a scale of 16:

    step              0    1    2    3    4    5    6    7
    scale             8    8   16    8    8   16    8    8
    gradients        ok   ok  inf   ok   ok  inf   ok   ok
    good in a row     1    0    0    1    0    0    1    0    (after the step)

Several ranks have to skip together, or their parameters part for ever.
In data parallelism they do: gradients are averaged before the scaler sees them, and whatever is
added to inf or NaN is inf or NaN, so one rank's overflow is in everyone's gradients. No message is
needed. Where each rank holds another part of the gradients (sharding), one rank's overflow is
nobody else's: pass `group`, and the ranks tell each other.

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

from dtlab.training.metrics import device_of

__all__ = ["DynamicLossScaler", "StaticLossScaler", "gradients_of", "has_overflowed"]

Losses = TypeVar("Losses", Tensor, list[Tensor], tuple[Tensor, ...])


# Naive: one scale for the whole run ---------------------------------------------------


class StaticLossScaler:
    """Multiplies the loss by a fixed `scale`, divides the gradients, and skips what overflowed.

    Raises: ValueError for a scale that is not above 0.
    """

    def __init__(self, scale: float = 2.0**16) -> None:
        self._scale = _checked_scale(scale)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call `backward` on."""
        return loss * self._scale

    def step(self, optimizer: Optimizer) -> bool:
        """Divide the gradients, and step where all of them are finite. Returns whether it did."""
        gradients = list(gradients_of(optimizer))
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        for gradient in gradients:
            gradient.mul_(1 / self._scale)
        if finite:
            optimizer.step()
        return finite


# A scale that finds its level ---------------------------------------------------------


class DynamicLossScaler:
    """A loss scale that doubles after 2000 good steps in a row and halves at each overflow.

    It does step for step what PyTorch's `torch.amp.GradScaler` does, with its constants, and
    their states can be exchanged. `scale`, `unscale_` (where gradients are clipped), `step` for
    each optimizer, `update` once: in this order, in each iteration.

    Args:
        init_scale: the scale at the start.
        growth_factor, backoff_factor: what it is multiplied with, going up and going down.
        growth_interval: good steps in a row after which it goes up.
        group: ranks that hold different gradients of one model, and have to skip together. They
            all-reduce three numbers in `unscale_`. None: a rank decides by its own gradients, as
            in one process and in data parallelism.

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
        self._scales = False  # whether any loss was scaled yet
        self._found: dict[Optimizer, bool | None] = {}  # since `update`; None: no gradients
        self._stepped: set[Optimizer] = set()
        self._set(init_scale, growth_factor, backoff_factor, growth_interval, 0)

    def _set(self, scale: float, growth: float, backoff: float, interval: int, good: int) -> None:
        if not growth > 1:
            raise ValueError(f"growth_factor makes the scale larger: above 1, not {growth!r}.")
        if not 0 < backoff < 1:
            raise ValueError(f"backoff_factor makes it smaller: from 0 to 1, not {backoff!r}.")
        if interval < 1:
            raise ValueError(f"growth_interval is a number of steps from 1 on, not {interval!r}.")
        self._scale = _to_fp32(_checked_scale(scale))
        self._growth_factor, self._backoff_factor = growth, backoff
        self._growth_interval, self._growth_tracker = interval, good

    def get_scale(self) -> float:
        """What the next loss is multiplied with."""
        return self._scale

    def scale(self, losses: Losses) -> Losses:
        """The loss, or each of a list or tuple of them, times the scale.

        Raises: TypeError for anything else.
        """
        self._scales = True
        if isinstance(losses, Tensor):
            # A tensor of fp32, not a number: fp16 times 65536 would be inf for any loss above 1.
            return losses * torch.full((), self._scale, device=losses.device)
        if isinstance(losses, (list, tuple)):
            return type(losses)(self.scale(loss) for loss in losses)
        raise TypeError(
            f"A loss is a tensor, or a list or tuple of tensors, not {type(losses).__name__}."
        )

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place, once all of them are there.

        `step` does it where nobody has. Call it yourself before you clip gradients or look at
        their size: they are `scale` times too large until then.

        Raises: RuntimeError where no loss was scaled, and for a second time since `update`.
        ValueError for gradients in fp16: what was saved by scaling would be lost in dividing.
        """
        self._must_have_scaled("unscale_")
        if optimizer in self._stepped:
            raise RuntimeError("unscale_ comes before step, not after it. Call update in between.")
        if optimizer in self._found:
            raise RuntimeError(
                "The gradients of this optimizer are unscaled already: a second time would divide "
                "them by the scale again. Call update first, once per iteration."
            )
        gradients = list(gradients_of(optimizer))
        counts = [len(gradients), sum(gradient.dtype == torch.half for gradient in gradients)]
        overflows = int(has_overflowed(gradients))
        num_gradients, num_half, overflows = self._over_ranks([*counts, overflows])
        if num_half:
            raise ValueError(
                f"{num_half} gradients are fp16, and divided by the scale they would underflow. "
                "Keep the parameters in fp32 and compute under autocast, or use MasterWeights."
            )
        inverse = _to_fp32(1 / self._scale) if self._scale else math.inf
        for gradient in gradients:
            gradient.mul_(inverse)
        self._found[optimizer] = bool(overflows) if num_gradients else None

    def _over_ranks(self, numbers: list[int]) -> list[int]:
        """Their sums over the group: one rank's overflow, or error, is everyone's."""
        if self.group is None:
            return numbers
        sums = torch.tensor(numbers, device=device_of(self.group))
        dist.all_reduce(sums, group=self.group)
        return list(map(int, sums.tolist()))

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args, **kwargs)` and what it returns; skipped, None, after an overflow.

        Raises: RuntimeError for a second time since `update`, for an optimizer without gradients,
        and for a closure, whose gradients would be scaled. ValueError as in `unscale_`.
        """
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError("A closure makes new gradients, which would not be unscaled.")
        self._must_have_scaled("step")
        if optimizer in self._stepped:
            raise RuntimeError("This optimizer has stepped already. Call update once in between.")
        if optimizer not in self._found:
            self.unscale_(optimizer)
        found = self._found[optimizer]
        if found is None:
            raise RuntimeError(
                "No parameter of this optimizer has a gradient. Call backward first (and with "
                "MasterWeights cast_gradients)."
            )
        self._stepped.add(optimizer)
        return None if found else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Settle the scale of the next iteration: one overflow, in any optimizer, and it shrinks.

        `new_scale` sets it instead. Raises: RuntimeError where no gradients were looked at since
        the last time; ValueError for a `new_scale` that is not above 0.
        """
        self._must_have_scaled("update")
        found = [one for one in self._found.values() if one is not None]
        if new_scale is not None:
            self._scale = _to_fp32(_checked_scale(float(new_scale)))
        elif not found:
            raise RuntimeError("update comes after step: no gradients were looked at yet.")
        elif any(found):
            self._scale = _to_fp32(self._scale * self._backoff_factor)
            self._growth_tracker = 0
        else:
            self._count_a_good_step()
        self._found, self._stepped = {}, set()

    def _count_a_good_step(self) -> None:
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            larger = _to_fp32(self._scale * self._growth_factor)
            self._scale = larger if math.isfinite(larger) else self._scale
            self._growth_tracker = 0

    def _must_have_scaled(self, name: str) -> None:
        if not self._scales:
            raise RuntimeError(
                f"{name} without a scaled loss: call scaler.scale(loss).backward() first."
            )

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors and counter, under the names that PyTorch's `GradScaler` gives them."""
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a scaler stood, ours or PyTorch's.

        Raises: ValueError where something is missing, or is not what the constructor takes.
        """
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(f"This is no state of a loss scaler: without {sorted(missing)}.")
        self._set(*(state_dict[name] for name in self.state_dict()))


def _checked_scale(scale: float) -> float:
    if not 0 < scale < math.inf:
        raise ValueError(f"A loss scale is a number above 0, not {scale!r}.")
    return float(scale)


def _to_fp32(number: float) -> float:
    """The scale is kept in fp32, as in PyTorch: too large a number becomes inf."""
    return torch.tensor(number, dtype=torch.float64).float().item()


# Whether gradients are finite: the naive way looks at every element, the quick one at sums -------


def gradients_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """All gradients that an optimizer would step with; of a sparse one, the values that it has."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient = parameter.grad.detach()
                yield gradient._values() if gradient.is_sparse else gradient


def has_overflowed(gradients: Sequence[Tensor]) -> bool:
    """Whether any element of any tensor is inf or NaN.

    One inf or NaN makes a sum inf or NaN, so one finite sum acquits all elements, many times as
    fast. Large elements can have an infinite sum too: then each has to be looked at.
    """
    if not gradients:
        return False
    device = gradients[0].device
    sums = torch.stack([gradient.sum().to(device, torch.float32) for gradient in gradients])
    if bool(torch.isfinite(sums).all()):
        return False
    return not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
