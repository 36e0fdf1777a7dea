"""03/measure_noise_scale: how noisy gradients are, from what ranks have before averaging."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by, finished_calls
from dtlab.grading.checking.groups import Groups, draw_groups, groups_in_words, members_of
from dtlab.grading.checking.topics import Seen, judge_topic, of_topic, right_on_some
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.checking.unseen import inside_marks, unseen_collectives, unseen_source
from dtlab.grading.checking.values import close
from dtlab.grading.parts import Part
from dtlab.units.unit03.accumulate_over_ranks import travels_once
from dtlab.units.unit03.shares import plain_value

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Measured", "Measuring", "Norms"]

# What ranks do to measure a noise scale, and what must come of it --------------------------------

FINISHED = ("dtlab.training.learning_rate",)
_RELATIVE = 2e-3  # of a scale: float32 takes 1e-5


class Norms(NamedTuple):
    """Squared norms: the mean over the gradients of `ranks` batches, and that of their mean."""

    small: float
    big: float
    batch: int
    ranks: int

    @property
    def variance(self) -> float:
        """tr(Sigma) of one sample, unbiased."""
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
class Measured:
    """What one rank has: the value, or what else it was in words; and its gradient afterwards."""

    value: float | str
    gradient: Tensor
    finished: frozenset[str]


@dataclass(frozen=True)
class Measuring(Case):
    """`fn(gradient, batch)` with another gradient on every rank.

    `signal` says what all have in common: "clear", "none", or "zero", where it comes out as 0.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    elements: int
    batch: int
    signal: str = "clear"
    topic: str = "scale"
    groups: Groups = ()

    def __str__(self) -> str:
        words = f"{self.elements} elements, {self.batch} samples each"
        return words + (f", {groups_in_words(self.groups)}" if self.groups else "")

    def gradients(self, world_size: int) -> list[Tensor]:
        """That of every rank."""
        import torch

        if self.signal == "zero":
            every = torch.zeros(2, self.elements)
            every[0, 1], every[1, 3] = 6, 8  # then all numbers on the way are exact
            return list(every)
        generator = torch.Generator().manual_seed(self.seed)
        common, *own = 0.003 * torch.randn(1 + world_size, self.elements, generator=generator)
        noise = torch.stack(own)
        noise *= 0.5 + torch.rand(world_size, 1, generator=generator)  # norms differ
        if self.signal == "none":
            return list(noise - noise.mean(0) + 0.01 * common)
        return list(common + noise * math.sqrt(30 / self.batch))

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {
            "gradient": self.gradients(world_size)[rank],
            "batch": self.batch,
            "groups": self.groups,
            "members": members_of(self.groups, rank, world_size),
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch.distributed as dist

        from dtlab.trace import span

        made = {group: dist.new_group(list(group)) for group in given["groups"]}
        group = {"group": made[tuple(given["members"])]} if made else {}
        gradient = given["gradient"].clone()
        with finished_calls(*FINISHED, refuse=True) as finished, span("step"):
            value = fn(gradient, given["batch"], **group)
        found = {"value": plain_value(value), "gradient": gradient}
        return found | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
        value, gradient = result["value"], result["gradient"]
        if gradient.ndim != 1:
            raise ValueError("a gradient of another shape")
        value = value if isinstance(value, float) else str(value)
        return Measured(value, gradient, frozenset(map(str, result["finished"])))

    def norms(self, world_size: int, members: Sequence[int]) -> Norms:
        """What these ranks have, in float64."""
        import torch

        every = self.gradients(world_size)
        own = torch.stack([every[member] for member in members]).double()
        small, big = own.square().sum(1).mean(), own.mean(0).square().sum()
        return Norms(float(small), float(big), self.batch, len(members))

    def mistake(self, results: Sequence[Measured]) -> str:
        """The first rank with another value: see `Case`."""
        for members in self.groups or (tuple(range(len(results))),):
            norms = self.norms(len(results), members)
            for rank in members:
                sentence = self._wrong(results[rank].value, norms, rank, len(results))
                if sentence:
                    return f"rank {rank}: {sentence}"
            values = {rank: results[rank].value for rank in members}
            if len(set(values.values())) > 1:
                return (
                    "right up to rounding, but not the same on all ranks, which may then decide "
                    "differently: reckon with all-reduced numbers alone."
                )
        return ""

    def _wrong(self, got: float | str, norms: Norms, rank: int, world_size: int) -> str:
        if isinstance(got, str):
            return f"your function returns {got}, not a float."
        if _same(got, norms.scale):
            return ""
        if norms.scale == math.inf:
            return (
                f"your function returns {got:.4g}, where |G|^2 comes out as {norms.signal:.4g}: "
                "no signal was measured, and the noise scale is infinite."
            )
        for value, words in self._mistakes(norms, rank, world_size):
            if _same(got, value):
                return words
        return (
            f"your function returns {got:.4g}, where {norms.scale:.4g} is tr(Sigma) / |G|^2."
        )

    def _mistakes(
        self, norms: Norms, rank: int, world_size: int
    ) -> Iterator[tuple[float, str]]:
        batch, size = norms.batch, norms.ranks
        yield (
            norms.scale / batch,
            "this is the noise of a whole batch over the signal. tr(Sigma) is that of one sample, "
            "`batch` times as much.",
        )
        variance = batch * (norms.small - norms.big)
        yield (
            variance / (norms.big - variance / (batch * size)),
            "the spread about the mean of N gradients is divided by N - 1, not by N: the mean is "
            "nearer to them than the true gradient is.",
        )
        yield (
            norms.variance / norms.big,
            "the mean gradient has noise of its own, so its squared norm is too large: take "
            "tr(Sigma) / (samples of all ranks) off.",
        )
        yield 1 / norms.scale, "this is upside down: the signal over the noise."
        yield norms.variance, "this is tr(Sigma) alone, not yet divided by |G|^2."
        yield (
            norms._replace(big=size**2 * norms.big).scale,
            "for the large batch this takes the squared norm of the *sum* of the gradients: that "
            "of their mean is wanted.",
        )
        gap = 1 / batch - 1 / (batch * size)  # of which tr(Sigma) is what the two norms differ by
        for other in (gap, 1 / (batch * size - batch)):
            variance = (norms.small - norms.big) * other
            yield (
                variance / (norms.big - variance / (batch * size)),
                "the squared norms differ by tr(Sigma) / b - tr(Sigma) / (N b): by what is their "
                "difference to be divided?",
            )
        own = self.gradients(world_size)[rank].double().square().sum()
        yield (
            norms._replace(small=float(own)).scale,
            "here the squared norm of a small batch is the rank's own: take the mean over ranks.",
        )
        yield (
            self.norms(world_size, range(world_size)).scale,
            "this is the noise scale over all ranks.",
        )

    @cached_property
    def bytes(self) -> int:
        """Of a gradient."""
        return 4 * self.elements


def _same(got: float, wanted: float) -> bool:
    return math.isclose(got, wanted, rel_tol=_RELATIVE)


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """2 to 4 ranks; no signal, and one of exactly zero; groups."""
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


# Judges -----------------------------------------------------------------------------------------


def _foreign(seen: Seen) -> str:
    """How the value came about where the check cannot see it."""
    for one in seen:
        name = called_by(result for results in one.results for result in results)
        if name:
            return f"{name} does the work for you, and finished code does not count."
        found = unseen_collectives(one)
        cases = [case for case in one.trial.cases if isinstance(case, Measuring)]
        if not found and one.results and not one.mistakes and cases:
            size = sum(case.bytes for case in cases)
            found = unseen_source(one, "the value is", size, cases[0].groups)
        if found:
            return found
    return ""


def _waits(seen: Seen) -> Verdict | None:
    if _foreign(seen):
        return blocked("judged once your own calls bring the gradients together")
    if any(one.mistakes for one in of_topic(seen, "scale")):
        return blocked("judged once the noise scale is right")
    return None


def _judge_scale(seen: Seen) -> Verdict:
    trials = of_topic(seen, "scale")
    others, wrong = _foreign(seen), [sentence for one in trials for sentence in one.mistakes]
    if others or wrong:
        return lost(others or "\n".join(filter(None, (wrong[0], right_on_some(trials)))))
    return ok("the noise scale, the same on all of 2 to 4 ranks")


def _judge_traffic(seen: Seen) -> Verdict:
    """One all-reduce of the gradient, and a few numbers."""
    if _foreign(seen):
        return blocked("judged once your own calls bring the gradients together")
    trials = of_topic(seen, "scale")
    if not trials or any(one.trace is None for one in trials):
        return blocked("judged once the ranks come back")
    for one in trials:
        cases = [case for case in one.trial.cases if isinstance(case, Measuring)]
        for rank in range(one.trial.world_size):
            marks = inside_marks(one.trace, rank, "step")
            for number, (case, events) in enumerate(zip(cases, marks, strict=False)):
                sentence = travels_once(events, case.bytes, "the gradient")
                if sentence:
                    return lost(
                        f"{one.trial.words(number)}, rank {rank}: {sentence} One all-reduce, of "
                        "the gradient in its own dtype, will do: all else follows from that sum "
                        "and the sum of the squared norms."
                    )
    return ok("one all-reduce of the gradient, and a few numbers")


def _judge_untouched(seen: Seen) -> Verdict:
    """The gradients are as they were: an optimizer is yet to step with them.

    One that is not is told so at once: it may be why the noise scale is wrong.
    """
    if _foreign(seen):
        return blocked("judged once your own calls bring the gradients together")
    changed = _changed(seen)
    if changed:
        return lost(changed)
    return _waits(seen) or ok("the gradient is left as it was")


def _changed(seen: Seen) -> str:
    """What the first gradient is that is another one afterwards; empty if none is."""
    import torch

    for one in of_topic(seen, "scale"):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if not isinstance(case, Measuring):
                continue
            every = case.gradients(one.trial.world_size)
            total = torch.stack(every).sum(0)
            for rank, result in enumerate(results):
                if result.gradient.shape != total.shape:
                    return "the gradient has another shape afterwards."
                if not result.gradient.equal(every[rank]):
                    known = (("the sum", total), ("the mean", total / len(every)))
                    found = [what for what, value in known if close(result.gradient, value)]
                    what = f"{found[0]} over the ranks" if found else "another one"
                    return (
                        f"{one.trial.words(number)}, rank {rank}: the gradient is {what} "
                        "afterwards. Work on a copy, gradient.clone()."
                    )
    return ""


def _advise_on_groups(one: Observation) -> str:
    message = one.failure.message if one.failure is not None else one.mistakes[0]
    if "'group'" in message:
        return "Your function takes no `group`: write group=None as its last argument."
    return (
        "Hand `group` to every call of torch.distributed: without it, all ranks take part. And "
        "count them with dist.get_world_size(group)."
    )


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
            Rule("scale", 2, _judge_scale),
            Rule(
                "signal",
                1,
                judge_topic(
                    "signal",
                    "infinite where no signal is measured",
                    lambda one: "Ask whether |G|^2 is above zero before you divide by it.",
                    _waits,
                ),
            ),
            Rule("traffic", 1, _judge_traffic),
            Rule("untouched", 1, _judge_untouched),
            Rule(
                "subgroups",
                1,
                judge_topic(
                    "subgroups",
                    "right on groups of some of the ranks too",
                    _advise_on_groups,
                    _waits,
                ),
            ),
        ),
    ),
    reference="dtlab.training.learning_rate.gradient_noise_scale",
)
