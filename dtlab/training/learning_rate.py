"""Learning rates for large batches: scaling rules, warm-up and decay, and the noise scale.

Two rules, for a batch that is k times as large:

    linear       k x rate        SGD: one large step equals about k small steps (Goyal et al. 2017)
    square root  sqrt(k) x rate  Adam: one large step equals about k small steps. Adam divides by
                                 the size of gradients, and that is sqrt(k) times smaller if noise
                                 dominates (Malladi et al. 2022). SGD: the same noise in each
                                 update (Krizhevsky 2014, who preferred the linear rule)

Both rules have a limit. Far above the gradient noise scale, a batch that is k times as large gives
a hardly better gradient, but a step costs k times as much (McCandlish et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dtlab.training.metrics import device_of

__all__ = [
    "NoiseScale",
    "WarmupThenDecay",
    "batch_gradients",
    "gradient_noise_scale",
    "linear_scaled_lr",
    "noise_scale_from_norms",
    "sqrt_scaled_lr",
]

Batch = TypeVar("Batch")
Decay = Literal["cosine", "linear", "constant"] | Callable[[float], float]


# Scaling ------------------------------------------------------------------------------


def linear_scaled_lr(base_lr: float, base_batch: int, batch: int) -> float:
    """Return the rate for `batch` by the linear rule: base_lr x batch / base_batch.

    Both batches are effective batches, over all microbatches and data-parallel ranks.
    Raises: ValueError for a rate that is not above 0, or batches below 1.
    """
    return base_lr * _growth(base_lr, base_batch, batch)


def sqrt_scaled_lr(base_lr: float, base_batch: int, batch: int) -> float:
    """Return the rate for `batch` by the square-root rule: base_lr x sqrt(batch / base_batch).

    Raises: ValueError for a rate that is not above 0, or batches below 1.
    """
    return base_lr * math.sqrt(_growth(base_lr, base_batch, batch))


def _growth(base_lr: float, base_batch: int, batch: int) -> float:
    if not 0 < base_lr < math.inf:
        raise ValueError(f"A learning rate must be a number above 0, not {base_lr!r}.")
    for name, size in (("base_batch", base_batch), ("batch", batch)):
        if size < 1:
            raise ValueError(f"{name} must be a number of samples of 1 or more, not {size!r}.")
    return batch / base_batch


# Schedule -----------------------------------------------------------------------------

DECAYS: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
}


class WarmupThenDecay(LRScheduler):
    """A learning rate that rises linearly, and then decays.

        factor  1 ┤      ╭──╮            step 0 has the factor `start_factor`; step `warmup_steps`
                  │    ╱     ╲           is the first with the full rate; from `total_steps` on
            start ┤  ╱         ╲         the factor is `end_factor`
              end ┤              ╲____
                  └──┬────┬────────┬─
                     0  warmup   total

    Call `step()` after each optimizer step. The full rate of each parameter group is the rate with
    which the optimizer was made. `decay` is "cosine", "linear", "constant", or a function of the
    progress after the warm-up, from 0 to 1, that returns which part of the difference between full
    rate and end remains. For a batch that is k times as large, Goyal et al. 2017 use a
    `start_factor` of 1/k.

    Raises: ValueError unless 0 <= warmup_steps <= total_steps and total_steps > 0, for factors
    outside of 0 to 1, or an unknown decay.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        *,
        decay: Decay = "cosine",
        start_factor: float = 0.1,
        end_factor: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= warmup_steps <= total_steps or total_steps < 1:
            raise ValueError(
                f"A warm-up of {warmup_steps} steps does not fit into {total_steps} steps in all."
            )
        for name, factor in (("start_factor", start_factor), ("end_factor", end_factor)):
            if not 0 <= factor <= 1:
                raise ValueError(
                    f"{name} must be from 0 to 1, a part of the full rate, not {factor!r}."
                )
        if not callable(decay) and decay not in DECAYS:
            raise ValueError(f"decay must be {', '.join(DECAYS)}, or a function, not {decay!r}.")
        self.warmup_steps, self.total_steps = warmup_steps, total_steps
        self.start_factor, self.end_factor = start_factor, end_factor
        self.decay = decay
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        """Return the factor of the full rate at this step, counted from 0."""
        if step < self.warmup_steps:
            return self.start_factor + (1 - self.start_factor) * step / self.warmup_steps
        decay = self.decay if callable(self.decay) else DECAYS[self.decay]
        done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return self.end_factor + (1 - self.end_factor) * decay(min(1.0, done))

    def get_lr(self) -> list[float | Tensor]:
        """Return the rate of each parameter group at the current step."""
        return [rate * self.factor(self.last_epoch) for rate in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the schedule, without a decay function: pass the function again."""
        state = super().state_dict()
        if callable(self.decay):
            del state["decay"]
        return state


# Gradient noise scale -----------------------------------------------------------------


@dataclass(frozen=True)
class NoiseScale:
    """How noisy the gradient of one sample is, compared with the true gradient.

    `variance` is tr(Sigma), the sum of the variances of all elements of one sample's gradient;
    `gradient_squared` is |G|^2. Both estimates are unbiased, so each may be below 0 by chance.
    """

    variance: float
    gradient_squared: float

    @property
    def batch(self) -> float:
        """B_simple = tr(Sigma) / |G|^2: the batch size at which noise and signal are equal.

        It is infinite if the noise is so large that no signal was measured.
        """
        if self.gradient_squared <= 0:
            return math.inf
        return max(0.0, self.variance) / self.gradient_squared

    @staticmethod
    def mean(scales: Iterable[NoiseScale]) -> NoiseScale:
        """Return the mean of several measurements.

        Both parts are averaged before the division: a quotient of noisy numbers is biased.
        Raises: ValueError for no measurements.
        """
        scales = list(scales)
        if not scales:
            raise ValueError("There is no noise scale to average.")
        variance = sum(scale.variance for scale in scales) / len(scales)
        return NoiseScale(variance, sum(scale.gradient_squared for scale in scales) / len(scales))


def noise_scale_from_norms(
    small: float, big: float, batch_small: int, batch_big: int
) -> NoiseScale:
    """Return the noise scale from the squared norms of gradients of two batch sizes.

    A mean over B samples has E|G_B|^2 = |G|^2 + tr(Sigma) / B. Two sizes give two equations.
    `small` and `big` are squared norms; `small` should be a mean over several batches.
    McCandlish et al. 2018, "An empirical model of large-batch training", appendix A.1.

    Raises: ValueError unless 1 <= batch_small < batch_big.
    """
    if not 1 <= batch_small < batch_big:
        raise ValueError(
            f"batch_small must be at least 1 and less than batch_big, but these are {batch_small} "
            f"and {batch_big}."
        )
    variance = (small - big) / (1 / batch_small - 1 / batch_big)
    signal = (batch_big * big - batch_small * small) / (batch_big - batch_small)
    return NoiseScale(variance, signal)


def gradient_noise_scale(
    gradients: Iterable[Sequence[Tensor]], batch: int, group: ProcessGroup | None = None
) -> NoiseScale:
    """Return the noise scale from gradients of equal batches, on all ranks of `group`.

    Each item is the gradient of the mean loss of `batch` other samples at the same parameters, as
    one tensor per parameter. These are the small batches; all of them together, over all ranks,
    are the big batch. So one process passes many gradients (see `batch_gradients`). In data
    parallelism each rank may pass just one: the gradient of its batch, before averaging. Without
    torch.distributed `group` has no effect.

    Raises: ValueError on every rank if any rank passes no gradient, or all ranks together pass
    only one.
    """
    total, squares, count = torch.zeros(()), 0.0, 0
    for gradient in gradients:
        flat = torch.cat([part.detach().flatten() for part in gradient])
        squares += float(torch.linalg.vector_norm(flat, dtype=torch.float64)) ** 2
        total = total.to(flat.device) + flat
        count += 1
    squares, count = _over_ranks(total, squares, count, group)
    mean = float(torch.linalg.vector_norm(total, dtype=torch.float64)) / count
    return noise_scale_from_norms(squares / count, mean**2, batch, batch * count)


def _over_ranks(
    total: Tensor, squares: float, count: int, group: ProcessGroup | None
) -> tuple[float, int]:
    """Sum `total` over the ranks, in place, and return the sums of `squares` and `count`."""
    without = int(count == 0)
    if dist.is_initialized():
        numbers = [squares, float(count), float(without)]
        sums = torch.tensor(numbers, dtype=torch.float64, device=device_of(group))
        dist.all_reduce(sums, group=group)
        squares, count, without = float(sums[0]), int(sums[1]), int(sums[2])
    if without or count < 2:  # check before the large all-reduce, whose sizes would differ
        raise ValueError(
            f"The ranks passed {count} gradients in total, and {without} ranks passed none. Pass "
            "at least one gradient on each rank and two in total, of equal batches."
        )
    if dist.is_initialized():
        dist.all_reduce(total, group=group)
    return squares, count


def batch_gradients(
    model: nn.Module, batches: Iterable[Batch], loss_mean: Callable[[nn.Module, Batch], Tensor]
) -> Iterator[list[Tensor]]:
    """Yield the gradient of the mean loss of each batch; `grad` of the parameters is unchanged.

    Frozen parameters are omitted. For a data-parallel model pass the inner `module`: its gradient
    is this rank's gradient, before averaging.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for batch in batches:
        yield list(
            torch.autograd.grad(loss_mean(model, batch), parameters, materialize_grads=True)
        )
