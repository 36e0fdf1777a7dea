"""Some steps of data-parallel training with a learner's function, and what must come of them.

A `Training` is a `Case`: it draws a model and batches, has each rank train on its own ones, and
compares every gradient with the mean over the ranks, which one process computes here.

    step:   zero the gradients ─► forward, backward on the rank's own batch ─► average ─► SGD
            └───────────────────── the learner's function, wherever it belongs ───┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import Groups, groups_in_words, members_of
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.trials import Case, Observation
from dtlab.grading.checking.unseen import inside_marks
from dtlab.grading.checking.values import close, same_bits, sgd_step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dtlab.trace import Event

__all__ = [
    "OWN_GRADIENT",
    "Arguments",
    "Step",
    "Trained",
    "Training",
    "begin",
    "steps_of",
    "train",
    "trainings_of",
    "wrong_gradient",
]

FINISHED = (
    "dtlab.collectives",
    "dtlab.parallel.data.buckets",
    "dtlab.parallel.data.data_parallel",
    "dtlab.parallel.data.local_sgd",
    "torch.nn.parallel.distributed",
    "torch.distributed._composable.replicate",
    "torch.distributed.algorithms.model_averaging.utils",
)
_SAMPLES = 3  # in a rank's batch


@dataclass(frozen=True)
class Arguments:
    """What one rank trains, and on what: `batches` are its own ones, `members` its group."""

    kind: str
    sizes: tuple[int, ...]
    state: list[Tensor]
    turned: bool
    batches: list[tuple[Tensor, Tensor]]
    bucket_bytes: int
    groups: Groups
    members: tuple[int, ...]


@dataclass(frozen=True)
class Trained:
    """What one rank saw: the gradients after each step, and which finished code was called."""

    gradients: list[list[Tensor | None]]
    finished: frozenset[str]


@dataclass(frozen=True)
class Training(Case):
    """`topic` says what it is there to show, for the judges; `steps` it takes."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    net: Net
    topic: str = "gradients"
    steps: int = 2
    groups: Groups = ()
    bucket_bytes: int = 0

    def __str__(self) -> str:
        words = [self.net.words]
        words += [f"buckets of {self.bucket_bytes} bytes"] if self.bucket_bytes else []
        return ", ".join(words + ([groups_in_words(self.groups)] if self.groups else []))

    # ------------------------------------------------------------------ what ranks do

    def members(self, rank: int, world_size: int) -> tuple[int, ...]:
        """The global ranks that average together with `rank`."""
        return members_of(self.groups, rank, world_size)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """What one rank trains on in one step: inputs and targets."""
        import torch

        generator = torch.Generator().manual_seed((self.seed * 1009 + rank) * 97 + step)
        sizes = self.net.sizes
        inputs = torch.randn(_SAMPLES, sizes[0], generator=generator)
        return inputs, 2 * torch.randn(_SAMPLES, sizes[-1], generator=generator)

    def given(self, rank: int, world_size: int) -> Arguments:
        return Arguments(
            self.net.kind,
            self.net.sizes,
            self.net.state(self.seed),
            turned=rank % 2 == 1,
            batches=[self.batch(rank, step) for step in range(self.steps)],
            bucket_bytes=self.bucket_bytes,
            groups=self.groups,
            members=self.members(rank, world_size),
        )

    def opened(self, result: Any) -> Any:
        import torch

        steps = [list(step) for step in result["gradients"]]
        if not all(one is None or isinstance(one, torch.Tensor) for step in steps for one in step):
            raise TypeError("a rank sent back something else than gradients")
        return Trained(steps, frozenset(map(str, result["finished"])))

    # ------------------------------------------------------------------ what must come of it

    def mistake(self, results: Sequence[Trained]) -> str:
        """The first step that is wrong, on the first rank of its group: see `Case`."""
        for members in self.groups or (tuple(range(len(results))),):
            for step, (names, own) in enumerate(self.averaged(members, results)):
                got = {member: results[member].gradients[step] for member in members}
                sentence = _wrong_step(got, names, own)
                if sentence:
                    return f"step {step + 1}, {sentence}"
        return ""

    def averaged(
        self, members: Sequence[int], results: Sequence[Trained] = ()
    ) -> Iterator[tuple[list[str], dict[int, list[Tensor | None]]]]:
        """For each step the names of the parameters, and every rank's own gradients.

        Ranks beside the members are there too: a mistake may have taken theirs.
        """
        module = self.module()
        everyone = range(max(len(results), max(members) + 1))
        for step in range(self.steps):
            own = {rank: self._gradients(module, rank, step) for rank in everyone}
            yield [name for name, _ in module.named_parameters()], own
            sgd_step(module, [own[member] for member in members])

    def module(self) -> nn.Module:
        """The model as it is at first: the same on all ranks."""
        return self.net.module(self.seed)

    def _gradients(self, module: nn.Module, rank: int, step: int) -> list[Tensor | None]:
        module.zero_grad()
        _loss(module, *self.batch(rank, step)).backward()
        return [None if one.grad is None else one.grad.clone() for one in module.parameters()]

    @cached_property
    def sizes_of_gradients(self) -> list[tuple[int, str]]:
        """Bytes and dtype of each gradient that there is, in the order of the parameters."""
        module = self.module()
        found = [one for one in self._gradients(module, 0, 0) if one is not None]
        return [(one.numel() * one.element_size(), str(one.dtype)) for one in found]

    def on(self, **changes: Any) -> Training:
        """The same with some fields changed."""
        return replace(self, **changes)


def begin(given: Arguments) -> tuple[nn.Module, dict[str, Any]]:
    """Runs on every rank: its model, and the keyword `group` where there are groups."""
    import torch.distributed as dist

    from dtlab.grading.checking.modules import filled

    module = filled(given.kind, given.sizes, given.state, given.turned)
    made = {group: dist.new_group(list(group)) for group in given.groups}
    return module, {"group": made[given.members]} if made else {}


def train(
    module: nn.Module,
    given: Arguments,
    before: Callable[[], Any],
    after: Callable[[], Any] = lambda: None,
) -> dict[str, Any]:
    """Runs on every rank: calls `before` once, and `after` when the gradients of a step are there.
    """
    from dtlab.trace import span

    seen = []
    with finished_calls(*FINISHED, refuse=True) as finished, _marked_waits():
        before()
        for inputs, targets in given.batches:
            module.zero_grad()
            loss = _loss(module, inputs, targets)
            with span("step"):
                with span("backward"):
                    loss.backward()
                after()
            gradients = [one.grad for one in module.parameters()]
            seen.append([None if one is None else one.detach().clone() for one in gradients])
            sgd_step(module, [gradients])
    return {"gradients": seen, "finished": sorted(finished)}


@contextmanager
def _marked_waits() -> Iterator[None]:
    """Every wait for an operation is a mark `wait` in the trace, also one that does not last.

    The recorder notes no wait for what had ended before it.
    """
    import torch
    import torch.distributed as dist

    from dtlab.trace import span

    def marked(plain: Any) -> Any:
        def wait(*args: Any, **keywords: Any) -> Any:
            with span("wait"):
                return plain(*args, **keywords)

        return wait

    classes = (dist.Work, torch._C.Future)
    before = [each.wait for each in classes]
    for each, plain in zip(classes, before, strict=True):
        each.wait = marked(plain)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for each, plain in zip(classes, before, strict=True):
            each.wait = plain  # type: ignore[attr-defined]


def _loss(module: nn.Module, inputs: Tensor, targets: Tensor) -> Any:
    return (module(inputs) - targets).square().mean()


def _wrong_step(
    got: Mapping[int, Sequence[Tensor | None]],
    names: Sequence[str],
    own: Mapping[int, Sequence[Tensor | None]],
) -> str:
    """What is wrong with the gradients of one step, by member; empty if nothing."""
    for rank, gradients in got.items():
        for place, name in enumerate(names):
            every = {other: parts[place] for other, parts in own.items()}
            sentence = wrong_gradient(gradients[place], every, list(got), rank)
            if sentence:
                return f"rank {rank}, {name}: {sentence}"
    first, *others = got
    for rank in others:
        for place, name in enumerate(names):
            if not same_bits(got[rank][place], got[first][place]):
                return (
                    f"{name}: right on ranks {first} and {rank} up to rounding, but not the same "
                    "bits, so their copies of the model drift apart. Every rank has to add up in "
                    "the same order, as one all-reduce does."
                )
    return ""


# Says what is wrong with a gradient, as far as the numbers themselves tell -----------------------

OWN_GRADIENT = "this is the rank's own gradient"


def wrong_gradient(
    got: Tensor | None, own: Mapping[int, Tensor | None], members: Sequence[int], rank: int
) -> str:
    """What is wrong with `got` of this rank, which should be the mean of what `members` have.

    `own` is every rank's own gradient, None where there is none. Empty if nothing is wrong.
    """
    theirs = [one for member, one in own.items() if member in members and one is not None]
    if not theirs:
        return "" if got is None else "had no gradient, and should have none afterwards."
    if got is None:
        return "has no gradient any more."
    total, count = sum(theirs[1:], theirs[0]), len(members)
    if got.shape != total.shape or got.dtype != total.dtype:
        return f"the gradient is {tuple(got.shape)} of {got.dtype} now."
    if close(got, total / count):
        return ""
    everyone = [one for one in own.values() if one is not None]
    for value, what in (
        (own[rank], f"{OWN_GRADIENT}: nobody else's is in it."),
        (total, "this is the sum over the ranks, not the mean."),
        (total / count**2, "this is divided twice by the number of ranks."),
        (theirs[0], f"this is rank {members[0]}'s own gradient, not the mean."),
        (sum(everyone[1:], everyone[0]) / len(everyone), "this is the mean over all ranks."),
    ):
        if value is not None and close(got, value):
            return what
    worst = float((got - total / count).abs().max())
    return f"this is off the mean over the ranks by up to {worst:.2g}."


# The communication of each step of training, out of a trace --------------------------------------


@dataclass(frozen=True)
class Step:
    """What one rank did in one step of one case, in order.

    `layers` are the marks of a `Marked` model: the last one begins when all gradients are there
    but those of the first layer. `waits` are those for an operation, however short.
    """

    case: Training
    rank: int
    number: int
    communication: Sequence[Event]
    layers: Sequence[Event]
    waits: Sequence[Event]
    backward: Event | None

    @property
    def all_reduces(self) -> list[Event]:
        """In the order in which they began."""
        return [event for event in self.communication if event.name == "all_reduce"]

    @property
    def others(self) -> list[str]:
        """The names of all other communication."""
        return sorted({e.name for e in self.communication if e.name != "all_reduce"})

    def words(self, one: Observation) -> str:
        """Where this was: "4 ranks, a chain of layers, step 2, rank 0"."""
        case = one.trial.cases.index(self.case)
        return f"{one.trial.words(case)}, step {self.number + 1}, rank {self.rank}"


def trainings_of(one: Observation) -> list[Training]:
    """The cases of a trial that train."""
    return [case for case in one.trial.cases if isinstance(case, Training)]


def steps_of(one: Observation) -> Iterator[Step]:
    """Every step of every rank: what lies between one mark `step` and the end of it."""
    for rank in range(one.trial.world_size):
        numbered = [(case, number) for case in trainings_of(one) for number in range(case.steps)]
        steps = inside_marks(one.trace, rank, "step")
        for (case, number), inside in zip(numbered, steps, strict=False):
            yield Step(
                case,
                rank,
                number,
                [event for event in inside if event.kind == "comm"],
                [event for event in inside if event.name == "layer"],
                [event for event in inside if event.name == "wait"],
                next((event for event in inside if event.name == "backward"), None),
            )
