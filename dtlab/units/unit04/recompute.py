"""04/recompute: an autograd function that keeps the inputs alone, and runs a layer again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by, finished_calls
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Trial, drawn_seed
from dtlab.grading.checking.values import close
from dtlab.grading.parts import Part
from dtlab.grading.words import amount

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FINISHED", "PART"]

# What ranks do in 04/recompute: run a layer by a learner's autograd function, and go back --------
#
#     forward    Recompute.apply(layer, x, ...)  ──>  the inputs are kept, and nothing that is made
#     backward   the layer once more             ──>  gradients of inputs and parameters
#
# The judge computes the same without a checkpoint.

FINISHED = ("torch.utils.checkpoint", "dtlab.training.activation", "dtlab.training.activation")


@dataclass(frozen=True)
class Recomputed:
    """What a rank saw.

    `alive` are tensors that the layer made and that are still there after forward, `saved` the
    bytes that autograd saved beside inputs and parameters. `runs` are those of each layer in
    forward, then those in backward. `raised` is what backward raised after x was changed.
    """

    output: Tensor
    gradients: list[Tensor | None]
    alive: int
    saved: int
    runs: list[list[int]]
    raised: str | None
    finished: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Recomputing(Case):
    """`fn.apply(layer, *inputs)`, with inputs of these `kinds`; `topic` says what it is to show.

    "result": forward alone. "gradients": also backward. "chain": two layers behind one that is run
    as usual. "changed": x is changed in place before backward.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    kinds: tuple[str, ...]
    rows: int
    width: int
    hidden: int
    topic: str = "result"

    def __str__(self) -> str:
        words = {"chain": "two checkpoints behind another layer", "changed": "x changed in place"}
        return words.get(self.topic, f"inputs {', '.join(self.kinds)}")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {"seed": drawn_seed(self.seed)}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit04.checkpointing_layers import go_through

        with finished_calls(*FINISHED, refuse=True) as finished:
            seen = go_through(given, fn.apply)  # type: ignore[attr-defined]
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
        import torch

        gradients, output, raised = list(result["gradients"]), result["output"], result["raised"]
        tensors = [output, *(one for one in gradients if one is not None)]
        if not all(isinstance(one, torch.Tensor) for one in tensors):
            raise TypeError("a rank sent back something else than tensors")
        return Recomputed(
            output,
            gradients,
            int(result["alive"]),
            int(result["saved"]),
            [[int(one) for one in runs] for runs in result["runs"]],
            None if raised is None else str(raised),
            frozenset(map(str, result["finished"])),
        )

    @cached_property
    def wanted(self) -> Recomputed:
        """What comes without a checkpoint."""
        from dtlab.units.unit04.checkpointing_layers import go_through

        topic = "chain" if self.topic == "chain" else "gradients"
        given = self.given(0, 1) | {"topic": topic}
        return Recomputed(**go_through(given, lambda layer, *inputs: layer(*inputs)))

    @property
    def names(self) -> list[str]:
        """What `Recomputed.gradients` belong to."""
        layer = ["first.weight", "first.bias", "second.weight", "second.bias"]
        if self.topic != "chain":
            return [*self.kinds, *(f"layer.{name}" for name in layer)]
        both = [f"layer {number}.{name}" for number in (1, 2) for name in layer]
        return ["x", *both, "the weight of the layer before", "the bias of the layer before"]

    def wrong_output(self, results: Sequence[Recomputed]) -> str:
        """What is wrong with the output; empty if nothing is."""
        got, wanted = results[0].output, self.wanted.output
        if got.shape != wanted.shape:
            return f"the output has the shape {list(got.shape)}, not {list(wanted.shape)}."
        if not close(got, wanted):
            off = float((got - wanted).abs().max())
            return f"the output is off that of the layer by up to {off:.2g}."
        return ""

    def mistake(self, results: Sequence[Recomputed]) -> str:
        """The first gradient that is wrong: see `Case`."""
        from dtlab.units.unit04.checkpointing_layers import put_before

        if self.topic in ("result", "changed"):
            return ""
        wanted = self.wanted.gradients
        got = results[0].gradients
        for name, *each in zip(
            self.names, got, wanted, put_before(wanted, drawn_seed(self.seed)), strict=True
        ):
            sentence = _wrong(*each)
            if sentence:
                return f"the gradient of {name} {sentence}"
        return ""


def _wrong(got: Tensor | None, wanted: Tensor | None, before: Tensor | None) -> str:
    if wanted is None:
        return ""
    if got is None:
        return "has not come: it is None."
    if got.shape != wanted.shape:
        return f"has the shape {list(got.shape)}, not {list(wanted.shape)}."
    if close(got, wanted):
        return ""
    new = wanted if before is None else wanted - before
    known = [
        (wanted - new, "has not come: .grad is what it was before."),
        (new, "has come, and what was in .grad before is gone: backward adds to it."),
        (wanted + new, "has come twice."),
    ]
    for other, words in known:
        if close(got, other):
            return words
    return f"is off by up to {float((got - wanted).abs().max()):.2g}."


# The part ----------------------------------------------------------------------------------------


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
