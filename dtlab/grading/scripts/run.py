"""A program that trains a model on ranks, and the same training in one process.

    check's process                       rank r
    given(r, ranks)         ──────────>   build(*sizes), with the parameters of `start`
                                          program(model, batches)
    {"losses", "after"}     <──────────   its losses, and its parameters in the end, by name
    one_process(ranks)                    the same batches, in one process: what is right

A unit says what differs: its model, which batches a rank has, which part of a parameter, and what
else a rank notes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.criteria import Objection
from dtlab.grading.checking.trials import Case, Observation

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dtlab.trace import Event

__all__ = [
    "Program", "TrainingRun", "copies_differ", "events_of", "fill", "flat", "named",
    "other_losses", "other_parameters", "other_steps",
]  # fmt: skip

Program = Callable[..., Any]
Named = dict[str, "Tensor"]


@dataclass(frozen=True)
class TrainingRun(Case):
    """`program(model, batches)` on `steps` batches of random images, by SGD with `rate`.

    Rank r has the batches of replica r, and the whole of each parameter, where a unit says
    nothing else. `looks` says what to look at where copies differ, and where a parameter is wrong.
    """

    seed: int

    rate: ClassVar[float] = 0.1
    rows: ClassVar[int] = 8  # samples in a batch
    near: ClassVar[float] = 1e-4  # of a parameter
    apart: ClassVar[float] = 0.0  # of a copy
    looks: ClassVar[tuple[str, str]] = ("", "")

    # What goes in -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """What `build` makes the model of."""

    @staticmethod
    @abstractmethod
    def build(*sizes: int) -> nn.Module:
        """The model, with any parameters."""

    def model(self) -> nn.Module:
        """The model with the parameters that it begins with: the same on all ranks."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build(*self.sizes)

    @property
    def steps(self) -> int:
        """How many batches a rank has."""
        return 4

    def start(self, rank: int) -> Tensor:
        """The parameters that a rank begins with, in one row."""
        return flat(self.model())

    def batch(self, replica: int, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + replica) * 97 + step)
        images = torch.randn(self.rows, 64, generator=draw)
        return images, torch.randint(10, (self.rows,), generator=draw)

    def replica(self, rank: int) -> int:
        """Whose batches a rank has; the last rank's replica is the last one."""
        return rank

    def has_loss(self, rank: int) -> bool:
        """Whether a rank's program returns losses."""
        return True

    def inputs(self, rank: int, world_size: int) -> dict[str, Any]:
        """What a rank is given beside the model."""
        return {"batches": [self.batch(self.replica(rank), step) for step in range(self.steps)]}

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        inputs = self.inputs(rank, world_size)
        return {"sizes": self.sizes, "start": self.start(rank), **inputs}

    # What a rank does ---------------------------------------------------------------------------

    @classmethod
    def on_rank(cls, fn: Program, given: dict[str, Any]) -> dict[str, Any]:
        return cls.run(fn, fill(cls.build(*given["sizes"]), given["start"]), given)

    @classmethod
    def run(cls, fn: Program, model: Any, given: dict[str, Any]) -> dict[str, Any]:
        """Calls the program, and returns what a rank notes of it."""
        losses = fn(model, iter(given["batches"]))
        return {"losses": [float(one) for one in losses], "after": named(model)}

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`: objections say what is wrong with a run."""
        return ""

    # What is right ------------------------------------------------------------------------------

    def label(self, name: str) -> str:
        """What messages call a parameter."""
        return name

    def part(self, name: str, whole: Tensor, rank: int, ranks: int) -> Tensor | None:
        """What a rank has of a parameter in the end; None where that does not matter."""
        return whole

    def one_process(self, ranks: int) -> tuple[list[list[float]], list[Named]]:
        """One process with the batches of all replicas: losses by replica, parameters by step."""
        import torch
        import torch.nn.functional as F

        model, after = self.model(), []
        losses: list[list[float]] = [[] for _ in range(self.replica(ranks - 1) + 1)]
        for step in range(self.steps):
            batches = [self.batch(replica, step) for replica in range(len(losses))]
            found = [F.cross_entropy(model(images), labels) for images, labels in batches]
            for own, loss in zip(losses, found, strict=True):
                own.append(float(loss.detach()))
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(torch.stack(found).mean(), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.data = parameter.data - self.rate * gradient
            after.append(named(model))
        return losses, after


def fill(model: nn.Module, row: Tensor) -> nn.Module:
    """The model, with its parameters from one row."""
    sizes = [one.numel() for one in model.parameters()]
    for own, part in zip(model.parameters(), row.split(sizes), strict=True):  # type: ignore[no-untyped-call]
        own.data.copy_(part.view_as(own))
    return model


def flat(model: nn.Module) -> Tensor:
    """A copy of all parameters in one row."""
    import torch

    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).clone()


def named(model: nn.Module) -> Named:
    """A copy of what this process has of each parameter, by its name."""
    found: Iterable[tuple[str, Any]] = model.named_parameters()
    local = ((name, one.to_local() if hasattr(one, "to_local") else one) for name, one in found)
    return {name: one.detach().float().clone() for name, one in local}


def events_of(one: Observation, *names: str, rank: int = 0) -> list[Event]:
    """The communication of a rank, in order; that of these names, where there are any."""
    events = one.trace.events if one.trace is not None else ()
    own = [event for event in events if event.rank == rank and event.kind == "comm"]
    return [event for event in own if not names or event.name in names]


# Objections -------------------------------------------------------------------------------------


def copies_differ(case: TrainingRun, results: Sequence[Any], one: Observation) -> str:
    """Ranks that have the whole of a parameter do not have the same numbers."""
    for name, whole in named(case.model()).items():
        parts = [case.part(name, whole, rank, len(results)) for rank in range(len(results))]
        first, *others = [
            rank for rank, part in enumerate(parts) if part is not None and part.equal(whole)
        ] or [0]
        copy = results[first]["after"][name]
        for rank in others:
            other = results[rank]["after"][name]
            if not _alike(other, copy, case.apart):
                far = float((other - copy).abs().max())
                return (
                    f"the copies of {case.label(name)} on rank {first} and rank {rank} are "
                    f"{far:.2g} apart in the end. {case.looks[0]}"
                )
    return ""


def other_losses(near: float) -> Objection:
    """A rank's losses are not those of its batches in one process, up to a part of them."""

    def objection(case: TrainingRun, results: Sequence[Any], one: Observation) -> str:
        wanted, _ = case.one_process(len(results))
        for rank, seen in enumerate(results):
            got, own = seen["losses"], wanted[case.replica(rank)]
            close = [abs(a - b) <= near * b for a, b in zip(got, own, strict=False)]
            if case.has_loss(rank) and (len(got) != len(own) or not all(close)):
                return (
                    f"rank {rank} returns the losses {_listed(got)}; in one process those of its "
                    f"batches are {_listed(own)}. Only what is broken has to change."
                )
        return ""

    return objection


def other_parameters(case: TrainingRun, results: Sequence[Any], one: Observation) -> str:
    """Parameters do not end as those of one process."""
    _, after = case.one_process(len(results))
    for name, whole in after[-1].items():
        for rank, seen in enumerate(results):
            part = case.part(name, whole, rank, len(results))
            if part is not None and not _alike(seen["after"][name], part, case.near):
                return f"{name} on rank {rank} is not what one process ends with. {case.looks[1]}"
    return ""


def other_steps(near: float) -> Objection:
    """Parameters do not move as in one process, up to a part of the distance that they move.

    For programs that round: their losses say little about the optimizer's steps.
    """

    def objection(case: TrainingRun, results: Sequence[Any], one: Observation) -> str:
        start, (_, after) = named(case.model()), case.one_process(len(results))
        for rank, seen in enumerate(results):
            off = moved = 0.0
            for name, whole in after[-1].items():
                end = case.part(name, whole, rank, len(results))
                begin = case.part(name, start[name], rank, len(results))
                found = seen["after"][name]
                if end is not None and begin is not None and end.shape == found.shape:
                    off += float((found - end).square().sum())
                    moved += float((end - begin).square().sum())
            if off > near**2 * moved:
                return (
                    f"the parameters of rank {rank} do not move as in one process: they end "
                    f"{(off / moved) ** 0.5:.0%} of the way apart. Only what is broken has to "
                    "change: are gradients cleared, computed and stepped once for each batch?"
                )
        return ""

    return objection


def _alike(one: Tensor, other: Tensor, near: float) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one - other).abs().max() <= near * other.abs().max().clamp(min=1e-2)).item())


def _listed(losses: Sequence[float]) -> str:
    return "[" + ", ".join(f"{loss:.4f}" for loss in losses) + "]"
