"""What ranks do with a learner's schedule: steps of it, and a resumed one's."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Case
from dtlab.units.unit03.curves import Curve

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Rates", "Resuming", "Scheduled", "same_rate"]

FINISHED = ("dtlab.training.learning_rate", "torch.optim.lr_scheduler")
BASES = "LRScheduler", "LambdaLR"  # they know of no curve

_RELATIVE, _ABSOLUTE = 1e-5, 1e-7  # of the base rate


@dataclass(frozen=True)
class Rates:
    """What one rank saw: before each optimizer step the rate of every group, and `last_rates`.

    `kind` is empty for an LRScheduler, else what there was instead; `unwritable` names what of the
    state cannot be written.
    """

    rates: list[list[float]]
    last_rates: list[list[float]]
    kind: str
    unwritable: str
    finished: frozenset[str]


@dataclass(frozen=True)
class Scheduled(Case):
    """`fn(optimizer, warmup_steps, total_steps, start_factor)`, and steps of both.

    `bases` are the rates of the parameter groups.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = BASES

    curve: Curve
    bases: tuple[float, ...]
    steps: int
    topic: str = "curve"

    def __str__(self) -> str:
        groups = f", {len(self.bases)} parameter groups" if len(self.bases) > 1 else ""
        return f"{self.curve}{groups}"

    @property
    def first(self) -> int:
        """The step that the first rates belong to."""
        return 0

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        arguments = (self.curve.warmup, self.curve.total, self.curve.start)
        return {"arguments": arguments, "bases": self.bases, "steps": self.steps}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        with finished_calls(*FINISHED, refuse=True, allowed=BASES) as finished:
            optimizer = _optimizer(given["bases"])
            scheduler = fn(optimizer, *given["arguments"])
            seen = _seen(optimizer, scheduler, given["steps"])
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
        """See `Case`."""
        rates, last = (
            [[float(rate) for rate in step] for step in result[name]] for name in ("rates", "last")
        )
        texts = str(result["kind"])[:100], str(result.get("unwritable", ""))[:100]
        if not any(texts) and [len(step) for step in rates] != [len(self.bases)] * len(rates):
            raise ValueError("not a rate for each group")
        return Rates(rates, last, *texts, frozenset(map(str, result["finished"])))

    def mistake(self, results: Sequence[Rates]) -> str:
        """The first step in which a rate is wrong: see `Case`."""
        (seen,) = results
        if seen.kind or seen.unwritable:
            return (
                f"what comes of WarmupThenDecay(...) is {seen.kind}, not an LRScheduler."
                if seen.kind
                else f"state_dict() has {seen.unwritable}, which a checkpoint cannot hold: keep "
                "to plain numbers."
            )
        for place, rates in enumerate(seen.rates):
            step = self.first + place
            for group, (rate, base) in enumerate(zip(rates, self.bases, strict=True)):
                factor = self.curve.factor(step)
                if not same_rate(rate, base * factor, base):
                    which = f", group {group}" if len(self.bases) > 1 else ""
                    return (
                        f"step {step}{which}: the rate is {rate:.4g}, where {base * factor:.4g} "
                        f"is wanted, the base rate {base:g} times {factor:.4g}."
                    )
        return ""


class Resuming(Scheduled):
    """Half of the steps; then all begins anew with what was saved, and goes on."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = BASES

    @property
    def first(self) -> int:
        """See `Scheduled`."""
        return self.steps

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        with finished_calls(*FINISHED, refuse=True, allowed=BASES) as finished:
            optimizer = _optimizer(given["bases"])
            scheduler = fn(optimizer, *given["arguments"])
            seen = _seen(optimizer, scheduler, given["steps"])
            if not seen["kind"]:
                state = scheduler.state_dict()
                unwritable = _unwritable(state)
                if unwritable:
                    return seen | {"unwritable": unwritable, "finished": sorted(finished)}
                another = _optimizer(given["bases"])
                resumed = fn(another, *given["arguments"])
                another.load_state_dict(optimizer.state_dict())
                resumed.load_state_dict(_read_back(state))
                seen = _seen(another, resumed, given["steps"])
        return seen | {"finished": sorted(finished)}


def same_rate(rate: float, wanted: float, base: float) -> bool:
    """Whether two rates of a group with this base rate are the same up to rounding."""
    return math.isclose(rate, wanted, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE * base)


# What ranks do ----------------------------------------------------------------------------------


def _optimizer(bases: Sequence[float]) -> Optimizer:
    """An optimizer with a parameter group for each of these rates."""
    import torch

    from dtlab.units.unit03.optimizer import Still

    return Still([{"params": [torch.zeros(1)], "lr": base} for base in bases], bases[0])


def _seen(optimizer: Optimizer, scheduler: Any, steps: int) -> dict[str, Any]:
    """The rates before each optimizer step, with which the schedule goes on."""
    from torch.optim.lr_scheduler import LRScheduler

    if not isinstance(scheduler, LRScheduler):
        kind = "None" if scheduler is None else f"a {type(scheduler).__name__}"
        return {"rates": [], "last": [], "kind": kind}
    rates, last = [], []
    for _ in range(steps):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        last.append([float(rate) for rate in scheduler.get_last_lr()])
        optimizer.step()
        scheduler.step()
    return {"rates": rates, "last": last, "kind": ""}


def _unwritable(state: Any) -> str:
    """What of a state a checkpoint cannot hold, in words; empty where it holds all."""
    if not isinstance(state, dict):
        return f"no dict, but a {type(state).__name__},"
    for name, value in state.items():
        try:
            _read_back(value)
        except Exception:  # noqa: BLE001  a learner's objects may raise anything
            return f"{str(name)[:40]!r}, a {type(value).__name__}"
    return ""


def _read_back(state: Any) -> Any:
    """As it comes back from a file."""
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
