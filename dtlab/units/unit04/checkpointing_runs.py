"""What ranks do in 04/recompute: run a layer by a learner's autograd function, and go back.

    forward    Recompute.apply(layer, x, ...)  ──>  the inputs are kept, and nothing that is made
    backward   the layer once more             ──>  gradients of inputs and parameters

The judge computes the same without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.gradients import close
from dtlab.grading.checking.trials import Case, drawn_seed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FINISHED", "Recomputed", "Recomputing"]

FINISHED = ("torch.utils.checkpoint", "dtlab.training.activation", "dtlab.training.replay")


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
        """See `Case`."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {"seed": drawn_seed(self.seed)}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        from dtlab.units.unit04.checkpointing_layers import go_through

        with finished_calls(*FINISHED, refuse=True) as finished:
            seen = go_through(given, fn.apply)  # type: ignore[attr-defined]
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
        """See `Case`."""
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
