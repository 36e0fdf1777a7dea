"""04/recompute: an autograd function that keeps the inputs alone, and runs a layer again."""

from __future__ import annotations

import random
from collections.abc import Iterator

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.units.unit04.checkpointing_runs import Recomputed, Recomputing

__all__ = ["PART"]


def _trials(seed: int) -> list[Trial]:
    """One input; several, of which some have no gradient; a chain; an input that is changed."""
    draw = random.Random(seed)

    def case(topic: str, *kinds: str) -> Recomputing:
        rows, width, hidden = draw.randint(3, 6), draw.randint(3, 6), draw.randint(7, 12)
        return Recomputing(draw.randrange(10**6), kinds, rows, width, hidden, topic)

    kinds = (
        ("x",),
        ("x", "scale"),
        ("x", *draw.choice((("mask", "scale"), ("scale", "mask"))), "places"),
    )
    topics = {
        "result": [case("result", *one) for one in kinds],
        "gradients": [case("gradients", *one) for one in kinds],
        "chain": [case("chain", "x")],
        "changed": [case("changed", "x")],
    }
    return [Trial(1, cases) for cases in topics.values()]


# Judges -----------------------------------------------------------------------------------------


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Recomputing, Recomputed]]:
    """The cases of a topic, in words, with what was seen."""
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Recomputing):
                yield one.trial.words(number), case, results[0]


def _trouble(seen: Seen, topic: str) -> str:
    return next((one.trouble for one in of_topic(seen, topic) if one.error is not None), "")


def _judge_result(seen: Seen) -> Verdict:
    """Whose work it is, and what comes of forward."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    if _trouble(seen, "result"):
        return lost(_trouble(seen, "result"))
    for words, case, result in _cases(seen, "result"):
        wrong = case.wrong_output([result])
        if wrong:
            return lost(f"{words}: {wrong}")
    return ok("forward gives what the layer gives")


def _judge_mistakes(topic: str, right: str, before: Judge, why: str) -> Judge:
    """Judges the gradients of a topic, once what stands `before` is right."""

    def judge(seen: Seen) -> Verdict:
        if before(seen).status != "ok":
            return blocked(why)
        wrong = next((one.mistakes[0] for one in of_topic(seen, topic) if one.mistakes), "")
        return lost(f"{wrong}\n{_advice(wrong)}".rstrip()) if wrong else ok(right)

    return judge


def _advice(wrong: str) -> str:
    """What to look at where PyTorch's own words, or ours, do not say it."""
    known = {
        "does not require grad": (
            "In backward autograd does not record, unless it is told to: torch.enable_grad()."
        ),
        "the output has no gradient": "Has forward cut it off, or does apply not get the inputs?",
        "incorrect number of gradients": (
            "backward returns one gradient for each argument of forward but ctx: also for the "
            "layer, which has None."
        ),
        "only Tensors of floating point": "Only what had requires_grad gets it again.",
        "second time": (
            "The second run hangs on the graph of the first: cut the inputs off with detach()."
        ),
        "it is None": (
            "Is the input of the second run one that gets a gradient, and is that returned?"
        ),
        "is off by": "The gradient that comes into backward is that of the output: is it used?",
        "has come twice": "Is the second run cut off from the graph of the first?",
    }
    return next((advice for words, advice in known.items() if words in wrong), "")


_judge_gradients = _judge_mistakes(
    "gradients",
    "gradients of inputs and parameters are right, and added to what was there",
    _judge_result,
    "judged once forward is right",
)
_judge_chain = _judge_mistakes(
    "chain",
    "right where the inputs have a graph of their own",
    _judge_gradients,
    "judged once the gradients of a single layer are right",
)


def _judge_kept(seen: Seen) -> Verdict:
    if _judge_result(seen).status != "ok":
        return blocked("judged once forward is right")
    for words, _, result in _cases(seen, "result"):
        if result.alive:
            return lost(
                f"{words}: after forward {result.alive} of the tensors that the layer made are "
                "still there. Within forward autograd does not record by itself; what is put on "
                "ctx, or into save_for_backward, stays."
            )
        if result.saved > 0:
            return lost(
                f"{words}: {amount(result.saved)} are saved for backward beside the inputs. The "
                "inputs are enough: all else comes of them."
            )
    return ok("after forward the inputs are kept, and nothing that the layer has made")


def _judge_runs(seen: Seen) -> Verdict:
    if _judge_gradients(seen).status != "ok":
        return blocked("judged once the gradients are right")
    for words, _, result in _cases(seen, "gradients"):
        (forward,), (backward,) = result.runs
        if forward != 1 or backward > 1:
            return lost(
                f"{words}: the layer runs {forward} times in forward and {backward} times in "
                "backward. Once in each is enough, whatever the number of inputs."
            )
        if not backward:
            return lost(f"{words}: the layer does not run in backward: what is kept instead?")
    return ok("the layer runs once in forward and once in backward")


def _judge_changed(seen: Seen) -> Verdict:
    if _judge_gradients(seen).status != "ok":
        return blocked("judged once the gradients are right")
    if _trouble(seen, "changed"):
        return lost(_trouble(seen, "changed"))
    for words, _, result in _cases(seen, "changed"):
        if not result.raised:
            return lost(
                f"{words} between forward and backward: nobody notices, and the layer runs again "
                "on other numbers. ctx.save_for_backward keeps a tensor and sees to that."
            )
    return ok("an input that is changed in place before backward is noticed")


PART = Part(
    name="04/recompute",
    level=2,
    title="Run it again in backward",
    minutes=17,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("result", 1, _judge_result),
            Rule("gradients", 2, _judge_gradients),
            Rule("chain", 1, _judge_chain),
            Rule("kept", 2, _judge_kept),
            Rule("runs", 1, _judge_runs),
            Rule("changed", 1, _judge_changed),
        ),
        compiles=True,  # a backward pass that is given a gradient imports a part of the compiler
    ),
    reference="dtlab.training.activation.RunTwice",
    symbol="Recompute",
)
