"""07/run, extra: the executor, which does a rank's list of actions over sends and receives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.gradients import close
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.schedules import Action, Schedule, gpipe, one_f_one_b
from dtlab.units.unit07.judging import one_process, rule_of, stage_net

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PART", "Running", "shuffled"]

# What ranks do in 07/run: a learner's executor on a stage of ours, which notes what is done ------
#
# rank r    run(schedule, stage r, ...)
#               │  forward: F noted, and how many graphs of earlier microbatches are still there
#               ▼  backward: B noted
#           gradients, what was noted

FINISHED = (
    "dtlab.parallel.pipeline",
    "dtlab.parallel.pipeline_data",
    "dtlab.parallel.pipeline_messages",
    "dtlab.parallel.pipeline_plan",
    "torch.distributed.pipelining.schedules",
    "torch.distributed.pipelining.stage",
)


def execute(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """One step by `fn`; gradients, and what happened in which order."""
    import torch.distributed as dist

    from dtlab.grading.checking.modules import filled
    from dtlab.schedules import as_schedule
    from dtlab.units.unit07.judging import loss_of

    module = filled(given["kind"], given["layers"], given["state"])
    log: list[str] = []
    graphs: list[int] = []
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    with finished_calls(*FINISHED, refuse=True) as finished:
        fn(
            as_schedule(given["rows"]),
            _noting(module, log, graphs),
            given["sizes"],
            given["width"],
            given["inputs"] if rank == 0 else None,
            given["targets"] if rank == last else None,
            loss_of,
        )
    return {
        "gradients": [one.grad for one in module.parameters()],
        "log": "".join(log),
        "graphs": graphs,
        "finished": sorted(finished),
    }


def _noting(module: nn.Module, log: list[str], graphs: list[int]) -> nn.Module:
    """The module, which writes F and B into `log`, and into `graphs` at each F how many live."""
    import weakref

    import torch

    class Graph:
        """Lives as long as the graph of a forward."""

    living: weakref.WeakSet[Graph] = weakref.WeakSet()

    class Mark(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, output: Tensor) -> Tensor:
            log.append("F")
            graphs.append(len(living))
            ctx.graph = Graph()
            living.add(ctx.graph)
            return output.view_as(output)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            log.append("B")
            return gradients[0]

    class Noting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return Mark.apply(self.inner(x))  # type: ignore[no-any-return, no-untyped-call]

    return Noting()


# The part ----------------------------------------------------------------------------------------

_LIMIT = 3.0  # seconds
_NONE = 1e-6  # times a gradient: as good as nothing
_OWN = 1  # graphs: that of the last microbatch, which a local name may still have


@dataclass(frozen=True)
class Running(Faulty):
    """`fn(schedule, module, sizes, width, inputs, targets, loss)` on a stage of ours."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    schedule: Schedule
    name: str
    sizes: tuple[int, ...]
    width: int
    topic: str = "result"

    def __str__(self) -> str:
        return f"{self.name} with microbatches of {', '.join(map(str, self.sizes))} samples"

    @property
    def guilty(self) -> str:
        """See `Faulty`: of a hang the criterion too."""
        return self.topic

    def shows(self, criterion: str) -> bool:
        of_turns = self.topic == "turns" and criterion in ("order", "waits", "memory")
        return self.topic in ("result", criterion) or of_turns

    @property
    def batch(self) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs and targets, by microbatch."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        inputs, targets = torch.randn(2, sum(self.sizes), self.width, generator=draw).unbind()
        sizes = list(self.sizes)
        return list(torch.split(inputs, sizes)), list(torch.split(targets, sizes))

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        inputs, targets = self.batch
        net = stage_net(self.width, 6)
        return {
            "rows": [[str(action) for action in row] for row in self.schedule],
            "kind": net.kind,
            "layers": net.sizes,
            "state": net.state(self.seed + rank),
            "sizes": list(self.sizes),
            "width": self.width,
            "inputs": inputs if rank == 0 else None,
            "targets": targets if rank == world_size - 1 else None,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        return execute(fn, given)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        net = stage_net(self.width, 6)
        modules = [net.module(self.seed + rank) for rank in range(len(results))]
        wanted = one_process(modules, *self.batch)
        for rank, each in enumerate(wanted):
            for got, right in zip(results[rank]["gradients"], each, strict=True):
                if got is None or not close(got, right):
                    scaled = _scaled([one["gradients"] for one in results], wanted)
                    yield self.topic, f"rank {rank}: {self._how(got, right, scaled)}"
                    return
        if self.topic == "turns":
            yield from self._course(results)

    def _how(self, got: Tensor | None, right: Tensor, scaled: str) -> str:
        """What is wrong with a gradient; `scaled` says if they all have one factor on a rank."""
        if got is None:
            return "a parameter has no gradient."
        factors = {
            len(self.sizes): "of the sum over the microbatches, not of the mean",
            sum(self.sizes) / len(self.sizes): "of the losses times their samples, "
            "divided by the number of microbatches",
            sum(self.sizes): "of the sum over the samples",
        }
        for factor, words in factors.items():
            if close(got, right * factor):
                return f"gradients are those {words}."
        if scaled:
            return scaled
        if self.topic == "uneven":
            return "gradients are not those of the mean over all samples. What does each count?"
        if self.topic == "any":
            return (
                "gradients are not those of one process. Ranks take microbatches in different "
                "orders here: which message is whose?"
            )
        return "gradients are not those of one process."

    def _course(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """What was done in which order, and what was left of it."""
        for rank, (row, seen) in enumerate(zip(self.schedule, results, strict=True)):
            listed, done = "".join(action.kind for action in row), str(seen["log"])[:200]
            if done != listed:
                yield "order", f"rank {rank} does {done}, and its list says {listed}."
                break
        for rank, seen in enumerate(results):
            done, graphs = str(seen["log"]), list(map(int, seen["graphs"]))
            forwards = [place for place, kind in enumerate(done) if kind == "F"]
            balance = [0, *accumulate(1 if kind == "F" else -1 for kind in done)]
            for place, found in zip(forwards, graphs, strict=True):
                if found > balance[place] + _OWN:
                    yield (
                        "memory",
                        f"rank {rank}: when forward number {forwards.index(place) + 1} begins, "
                        f"{balance[place]} microbatches are in flight, and the graphs of {found} "
                        "are still there. Who has their outputs or losses?",
                    )
                    return


def _scaled(results: Sequence[Sequence[Tensor | None]], wanted: Sequence[Sequence[Tensor]]) -> str:
    """What is said where a rank's gradients are the right ones times a number; else empty."""
    factors = []
    for found, right in zip(results, wanted, strict=True):
        each = [one for one in found if one is not None]
        if len(each) < len(right):
            return ""
        factor = float((each[-1] * right[-1]).sum() / right[-1].square().sum())
        if abs(factor) < _NONE or not all(
            close(a, b * factor) for a, b in zip(each, right, strict=True)
        ):
            return ""
        factors.append(factor)
    said = ", ".join(f"{factor:.3g} on rank {rank}" for rank, factor in enumerate(factors))
    return f"gradients are the right ones times {said}. What is scaled where it is scaled already?"


def _unwaited(seen: Seen) -> str:
    """A send for which nobody waits, under 1F1B; empty if there is none."""
    for one in of_topic(seen, "turns"):
        for event in one.trace.events if one.trace is not None else ():
            if event.name == "send" and not event.extra.get("blocked", True):
                peer = ", ".join(map(str, event.peers))
                return (
                    f"{one.trial.words()}: rank {event.rank} does not wait for a send to rank "
                    f"{peer}. When it returns, its tensor may go before it has left."
                )
    return ""


def shuffled(draw: random.Random, count: int) -> Schedule:
    """Two ranks, each with another order of microbatches, forward and backward."""
    numbers = range(count)
    rows: list[list[Action]] = []
    forwards, backwards = draw.sample(numbers, count), draw.sample(numbers, count)
    rows.append([Action(0, "F", k) for k in forwards] + [Action(0, "B", k) for k in backwards])
    others = draw.sample(numbers, count)
    rows.append([Action(1, kind, k) for k in others for kind in "FB"])
    different = others[0] != forwards[0] and backwards[0] != others[0]
    return Schedule(rows) if different else shuffled(draw, count)


def _trials(seed: int) -> list[Trial]:
    """GPipe, where all messages go one way, then all the other; a short one; 1F1B; any order."""
    draw = random.Random(seed)

    def case(schedule: Schedule, name: str, topic: str, short: bool = False) -> Running:
        size, count = draw.randint(6, 7), max(action.microbatch for action in schedule[0]) + 1
        sizes = (*[size] * (count - 1), draw.randint(1, size - 2) if short else size)
        return Running(draw.randrange(10**6), schedule, name, sizes, draw.randint(3, 6), topic)

    return [
        Trial(3, [case(gpipe(3, draw.randint(3, 5)), "GPipe", "result")], limit=_LIMIT),
        Trial(1, [case(gpipe(1, 3), "GPipe", "result")], limit=_LIMIT),
        Trial(2, [case(gpipe(2, 3), "GPipe", "uneven", short=True)], limit=_LIMIT),
        Trial(3, [case(one_f_one_b(3, draw.randint(7, 8)), "1F1B", "turns")], limit=_LIMIT),
        Trial(2, [case(shuffled(draw, 4), "another order on each rank", "any")], limit=_LIMIT),
    ]


PART = Part(
    name="07/run",
    level=2,
    title="The executor",
    minutes=30,
    difficulty=3,
    stretch=True,
    check=Check(
        trials=_trials,
        compiles=True,  # the first backward from a given gradient imports as much
        rules=(
            rule("result", 3, "GPipe: the gradients of one process"),
            rule_of("uneven", "uneven", 1, "each sample counts alike", "result"),
            rule_of("turns", "turns", 2, "1F1B comes to its end", "result"),
            rule_of("turns", "order", 1, "in the order of the list", "turns"),
            rule_of("turns", "waits", 1, "returns when all is sent", "turns", also=_unwaited),
            rule_of("turns", "memory", 2, "gone after its backward", "turns"),
            rule_of("any", "any", 1, "any order of microbatches", "result"),
        ),
    ),
    reference="dtlab.parallel.pipeline.run_schedule",
)
