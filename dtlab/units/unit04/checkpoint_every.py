"""04/checkpoint_every: a checkpoint over every k layers, except over the last group.

layers        0 1 2 | 3 4 5 | 6         7 layers, k = 3
checkpoints   [0 1 2] [3 4 5]           the last group has none
runs          2 2 2   2 2 2   1         in forward and backward together
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.resident import Mark, Moment, ResidentCase, use_twice
from dtlab.checks.functions.trials import Observation, Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.checks.turns import own_turn
from dtlab.checks.words import amount
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor

FINISHED = ("torch.utils.checkpoint", "dtlab.training.activation")
ALLOWED = "checkpoint", "Call", "Surroundings"  # the library's `checkpoint` and its parts
STEPS = 2


@dataclass(frozen=True)
class Spanning(Faulty):
    """Calls `fn(layers, k, x, checkpoint)` with linear layers of these `sizes`."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {}
    allowed: ClassVar[tuple[str, ...]] = ALLOWED

    seed: int
    sizes: tuple[int, ...]
    rows: int
    k: int
    topic: str

    def __str__(self) -> str:
        count = len(self.sizes) - 1
        return f"{counted(count, 'layer')}, k = {self.k}"

    @property
    def groups(self) -> list[list[int]]:
        """The numbers of the layers in each group."""
        layers = range(len(self.sizes) - 1)
        return [list(layers[start : start + self.k]) for start in layers[:: self.k]]

    def advice(self, trouble: str) -> str:
        in_backward = "a second time", "gradient of", "in backward"
        return _ARGUMENT if any(words in trouble for words in in_backward) else ""

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        shape = {"sizes": self.sizes, "rows": self.rows, "k": self.k}
        return {"seed": drawn_seed(self.seed), **shape}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import dtlab.training.activation  # noqa: F401  import before its calls are watched

        with finished_calls(*FINISHED, refuse=True, allowed=ALLOWED) as finished:
            steps = _train(fn, **given)
        return {"steps": steps, "finished": sorted(finished)}

    def _right(self, layers: list[Any], k: int, x: Tensor, checkpoint: Any) -> Any:
        """The correct function, with checkpoints over all groups but the last."""
        from torch import nn

        *first, last = (nn.Sequential(*(layers[n] for n in group)) for group in self.groups)
        for group in first:
            x = checkpoint(group, x)
        return last(x)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        with own_turn():
            wanted = _train(self._right, **self.given(0, 1))
        *groups, last = self.groups
        for number, (step, right) in enumerate(zip(results[0]["steps"], wanted, strict=True)):
            wrong = _wrong_numbers(step, right)
            if wrong:
                wrong = f"step {number + 1}: " + wrong
                yield self.topic, f"{wrong}\n{self.advice(wrong)}".rstrip()
            spans = step["spans"]
            before = [span for span in spans if span != last or self.topic == "edges"]
            if before != groups:
                expected = f"one over each of {_in_words(groups)}" if groups else "none"
                yield (
                    "groups" if self.topic == "equal" else "edges",
                    f"checkpoints cover the layers {_in_words(before)}; expected: {expected}.",
                )
            if self.topic == "edges":
                continue
            if step["saved"] > right["saved"]:
                held, least = amount(step["saved"]), amount(right["saved"])
                yield (
                    "groups",
                    f"{held} are kept for backward; {least} are enough. {_PASSED_ON}",
                )
            if last in spans:
                yield "last", f"the last group, {last}, is under a checkpoint too. {_AT_ONCE}"
            for layer, (got, enough) in enumerate(zip(step["runs"], right["runs"], strict=True)):
                if got != enough:
                    runs = f"layer {layer} runs {counted(got, 'time')} in a step"
                    yield "runs", f"{runs}, and {enough} is enough: {_ENOUGH}"


_IN_ORDER = "It should be that of the layers applied in order."
_CHANGED = "your function changes the list of layers: leave it as it is."
_ARGUMENT = (
    "The function runs again in backward. By then a loop variable has its last value. If the "
    "function needs the variable, pass it as an argument."
)
_AT_ONCE = "Backward begins with this group, so it is recomputed at once: that saves no memory."
_ENOUGH = "once in forward, and once more under a checkpoint."
_PASSED_ON = "Do you pass the output of each checkpoint on to the next layer?"


def _in_words(spans: Sequence[Sequence[int]]) -> str:
    """The groups of layers that are under a checkpoint together: "[0, 1, 2], [3, 4]"."""
    return ", ".join(map(str, spans)) or "none"


def _wrong_numbers(step: dict[str, Any], right: dict[str, Any]) -> str:
    """What is wrong with the output or the gradients of a step; empty if nothing is."""
    if wrong := difference(step["output"], right["output"], hint=_IN_ORDER):
        return "the output " + wrong
    pairs = zip(step["gradients"], right["gradients"], strict=True)
    for number, (got, wanted) in enumerate(pairs):
        of = f"layer {(number - 1) // 2}" if number else "x"
        if got is None:
            return f"no gradient arrives at {of}."
        if wrong := difference(got, wanted, hint="It should be the same as without checkpoints."):
            return f"the gradient of {of} " + wrong
    return _CHANGED if step["changed"] else ""


def _train(
    fn: Callable[..., Any], seed: int, sizes: Sequence[int], rows: int, k: int
) -> list[dict[str, Any]]:
    """Runs the steps with one list of layers, and records each step.

    `spans` holds the layers that ran within each checkpoint in forward, `runs` how often each
    layer ran in forward and backward together, and `saved` the bytes kept for backward. `changed`
    says whether the function modified its list of layers.
    """
    import torch

    from dtlab.training.activation import checkpoint
    from dtlab.units.unit04.checkpointing_layers import Saved, seeded, tensor_from, weights_of

    spans: list[list[int]] = []
    open_spans: list[list[int]] = []
    runs = [0] * (len(sizes) - 1)
    order: list[int] = []

    class Layer(torch.nn.Linear):
        def __init__(self, number: int) -> None:
            super().__init__(sizes[number], sizes[number + 1])
            self.number = number

        def forward(self, x: Tensor) -> Tensor:
            runs[self.number] += 1
            order.append(self.number)
            if x.shape[-1] != self.in_features:
                ran = ", ".join(map(str, order))
                raise ValueError(
                    f"layer {self.number} takes {self.in_features} numbers a row, and gets "
                    f"{x.shape[-1]} in {phase}. The layers ran in this order: {ran}"
                )
            if open_spans:
                open_spans[-1].append(self.number)
            return torch.nn.functional.dropout(torch.tanh(super().forward(x)), 0.25)

    def recording_checkpoint(fn: Callable[..., Any], *args: Any) -> Any:
        open_spans.append([])
        try:
            return checkpoint(fn, *args)
        finally:
            spans.append(open_spans.pop())

    layers = [seeded(Layer(number), seed + number) for number in range(len(runs))]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    steps = []
    with torch.random.fork_rng(devices=[]):
        for step in range(STEPS):
            torch.manual_seed(seed + step)
            x = torch.randn(rows, sizes[0], requires_grad=True)
            for parameter in parameters:
                parameter.grad = None
            saved = Saved([*parameters, x])
            spans.clear()
            runs[:] = [0] * len(runs)
            order.clear()
            phase = "forward"
            passed = list(layers)
            with saved.hooks():
                output = fn(passed, k, x, recording_checkpoint)
            record: dict[str, Any] = {
                "output": tensor_from("checkpoint_every", output).detach().clone(),
                "spans": list(spans),
                "changed": passed != layers,
            }
            loss = (output * weights_of(output)).sum()
            del output
            record["saved"] = saved.bytes
            order.clear()
            phase = "backward"
            loss.backward()
            gradients = [tensor.grad for tensor in (x, *parameters)]
            record["gradients"] = [None if grad is None else grad.clone() for grad in gradients]
            steps.append(record | {"runs": list(runs)})
    return steps


def _trials(seed: int) -> list[Trial]:
    """Trials in which k divides the number of layers or not, with one group, one layer, k = 1."""
    draw = random.Random(seed)

    def case(topic: str, count: int, k: int) -> Spanning:
        # All inner layers have one shape, so that only the results show swapped layers.
        sizes = (draw.randint(3, 5), *[draw.randint(6, 9)] * (count - 1), draw.randint(3, 5))
        return Spanning(draw.randrange(10**6), sizes, draw.randint(3, 6), k, topic)

    k = draw.choice((2, 3))
    equal = [
        case("equal", k * draw.randint(2, 3) + draw.randint(1, k - 1), k),
        case("equal", k * 3, k),
        case("equal", draw.choice((9, 11)), 4),
    ]
    n = draw.randint(3, 6)
    edges = [case("edges", *sizes) for sizes in ((n, n), (n, n + 3), (1, 1), (n, 1), (1, 2))]
    large = LargeSpanning(draw.randrange(10**6))
    return [Trial(1, equal), Trial(1, edges), Trial(1, [large])]


# Memory that the kernel counts: what the ranks note themselves could be falsified ---------------

_ROWS, _WIDTH = 16384, 64  # of a tensor between two layers: 4.2 MB
_LAYERS, _K = 12, 4
_KEPT = 2 + _K  # tensors: outputs of two checkpoints, and of each layer of the last group
_BY_KERNEL = "These are its numbers, whatever the checkpoints say that they cover."


@dataclass(frozen=True)
class LargeSpanning(ResidentCase):
    """A call with tensors so large that the kernel's count shows what is kept for backward."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = ALLOWED
    elements = _ROWS * _WIDTH
    moments = (
        Moment(
            "groups",
            "after forward",
            lambda size, n: _KEPT * size,
            f"{_BY_KERNEL} Keep the inputs of the groups, and the tensors of the last one.",
            passes=lambda size, n: size,  # the output
            least=lambda size, n: _KEPT * size,
            lacks=("last", f"{_BY_KERNEL} {_AT_ONCE}"),
        ),
        Moment(
            "groups",
            "after backward",
            lambda size, n: 0,
            "Keep nothing beyond the backward pass.",
        ),
    )

    seed: int

    def __str__(self) -> str:
        return f"{counted(_LAYERS, 'layer')} of {amount(4 * self.elements)}, k = {_K}"

    def given(self, rank: int, world_size: int) -> int:
        return drawn_seed(self.seed)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: int) -> dict[str, Any]:
        import dtlab.training.activation  # noqa: F401  import before its calls are watched

        with finished_calls(*FINISHED, refuse=True, allowed=ALLOWED) as finished:
            result = use_twice(partial(_keep, given), fn, large=_ROWS)
        return {**result, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        right = _keep(self.given(0, 1), _in_order, _ROWS, lambda: None)
        got = results[0]["gradients"]
        pairs = zip(got, right["gradients"], strict=True)
        if any(difference(one, wanted) for one, wanted in pairs):
            yield "groups", "the gradients are wrong with tensors of this size."

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        where = observation.trial.words(0)
        yield from ((name, f"{where}: {text}") for name, text in self.grown(observation))


def _in_order(layers: Sequence[Callable[..., Any]], k: int, x: Tensor, checkpoint: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def _keep(seed: int, fn: Callable[..., Any], rows: int, mark: Mark) -> dict[str, Any]:
    """Forward and backward; memory is counted before forward, after it, and after backward."""
    import torch
    from torch import nn

    from dtlab.training.activation import checkpoint
    from dtlab.units.unit04.checkpointing_layers import seeded, tensor_from

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(super().forward(x))

    empty = [Layer(_WIDTH, _WIDTH, device="meta").to_empty(device="cpu") for _ in range(_LAYERS)]
    layers = [seeded(layer, seed + number) for number, layer in enumerate(empty)]
    x = torch.randn(rows, _WIDTH, generator=torch.Generator().manual_seed(seed))
    mark()
    output: Any = tensor_from("checkpoint_every", fn(list(layers), _K, x, checkpoint))
    mark()
    output.sum().backward()
    mark()
    return {"gradients": [layer.bias.grad for layer in layers]}


_BEFORE = "equal", "groups", "last"

PART = Part(
    name="04/checkpoint_every",
    level=2,
    title="A checkpoint for every k layers",
    minutes=13,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("equal", 2, "outputs and gradients are those of the layers, in both steps"),
            rule("groups", 2, "one over each group of k layers, nothing else kept", "equal"),
            rule("last", 1, "none over the last group, even if k divides", "equal", "groups"),
            rule("runs", 1, "layers under a checkpoint run twice, all others once", *_BEFORE),
            rule("edges", 1, "right for one group, and for single layers", *_BEFORE),
        ),
        compiles=True,  # PyTorch's own checkpoint, which is refused, imports the compiler
    ),
    reference="dtlab.training.activation.checkpoint_every",
)
