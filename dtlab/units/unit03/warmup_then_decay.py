"""03/warmup_then_decay: a learning rate that goes up in a line, down a cosine, and can resume."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.units.unit03.curves import Curve, wrong_decay, wrong_end, wrong_warmup
from dtlab.units.unit03.scheduled import Rates, Resuming, Scheduled, same_rate

__all__ = ["PART"]

# Trials -----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Three curves past their ends; no warm-up, and nothing but that; groups; resuming."""
    draw = random.Random(seed)

    def curve(warmup: int, decay: int) -> Curve:
        return Curve(warmup, warmup + decay, draw.choice([0.0625, 0.1, 0.125, 0.2, 0.25, 0.3]))

    def bases(count: int) -> tuple[float, ...]:
        return tuple(draw.sample([0.02, 0.05, 0.1, 0.4, 0.8, 1.6], count))

    curves = [curve(draw.randint(4, 7), draw.randint(9, 14)) for _ in range(3)]
    short, of_groups, early, late = (curve(draw.randint(4, 6), 8) for _ in range(4))
    edges = [Curve(0, short.total, short.start), Curve(short.warmup, short.warmup, short.start)]
    return [
        Trial(1, [Scheduled(one, bases(1), one.total + 6) for one in curves]),
        Trial(1, [Scheduled(one, bases(1), one.total + 3, "edges") for one in edges]),
        Trial(1, [Scheduled(of_groups, bases(3), of_groups.total, "groups")]),
        Trial(
            1,
            [
                Resuming(early, bases(1), draw.randint(2, early.warmup - 1), "resume"),
                Resuming(late, bases(1), late.warmup + 1, "resume"),
            ],
        ),
    ]


# Judges -----------------------------------------------------------------------------------------


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Scheduled, Rates]]:
    """The cases of a topic, in words, with what was seen."""
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Scheduled):
                yield one.trial.words(number), case, results[0]


def _judge_warmup(seen: Seen) -> Verdict:
    """Whose work it is, whether it is a scheduler, and the steps of the warm-up."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    for one in of_topic(seen, "curve"):
        if one.error is not None:
            return lost(one.trouble)
    for words, case, rates in _cases(seen, "curve"):
        if rates.kind:
            return lost(f"{words}, {case.mistake([rates])}")
        wrong = wrong_warmup(case.curve, _factors(case, rates))
        if wrong:
            return lost(f"{words}, {wrong}")
    return ok("goes up in a straight line from start_factor to 1")


def _judge_decay(seen: Seen) -> Verdict:
    """Also where the warm-up is wrong, if this is right."""
    return _judge_curve(seen, wrong_decay, "goes down half a cosine to zero", _judge_warmup)


def _judge_end(seen: Seen) -> Verdict:
    return _judge_curve(seen, wrong_end, "stays at zero from total_steps on", _judge_decay)


def _judge_curve(
    seen: Seen, wrong: Callable[[Curve, Sequence[float]], str], right: str, before: Judge
) -> Verdict:
    """A stretch of the curve: what is wrong is told once the stretch before it is right."""
    cases = [(words, case, rates) for words, case, rates in _cases(seen, "curve") if rates.rates]
    found = ((words, wrong(case.curve, _factors(case, rates))) for words, case, rates in cases)
    sentence = next((f"{words}, {what}" for words, what in found if what), "")
    if (sentence or not cases) and before(seen).status != "ok":
        return blocked("judged once what comes before it is right")
    return lost(sentence) if sentence else ok(right)


def _factors(case: Scheduled, rates: Rates) -> list[float]:
    """What part of the base rate the only group has in each step."""
    return [step[0] / case.bases[0] for step in rates.rates]


def _judge_groups(seen: Seen) -> Verdict:
    """Every group from its own base rate, and get_last_lr() with the optimizer."""
    waiting = _waits(seen, "groups", _judge_warmup, _judge_decay)
    if waiting:
        return waiting
    for one in of_topic(seen, "groups"):
        if one.mistakes:
            return lost("\n".join(filter(None, (one.mistakes[0], _advise_on_groups(one)))))
    for words, _, rates in _cases(seen, "groups"):
        for step, (now, last) in enumerate(zip(rates.rates, rates.last_rates, strict=True)):
            if len(now) != len(last) or not all(map(math.isclose, now, last)):
                return lost(
                    f"{words}, step {step}: get_last_lr() gives {last}, and the optimizer has "
                    f"{now}. Leave step() to LRScheduler, and say in get_lr() what the rates are."
                )
    return ok("every parameter group has its own base rate")


def _advise_on_groups(one: Observation) -> str:
    for _, case, seen in _cases([one], "groups"):
        for step, rates in enumerate(seen.rates):
            for rate, base in zip(rates, case.bases, strict=True):
                factor = case.curve.factor(step)
                others = [other for other in case.bases if other != base]
                if any(same_rate(rate, other * factor, base) for other in others) and factor:
                    return "That is the base rate of another group: self.base_lrs has all of them."
    return ""


def _judge_resume(seen: Seen) -> Verdict:
    """From a state that was written and read, the same curve goes on."""
    waiting = _waits(seen, "resume", _judge_warmup, _judge_decay)
    if waiting:
        return waiting
    for one in of_topic(seen, "resume"):
        if one.mistakes:
            return lost(f"{one.mistakes[0]}\n{_advise_on_resume(one)}".rstrip())
    return ok("goes on in the middle, from state_dict()")


def _advise_on_resume(one: Observation) -> str:
    for _, case, seen in _cases([one], "resume"):
        rates = [step[0] for step in seen.rates[1:]]
        anew = [case.bases[0] * case.curve.factor(step + 1) for step in range(len(rates))]
        pairs = zip(rates, anew, strict=True)
        if seen.unwritable:
            return ""  # nothing was resumed
        if rates and all(same_rate(*pair, case.bases[0]) for pair in pairs):
            return (
                "The schedule begins from the start again: self.last_epoch says where it is, and "
                "LRScheduler puts it and your attributes into the state."
            )
    return ""


def _judge_edges(seen: Seen) -> Verdict:
    waiting = _waits(seen, "edges", _judge_warmup, _judge_decay, _judge_end)
    if waiting:
        return waiting
    for one in of_topic(seen, "edges"):
        if one.mistakes:
            return lost(
                f"{one.mistakes[0]}\nThere may be no warm-up, and nothing but a warm-up: then "
                "step total_steps is at zero, after the line."
            )
    return ok("right without a warm-up, and with nothing else")


def _waits(seen: Seen, topic: str, *first: Judge) -> Verdict | None:
    if any(judge(seen).status != "ok" for judge in first):
        return blocked("judged once the curve is right")
    if not of_topic(seen, topic):
        return blocked("judged once the ranks come back")
    return None


PART = Part(
    name="03/warmup_then_decay",
    level=2,
    title="Warm up, then decay",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("warmup", 2, _judge_warmup),
            Rule("decay", 2, _judge_decay),
            Rule("end", 1, _judge_end),
            Rule("edges", 1, _judge_edges),
            Rule("groups", 1, _judge_groups),
            Rule("resume", 2, _judge_resume),
        ),
    ),
    reference="dtlab.training.learning_rate.WarmupThenDecay",
    symbol="WarmupThenDecay",
)
