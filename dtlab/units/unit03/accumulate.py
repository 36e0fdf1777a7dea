"""03/accumulate: many microbatches in one process, and the gradient of one large batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from dtlab.grading.checking import topics
from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.nets import Net, draw_nets
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.unseen import unseen_collectives, unseen_source
from dtlab.grading.parts import Part
from dtlab.units.unit03.training import Accumulated, Accumulating

__all__ = ["PART", "judge_equal", "judge_graphs", "judge_losses", "judge_topic", "waits"]

# What the judges of parts 1 and 2 share: whose work it was, graphs, losses -----------------------


def foreign(seen: Seen) -> str:
    """How gradients came about where the check cannot see it; empty where it can."""
    return next(filter(None, map(_foreign, seen)), "")


def _foreign(one: Observation) -> str:
    name = called_by(result for results in one.results for result in results)
    if name:
        return f"{name} does the work for you, and finished code does not count."
    cases = [case for case in one.trial.cases if isinstance(case, Accumulating)]
    trained = all(isinstance(r, Accumulated) for results in one.results for r in results)
    found = unseen_collectives(one)
    if found or one.mistakes or not cases or not trained:
        return found
    size = sum(case.num_steps * case.size_of_gradients for case in cases)
    return unseen_source(one, "the gradients are", size, cases[0].groups)


_MET = {"uneven": "gradients are right where microbatches differ"}  # by topic


def waits(seen: Seen, *after: str) -> Verdict | None:
    """Why all else cannot be judged yet; None once plain gradients are right.

    And those of the topics `after`.
    """
    if foreign(seen):
        return blocked("judged once your own code adds up the gradients")
    if any(one.mistakes for one in of_topic(seen, "equal")):
        return blocked("judged once the gradients of equal microbatches are right")
    for topic in after:
        if any(one.mistakes for one in of_topic(seen, topic)) or not of_topic(seen, topic):
            return blocked(f"judged once {_MET[topic]}")
    return None


def judge_equal(right: str) -> Judge:
    """Judges the plainest trials, and whose work it was."""

    def judge(seen: Seen) -> Verdict:
        others = foreign(seen)
        wrong = [sentence for one in of_topic(seen, "equal") for sentence in one.mistakes]
        if others or wrong:
            return lost(others or wrong[0])
        return ok(right)

    return judge


def judge_topic(
    topic: str, right: str, advice: Callable[[Observation], str], *after: str
) -> Judge:
    """As `topics.judge_topic`, once plain gradients are right, and those of the topics `after`."""
    return topics.judge_topic(topic, right, advice, lambda seen: waits(seen, *after))


def judge_losses(right: str) -> Judge:
    """Judges what the function returns, where gradients are right: of equal and uneven ones."""

    def judge(seen: Seen) -> Verdict:
        waiting = waits(seen, "uneven")
        if waiting:
            return waiting
        right_ones = [one for one in seen if not one.mistakes]
        for one, number, case, results in _accumulated(
            right_ones, "equal", "uneven", "subgroups"
        ):
            sentence = case.wrong_loss(results)
            if sentence:
                return lost(f"{one.trial.words(number)}, {sentence}")
        return ok(right)

    return judge


def judge_graphs(right: str) -> Judge:
    """Judges whether the model ever got more than a microbatch, or had more than one graph."""

    def judge(seen: Seen) -> Verdict:
        waiting = waits(seen)
        if waiting:
            return waiting
        for one, number, case, results in _accumulated(seen, "equal"):
            for rank, result in enumerate(results):
                for step, passes in enumerate(result.passes):
                    largest = max(case.sizes[rank][step])
                    sentence = _too_much(passes, largest)
                    if sentence:
                        where = f"{one.trial.words(number)}, step {step + 1}"
                        return lost(f"{where}: {sentence}")
        return ok(right)

    return judge


def _too_much(passes: list[list[int]], largest: int) -> str:
    """What is wrong with the forward passes of a step: samples, and tensors held before it."""
    for number, (samples, held) in enumerate(passes):
        if samples > largest:
            return (
                f"the model gets {samples} samples at once, and the largest microbatch has "
                f"{largest}: memory is what accumulation is for."
            )
        if held:
            return (
                f"forward pass {number + 1} begins while the graph of an earlier one is still "
                f"held, with {held} tensors. Call backward for every microbatch, before the "
                "next forward pass: it frees the graph."
            )
    return ""


def _accumulated(
    seen: Seen, *wanted: str
) -> Iterator[tuple[Observation, int, Accumulating, list[Accumulated]]]:
    """The cases of some topics with what ranks returned, where they came back."""
    for one in (one for topic in wanted for one in of_topic(seen, topic)):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Accumulating):
                yield one, number, case, results


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Equal microbatches, the last step with fewer; uneven ones; something in `.grad`."""
    draw = random.Random(seed)
    chain, tied = draw_nets(draw)
    skipping = Net("skipping", (*chain.sizes, 5), "a frozen and an unused layer")
    n, m = draw.sample(range(3, 7), 2)
    equal = [
        Accumulating(seed, chain, (((n, n, n), (n, n)),)),
        Accumulating(seed, skipping, (((m,) * 5, (m,)),)),
    ]
    steps = draw_uneven(draw)
    uneven = [Accumulating(seed, net, (steps,), "uneven") for net in (chain, tied)]
    added = [Accumulating(seed, tied, (((n, n, n),),), "added", has_before=True)]
    return [Trial(1, cases) for cases in (equal, uneven, added)]


def draw_uneven(draw: random.Random) -> tuple[tuple[int, ...], ...]:
    """Three sizes; the last one short; one of no samples. No number of samples tells another."""
    first = draw.choice([(2, 7, 3), (3, 1, 6), (6, 2, 3), (4, 7, 2)])
    whole = draw.randint(5, 7)
    return first, (whole, whole, whole, draw.randint(1, 3)), (draw.randint(2, 4), 0, 5)


def _advise_on_uneven(one: Observation) -> str:
    if "this is off" in one.mistakes[0]:
        return "Every sample counts the same, whichever microbatch it is in: how many are there?"
    return ""


PART = Part(
    name="03/accumulate",
    level=2,
    title="Accumulate gradients",
    minutes=15,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "equal",
                2,
                judge_equal("right where all microbatches have as many samples, in every step"),
            ),
            Rule(
                "uneven",
                2,
                judge_topic(
                    "uneven",
                    "right where microbatches differ, and where one has no samples",
                    _advise_on_uneven,
                ),
            ),
            Rule(
                "added",
                1,
                judge_topic("added", "added to what is in .grad already", lambda one: ""),
            ),
            Rule("graphs", 1, judge_graphs("the graph of one microbatch at a time")),
            Rule("loss", 1, judge_losses("returns the mean loss over all samples")),
        ),
    ),
)
