"""Cases of Level II: something goes forward and backward on ranks, in float64, between marks.

rank r     ── forward: y = fn(...) ──   ── backward: y.backward(gradient) ──
calls         all_reduce, 24 elements      none
wanted        case.calls(...)

What is wrong on subgroups belongs to the criterion "group", whatever it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.faults import Fault, Faulty, Noted
from dtlab.grading.checking.groups import Groups, groups_in_words, members_of
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Observation
from dtlab.grading.checking.unseen import inside_marks, unseen_collectives

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["BACKWARD", "FINISHED", "FORWARD", "PAIR", "PRODUCT", "Calls", "Pass", "alike",
           "difference", "events_of", "go_back", "own_group", "wrong_calls"]  # fmt: skip

FORWARD, BACKWARD, PRODUCT = "check: forward", "check: backward", "check: product"  # marks
FINISHED = (
    "dtlab.parallel.tensor.regions",
    "dtlab.parallel.tensor.linear",
    "dtlab.parallel.tensor.attention",
    "dtlab.parallel.tensor.layers",
)
PAIR = ("copy_to_region", "reduce_from_region")  # allowed where they are not what is asked for


class Calls(NamedTuple):
    """How many elements each all-reduce has that is due in forward, and in backward."""

    forward: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pass(Faulty):
    """One forward and one backward, over all ranks or over each of `groups` at the same time."""

    seed: int
    topic: str
    groups: Groups = ()
    dtype: str = "float64"

    @property
    @abstractmethod
    def size(self) -> str:
        """What is passed in, in words."""

    @abstractmethod
    def calls(self) -> Calls:
        """What is due on more than one rank."""

    @abstractmethod
    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        """What is wrong with what one rank noted: the member number `place` of its group."""

    def __str__(self) -> str:
        return f"{groups_in_words(self.groups)}, {self.size}" if self.groups else self.size

    def shows(self, criterion: str) -> bool:
        if self.topic in self.apart:
            return criterion == self.topic
        return criterion not in self.apart

    @property
    def apart(self) -> tuple[str, ...]:
        """Criteria that have trials of their own."""
        return ("group",)

    def drawn(self, *shape: int, salt: int = 0) -> Tensor:
        """Numbers in float64, others for another `salt`; eighths where float32 is to be exact."""
        import torch

        draw = torch.Generator().manual_seed(self.seed * 1009 + salt)
        found = torch.randn(shape, generator=draw, dtype=torch.float64)
        return found if self.dtype == "float64" else (8 * found).round().float() / 8

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, seen in enumerate(results):
            members = members_of(self.groups, rank, len(results))
            for name, words in self.wrong(seen, members.index(rank), members):
                named = self.topic if self.topic in self.apart else name
                yield named, f"rank {rank}: {words}{_GROUP if self.groups else ''}"


_GROUP = " Here each group computes for itself: hand `group` on to whatever you call."

# On a rank --------------------------------------------------------------------------------------


def own_group(groups: Groups) -> Any:
    """The process group of this rank; None for all ranks."""
    import torch.distributed as dist

    made = {group: dist.new_group(list(group)) for group in groups}
    return next((one for group, one in made.items() if dist.get_rank() in group), None)


def go_back(y: Any, gradient: Tensor) -> None:
    """Backward from `y`, whose gradient this is, between marks; where there is a graph to go."""
    import torch

    from dtlab.trace import span

    with span(BACKWARD):
        if isinstance(y, torch.Tensor) and y.requires_grad and y.shape == gradient.shape:
            # Not y.backward(gradient), which imports a part of PyTorch's compiler: seconds.
            (y * gradient).sum().backward()  # type: ignore[no-untyped-call]


# What is compared -------------------------------------------------------------------------------


def alike(got: Any, wanted: Tensor) -> bool:
    """Whether it is a tensor of this shape with these numbers, up to rounding in float64."""
    import torch

    if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
        return False
    return torch.allclose(got.double(), wanted.double(), rtol=1e-9, atol=1e-9)


def difference(got: Any, wanted: Tensor, known: Mapping[str, Tensor | None]) -> str:
    """In what it differs, empty where it does not: something `known`, its shape, its numbers."""
    import torch

    if alike(got, wanted):
        return ""
    if not isinstance(got, torch.Tensor):
        return "is not there" if got is None else f"is {type(got).__name__}, not a tensor"
    for words, other in known.items():
        if other is not None and alike(got, other):
            return f"is {words}"
    if got.shape != wanted.shape:
        return f"has the shape {list(got.shape)}, not {list(wanted.shape)}"
    return f"is off by up to {float((got - wanted).abs().max()):.2g}"


# What is sent -----------------------------------------------------------------------------------


def events_of(one: Observation, rank: int, mark: str) -> Iterator[list[Event]]:
    """For each case in order: what this rank did between its marks of this name."""
    yield from inside_marks(one.trace, rank, mark)


def wrong_calls(advice: Callable[[str, Sequence[Event]], str]) -> Callable[[Seen], str]:
    """Says which calls are too many, too few or others, between the marks of all cases.

    `advice` is told the half, "forward" or "backward", and the calls in it.
    """

    def wrong(seen: Seen) -> str:
        for one in seen:
            if one.error is None and one.trial.world_size > 1:
                words = _of_trial(one, advice) or (
                    "" if any(_groups(one)) else unseen_collectives(one)
                )
                if words:
                    return words
        return ""

    return wrong


def _groups(one: Observation) -> Iterator[Groups]:
    return (case.groups for case in one.trial.cases if isinstance(case, Pass))


def _of_trial(one: Observation, advice: Callable[[str, Sequence[Event]], str]) -> str:
    for rank in range(one.trial.world_size):
        for half, mark in (("forward", FORWARD), ("backward", BACKWARD)):
            marks = events_of(one, rank, mark)
            for number, (case, inside) in enumerate(zip(one.trial.cases, marks, strict=False)):
                assert isinstance(case, Pass)
                due: tuple[int, ...] = getattr(case.calls(), half)
                made = [event for event in inside if event.kind == "comm"]
                wanted = [("all_reduce", elements, case.dtype) for elements in due]
                calls = [
                    (each.name, each.extra.get("numel"), each.extra.get("dtype")) for each in made
                ]
                if calls != wanted:
                    return (
                        f"{one.trial.words(number)}: in {half} rank {rank} calls {_said(calls)}, "
                        f"and {_said(wanted)} is due. {advice(half, made)}"
                    )
    return ""


def _said(calls: Sequence[tuple[str, Any, Any]]) -> str:
    """As in "all_reduce of 24 elements of float64 and broadcast"."""
    words = [
        f"{name} of {count} elements of {dtype}" if count else name for name, count, dtype in calls
    ]
    return " and ".join(words) or "nothing"
