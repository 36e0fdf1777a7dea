"""04/recompute: an autograd function that keeps only the inputs and runs a layer again.

    forward    Recompute.apply(layer, x, ...)  ──>  keeps the inputs, and no intermediate tensors
    backward   the layer once more             ──>  gradients of inputs and parameters

The judge computes the same without a checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FINISHED", "PART"]

FINISHED = ("torch.utils.checkpoint", "dtlab.training.activation")

_STAYS = (
    "Inside forward, autograd does not record. Whatever you store on ctx or in save_for_backward "
    "stays in memory."
)
_NOTICES = "The layer runs again on other numbers: ctx.save_for_backward checks its tensors."
_OF_PARAMETERS = "torch.autograd.grad adds nothing to .grad; backward does."
_ADVICE = {
    "does not require grad": "In backward, autograd records only inside torch.enable_grad().",
    "the output has no gradient": "Does forward detach it, or does apply not get the inputs?",
    "incorrect number of gradients": (
        "backward must return one value for each argument of forward except ctx: None for the "
        "layer, and None for each input that needs no gradient."
    ),
    "only Tensors of floating point": "Set requires_grad only on inputs that had it before.",
    "second time": "The second run uses the graph of the first: cut the inputs off with detach().",
    "weight has not arrived": _OF_PARAMETERS,
    "bias has not arrived": _OF_PARAMETERS,
    "has not arrived": "Does the input of the second run get a gradient, and do you return it?",
    "holds zeros": "Do you use the gradient of the output, which backward receives?",
    "is off by": "Do you use the gradient of the output, which backward receives?",
    "added twice": "Is the second run cut off from the graph of the first?",
}


@dataclass(frozen=True)
class Recomputing(Faulty):
    """Calls `fn.apply(layer, *inputs)`, with inputs of these `kinds`.

    Topics: "result" runs forward alone, "gradients" also backward. "chain" runs a layer without a
    checkpoint, then two with one. "changed" changes x in place before backward.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {}
    advices: ClassVar = _ADVICE

    seed: int
    kinds: tuple[str, ...]
    rows: int
    width: int
    hidden: int
    topic: str

    def __str__(self) -> str:
        words = {"chain": "two checkpoints behind another layer", "changed": "x changed in place"}
        return words.get(self.topic, f"inputs {', '.join(self.kinds)}")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return asdict(self) | {"seed": drawn_seed(self.seed)}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit04.checkpointing_layers import go_through

        with finished_calls(*FINISHED, refuse=True) as finished:
            record = go_through(given, fn.apply)  # type: ignore[attr-defined]
        return record | {"finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        from dtlab.units.unit04.checkpointing_layers import go_through

        (record,) = results
        if self.topic == "changed":
            if not record["raised"]:
                yield "changed", f"backward raises no error. {_NOTICES}"
            return
        wanted = go_through(self.given(0, 1), lambda layer, *inputs: layer(*inputs))
        if self.topic == "result":
            got, output = record["output"], wanted["output"]
            if wrong := difference(got, output, hint="It should be that of the layer."):
                yield "result", "the output " + wrong
            if record["alive"]:
                some = f"{record['alive']} of the tensors that the layer created"
                yield "kept", f"after forward {some} are still in memory. {_STAYS}"
            elif record["saved"] > 0:
                saved = f"{amount(record['saved'])} are saved for backward besides the inputs"
                yield "kept", f"{saved}. Save only the inputs: all else is computed from them."
            return
        wrong = self._wrong_gradient(record["gradients"], wanted["gradients"])
        if wrong:
            advice = self.advice(wrong)
            yield self.topic, wrong + f"\n{advice}" * bool(advice)
        forward, backward = record["runs"]
        if self.topic == "gradients" and (forward != 1 or backward > 1):
            times = [counted(each, "time") for each in (forward, backward)]
            runs = f"the layer runs {times[0]} in forward and {times[1]} in backward"
            yield "runs", f"{runs}. Once in each is enough, for any number of inputs."
        elif self.topic == "gradients" and not backward:
            yield "runs", "the layer does not run in backward: what is kept instead?"

    def _wrong_gradient(
        self, gradients: Sequence[Tensor | None], wanted: Sequence[Tensor | None]
    ) -> str:
        """Names the first gradient that is wrong, and how; empty if none is."""
        from dtlab.units.unit04.checkpointing_layers import put_before

        layer = ["first.weight", "first.bias", "second.weight", "second.bias"]
        names = [*self.kinds, *(f"layer.{name}" for name in layer)]
        if self.topic == "chain":
            both = [f"layer {number}.{name}" for number in (1, 2) for name in layer]
            names = ["x", *both, "the weight of the layer before", "the bias of the layer before"]
        before = put_before(wanted, drawn_seed(self.seed))
        for name, got, right, old in zip(names, gradients, wanted, before, strict=True):
            if right is None:
                continue
            if got is None:
                return f"the gradient of {name} has not arrived: it is None."
            new = right if old is None else right - old
            known = {
                "has not arrived: .grad is what it was before": right - new,
                "overwrote what was in .grad before: backward must add to it": new,
                "was added twice": right + new,
            }
            if wrong := difference(got, right, known):
                return f"the gradient of {name} " + wrong
        return ""


def _trials(seed: int) -> list[Trial]:
    """Trials with one input, several inputs, inputs without gradient, a chain, a changed input."""
    draw = random.Random(seed)

    def case(topic: str, *kinds: str) -> Recomputing:
        rows, width, hidden = draw.randint(3, 6), draw.randint(3, 6), draw.randint(7, 12)
        return Recomputing(draw.randrange(10**6), kinds, rows, width, hidden, topic)

    several = draw.choice((("mask", "scale"), ("scale", "mask")))
    kinds = ("x",), ("x", "scale"), ("x", *several, "places")
    return [
        Trial(1, [case("result", *each) for each in kinds]),
        Trial(1, [case("gradients", *each) for each in kinds]),
        Trial(1, [case("chain", "x")]),
        Trial(1, [case("changed", "x")]),
    ]


PART = Part(
    name="04/recompute",
    level=2,
    title="Compute again in backward",
    minutes=17,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("result", 1, "forward returns the output of the layer"),
            rule("gradients", 2, "gradients are right, and added to .grad", "result"),
            rule("chain", 1, "right for inputs that have a graph", "result", "gradients"),
            rule("kept", 2, "after forward the inputs are kept, and nothing else", "result"),
            rule("runs", 1, "once in forward and once in backward", "result", "gradients"),
            rule("changed", 1, "raises an error if an input has changed", "result", "gradients"),
        ),
        compiles=True,  # backward with a gradient argument imports a part of the compiler
    ),
    reference="dtlab.training.activation.RunTwice",
    symbol="Recompute",
)
