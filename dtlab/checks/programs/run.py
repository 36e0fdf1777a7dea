"""Runs a program that trains a model on ranks, and the same training in one process.

    check's process                       rank r
    given(r, ranks)         ──────────>   build(*sizes), with the parameters of `start`
                                          program(model, batches)
    {"losses", "after"}     <──────────   its losses, and its final parameters, by name
    one_process(ranks)                    the same batches, in one process: the reference

A unit's subclass overrides what differs: the model, the batches of a rank, its part of a
parameter, and what else a rank records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import Objection
from dtlab.checks.functions.trials import Case, Observation

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dtlab.trace import Event

__all__ = [
    "Program", "TrainingRun", "copies_differ", "events_of", "fill", "flat", "named",
    "other_losses", "other_parameters", "other_steps",
]  # fmt: skip

_SAME = 1e-5  # relative difference of losses that come from equal parameters

Program = Callable[..., Any]
Named = dict[str, "Tensor"]


@dataclass(frozen=True)
class TrainingRun(Case):
    """A run of `program(model, batches)` on `steps` batches of random images, by SGD with `rate`.

    By default each rank has the complete parameters, and the batches of the replica with its
    number. `looks` says where to look if copies differ, and if a parameter is wrong.
    """

    seed: int

    rate: ClassVar[float] = 0.1
    rows: ClassVar[int] = 8  # samples in a batch
    near: ClassVar[float] = 1e-4  # relative tolerance for a parameter
    apart: ClassVar[float] = 0.0  # relative tolerance for a copy
    looks: ClassVar[tuple[str, str]] = ("", "")

    # Inputs -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The arguments of `build`."""

    @staticmethod
    @abstractmethod
    def build(*sizes: int) -> nn.Module:
        """Builds the model, with arbitrary parameters."""

    def model(self) -> nn.Module:
        """Builds the model with its initial parameters, which are the same on all ranks."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build(*self.sizes)

    @property
    def steps(self) -> int:
        """The number of batches of a rank."""
        return 4

    def start(self, rank: int) -> Tensor:
        """Returns the initial parameters of a rank as a 1-D tensor."""
        return flat(self.model())

    def batch(self, replica: int, step: int) -> tuple[Tensor, Tensor]:
        """Draws images [rows, 64] and labels [rows]."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + replica) * 97 + step)
        images = torch.randn(self.rows, 64, generator=draw)
        return images, torch.randint(10, (self.rows,), generator=draw)

    def replica(self, rank: int) -> int:
        """Returns the replica whose batches a rank has; the last rank has the last replica."""
        return rank

    def has_loss(self, rank: int) -> bool:
        """Whether a rank's program returns losses."""
        return True

    def inputs(self, rank: int, world_size: int) -> dict[str, Any]:
        """Returns the inputs of a rank in addition to the model; "more" are further arguments."""
        return {"batches": [self.batch(self.replica(rank), step) for step in range(self.steps)]}

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        inputs = self.inputs(rank, world_size)
        return {"sizes": self.sizes, "start": self.start(rank), **inputs}

    # On a rank ----------------------------------------------------------------------------------

    @classmethod
    def on_rank(cls, fn: Program, given: dict[str, Any]) -> dict[str, Any]:
        return cls.run(fn, fill(cls.build(*given["sizes"]), given["start"]), given)

    @classmethod
    def run(cls, fn: Program, model: Any, given: dict[str, Any]) -> dict[str, Any]:
        """Calls the program, and returns the data that a rank records."""
        losses = fn(model, iter(given["batches"]), *given.get("more", ()))
        if losses is None:
            raise TypeError("the program returns None: return the losses")
        return {"losses": [float(loss) for loss in losses], "after": named(model)}

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`; empty, since objections say what is wrong with a run."""
        return ""

    # Reference ----------------------------------------------------------------------------------

    def label(self, name: str) -> str:
        """Returns the name of a parameter for messages."""
        return name

    def part(self, name: str, whole: Tensor, rank: int, ranks: int) -> Tensor | None:
        """Returns a rank's part of a final parameter; None if it is not checked."""
        return whole

    def one_process(self, ranks: int) -> tuple[list[list[float]], list[Named]]:
        """Trains in one process on all batches; returns losses by replica, parameters by step."""
        return _in_one_process(self, ranks)

    def first_update(self, results: Sequence[Any], name: str, rank: int) -> tuple[float, float]:
        """Compares a rank's update of a parameter, in a run of one step, with one process's.

        Returns its size as a multiple of the right one, and its distance from it, relative.
        """
        _, (after, *_) = self.one_process(len(results))
        start, right = (
            self.part(name, whole[name], rank, len(results))
            for whole in (named(self.model()), after)
        )
        assert start is not None and right is not None
        moved, wanted = results[rank]["after"][name] - start, right - start
        size = float((moved * wanted).sum() / wanted.square().sum())
        return size, float((moved - wanted).norm() / wanted.norm())


@lru_cache(maxsize=16)  # several criteria of a check need it
def _in_one_process(case: TrainingRun, ranks: int) -> tuple[list[list[float]], list[Named]]:
    import torch
    import torch.nn.functional as F

    model, after, threads = case.model(), [], torch.get_num_threads()
    losses: list[list[float]] = [[] for _ in range(case.replica(ranks - 1) + 1)]
    torch.set_num_threads(1)  # the model is small: more threads wait for each other
    for step in range(case.steps):
        batches = [case.batch(replica, step) for replica in range(len(losses))]
        current = [F.cross_entropy(model(images), labels) for images, labels in batches]
        for of_replica, loss in zip(losses, current, strict=True):
            of_replica.append(float(loss.detach()))
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(torch.stack(current).mean(), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.data = parameter.data - case.rate * gradient
        after.append(named(model))
    torch.set_num_threads(threads)
    return losses, after


def fill(model: nn.Module, row: Tensor) -> nn.Module:
    """Copies a 1-D tensor into the parameters of a model; returns the model."""
    sizes = [p.numel() for p in model.parameters()]
    for p, part in zip(model.parameters(), row.split(sizes), strict=True):  # type: ignore[no-untyped-call]
        p.data.copy_(part.view_as(p))
    return model


def flat(model: nn.Module) -> Tensor:
    """Returns a copy of all parameters as a 1-D tensor."""
    import torch

    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def named(model: nn.Module) -> Named:
    """Returns a copy of this process's part of each parameter, by name."""
    parameters: Iterable[tuple[str, Any]] = model.named_parameters()
    local = ((name, p.to_local() if hasattr(p, "to_local") else p) for name, p in parameters)
    return {name: p.detach().float().clone() for name, p in local}


def events_of(observation: Observation, *names: str, rank: int = 0) -> list[Event]:
    """Returns the communication events of a rank, in order; only those with `names`, if given."""
    events = observation.trace.events if observation.trace is not None else ()
    of_rank = [event for event in events if event.rank == rank and event.kind == "comm"]
    return [event for event in of_rank if not names or event.name in names]


# Objections -------------------------------------------------------------------------------------


def copies_differ(case: TrainingRun, results: Sequence[Any], observation: Observation) -> str:
    """A message if ranks with a complete parameter do not have the same values."""
    for name, whole in named(case.model()).items():
        parts = [case.part(name, whole, rank, len(results)) for rank in range(len(results))]
        first, *others = [
            rank for rank, part in enumerate(parts) if part is not None and same(part, whole)
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
    """Returns an objection to losses whose relative difference to one process is above `near`."""

    def objection(case: TrainingRun, results: Sequence[Any], observation: Observation) -> str:
        wanted, _ = case.one_process(len(results))
        for rank, result in enumerate(results):
            got, expected = result["losses"], wanted[case.replica(rank)]
            close = [abs(a - b) <= near * b for a, b in zip(got, expected, strict=False)]
            if case.has_loss(rank) and (len(got) != len(expected) or not all(close)):
                return (
                    f"rank {rank} returns the losses {_listed(got)}; in one process those of its "
                    f"batches are {_listed(expected)}. Change only what is broken."
                )
        return ""

    return objection


def other_parameters(case: TrainingRun, results: Sequence[Any], observation: Observation) -> str:
    """A message if the final parameters are not those of one process."""
    _, after = case.one_process(len(results))
    for name, whole in after[-1].items():
        for rank, result in enumerate(results):
            part = case.part(name, whole, rank, len(results))
            if part is not None and not _alike(result["after"][name], part, case.near):
                wrong = f"{name} on rank {rank} is not what one process ends with."
                return f"{wrong} {_first_wrong_update(case, results)}{case.looks[1]}"
    return ""


def _first_wrong_update(case: TrainingRun, results: Sequence[Any]) -> str:
    """Names the first wrong update, by the losses, unless it may be that of the first step."""
    wanted, _ = case.one_process(len(results))
    right = case.steps  # losses that are right on all ranks
    for rank, result in enumerate(results):
        if case.has_loss(rank):
            pairs = zip(result["losses"], wanted[case.replica(rank)], strict=False)
            close = [abs(a - b) <= _SAME * b for a, b in pairs]
            right = min(right, [*close, False].index(False))
    if right < 2:
        return ""
    return (
        f"The losses are right up to step {right}, so the update of step {right} is the first "
        "that is wrong. "
    )


def other_steps(near: float) -> Objection:
    """Returns an objection to final parameters that differ from those of one process.

    A difference of `near` times the distance that the parameters of one process moved is allowed.
    Use it for programs in low precision, whose losses say little about the optimizer's steps.
    """

    def objection(case: TrainingRun, results: Sequence[Any], observation: Observation) -> str:
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
                    f"the parameters of rank {rank} do not move as in one process: the difference "
                    f"is {(off / moved) ** 0.5:.0%} of the distance moved. Change only what is "
                    "broken: are gradients cleared, computed and stepped once for each batch?"
                )
        return ""

    return objection


def _alike(got: Tensor, expected: Tensor, near: float) -> bool:
    if got.shape != expected.shape:
        return False
    return bool(
        ((got - expected).abs().max() <= near * expected.abs().max().clamp(min=1e-2)).item()
    )


def _listed(losses: Sequence[float]) -> str:
    return "[" + ", ".join(f"{loss:.4f}" for loss in losses) + "]"
