"""Shared code of Level II: reads schedules, searches them for faults, and runs them on ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import close
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.trials import Trial
from dtlab.predict import peak_in_flight
from dtlab.predict.units import counted
from dtlab.schedules import Action, Schedule, as_schedule, find_faults, grid, stage_ranks
from dtlab.schedules import Fault as Flaw
from dtlab.schedules.actions import clock

if TYPE_CHECKING:
    from torch import Tensor, nn

LIMIT = 2.0  # seconds for a call without ranks: a right answer takes a hundredth of that
LIBRARY_LIMIT = 30.0  # seconds for a step of the library's own code, which takes a tenth of one


# Schedules that an answer returns: read like the library's own, and searched for faults ----------
#
# fn(p, m) ──► rows of actions ──► complete? ──► can ranks run it? ──► the part's own criteria
#                                                then: on real ranks, see below

_FINISHED = (
    "dtlab.simple", "dtlab.schedules.generators", "torch.distributed.pipelining.schedules",
)  # fmt: skip
_MOST, _SHOWN = 5_000, 3  # the most actions of a schedule; the most flaws in a message
_LINE = 66  # characters of a grid's line that fit into a report
_FORM = 'Return a list for each rank, with actions like "2F0" or (2, "F", 0) in it.'
_HALVES = re.compile(r", nor \d+I\d+ and \d+W\d+")


@dataclass(frozen=True)
class Planned(Faulty):
    """Calls `fn(stages, count)` for a schedule; `more` checks one that can run.

    With the topic "edges", an incomplete or impossible schedule loses that criterion.
    """

    finished: ClassVar[tuple[str, ...]] = _FINISHED
    alone = True

    stages: int
    count: int
    more: Callable[[Schedule, int, int], Iterator[Fault]]
    topic: str = "complete"

    def __str__(self) -> str:
        microbatches = counted(self.count, "microbatch", "microbatches")
        return f"{counted(self.stages, 'stage')}, {microbatches}"

    def shows(self, criterion: str) -> bool:
        return (criterion == "edges") == (self.topic == "edges")

    def given(self, rank: int, world_size: int) -> tuple[int, int]:
        return self.stages, self.count

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[int, int]) -> dict[str, Any]:
        with finished_calls(*_FINISHED, refuse=True) as finished:
            returned = fn(*given)
        return {"found": written(returned), "finished": sorted(finished)}

    def opened(self, result: Any) -> Noted:
        rows = result["found"]
        return Noted({**result, "found": rows if type(rows) is str else as_schedule(rows)})

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
        """Says which actions are missing, doubled, or in another rank's list; empty if none."""
        if isinstance(schedule, str):
            return schedule[:300]
        if len(schedule) != self.stages:
            lists = counted(len(schedule), "list")
            swapped = " Or are the two arguments swapped?" * (len(schedule) == self.count)
            return f"{lists} for {counted(self.stages, 'rank')}: rank r has stage r.{swapped}"
        flaws = [*_elsewhere(schedule)]
        for flaw in find_faults(schedule, self.stages, self.count):
            if flaw.kind not in ("order", "wait"):  # this part does not use I and W
                flaws.append(flaw._replace(message=_HALVES.sub("", flaw.message)))
        numbers = {action.microbatch for row in schedule for action in row}
        if flaws and numbers == set(range(1, self.count + 1)):
            last = self.count - 1
            return f"microbatches count from 0: 0 to {last}.\n{_drawn(schedule, flaws)}"
        return _drawn(schedule, flaws) if flaws else ""


def written(returned: Any) -> list[list[str]] | str:
    """The actions of a schedule as text, row by row; a message if it is not a schedule."""
    if isinstance(returned, str) or not isinstance(returned, Iterable):
        return f"the return value is {_named(returned)}. {_FORM}"
    rows = list(returned)
    odd = [row for row in rows if isinstance(row, str) or not isinstance(row, Iterable)]
    if odd:
        return f"the return value for a rank is {_named(odd[0])}. {_FORM}"
    rows = [list(row) for row in rows]
    if sum(map(len, rows)) > _MOST:
        return f"the return value has {sum(map(len, rows)):,} actions. Where do they end?"
    try:
        texts = [
            [
                each if isinstance(each, str) else "{:d}{}{:d}".format(*Action(*each))
                for each in row
            ]
            for row in rows
        ]
        return [[str(action) for action in row] for row in as_schedule(texts)]
    except (TypeError, ValueError, IndexError) as error:
        why = str(error) if "no action" in str(error) else f"{_odd_action(rows)} is no action."
        return f"{why} {_FORM}"


def _odd_action(rows: Sequence[Sequence[Any]]) -> str:
    """The first entry that is neither text nor three values, with its place."""
    for rank, row in enumerate(rows):
        for index, each in enumerate(row):
            fields = [*each] if isinstance(each, Iterable) else []
            if not isinstance(each, str) and len(fields) != 3:
                return f"entry {index} of list {rank}, {str(each)[:40]},"
    return "one of the entries"


def slow(schedule: Schedule, best: Schedule) -> Iterator[Fault]:
    """Yields a fault if the last action ends later than in `best`; an action takes one slot."""
    slots, wanted = clock(schedule).slots, clock(best).slots
    ends, least = (1 + max(row[-1] for row in each) for each in (slots, wanted))
    if ends != least:
        right = dict(_numbered(best, wanted))  # a schedule may order microbatches differently
        slot, (rank, index), enough = min(
            (slots[rank][index], (rank, index), right[key][1])
            for key, ((rank, index), slot) in _numbered(schedule, slots)
            if slot > right[key][1]
        )
        yield (
            "time",
            f"the last action ends after {ends} slots, but 2(m + p - 1) = {least} are enough. "
            f"The first action that comes late is {schedule[rank][index]}, in slot {slot}, not "
            f"{enough}: what does rank {rank} do or wait for before it?\n"
            f"{part_of_grid(schedule, [(rank, index)])}",
        )


def _numbered(
    schedule: Schedule, slots: Sequence[Sequence[int]]
) -> Iterator[tuple[tuple[int, str, int], tuple[tuple[int, int], int]]]:
    """Yields (rank, kind, n) for a rank's n-th action of a kind, and its place and slot."""
    for rank, row in enumerate(schedule):
        counts: Counter[str] = Counter()
        for index, action in enumerate(row):
            yield (rank, action.kind, counts[action.kind]), ((rank, index), slots[rank][index])
            counts[action.kind] += 1


def part_of_grid(schedule: Schedule, marked: Collection[tuple[int, int]]) -> str:
    """The grid around the first of the `marked` actions, no wider than a report."""
    return grid(schedule, marked=marked, width=_LINE)


def first_above(row: Sequence[Action], most: int) -> int:
    """The index of the first action of a rank after which it holds over `most` microbatches."""
    return next(n for n in range(len(row)) if peak_in_flight([row[: n + 1]])[0] > most)


def _drawn(schedule: Schedule, flaws: Sequence[Flaw]) -> str:
    """The messages of flaws, above the grid in which their actions are marked."""
    messages = [flaw.message for flaw in flaws[:_SHOWN]]
    messages += [f"And {len(flaws) - _SHOWN} more."] * (len(flaws) > _SHOWN)
    marked = {place for flaw in flaws for place in flaw.places}
    return "\n".join([*messages, part_of_grid(schedule, marked)])


def _elsewhere(schedule: Schedule) -> Iterator[Flaw]:
    """Yields the actions of other stages, and the halves I and W of a backward."""
    for rank, row in enumerate(schedule):
        swapped = len(row) > 2 and all(action.microbatch == rank for action in row)
        for index, action in enumerate(row):
            if action.kind in "IW":
                message = f"{action} on rank {rank} is half a backward: write B, the whole of it."
                yield Flaw("unknown", message, ((rank, index),))
            elif action.stage != rank:
                message = f"rank {rank} does {action}: rank r has stage r."
                if swapped:
                    message += " An action begins with its stage and ends with its microbatch."
                yield Flaw("placement", message, ((rank, index),))


def _named(returned: Any) -> str:
    if isinstance(returned, str):
        return "text"
    return "None" if returned is None else f"a {type(returned).__name__}"


# An answer's schedule, which the library's executor runs on ranks --------------------------------
#
# rank r  its stages, drawn ── run_schedule(schedule) ──► gradients ──► are they those of one
#                                                                       process?
# The answer's code no longer runs: its schedule was returned as text, and it is valid.

COMMON = (
    rule("complete", 2, "each action occurs once, in the list of its rank"),
    rule("runs", 2, "ranks that run it get the gradients of one process", "complete"),
)
_WIDTH, _HIDDEN = 4, 5


def stage_net(width: int, hidden: int) -> Net:
    """The layers of a stage: two linear layers, from `width` over `hidden` to `width`."""
    return Net("chain", (width, hidden, width), "two layers")


def batch_of(seed: int, sizes: Sequence[int], width: int) -> tuple[list[Tensor], list[Tensor]]:
    """Draws inputs and targets, as one tensor per microbatch."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(2, sum(sizes), width, generator=draw).unbind()
    return list(torch.split(inputs, list(sizes))), list(torch.split(targets, list(sizes)))


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """The mean over the samples of squared errors, weighted by their targets."""
    return ((output - target).square() * (1 + target.square())).mean()


def one_process(
    modules: Sequence[nn.Module], inputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> list[list[Tensor]]:
    """The gradients of the mean loss over all samples of all microbatches, by stage."""
    import torch

    output = torch.cat(list(inputs))
    for module in modules:
        output = module(output)
    loss: Any = loss_of(output, torch.cat(list(targets)))
    loss.backward()
    return [
        [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        for module in modules
    ]


@dataclass(frozen=True)
class Carried(Faulty):
    """A training step with this schedule. Microbatches have two samples, the last one three."""

    topic = "runs"
    guilty = ""  # a crash means that the machine was too busy

    schedule: Schedule
    seed: int

    def __str__(self) -> str:
        return "run_schedule with your lists"

    def shows(self, criterion: str) -> bool:
        return criterion == "runs"

    @property
    def batch(self) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs and targets, as one tensor per microbatch."""
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
    """Runs on a rank: a step with the library's executor, from the arguments of `Carried`."""
    from dtlab.checks.functions.modules import filled
    from dtlab.parallel.pipeline import PipelineStage, run_schedule

    stages = [
        PipelineStage(filled(given["kind"], given["sizes"], state), stage)
        for stage, state in given["states"]
    ]
    result = run_schedule(given["rows"], stages, given["inputs"], given["targets"], loss_of)
    gradients = [each.grad for stage in stages for each in stage.module.parameters()]
    return {"gradients": gradients, "peak": result.peak_in_flight}


def carried_out(observations: Seen) -> list[tuple[Trial, Callable[..., Any]]]:
    """The trial that runs the first schedule of an answer on real ranks, if it is valid."""
    case = observations[0].trial.cases[0]
    if observations[0].error is not None or not isinstance(case, Planned):
        return []
    results = observations[0].results[0]
    if any(name in ("complete", "runs") for name, _ in case.faults(results)):
        return []
    seed = case.stages + case.count
    run = Carried(results[0]["found"], seed)
    return [(Trial(case.stages, [run], limit=LIBRARY_LIMIT), train)]
