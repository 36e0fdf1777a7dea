"""Cases of Level II: `fn` goes forward and backward on ranks, in float64, between marks.

rank r     ── forward: y = fn(...) ──   ── backward: from y ──
calls         all_reduce, 24 elements      none
due           case.sums[0]                 case.sums[1]

What is wrong on subgroups belongs to the criterion "group", whatever it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.criteria import Fault, Faulty, Noted, Seen
from dtlab.grading.checking.groups import Groups, groups_in_words, members_of
from dtlab.grading.checking.trials import Observation
from dtlab.grading.checking.unseen import inside_marks, unseen_collectives

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BACKWARD", "FINISHED", "FORWARD", "GRADIENT", "PAIR", "PRODUCT", "Layer", "Pass",
           "Tensors", "compare", "difference", "wrong_calls"]  # fmt: skip

FORWARD, BACKWARD, PRODUCT = "check: forward", "check: backward", "check: product"  # marks
FINISHED = (
    "dtlab.parallel.tensor.regions",
    "dtlab.parallel.tensor.linear",
    "dtlab.parallel.tensor.attention",
    "dtlab.parallel.tensor.layers",
)
PAIR = ("copy_to_region", "reduce_from_region")  # allowed where they are not what is asked for
GRADIENT = "the gradient of "  # and a name: how a rank notes it, and how words call it

Tensors = dict[str, "Tensor"]


@dataclass(frozen=True)
class Pass(Faulty):
    """One forward and one backward, over all ranks or over each of `groups` at the same time.

    Trials of the topic `main` are about all criteria, save for those `apart`, which have trials
    that are about nothing else. `hints` are for wrong calls: in forward, in backward.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = PAIR
    main: ClassVar[str] = "output"
    apart: ClassVar[tuple[str, ...]] = ("group",)
    hints: ClassVar[tuple[str, str]]

    seed: int
    topic: str
    groups: Groups = ()
    dtype: str = "float64"

    @property
    @abstractmethod
    def size(self) -> str:
        """What is passed in, in words."""

    @property
    @abstractmethod
    def sums(self) -> tuple[int, int]:
        """Elements of the all-reduce that is due in forward, and in backward; 0 where none is."""

    @abstractmethod
    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        """What is wrong with what one rank noted: the member number `place` of its group."""

    def __str__(self) -> str:
        return f"{groups_in_words(self.groups)}, {self.size}" if self.groups else self.size

    def shows(self, criterion: str) -> bool:
        if self.topic == self.main:
            return criterion not in self.apart
        return criterion == self.topic

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


@dataclass(frozen=True)
class Layer(Pass):
    """Layers that one process has whole. Each rank has shards of their tensors, along `dims`."""

    dims: ClassVar[Mapping[str, int]]

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of x and of all weights and biases, by name."""

    @abstractmethod
    def dense(self, tensors: Tensors) -> Tensor:
        """Computes y in one process."""

    @abstractmethod
    def about(self, name: str) -> str:
        """What to look at where this tensor is wrong: y, a shard, or a gradient."""

    def whole(self, first: int) -> Tensors:
        """What one process has, for the group that begins with this rank.

        All tensors, y, the gradient `back` that is passed to it, and the gradients that come out.
        """
        import torch

        leaves = {}
        for number, (name, shape) in enumerate(self.shapes.items()):
            scale = shape[-1] ** 0.5 if len(shape) == 2 else 1
            leaves[name] = self.drawn(*shape, salt=10 * first + number) / scale
        y = self.dense({name: one.requires_grad_() for name, one in leaves.items()})
        back = self.drawn(*y.shape, salt=10 * first + 9)
        found = torch.autograd.grad(y, list(leaves.values()), back)
        gradients = {GRADIENT + name: one for name, one in zip(leaves, found, strict=True)}
        tensors = {name: one.detach() for name, one in {**leaves, "y": y}.items()}
        return {**tensors, "back": back, **gradients}

    def cut(self, whole: Tensors, place: int, ranks: int) -> Tensors:
        """What one rank has of them."""

        def part(name: str, one: Tensor) -> Tensor:
            dim = self.dims.get(name.removeprefix(GRADIENT))
            return one if dim is None else one.tensor_split(ranks, dim)[place]

        return {name: part(name, one) for name, one in whole.items()}

    def own(self, rank: int, world_size: int) -> Tensors:
        """What this rank has, in storage of its own."""
        members = members_of(self.groups, rank, world_size)
        own = self.cut(self.whole(members[0]), members.index(rank), len(members))
        return {name: one.clone() for name, one in own.items()}

    def known(self, name: str, whole: Tensors, own: Tensors, ranks: int) -> Tensors:
        """What y or a gradient is where people make mistakes, by what it is then."""
        return {
            "times the number of ranks": own[name] * ranks,
            "divided by the number of ranks": own[name] / ranks,
        }

    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        ranks, whole = len(members), self.whole(members[0])
        own = self.cut(whole, place, ranks)
        for name in ("y", *(name for name in own if name.startswith(GRADIENT))):
            known = self.known(name, whole, own, ranks)
            criterion = "output" if name == "y" else "gradients"
            yield from compare(seen, name, criterion, own[name], self.about(name), known)


# What is compared -------------------------------------------------------------------------------


def compare(
    seen: Noted,
    name: str,
    criterion: str,
    wanted: Tensor,
    advice: str,
    known: Tensors | None = None,
) -> Iterator[Fault]:
    """A fault of this criterion where the tensor that a rank noted by this name is another."""
    off = difference(seen.get(name), wanted, known or {})
    if off:
        yield criterion, f"{name} {off}. {advice}"


def difference(got: Any, wanted: Tensor, known: Tensors) -> str:
    """In what it differs, empty where it does not: something `known`, its shape, its numbers."""
    import torch

    if not isinstance(got, torch.Tensor):
        return "is not there" if got is None else f"is {type(got).__name__}, not a tensor"
    near = partial(torch.allclose, rtol=1e-9, atol=1e-9)  # up to rounding in float64
    for words, other in {"": wanted, **known}.items():
        if got.shape == other.shape and near(got.double(), other.double()):
            return f"is {words}" if words else ""
    if got.shape != wanted.shape:
        return f"has the shape {list(got.shape)}, not {list(wanted.shape)}"
    return f"is off by up to {float((got - wanted).abs().max()):.2g}"


# What is sent -----------------------------------------------------------------------------------


def wrong_calls(seen: Seen) -> str:
    """Says which calls are too many, too few or others, between the marks of all cases."""
    for one in seen:
        if one.trial.world_size > 1:
            grouped = any(getattr(case, "groups", ()) for case in one.trial.cases)
            words = _wrong_calls(one) or ("" if grouped else unseen_collectives(one))
            if words:
                return words
    return ""


def _wrong_calls(one: Observation) -> str:
    for rank in range(one.trial.world_size):
        for half, name in enumerate((FORWARD, BACKWARD)):
            marks = inside_marks(one.trace, rank, name)
            for number, (case, inside) in enumerate(zip(one.trial.cases, marks, strict=False)):
                assert isinstance(case, Pass)
                elements = case.sums[half]
                due = _call("all_reduce", elements, case.dtype) if elements else "nothing"
                calls = " and ".join(
                    _call(event.name, event.extra.get("numel"), event.extra.get("dtype"))
                    for event in inside
                    if event.kind == "comm"
                )
                if (calls or "nothing") != due:
                    return (
                        f"{one.trial.words(number)}: in {name.removeprefix('check: ')} rank "
                        f"{rank} calls {calls or 'nothing'}, and {due} is due. {case.hints[half]}"
                    )
    return ""


def _call(name: str, elements: int | None, dtype: str | None) -> str:
    return f"{name} of {elements} elements of {dtype}" if elements else name
