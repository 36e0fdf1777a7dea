"""Trains for some steps with a learner's function, and checks gradients and communication.

A `Training` is a case: it draws a model and batches, and each rank trains on its own batches.

    step:   zero the gradients ─► forward, backward on the rank's own batch ─► average ─► SGD
            └─────────────── the learner's function runs somewhere in here ─────┘

`faults` compares every gradient with the mean over the ranks, which one process computes here.
`wrong_step` reads from the trace what one rank sent in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab import torch_internals
from dtlab.checks.comparison import difference, same
from dtlab.checks.functions.criteria import Fault, Noted
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import Groups, group_argument, groups_in_words
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.trials import Observation
from dtlab.checks.functions.unseen import FOREIGN, Reducing, inside_marks, marked_waits
from dtlab.checks.functions.values import sgd_step
from dtlab.checks.words import Explanation, amount

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dtlab.trace import Event

__all__ = [
    "LOST_BY",
    "Arguments",
    "Step",
    "Training",
    "amounts",
    "begin",
    "steps_of",
    "train",
    "wrong_gradient",
]

FINISHED = (
    "dtlab.collectives",
    "dtlab.simple",
    "dtlab.parallel.data.buckets",
    "dtlab.parallel.data.data_parallel",
    "dtlab.parallel.data.local_sgd",
    "torch.nn.parallel.distributed",
    torch_internals.REPLICATE,
    "torch.distributed.algorithms.model_averaging.utils",
)
_SAMPLES = 3  # in a rank's batch
_LUCK = "waited for"  # a fault that loses "gradients" even if all numbers are right
LOST_BY = _LUCK, "gradients", FOREIGN  # faults that lose "gradients"


@dataclass(frozen=True)
class Arguments:
    """The model and the batches of one rank, and all groups."""

    model: tuple[Any, ...]  # see `modules.filled`
    batches: list[tuple[Tensor, Tensor]]
    bucket_bytes: int
    groups: Groups


@dataclass(frozen=True)
class Training(Reducing):
    """A case: `topic` is the criterion of its gradients, `hint` is shown if that is lost."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {}

    seed: int
    net: Net
    topic: str = "gradients"
    steps: int = 2
    groups: Groups = ()
    bucket_bytes: int = 0
    hint: str = ""

    def __str__(self) -> str:
        words = [self.net.words]
        words += [f"buckets of {self.bucket_bytes} bytes"] if self.bucket_bytes else []
        return ", ".join(words + ([groups_in_words(self.groups)] if self.groups else []))

    def given(self, rank: int, world_size: int) -> Arguments:
        return Arguments(
            (self.net.kind, self.net.sizes, self.net.state(self.seed), rank % 2 == 1),
            [self.batch(rank, step) for step in range(self.steps)],
            self.bucket_bytes,
            self.groups,
        )

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """The inputs and targets of one rank in one step."""
        import torch

        generator = torch.Generator().manual_seed((self.seed * 1009 + rank) * 97 + step)
        sizes = self.net.sizes
        inputs = torch.randn(_SAMPLES, sizes[0], generator=generator)
        return inputs, 2 * torch.randn(_SAMPLES, sizes[-1], generator=generator)

    def advice(self, trouble: str) -> str:
        return self.hint or (_advice_on_groups(trouble) if self.groups else "")

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """Yields the first wrong step and rank of the first group that has one."""
        for members in self.groups or (tuple(range(len(results))),):
            for step, (names, local) in enumerate(self.averaged(members, len(results))):
                got = {member: results[member]["gradients"][step] for member in members}
                sentence = _wrong_step(got, names, local)
                if sentence:
                    words = f"step {step + 1}, " + sentence
                    advice = self.advice(words)
                    yield self.topic, words + f"\n{advice}" * bool(advice)
                    return

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        yield from super().by_trace(observation)
        for step in steps_of(observation):
            for name, words in (*_not_waited_for(step), *step.case.wrong_step(step)):
                yield name, f"{step.words}: {words}"

    def wrong_step(self, step: Step) -> Iterator[Fault]:
        """Yields the faults in the communication of one rank in one step."""
        yield from ()

    def averaged(
        self, members: Sequence[int], ranks: int
    ) -> Iterator[tuple[list[str], dict[int, list[Tensor | None]]]]:
        """Yields for each step the parameters' names and the local gradients of all ranks.

        Ranks outside the group are included, because a mistake may have used their gradients.
        """
        module = self.net.module(self.seed)
        for step in range(self.steps):
            local = {rank: self._gradients(module, rank, step) for rank in range(ranks)}
            yield [name for name, _ in module.named_parameters()], local
            sgd_step(module, [local[member] for member in members])

    def _gradients(self, module: nn.Module, rank: int, step: int) -> list[Tensor | None]:
        module.zero_grad()
        _loss(module, *self.batch(rank, step)).backward()
        return [None if part.grad is None else part.grad.clone() for part in module.parameters()]

    @cached_property
    def gradients(self) -> list[tuple[int, str]]:
        """Bytes and dtype of each existing gradient, beginning with the last parameter."""
        gradients = self._gradients(self.net.module(self.seed), 0, 0)[::-1]
        return [(grad.nbytes, str(grad.dtype)) for grad in gradients if grad is not None]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each existing gradient, beginning with the last parameter."""
        return [size for size, _ in self.gradients]

    @property
    def reduced(self) -> list[int]:
        return [sum(self.sizes)] * self.steps


# What each rank runs -----------------------------------------------------------------------------


def begin(given: Arguments) -> tuple[nn.Module, dict[str, Any]]:
    """Runs on every rank: returns its model, and the keyword `group` if there are groups."""
    from dtlab.checks.functions.modules import filled

    return filled(*given.model), group_argument(given.groups)


def train(given: Arguments, start: Callable[..., Callable[[], Any]]) -> dict[str, Any]:
    """Runs on every rank: calls `start(module, group=...)`, and its return value in each step.

    The returned function is called after backward. The result has the gradients of each step.
    """
    from dtlab.trace import span

    module, group = begin(given)
    noted = []
    with finished_calls(*FINISHED, refuse=True) as finished, marked_waits():
        after = start(module, **group)
        for inputs, targets in given.batches:
            module.zero_grad()
            loss = _loss(module, inputs, targets)
            with span("step"):
                with span("backward"):
                    loss.backward()
                after()
            gradients = [parameter.grad for parameter in module.parameters()]
            noted.append([None if grad is None else grad.detach().clone() for grad in gradients])
            sgd_step(module, [gradients])
    return {"gradients": noted, "finished": sorted(finished)}


def _loss(module: nn.Module, inputs: Tensor, targets: Tensor) -> Any:
    return (module(inputs) - targets).square().mean()


# Mistakes that the values of the gradients show --------------------------------------------------

_MEAN = "It should be the mean over the ranks."
_OWN_GRADIENT = (
    "No all-reduce left its result in this `.grad`. If you reduced a copy or a concatenation, "
    "write the result back. If you reduced the parameter: its gradient is `parameter.grad`."
)


def _wrong_step(
    got: Mapping[int, Sequence[Tensor | None]],
    names: Sequence[str],
    own: Mapping[int, Sequence[Tensor | None]],
) -> str:
    """A message about the members' gradients of one step; empty if they are right."""
    for rank, gradients in got.items():
        for place, name in enumerate(names):
            every = {other: parts[place] for other, parts in own.items()}
            sentence = wrong_gradient(gradients[place], every, list(got), rank)
            if sentence:
                return f"rank {rank}: the gradient of {name} " + sentence
    first, *others = got
    for rank in others:
        for place, name in enumerate(names):
            if not same(got[rank][place], got[first][place]):
                return (
                    f"{name}: right on ranks {first} and {rank} up to rounding, but not the same "
                    "bits, so their copies of the model drift apart. Every rank must add up in "
                    "the same order, as one all-reduce does."
                )
    return ""


def wrong_gradient(
    got: Tensor | None, own: Mapping[int, Tensor | None], members: Sequence[int], rank: int
) -> str:
    """A message unless `got` of this rank is the mean over `members`; else empty.

    `own` holds every rank's local gradient, or None if it has none.
    """
    local = [grad for member, grad in own.items() if member in members and grad is not None]
    if not local:
        return "" if got is None else "was None, and should be None afterwards."
    if got is None:
        return "is None now: it has been lost."
    total, count = sum(local[1:], local[0]), len(members)
    if got.shape == total.shape and got.dtype != total.dtype:
        return f"has the dtype {got.dtype}, not {total.dtype}."
    every = [grad for grad in own.values() if grad is not None]
    over_all = sum(every[1:], every[0]) / len(every)
    known: dict[str, Any] = {
        "is the sum over the ranks, not the mean": (total, ""),
        "is divided twice by the number of ranks": (total / count**2, ""),
        Explanation(f"is rank {members[0]}'s own, not the mean", "is another rank's own"): (
            local[0], ""
        ),
        "is the mean over all ranks, not over those of the group": (over_all, ""),
    }  # fmt: skip
    if own[rank] is not None:
        known = {"is the rank's own": (own[rank], _OWN_GRADIENT), **known}
    return difference(got, total / count, known, hint=_MEAN)


def _advice_on_groups(trouble: str) -> str:
    """Advice on mistakes that show only with groups."""
    line, give = trouble.partition("\n")[0], "Pass `group` to every call of torch.distributed."
    if "'group'" in line:
        return "Your function takes no `group`: write group=None as its last argument."
    if "not part of the group" in line or "src" in line:
        return "In a group, src= is a global rank, and group_src= counts within the group."
    if "initial value" in line:
        return f"{give} Send the first member's parameters: group_src=0 counts in the group."
    return f"{give} And divide by dist.get_world_size(group)."


# What each rank sent in each step, from the trace ------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What one rank did in one step of one case, in order."""

    run: Observation
    case: Training
    rank: int
    number: int
    events: Sequence[Event]

    @property
    def words(self) -> str:
        """The place of the step: "4 ranks, a chain of layers, step 2, rank 0"."""
        case = self.run.trial.cases.index(self.case)
        return f"{self.run.trial.words(case)}, step {self.number + 1}, rank {self.rank}"

    @cached_property
    def all_reduces(self) -> list[Event]:
        """The all-reduces, in the order in which they began."""
        return [
            event for event in self.events if (event.kind, event.name) == ("comm", "all_reduce")
        ]

    @property
    def others(self) -> str:
        """The names of all other collectives that the rank called; empty if there were none."""
        names = {event.name for event in self.events if event.kind == "comm"} - {"all_reduce"}
        return " and ".join(f"dist.{name}" for name in sorted(names))

    def sent(self, before: float = inf) -> int:
        """Bytes of the all-reduces that began before this time."""
        return sum(event.bytes for event in self.all_reduces if event.start < before)

    def marks(self, name: str) -> list[Event]:
        """The marks of this name: `wait`, `backward`, or a `layer` of a `Marked` model.

        When the last `layer` begins, all gradients except those of the first layer are ready.
        """
        return [event for event in self.events if event.name == name]


def steps_of(run: Observation) -> Iterator[Step]:
    """Yields every step of every rank: the events inside one mark `step`."""
    cases = [case for case in run.trial.cases if isinstance(case, Training)]
    numbered = [(case, number) for case in cases for number in range(case.steps)]
    for rank in range(run.trial.world_size):
        steps = inside_marks(run.trace, rank, "step")
        for (case, number), events in zip(numbered, steps, strict=False):
            yield Step(run, case, rank, number, events)


def amounts(first: int, second: int) -> tuple[str, str]:
    """Formats two different numbers of bytes, exactly if rounding would make them equal."""
    if amount(first) != amount(second):
        return amount(first), amount(second)
    return f"{first} bytes", f"{second} bytes"


def _not_waited_for(step: Step) -> Iterator[Fault]:
    """Yields a fault if a rank does not wait for an all-reduce, even if the result is right."""
    if step.case.topic == "gradients" and len(step.marks("wait")) < len(step.all_reduces):
        yield (
            _LUCK,
            "the rank does not wait for a dist.all_reduce with async_op=True: its result may not "
            "be ready. Store the handle that it returns, and call wait() on it, even if "
            "is_completed() returned True.",
        )
