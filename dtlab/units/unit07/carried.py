"""A schedule of an answer, carried out: by the library's executor, on real ranks of ours.

rank r    stage r, drawn ── run_schedule(schedule) ──► gradients ──► are they those of one process?

The answer's code is no longer there: its schedule has come back as text, and passed as valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Rule
from dtlab.grading.checking.faults import Fault, Faulty, Noted, judge
from dtlab.grading.checking.gradients import close
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Trial
from dtlab.schedules import Schedule
from dtlab.units.unit07.planned import Planned

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["COMMON", "Carried", "carried_out", "loss_of", "one_process", "stage_net"]

COMMON = (
    Rule("complete", 2, judge("complete", "each action once, in the list of its rank")),
    Rule("runs", 2, judge("runs", "ranks do it, to the gradients of one process", "complete")),
)
_WIDTH = 4


def stage_net(width: int, hidden: int) -> Net:
    """What a stage computes: two layers, from `width` to `width`."""
    return Net("chain", (width, hidden, width), "two layers")


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """The mean over the samples of squares, each with a weight that follows from its target."""
    return ((output - target).square() * (1 + target.square())).mean()


def one_process(
    modules: Sequence[nn.Module], inputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> list[list[Tensor]]:
    """By stage, the gradients of the mean over all samples of all microbatches."""
    import torch

    output = torch.cat(list(inputs))
    for module in modules:
        output = module(output)
    loss: Any = loss_of(output, torch.cat(list(targets)))
    loss.backward()
    return [
        [one.grad for one in module.parameters() if one.grad is not None] for module in modules
    ]


@dataclass(frozen=True)
class Carried(Faulty):
    """A step of training by this schedule; microbatches of two samples, the last one of three."""

    schedule: Schedule
    seed: int
    topic: str = "runs"

    def __str__(self) -> str:
        return "run_schedule with your lists"

    @property
    def guilty(self) -> str:
        """See `Faulty`: nobody but a busy machine."""
        return ""

    def shows(self, criterion: str) -> bool:
        """See `Faulty`."""
        return criterion == "runs"

    @property
    def batch(self) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs and targets, by microbatch."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        count = 1 + max(action.microbatch for action in self.schedule[0])
        sizes = [*[2] * (count - 1), 3]
        inputs, targets = torch.randn(2, sum(sizes), _WIDTH, generator=draw).unbind()
        return list(torch.split(inputs, sizes)), list(torch.split(targets, sizes))

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        inputs, targets = self.batch
        net = stage_net(_WIDTH, 5)
        rows = [[str(action) for action in row] for row in self.schedule]
        state = net.state(self.seed + rank)
        return {"rows": rows, "kind": net.kind, "sizes": net.sizes, "state": state,
                "inputs": inputs, "targets": targets}  # fmt: skip

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> Any:
        """See `Case`."""
        return fn(given)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """See `Faulty`."""
        net = stage_net(_WIDTH, 5)
        modules = [net.module(self.seed + rank) for rank in range(len(results))]
        for rank, wanted in enumerate(one_process(modules, *self.batch)):
            got = results[rank]["gradients"]
            if not all(map(close, got, wanted)):
                yield "runs", f"the gradients of rank {rank} are not those of one process."


def carried_out(seen: Seen) -> list[tuple[Trial, Callable[..., Any]]]:
    """The first schedule of an answer on real ranks, once it is one that can run."""
    case, seed = seen[0].trial.cases[0], sum(one.stages for one in _planned(seen))
    if seen[0].error is not None or not isinstance(case, Planned):
        return []
    results = seen[0].results[0]
    if any(name in ("complete", "runs") for name, _ in case.faults(results)):
        return []
    return [(Trial(case.stages, [Carried(results[0]["found"], seed)]), _train)]


def _planned(seen: Seen) -> Iterator[Planned]:
    cases = (case for one in seen for case in one.trial.cases)
    return (case for case in cases if isinstance(case, Planned))


def _train(given: dict[str, Any]) -> dict[str, Any]:
    """On a rank: a step by the given executor."""
    from dtlab.grading.checking.modules import filled
    from dtlab.parallel.pipeline import PipelineStage, run_schedule

    module = filled(given["kind"], given["sizes"], given["state"])
    stage = PipelineStage(module)
    run_schedule(given["rows"], stage, given["inputs"], given["targets"], loss_of)
    return {"gradients": [one.grad for one in module.parameters()]}
