"""03/measure_noise_scale: how noisy gradients are, from what ranks have before averaging."""

from __future__ import annotations

import random
from typing import Any

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.gradients import close
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.marks import inside_marks
from dtlab.grading.checking.topics import Seen, judge_topic, of_topic, right_on_some
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.unseen import unseen_collectives, unseen_source
from dtlab.grading.parts import Part
from dtlab.units.unit03.measuring import Measuring
from dtlab.units.unit03.travel import travels_once

__all__ = ["PART"]


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
