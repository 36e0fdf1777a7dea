"""10/train_step: write a training step over data, pipeline and tensor ranks, from given parts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import close, difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.programs.run import fill
from dtlab.predict.units import counted
from dtlab.units.unit10.mesh_cases import OnMesh, groups_on, place_of

if TYPE_CHECKING:
    from torch import Tensor, nn

_RATE, _MAX_NORM = 0.2, 0.5  # learning rate; limit below the gradient norm, so that clipping acts
_STEPS, _LIMIT = 3, 6.0  # seconds
_NEAR = 1e-4  # relative tolerance of a loss


@dataclass(frozen=True)
class Training(OnMesh):
    """Training steps of `fn` on one stage per rank, compared with one process that has all stages.

    rank r    records, in order: F and B of each microbatch, r(educe), c(lip), s(tep)
              returns for each step its record, samples, loss, and its parameters afterwards
    """

    topic = "first"

    microbatches: int
    width: int

    def __str__(self) -> str:
        return f"{super().__str__()}, {counted(self.microbatches, 'microbatch', 'microbatches')}"

    @property
    def samples(self) -> int:
        """The number of samples in the whole batch."""
        return 2 * self.microbatches * self.sizes[0]

    @property
    def start(self) -> Tensor:
        """The initial parameters of the dense model, a row for each pipeline stage."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        return 0.5 * torch.randn(self.sizes[1], (4 * self.width + 3) * self.width, generator=draw)

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and targets of the whole batch, for each step."""
        import torch

        draw = torch.Generator().manual_seed(self.seed + 1)
        pairs = torch.randn(_STEPS, 2, self.samples, self.width, generator=draw)
        return [(inputs, 2 * targets) for inputs, targets in pairs]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {
            "sizes": self.sizes,
            "width": self.width,
            "start": self.start[place_of(rank, self.sizes)[1]],
            "batches": self.batches,
            "microbatches": self.microbatches,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        with finished_calls(*Training.finished, refuse=True) as finished:
            return {"steps": _train(fn, given), "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, result in enumerate(results):
            _, stage, tensor = place_of(rank, self.sizes)
            is_right = True
            for step, (log, samples, loss, state) in enumerate(result["steps"]):
                where = f"{self.where(rank)}, step {step + 1}: "
                right, stages = self.one_process[step]
                for name, words in self._wrong_actions(log, samples):
                    yield name, where + words
                wrong = self._wrong_loss(loss, right if stage == len(stages) - 1 else None)
                if wrong and step == 0:
                    yield "loss", where + wrong
                if is_right and not all(
                    map(close, state, _part(stages[stage], tensor, self.sizes[2]))
                ):
                    is_right = False
                    words = f"its parameters are not those of one process. {_WHY[step > 0]}"
                    yield "steps" if step else "first", where + words

    def _wrong_actions(self, log: str, samples: int) -> Iterator[Fault]:
        """Yields the faults in the samples and in the order of actions of a rank in one step."""
        share, forwards = self.samples // self.sizes[0], log.count("F")
        if (samples, forwards) != (share, self.microbatches):
            yield (
                "share",
                f"its stage processes {counted(samples, 'sample')} in {forwards} forward passes. "
                f"Its data coordinate has {share} of {counted(self.samples, 'sample')}, in "
                f"{counted(self.microbatches, 'microbatch', 'microbatches')}.",
            )
        if not re.fullmatch("[FB]*rcs", log):
            names = {"r": "reduce", "c": "clip", "s": "step"}
            letters = re.findall("[FB]+|.", log[:60])
            actions = ", ".join(names.get(letter, "forward and backward") for letter in letters)
            yield (
                "order",
                f"it runs {actions or 'nothing'}. After all backward passes of a step come one "
                "reduce_gradients, one clip_mesh and one optimizer step.",
            )

    def _wrong_loss(self, got: Any, right: float | None) -> str:
        """A message about the loss that a rank returns; empty if it is right."""
        if right is None:
            last = f"only pipeline stage {self.sizes[1] - 1} has a loss"
            return "" if got is None else f"it returns {got}, and {last}. Return None."
        if not isinstance(got, float):
            return f"it returns {got}. Its stage is the last one: return the loss."
        known = {"is the sum over the data group, not the mean": (right * self.sizes[0], "")}
        wrong = difference(got, right, known, hint=_MEAN, near=_NEAR)
        return wrong and "the loss " + wrong

    @cached_property
    def one_process(self) -> list[tuple[float, list[list[Tensor]]]]:
        """For each step the loss, and the parameters of each stage afterwards."""
        import torch
        from torch import nn
        from torch.nn.functional import mse_loss

        stages, steps = [_stage(self.width, row) for row in self.start], []
        model = nn.Sequential(*stages)
        for inputs, targets in self.batches:
            loss: Any = mse_loss(model(inputs), targets)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            scale = min(1.0, _MAX_NORM / float(nn.utils.get_total_norm(gradients)))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.data = parameter.data - _RATE * scale * gradient
            steps.append((loss.item(), [[part.data for part in s.parameters()] for s in stages]))
        return steps


_MEAN = "Each data rank has the mean of its own samples: average over the data group."
_WHY = (
    "Which gradients does the optimizer step with?",
    "After step 1 they are. What is left over from the previous step?",
)


def _stage(width: int, row: Tensor) -> nn.Module:
    """A dense pipeline stage; `row` has its parameters."""
    from torch import nn

    inner = 2 * width
    stage = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
    return fill(stage, row)


def _part(state: Sequence[Tensor], rank: int, ranks: int) -> list[Tensor]:
    """A tensor rank's part of a stage: its shards, and the row bias, which is not sharded."""
    wide, bias, narrow, last = state
    return [wide.chunk(ranks)[rank], bias.chunk(ranks)[rank], narrow.chunk(ranks, 1)[rank], last]


# On ranks ----------------------------------------------------------------------------------------


def _train(fn: Callable[..., Any], given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Runs all steps with the learner's function; returns what `Training` compares."""
    import torch
    from torch.nn.functional import mse_loss

    from dtlab.parallel.pipeline import PipelineStage
    from dtlab.parallel.tensor import ParallelMLP

    log: list[str] = []
    samples: list[int] = []

    def computed(_: Any, inputs: Any, output: Any) -> None:
        log.append("F")
        samples.append(len(output))
        if output.requires_grad:
            output.register_hook(lambda _: log.append("B"))

    def logged(letter: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            log.append(letter)
            return function(*args, **kwargs)

        return call

    groups, dense = groups_on(given["sizes"]), _stage(given["width"], given["start"])
    module = ParallelMLP.from_dense(dense, groups["tensor"])  # type: ignore[arg-type]
    module.register_forward_hook(computed)
    parameters: list[Any] = list(module.parameters())
    for parameter in parameters:
        parameter.kind, parameter.tied = "sharded", False
    parameters[-1].kind = "equal"  # the bias of the row layer
    optimizer = torch.optim.SGD(parameters, _RATE)
    optimizer.register_step_pre_hook(lambda *_: log.append("s"))
    parts = SimpleNamespace(
        stage=PipelineStage(module, group=groups["pipeline"]),
        optimizer=optimizer,
        loss=mse_loss,
        groups=groups,
        microbatches=given["microbatches"],
        max_norm=_MAX_NORM,
        reduce_gradients=logged("r", _average),
        clip_mesh=logged("c", _clip),
    )
    steps = []
    for inputs, targets in given["batches"]:
        log.clear()
        samples.clear()
        loss = fn(parts, inputs, targets)
        is_number = isinstance(loss, torch.Tensor | float | int)
        returned = float(loss) if is_number else None if loss is None else type(loss).__name__
        state = [parameter.detach().clone() for parameter in parameters]
        steps.append(("".join(log), sum(samples), returned, state))
    return steps


def _average(parameters: Sequence[Any], groups: Mapping[str, Any]) -> None:
    """Averages the gradients over the data group; these parameters need no other reduction."""
    import torch.distributed as dist

    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=groups["data"])
            parameter.grad /= groups["data"].size()


def _clip(parameters: Sequence[Any], max_norm: float, groups: Mapping[str, Any]) -> Tensor:
    import torch.distributed as dist
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    copies = dist.get_rank(groups["tensor"]) > 0  # they count on the first tensor rank
    counted = [each.grad for each in parameters if not (copies and each.kind == "equal")]
    total = get_total_norm([gradient for gradient in counted if gradient is not None]) ** 2
    for axis in ("tensor", "pipeline"):
        dist.all_reduce(total, group=groups[axis])
    clip_grads_with_norm_(parameters, max_norm, total.sqrt())
    return total.sqrt()


def _trials(seed: int) -> list[Trial]:
    """Trials on each pair of axes, with two ranks per axis; then on a single rank."""
    draw = random.Random(seed)

    def case(*sizes: Any) -> Training:
        count, width = draw.randint(3, 5), 2 * draw.randint(2, 4)
        return Training(draw.randrange(10**6), sizes, count, width)

    pairs = [case(2, 2, 1), case(1, 2, 2), case(2, 1, 2)]
    return [Trial(4, pairs, limit=_LIMIT), Trial(1, [case(1, 1, 1)], limit=_LIMIT)]


PART = Part(
    name="10/train_step",
    level=2,
    title="The step of a model in three dimensions",
    minutes=22,
    difficulty=2,
    check=Check(
        trials=_trials,
        compiles=True,  # the executor's first backward from a given gradient imports the compiler
        rules=(
            rule("share", 2, "each rank has the samples of its data coordinate, in microbatches"),
            rule("order", 2, "backward, reduce once, clip, step"),
            rule("first", 3, "after one step, parameters are those of one process", "order"),
            rule("steps", 1, "the same after three steps", "order", "first"),
            rule("loss", 2, "the loss is the mean over the batch, on the last stage only"),
        ),
    ),
    reference="dtlab.parallel.gpt.ParallelGPT",
)
