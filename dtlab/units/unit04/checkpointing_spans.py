"""What ranks do in 04/checkpoint_every: run layers with a checkpoint per k, and note which ran.

layers        0 1 2 | 3 4 5 | 6         7 layers, k = 3
checkpoints   [0 1 2] [3 4 5]           the last group has none
runs          2 2 2   2 2 2   1         in forward and backward together
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

__all__ = ["Spanned", "Spanning"]

FINISHED = ("torch.utils.checkpoint", "dtlab.training.activation")
STEPS = 2


@dataclass(frozen=True)
class Spanned:
    """What a rank saw in each step.

    `spans` are the layers that ran within each checkpoint, in forward; `runs` how often each layer
    ran in forward and backward together; `saved` the bytes kept in between. `changed` says whether
    the list of layers is another one afterwards.
    """

    outputs: list[Tensor]
    gradients: list[list[Tensor | None]]
    spans: list[list[list[int]]]
    runs: list[list[int]]
    saved: list[int]
    changed: bool
    finished: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Spanning(Case):
    """`fn(layers, k, x, checkpoint)` for layers from size to size; `topic` as in `Case`s."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = ("checkpoint",)

    seed: int
    sizes: tuple[int, ...]
    rows: int
    k: int
    topic: str = "equal"

    def __str__(self) -> str:
        return f"{self.count} layer{'s' * (self.count != 1)}, k = {self.k}"

    @property
    def count(self) -> int:
        """How many layers there are."""
        return len(self.sizes) - 1

    @property
    def groups(self) -> list[list[int]]:
        """The layers of each group, by their numbers."""
        layers = range(self.count)
        return [list(layers[start : start + self.k]) for start in layers[:: self.k]]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        shape = {"sizes": self.sizes, "rows": self.rows, "k": self.k}
        return {"seed": drawn_seed(self.seed), **shape}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        import dtlab.training.activation  # noqa: F401  before calls into it are looked at

        with finished_calls(*FINISHED, refuse=True, allowed={"checkpoint"}) as finished:
            seen = _train(fn, **given)
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
        """See `Case`."""
        import torch

        outputs, gradients = list(result["outputs"]), [list(one) for one in result["gradients"]]
        tensors = [*outputs, *(one for step in gradients for one in step if one is not None)]
        if len(outputs) != STEPS or not all(isinstance(one, torch.Tensor) for one in tensors):
            raise TypeError("a rank sent back something else than tensors")
        return Spanned(
            outputs,
            gradients,
            [[[int(one) for one in span] for span in step] for step in result["spans"]],
            [[int(one) for one in step] for step in result["runs"]],
            [int(one) for one in result["saved"]],
            bool(result["changed"]),
            frozenset(map(str, result["finished"])),
        )

    @cached_property
    def wanted(self) -> Spanned:
        """What comes of the groups that are asked for."""

        def right(layers: list[Any], k: int, x: Tensor, checkpoint: Any) -> Tensor:
            *first, last = ([layers[number] for number in group] for group in self.groups)
            for group in first:
                x = checkpoint(_in_turn, group, x)
            return _in_turn(last, x)

        return Spanned(**_train(right, **self.given(0, 1)))

    def mistake(self, results: Sequence[Spanned]) -> str:
        """What is wrong with outputs or gradients: see `Case`."""
        (seen,) = results
        for step in range(STEPS):
            where = f"step {step + 1}"
            got, wanted = seen.outputs[step], self.wanted.outputs[step]
            if got.shape != wanted.shape:
                return f"{where}: the output has the shape {list(got.shape)}."
            if not close(got, wanted):
                return f"{where}: the output is not that of the layers, one after another."
            pairs = zip(seen.gradients[step], self.wanted.gradients[step], strict=True)
            for number, (one, other) in enumerate(pairs):
                assert other is not None
                of = f"layer {(number - 1) // 2}" if number else "x"
                if one is None:
                    return f"{where}: no gradient comes to {of}."
                if not close(one, other):
                    return f"{where}: the gradient of {of} is not that of the layers."
        if seen.changed:
            return "the list of layers is another one afterwards: leave it as it is."
        return ""


def _in_turn(layers: Sequence[Any], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


# What ranks do ----------------------------------------------------------------------------------


def _train(
    fn: Callable[..., Any], seed: int, sizes: Sequence[int], rows: int, k: int
) -> dict[str, Any]:
    """Two steps, with the same list of layers."""
    import torch

    from dtlab.training.activation import checkpoint
    from dtlab.units.unit04.checkpointing_layers import Saved, seeded, weights_of

    spans: list[list[int]] = []
    open_spans: list[list[int]] = []
    runs = [0] * (len(sizes) - 1)

    class Layer(torch.nn.Linear):
        number = 0

        def forward(self, x: Tensor) -> Tensor:
            runs[self.number] += 1
            if open_spans:
                open_spans[-1].append(self.number)
            return torch.nn.functional.dropout(torch.tanh(super().forward(x)), 0.25)

    def noting(fn: Callable[..., Any], *args: Any) -> Any:
        open_spans.append([])
        try:
            return checkpoint(fn, *args)
        finally:
            spans.append(open_spans.pop())

    layers = [
        seeded(Layer(sizes[number], sizes[number + 1]), seed + number)
        for number in range(len(runs))
    ]
    for number, layer in enumerate(layers):
        layer.number = number
    kept = [one for layer in layers for one in layer.parameters()]
    seen: dict[str, Any] = {
        name: [] for name in ("outputs", "gradients", "spans", "runs", "saved")
    }
    seen["changed"] = False
    with torch.random.fork_rng(devices=[]):
        for step in range(STEPS):
            torch.manual_seed(seed + step)
            x = torch.randn(rows, sizes[0], requires_grad=True)
            for parameter in kept:
                parameter.grad = None
            saved = Saved([*kept, x])
            spans.clear()
            runs[:] = [0] * len(runs)
            handed = list(layers)
            with saved.hooks():
                output = fn(handed, k, x, noting)
            seen["changed"] = seen["changed"] or handed != layers
            seen["outputs"].append(output.detach().clone())
            seen["spans"].append([list(span) for span in spans])
            loss = (output * weights_of(output)).sum()
            del output
            seen["saved"].append(saved.bytes)
            loss.backward()
            gradients = [one.grad for one in (x, *kept)]
            seen["gradients"].append([None if one is None else one.clone() for one in gradients])
            seen["runs"].append(list(runs))
    return seen
