"""04/checkpoint_every: a checkpoint for every k layers, and none for the last group."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by, finished_calls
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Trial, drawn_seed
from dtlab.grading.checking.values import close
from dtlab.grading.parts import Part
from dtlab.grading.words import amount

if TYPE_CHECKING:
    from torch import Tensor

# What ranks do in 04/checkpoint_every: run layers with a checkpoint per k, and note which ran ----
#
# layers        0 1 2 | 3 4 5 | 6         7 layers, k = 3
# checkpoints   [0 1 2] [3 4 5]           the last group has none
# runs          2 2 2   2 2 2   1         in forward and backward together

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
        shape = {"sizes": self.sizes, "rows": self.rows, "k": self.k}
        return {"seed": drawn_seed(self.seed), **shape}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import dtlab.training.activation  # noqa: F401  before calls into it are looked at

        with finished_calls(*FINISHED, refuse=True, allowed={"checkpoint"}) as finished:
            seen = _train(fn, **given)
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
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


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Groups that divide the layers, and that do not; then one group, one layer, k of 1."""
    draw = random.Random(seed)

    def case(topic: str, count: int, k: int) -> Spanning:
        # Alike within, so that a layer can stand in another's place: only numbers tell.
        sizes = (draw.randint(3, 5), *[draw.randint(6, 9)] * (count - 1), draw.randint(3, 5))
        return Spanning(draw.randrange(10**6), sizes, draw.randint(3, 6), k, topic)

    k = draw.choice((2, 3))
    equal = [
        case("equal", k * draw.randint(2, 3) + draw.randint(1, k - 1), k),
        case("equal", k * 3, k),
        case("equal", draw.choice((9, 11)), 4),
    ]
    n = draw.randint(3, 6)
    edges = [case("edges", *one) for one in ((n, n), (n, n + 3), (1, 1), (n, 1), (1, 2))]
    return [Trial(1, equal), Trial(1, edges)]


# Judges -----------------------------------------------------------------------------------------


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Spanning, Spanned]]:
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Spanning):
                yield one.trial.words(number), case, results[0]


def _judge_equal(seen: Seen) -> Verdict:
    """Whose work it is, outputs and gradients."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    wrong = next((one.mistakes[0] for one in of_topic(seen, "equal") if one.mistakes), "")
    return lost(f"{wrong}\n{_advice(wrong)}".rstrip()) if wrong else ok(_EQUAL)


_EQUAL = "outputs and gradients are those of the layers, in both steps"


def _advice(wrong: str) -> str:
    if "a second time" in wrong or "gradient of" in wrong:
        return (
            "The function runs again in backward. What it reads from a loop's variable then has "
            "its last value: hand it over as an argument."
        )
    return ""


def _spans(spans: Sequence[Sequence[int]]) -> str:
    """Layers as they stand in a checkpoint each: "0 to 2, 3 to 5"."""
    said = [
        str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}" if span else "none"
        for span in spans
    ]
    return ", ".join(said) or "none"


def _judge_groups(seen: Seen) -> Verdict:
    """What stands under checkpoints before the last group."""
    if _judge_equal(seen).status != "ok":
        return blocked("judged once outputs and gradients are right")
    for words, case, result in _cases(seen, "equal"):
        wanted = case.groups[:-1]
        for spans, saved, least in zip(result.spans, result.saved, case.wanted.saved, strict=True):
            before = [span for span in spans if span != case.groups[-1]]
            if before != wanted:
                return lost(
                    f"{words}: checkpoints are over the layers {_spans(before)}; asked for is "
                    f"one over each of {_spans(wanted)}."
                )
            if saved > least:
                return lost(
                    f"{words}: {amount(saved)} are kept for backward, where it takes "
                    f"{amount(least)}. Is what comes out of a checkpoint what goes on?"
                )
    return ok("a checkpoint is over each group of k layers, and nothing else is kept")


def _judge_last(seen: Seen) -> Verdict:
    if _judge_groups(seen).status != "ok":
        return blocked("judged once the groups before the last are right")
    for words, case, result in _cases(seen, "equal"):
        if any(case.groups[-1] in spans for spans in result.spans):
            return lost(
                f"{words}: the last group, {_spans(case.groups[-1:])}, is under a checkpoint too. "
                "Backward begins with it, so it would be whole again at once: no memory is saved, "
                "and it is run once more."
            )
    return ok("the last group is not under a checkpoint, also where k divides the layers")


def _judge_runs(seen: Seen) -> Verdict:
    if _judge_last(seen).status != "ok":
        return blocked("judged once the right layers are under checkpoints")
    for words, case, result in _cases(seen, "equal"):
        for runs, wanted in zip(result.runs, case.wanted.runs, strict=True):
            for layer, (got, right) in enumerate(zip(runs, wanted, strict=True)):
                if got != right:
                    return lost(
                        f"{words}: layer {layer} runs {got} times in a step, and {right} is "
                        "enough: once in forward, and once more under a checkpoint."
                    )
    return ok("layers under a checkpoint run twice in a step, all others once")


def _judge_edges(seen: Seen) -> Verdict:
    if _judge_last(seen).status != "ok":
        return blocked("judged once the right layers are under checkpoints")
    for one in of_topic(seen, "edges"):
        if one.mistakes:
            return lost(one.mistakes[0])
    for words, case, result in _cases(seen, "edges"):
        for spans in result.spans:
            if spans != case.groups[:-1]:
                return lost(
                    f"{words}: checkpoints are over the layers {_spans(spans)}; asked for: "
                    f"{_spans(case.groups[:-1])}."
                )
    return ok("right where there is one group only, and where each layer is one")


PART = Part(
    name="04/checkpoint_every",
    level=2,
    title="A checkpoint for every k layers",
    minutes=13,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("equal", 2, _judge_equal),
            Rule("groups", 2, _judge_groups),
            Rule("last", 1, _judge_last),
            Rule("runs", 1, _judge_runs),
            Rule("edges", 1, _judge_edges),
        ),
        compiles=True,  # so that PyTorch's own checkpoint is refused at once: it imports that
    ),
    reference="dtlab.training.activation.checkpoint_every",
)
