"""03/measure_noise_scale: estimate the gradient noise scale from gradients before averaging."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dtlab.checks.comparison import Known, difference, same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, Seen, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import Groups, draw_groups, group_argument, groups_in_words
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.unseen import FOREIGN, Reducing
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit03.accumulate_over_ranks import travels_once
from dtlab.units.unit03.shares import plain_value
from dtlab.units.unit03.training import in_each_step

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Measuring", "Norms"]

_FINISHED = ("dtlab.training.learning_rate",)


class Norms(NamedTuple):
    """Squared norms: `small` is their mean over the ranks' gradients, `big` is the mean's."""

    small: float
    big: float
    batch: int
    ranks: int

    @property
    def variance(self) -> float:
        """tr(Sigma), the variance of one sample's gradient; unbiased."""
        return self.batch * (self.small - self.big) * self.ranks / (self.ranks - 1)

    @property
    def signal(self) -> float:
        """|G|^2, unbiased."""
        return (self.ranks * self.big - self.small) / (self.ranks - 1)

    @property
    def scale(self) -> float:
        """tr(Sigma) / |G|^2, infinite without a signal."""
        return self.variance / self.signal if self.signal > 0 else math.inf


@dataclass(frozen=True)
class Measuring(Reducing):
    """Calls `fn(gradient, batch)` with a different gradient on every rank.

    `signal` says what the gradients have in common: "clear", "none", or "zero" if |G|^2 is
    exactly 0.
    """

    finished: ClassVar[tuple[str, ...]] = _FINISHED
    also_shows: ClassVar = {"scale": ("traffic", "untouched")}

    seed: int
    elements: int
    batch: int
    signal: str = "clear"
    topic: str = "scale"
    groups: Groups = ()

    def __str__(self) -> str:
        words = f"{counted(self.elements, 'element')}, {counted(self.batch, 'sample')} each"
        return words + (f", {groups_in_words(self.groups)}" if self.groups else "")

    @property
    def reduced(self) -> list[int]:
        return [4 * self.elements]

    def gradients(self, world_size: int) -> list[Tensor]:
        """The gradient of every rank."""
        import torch

        if self.signal == "zero":
            every = torch.zeros(2, self.elements)
            every[0, 1], every[1, 3] = 6, 8  # then all intermediate results are exact
            return list(every)
        generator = torch.Generator().manual_seed(self.seed)
        common, *rest = 0.003 * torch.randn(1 + world_size, self.elements, generator=generator)
        noise = torch.stack(rest)
        noise *= 0.5 + torch.rand(world_size, 1, generator=generator)  # norms differ
        if self.signal == "none":
            return list(noise - noise.mean(0) + 0.01 * common)
        return list(common + noise * math.sqrt(30 / self.batch))

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {
            "gradient": self.gradients(world_size)[rank],
            "batch": self.batch,
            "groups": self.groups,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.trace import span

        group = group_argument(given["groups"])
        gradient = given["gradient"].clone()
        with finished_calls(*_FINISHED, refuse=True) as finished, span("step"):
            value = fn(gradient, given["batch"], **group)
        result = {"value": plain_value(value), "gradient": gradient}
        return result | {"finished": sorted(finished)}

    def advice(self, trouble: str) -> str:
        if self.topic == "subgroups" and "'group'" in trouble:
            return "Your function takes no `group`: write group=None as its last argument."
        return _ADVICE.get(self.topic, "")

    def norms(self, world_size: int, members: Sequence[int]) -> Norms:
        """The squared norms of the gradients of these ranks, in float64."""
        import torch

        every = self.gradients(world_size)
        gradients = torch.stack([every[member] for member in members]).double()
        small, big = gradients.square().sum(1).mean(), gradients.mean(0).square().sum()
        return Norms(float(small), float(big), self.batch, len(members))

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        wrong = self._wrong(results)
        if wrong:
            advice = _ADVICE.get(self.topic, "")
            yield self.topic, wrong + f"\n{advice}" * bool(advice)
        if self.topic == "scale":
            changed = self._changed(results)
            if changed:
                yield "untouched", changed
            elif wrong:
                yield "untouched waits", wrong

    def _wrong(self, results: Sequence[Noted]) -> str:
        """Names the first rank whose value is wrong or differs within its group; empty if none."""
        for members in self.groups or (tuple(range(len(results))),):
            norms = self.norms(len(results), members)
            values = {rank: results[rank]["value"] for rank in members}
            for rank, value in values.items():
                if isinstance(value, str):
                    return f"rank {rank}: your function returns {value}, not a float."
                known = self._known(norms, rank, len(results))
                on = counted(norms.ranks, "rank")
                right = f"It should be tr(Sigma) / |G|^2 on {on}."
                hint = _NO_SIGNAL if norms.scale == math.inf else right
                if wrong := difference(value, norms.scale, known, hint=hint, near=_NEAR):
                    return f"rank {rank}: the noise scale that your function returns " + wrong
            if len(set(values.values())) > 1:
                return (
                    "right up to rounding, but not the same on all ranks, so that they may decide "
                    "differently: compute only with all-reduced numbers."
                )
        return ""

    def _known(self, norms: Norms, rank: int, world_size: int) -> Known:
        """The noise scales that known mistakes give."""
        if norms.scale == math.inf:
            return {}
        batch, size, apart = norms.batch, norms.ranks, norms.small - norms.big

        def biased(variance: float) -> float:
            return variance / (norms.big - variance / (batch * size))

        squares = [float(each.double().square().sum()) for each in self.gradients(world_size)]
        lengths = sum(map(math.sqrt, squares)) / world_size
        gap = (
            "The squared norms differ by tr(Sigma) / b - tr(Sigma) / (N b): by what must you "
            "divide their difference?"
        )
        return {
            "is the noise of a batch over the signal": (
                norms.scale / batch, "tr(Sigma) is the noise of one sample."
            ),
            "comes from dividing the sum of N squared deviations from the mean by N": (
                biased(batch * apart), "Divide by N - 1."
            ),
            "comes from taking the mean gradient for the signal": (
                norms.variance / norms.big,
                "The mean gradient is noisy too: subtract tr(Sigma) / (samples of all ranks) from "
                "its squared norm.",
            ),
            "comes from taking the squared norm of the mean gradient for |G|^2": (
                batch * apart / norms.big, "This norm still contains tr(Sigma) / (N b)."
            ),
            "comes from norms that are not squared": (
                norms._replace(small=lengths, big=math.sqrt(norms.big)).scale,
                "The formulas are about squared norms.",
            ),
            "comes from the square of the mean norm": (
                norms._replace(small=lengths**2).scale, "Take the mean of the squared norms."
            ),
            "is the inverse: the signal over the noise": 1 / norms.scale,
            "is tr(Sigma) alone, not yet divided by |G|^2": norms.variance,
            "comes from the squared norm of the *sum* of the gradients": (
                norms._replace(big=size**2 * norms.big).scale, "Use that of their mean."
            ),
            "comes from multiplying the difference of the squared norms, which must be divided": (
                biased(apart * (1 / batch - 1 / (batch * size))), gap
            ),
            "comes from dividing the difference of the squared norms by N b - b": (
                biased(apart / (batch * size - batch)), gap
            ),
            "comes from taking the rank's own squared norm for that of a small batch": (
                norms._replace(small=squares[rank]).scale, "Take the mean over the ranks."
            ),
            "is the noise scale over all ranks": (
                self.norms(world_size, range(world_size)).scale
            ),
        }  # fmt: skip

    def _changed(self, results: Sequence[Noted]) -> str:
        """A message about the first gradient that has changed; empty if none has."""
        every = self.gradients(len(results))
        total = sum(every[1:], every[0])
        for rank, result in enumerate(results):
            after = result["gradient"]
            if not same(after, every[rank]):
                known = {
                    "is the sum over the ranks": total,
                    "is the mean over the ranks": total / len(every),
                }
                how = difference(after, every[rank], known, hint=_COPY) or f"is another. {_COPY}"
                return f"rank {rank}: your function changes the gradient. Afterwards it " + how
        return ""


_ADVICE = {
    "signal": "Test whether |G|^2 is above zero before you divide by it.",
    "subgroups": "Pass `group` to every call of torch.distributed: without it, all ranks take "
    "part. And count the ranks with dist.get_world_size(group).",
}


_NEAR = 2e-3  # float32 errors are about 1e-5
_NO_SIGNAL = "|G|^2 is not above zero: no signal was measured, and the noise scale is infinite."
_COPY = "Work on a copy, gradient.clone()."


def _sent_too_much(seen: Seen) -> str:
    """A message unless ranks send one all-reduce of the gradient and only a few more numbers."""
    for where, size, events in in_each_step(seen, "scale"):
        wrong = travels_once(events, size, "the gradient")
        if wrong:
            return (
                f"{where}: {wrong} All-reduce the gradient once, in its own dtype: "
                "the rest follows from that sum and the sum of the squared norms."
            )
    return ""


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Trials on 2 to 4 ranks, without a signal, with a signal of exactly zero, with groups."""
    draw = random.Random(seed)

    def case(*words: Any, **more: Any) -> Measuring:
        elements, batch = draw.randint(8_000, 11_000), draw.randint(5, 12)
        return Measuring(draw.randrange(10**6), elements, batch, *words, **more)

    zero = Measuring(seed, draw.randint(8_000, 11_000), draw.choice([4, 8, 16]), "zero", "signal")
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        *(Trial(ranks, [case(), case()]) for ranks in (4, 2, 3)),
        Trial(3, [case("none", "signal")]),
        Trial(2, [zero]),
        Trial(5, [case("clear", "subgroups", groups=groups)]),
    ]


PART = Part(
    name="03/measure_noise_scale",
    level=2,
    title="Measure the noise scale",
    minutes=20,
    difficulty=2,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "scale",
                2,
                "the noise scale is right, and the same on all of 2 to 4 ranks",
                lost_by=("scale", FOREIGN),
            ),
            rule("signal", 1, "infinite if no signal is measured", after="scale"),
            rule(
                "traffic",
                1,
                "one all-reduce of the gradient, and a few numbers",
                FOREIGN,
                also=_sent_too_much,
            ),
            rule("untouched", 1, "the gradient is unchanged", FOREIGN, "untouched waits"),
            rule("subgroups", 1, "right on groups of some of the ranks too", after="scale"),
        ),
    ),
    reference="dtlab.training.learning_rate.gradient_noise_scale",
)
