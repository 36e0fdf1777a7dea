"""What parts of Level II share: schedules that are read, searched for faults, and carried out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.criteria import Fault, Faulty, Noted, Seen, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.trials import Trial
from dtlab.grading.checking.values import close
from dtlab.schedules import Action, Schedule, as_schedule, find_faults, grid, stage_ranks
from dtlab.schedules import Fault as Flaw
from dtlab.schedules.actions import clock

if TYPE_CHECKING:
    from torch import Tensor, nn

LIMIT = 2.0  # seconds for what runs without ranks: a right answer takes a hundredth


# Schedules that an answer returns, read as the library reads them, and searched for faults -------
#
# fn(p, m) ──► rows of actions ──► complete? ──► can ranks do it? ──► what the part asks for
#                                                then: on real ranks, see below

_FINISHED = ("dtlab.schedules.generators", "torch.distributed.pipelining.schedules")
_MOST, _SAID = 5_000, 3  # actions of a schedule; flaws that a message tells
_FORM = 'Return a list for each rank, with actions like "2F0" or (2, "F", 0) in it.'
_HALVES = re.compile(r", nor \d+I\d+ and \d+W\d+")


@dataclass(frozen=True)
class Planned(Faulty):
    """`fn(stages, count)`, a schedule; `more` says what else is wrong with one that can run.

    With the topic "edges", what makes a schedule incomplete or impossible belongs to it.
    """

    finished: ClassVar[tuple[str, ...]] = _FINISHED
    alone = True

    stages: int
    count: int
    more: Callable[[Schedule, int, int], Iterator[Fault]]
    topic: str = "complete"

    def __str__(self) -> str:
        return f"{_counted(self.stages, 'stage')}, {_counted(self.count, 'microbatch', 'es')}"

    def shows(self, criterion: str) -> bool:
        return (criterion == "edges") == (self.topic == "edges")

    def given(self, rank: int, world_size: int) -> tuple[int, int]:
        return self.stages, self.count

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[int, int]) -> dict[str, Any]:
        with finished_calls(*_FINISHED, refuse=True) as finished:
            found = fn(*given)
        return {"found": written(found), "finished": sorted(finished)}

    def opened(self, result: Any) -> Noted:
        found = result["found"]
        return Noted({**result, "found": found if type(found) is str else as_schedule(found)})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        schedule = results[0]["found"]
        lacking = self._lacking(schedule)
        if lacking:
            few = self.topic == "edges" and self.count < self.stages
            hint = "is a warm-up longer than there are microbatches?\n" if few else ""
            yield self.topic, hint + lacking
            return
        flaws = find_faults(schedule, self.stages, self.count)
        if flaws:
            yield "edges" if self.topic == "edges" else "runs", _drawn(schedule, flaws)
            return
        yield from self.more(schedule, self.stages, self.count)

    def _lacking(self, schedule: Schedule | str) -> str:
        """What is missing, too often, or in another rank's list; empty if nothing is."""
        if isinstance(schedule, str):
            return schedule[:300]
        if len(schedule) != self.stages:
            lists = _counted(len(schedule), "list")
            return f"{lists} for {_counted(self.stages, 'rank')}: rank r has stage r."
        flaws = [*_elsewhere(schedule)]
        for flaw in find_faults(schedule, self.stages, self.count):
            if flaw.kind not in ("order", "wait"):  # the part does not ask for halves
                flaws.append(flaw._replace(message=_HALVES.sub("", flaw.message)))
        return _drawn(schedule, flaws) if flaws else ""


def written(found: Any) -> list[list[str]] | str:
    """The actions of a schedule as text, row by row; words where it is no schedule."""
    if isinstance(found, str) or not isinstance(found, Iterable):
        return f"what is returned is {_named(found)}. {_FORM}"
    rows = list(found)
    odd = [row for row in rows if isinstance(row, str) or not isinstance(row, Iterable)]
    if odd:
        return f"what is returned for a rank is {_named(odd[0])}. {_FORM}"
    rows = [list(row) for row in rows]
    if sum(map(len, rows)) > _MOST:
        return f"there are {sum(map(len, rows)):,} actions in what is returned. Where do they end?"
    try:
        texts = [
            [one if isinstance(one, str) else "{:d}{}{:d}".format(*Action(*one)) for one in row]
            for row in rows
        ]
        return [[str(one) for one in row] for row in as_schedule(texts)]
    except (TypeError, ValueError, IndexError) as error:
        why = str(error) if "no action" in str(error) else "something in it is no action."
        return f"{why} {_FORM}"


def slow(schedule: Schedule, stages: int, count: int) -> Iterator[Fault]:
    """Says that the last action ends too late, every action being one slot."""
    slots = 1 + max(row[-1] for row in clock(schedule).slots)
    least = 2 * (count + stages - 1)
    if slots != least:
        yield (
            "time",
            f"the last action ends after {slots} slots, and 2(m + p - 1) = {least} are enough. "
            f"Which rank waits, and for what?\n{grid(schedule)}",
        )


def _drawn(schedule: Schedule, flaws: Sequence[Flaw]) -> str:
    """What is wrong, above the grid in which it is marked."""
    said = [flaw.message for flaw in flaws[:_SAID]]
    said += [f"And {len(flaws) - _SAID} more."] * (len(flaws) > _SAID)
    marked = {place for flaw in flaws for place in flaw.places}
    return "\n".join([*said, grid(schedule, marked=marked)])


def _elsewhere(schedule: Schedule) -> Iterator[Flaw]:
    """Actions of other stages, and halves of a backward."""
    for rank, row in enumerate(schedule):
        for index, action in enumerate(row):
            if action.kind in "IW":
                what = f"{action} on rank {rank} is half a backward: write B, the whole of it."
                yield Flaw("unknown", what, ((rank, index),))
            elif action.stage != rank:
                what = f"rank {rank} does {action}: rank r has stage r."
                yield Flaw("placement", what, ((rank, index),))


def _counted(count: int, one: str, plural: str = "s") -> str:
    return f"{count} {one}{plural * (count != 1)}"


def _named(found: Any) -> str:
    if isinstance(found, str):
        return "text"
    return "None" if found is None else f"a {type(found).__name__}"


# A schedule of an answer, carried out by the library's executor on real ranks of ours ------------
#
# rank r  its stages, drawn ── run_schedule(schedule) ──► gradients ──► are they those of one
#                                                                       process?
# The answer's code does not run any more: its schedule came back as text, and passed as valid.

COMMON = (
    rule("complete", 2, "each action once, in the list of its rank"),
    rule("runs", 2, "ranks do it, to the gradients of one process", "complete"),
)
_WIDTH, _HIDDEN = 4, 5


def stage_net(width: int, hidden: int) -> Net:
    """What a stage computes: two layers, from `width` to `width`."""
    return Net("chain", (width, hidden, width), "two layers")


def batch_of(seed: int, sizes: Sequence[int], width: int) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and targets, by microbatch."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(2, sum(sizes), width, generator=draw).unbind()
    return list(torch.split(inputs, list(sizes))), list(torch.split(targets, list(sizes)))


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

    topic = "runs"
    guilty = ""  # if it crashes, the machine was too busy

    schedule: Schedule
    seed: int

    def __str__(self) -> str:
        return "run_schedule with your lists"

    def shows(self, criterion: str) -> bool:
        return criterion == "runs"

    @property
    def batch(self) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs and targets, by microbatch."""
        others = max(action.microbatch for action in self.schedule[0])
        return batch_of(self.seed, [2] * others + [3], _WIDTH)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        inputs, targets = self.batch
        net = stage_net(_WIDTH, _HIDDEN)
        stages = sorted({action.stage for action in self.schedule[rank]})
        return {
            "rows": [[str(action) for action in row] for row in self.schedule],
            "kind": net.kind,
            "sizes": net.sizes,
            "states": [(stage, net.state(self.seed + stage)) for stage in stages],
            "inputs": inputs,
            "targets": targets,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> Any:
        return fn(given)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        net, homes = stage_net(_WIDTH, _HIDDEN), stage_ranks(self.schedule)
        modules = [net.module(self.seed + stage) for stage in range(len(homes))]
        by_stage = one_process(modules, *self.batch)
        for rank, result in enumerate(results):
            wanted = [
                gradient
                for home, gradients in zip(homes, by_stage, strict=True)
                for gradient in gradients
                if home == rank
            ]
            pairs = zip(result["gradients"], wanted, strict=True)
            if not all(close(got, right) for got, right in pairs):
                yield "runs", f"the gradients of rank {rank} are not those of one process."


def train(given: dict[str, Any]) -> dict[str, Any]:
    """On a rank: a step by the library's executor, as `Carried` gives it."""
    from dtlab.grading.checking.modules import filled
    from dtlab.parallel.pipeline import PipelineStage, run_schedule

    stages = [
        PipelineStage(filled(given["kind"], given["sizes"], state), stage)
        for stage, state in given["states"]
    ]
    result = run_schedule(given["rows"], stages, given["inputs"], given["targets"], loss_of)
    gradients = [one.grad for stage in stages for one in stage.module.parameters()]
    return {"gradients": gradients, "peak": result.peak_in_flight}


def carried_out(seen: Seen) -> list[tuple[Trial, Callable[..., Any]]]:
    """The first schedule of an answer on real ranks, once it is one that can run."""
    case = seen[0].trial.cases[0]
    if seen[0].error is not None or not isinstance(case, Planned):
        return []
    results = seen[0].results[0]
    if any(name in ("complete", "runs") for name, _ in case.faults(results)):
        return []
    seed = case.stages + case.count
    return [(Trial(case.stages, [Carried(results[0]["found"], seed)]), train)]
