"""Test cases of Level II: run `fn` forward and backward on ranks, in float64, in marked spans.

rank r     ── forward: y = fn(...) ──   ── backward: from y ──
calls         all_reduce, 24 elements      none
expected      case.sums[0]                 case.sums[1]

All faults on subgroups belong to the criterion "group".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import Known, difference
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen
from dtlab.checks.functions.groups import Groups, groups_in_words, members_of
from dtlab.checks.functions.trials import Observation
from dtlab.checks.functions.unseen import inside_marks, unseen_collectives
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BACKWARD", "FINISHED", "FORWARD", "GRADIENT", "PAIR", "PRODUCT", "Layer", "Pass",
           "Tensors", "compare", "extra_calls", "wrong_calls"]  # fmt: skip

FORWARD, BACKWARD, PRODUCT = "check: forward", "check: backward", "check: product"  # marks
FINISHED = (
    "dtlab.simple",
    "dtlab.parallel.tensor.regions",
    "dtlab.parallel.tensor.linear",
    "dtlab.parallel.tensor.attention",
    "dtlab.parallel.tensor.layers",
)
PAIR = ("copy_to_region", "reduce_from_region")  # allowed in parts whose task is another function
GRADIENT = "the gradient of "  # prefix of a tensor's name, in results and in messages

Tensors = dict[str, "Tensor"]


@dataclass(frozen=True)
class Pass(Faulty):
    """One forward and one backward, over all ranks or over each of `groups` at the same time.

    Trials of the topic `main` test all criteria except those in `apart`, each of which has
    separate trials. `hints` are the advice on wrong calls in forward and in backward.
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
        """A description of the input."""

    @property
    @abstractmethod
    def sums(self) -> tuple[int, int]:
        """Elements of the all-reduce expected in forward, and in backward; 0 if none is."""

    @abstractmethod
    def wrong(self, result: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        """What is wrong with the result of `members[place]`."""

    def __str__(self) -> str:
        return f"{groups_in_words(self.groups)}, {self.size}" if self.groups else self.size

    def shows(self, criterion: str) -> bool:
        if self.topic == self.main:
            return criterion not in self.apart
        return criterion == self.topic

    def drawn(self, *shape: int, salt: int = 0) -> Tensor:
        """Random numbers that depend on `salt`; in float32 multiples of 1/8, so sums are exact."""
        import torch

        draw = torch.Generator().manual_seed(self.seed * 1009 + salt)
        drawn = torch.randn(shape, generator=draw, dtype=torch.float64)
        return drawn if self.dtype == "float64" else (8 * drawn).round().float() / 8

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, result in enumerate(results):
            members = members_of(self.groups, rank, len(results))
            for name, message in self.wrong(result, members.index(rank), members):
                criterion = self.topic if self.topic in self.apart else name
                yield criterion, f"rank {rank}: " + message + _GROUP * bool(self.groups)


_GROUP = " Here each group computes separately: pass `group` to every function that you call."


@dataclass(frozen=True)
class Layer(Pass):
    """A case with dense layers. Each rank has shards of their tensors, cut along `dims`."""

    dims: ClassVar[Mapping[str, int]]

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of x and of all weights and biases, by name."""

    @abstractmethod
    def dense(self, tensors: Tensors) -> Tensor:
        """Compute y in one process."""

    @abstractmethod
    def about(self, name: str) -> str:
        """The advice if this tensor is wrong: y, a shard, or a gradient."""

    def whole(self, first: int) -> Tensors:
        """The tensors of one process, for the group whose first rank is `first`.

        These are x, weights and biases, y, the gradient `back` of y, and all other gradients.
        """
        import torch

        leaves = {}
        for number, (name, shape) in enumerate(self.shapes.items()):
            scale = shape[-1] ** 0.5 if len(shape) == 2 else 1
            leaves[name] = self.drawn(*shape, salt=10 * first + number) / scale
        y = self.dense({name: leaf.requires_grad_() for name, leaf in leaves.items()})
        back = self.drawn(*y.shape, salt=10 * first + 9)
        grads = torch.autograd.grad(y, list(leaves.values()), back)
        gradients = {GRADIENT + name: grad for name, grad in zip(leaves, grads, strict=True)}
        tensors = {name: tensor.detach() for name, tensor in {**leaves, "y": y}.items()}
        return {**tensors, "back": back, **gradients}

    def cut(self, whole: Tensors, place: int, ranks: int) -> Tensors:
        """The part of these tensors that the rank at `place` has."""

        def part(name: str, tensor: Tensor) -> Tensor:
            dim = self.dims.get(name.removeprefix(GRADIENT))
            return tensor if dim is None else tensor.tensor_split(ranks, dim)[place]

        return {name: part(name, tensor) for name, tensor in whole.items()}

    def local(self, rank: int, world_size: int) -> Tensors:
        """Copies of the tensors that this rank has."""
        members = members_of(self.groups, rank, world_size)
        local = self.cut(self.whole(members[0]), members.index(rank), len(members))
        return {name: tensor.clone() for name, tensor in local.items()}

    def known(self, name: str, whole: Tensors, local: Tensors, ranks: int) -> dict[str, Any]:
        """Values of y or a gradient that known mistakes give, as in `difference`."""
        return {
            "is the right value times the number of ranks": local[name] * ranks,
            "is divided by the number of ranks": local[name] / ranks,
        }

    def wrong(self, result: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        ranks, whole = len(members), self.whole(members[0])
        local = self.cut(whole, place, ranks)
        for name in ("y", *(name for name in local if name.startswith(GRADIENT))):
            known = self.known(name, whole, local, ranks)
            criterion = "output" if name == "y" else "gradients"
            yield from compare(result, name, criterion, local[name], self.about(name), known)


# Comparison of tensors --------------------------------------------------------------------------

_NEAR = 1e-9  # up to rounding in float64
_MISSING = " Does a function return nothing, or the value of dist.all_reduce, which is None?"


def compare(
    result: Noted,
    name: str,
    criterion: str,
    wanted: Tensor,
    advice: str,
    known: Known | None = None,
) -> Iterator[Fault]:
    """Yield a fault of this criterion if the rank's tensor `name` is not the wanted one."""
    got = result.get(name)
    hint = f"{advice}{_MISSING if got is None else ''}"
    if wrong := difference(got, wanted, known, hint=hint, near=_NEAR):
        yield criterion, f"{name} " + wrong


# Communication calls ----------------------------------------------------------------------------


def wrong_calls(runs: Seen) -> str:
    """A message if a rank makes wrong calls within the marked spans; empty otherwise."""
    for run in runs:
        if run.trial.world_size > 1:
            grouped = any(getattr(case, "groups", ()) for case in run.trial.cases)
            message = _wrong_calls(run) or ("" if grouped else unseen_collectives(run))
            if message:
                return message
    return ""


def extra_calls(runs: Seen, _: str) -> str:
    """The advice on a wrong gradient if a rank makes another call than expected; else empty."""
    message = wrong_calls(runs)
    return "" if "calls nothing" in message else message


def _wrong_calls(run: Observation) -> str:
    for rank in range(run.trial.world_size):
        for half, name in enumerate((FORWARD, BACKWARD)):
            marks = inside_marks(run.trace, rank, name)
            for number, (case, inside) in enumerate(zip(run.trial.cases, marks, strict=False)):
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
                        f"{run.trial.words(number)}: in {name.removeprefix('check: ')} rank "
                        f"{rank} calls {calls or 'nothing'}; expected: {due}. {case.hints[half]}"
                    )
    return ""


def _call(name: str, elements: int | None, dtype: str | None) -> str:
    return f"{name} of {counted(elements, 'element')} of {dtype}" if elements else name
