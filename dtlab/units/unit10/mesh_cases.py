"""Test cases of 10/reduce_gradients and 10/clip_mesh: a mesh, and each rank's parameters.

mesh             axes data, pipeline, tensor; the last one varies fastest
column.weight    sharded    each tensor rank has a different part of the weight
row.bias         equal      a copy on each tensor rank, whose gradients are equal
norm.weight      partial    a copy, used on this rank's tokens: each gradient is a part of the sum
embedding        tied       on the first and the last pipeline stage, if these differ
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dtlab.grading.checking.criteria import Faulty
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import drawn_seed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ANSWER", "AXES", "Marked", "OnMesh", "Sizes", "groups_on", "members_on", "place_of"]

AXES = ("data", "pipeline", "tensor")
ANSWER = "answer"  # the span around the learner's function

Sizes = tuple[int, int, int]  # of the axes, in their order


class Marked(NamedTuple):
    """A parameter of a pipeline stage: its name, its kind, and whether it is tied."""

    name: str
    kind: str  # over the tensor axis: sharded, partial or equal
    tied: bool = False


@dataclass(frozen=True)
class OnMesh(Faulty):
    """A case with gradients drawn for every rank.

    `table` is the kind of the embedding; "" means that the model has none.
    """

    finished: ClassVar[tuple[str, ...]] = ("dtlab.parallel.gpt",)

    seed: int
    sizes: Sizes
    topic: str
    table: str = "sharded"
    elements: int = 4096  # of a parameter, on each rank

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis}={size}" for axis, size in zip(AXES, self.sizes, strict=True))
        is_tied = self.table and self.sizes[1] > 1
        return f"{mesh}, the tied embedding is {self.table}" if is_tied else mesh

    def before(self, which: Marked, data: int, stage: int, tensor: int) -> Tensor | None:
        """The gradient of a parameter on one rank before the learner's function runs."""
        return self.gradient(which, data, stage, tensor)

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the learner's function between the parameters and the groups."""
        return ()

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        place = place_of(rank, self.sizes)
        marked = [(which, self.before(which, *place)) for which in self.parameters(place[1])]
        shape = {"sizes": self.sizes, "elements": self.elements}
        return {**shape, "marked": marked, "arguments": self.arguments()}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.trace import span

        groups, parameters = groups_on(given["sizes"]), []
        for (_, kind, tied), gradient in given["marked"]:
            parameter: Any = torch.nn.Parameter(torch.ones(given["elements"]))
            parameter.kind, parameter.tied, parameter.grad = kind, tied, gradient
            parameters.append(parameter)
        with finished_calls(*OnMesh.finished, refuse=True) as finished, span(ANSWER):
            returned = fn(parameters, *given["arguments"], groups)
        is_number = isinstance(returned, int | float) or (
            isinstance(returned, torch.Tensor) and returned.numel() == 1
        )
        return {
            "returned": float(returned) if is_number else type(returned).__name__,
            "after": [parameter.grad for parameter in parameters],
            "finished": sorted(finished),
        }

    def where(self, rank: int) -> str:
        """A rank and its coordinates as text, for messages."""
        if prod(self.sizes) == 1:
            return "rank 0"
        places = zip(AXES, place_of(rank, self.sizes), strict=True)
        return f"rank {rank} ({', '.join(f'{axis} {at}' for axis, at in places)})"

    def parameters(self, stage: int) -> list[Marked]:
        """The parameters that each rank of a pipeline stage has."""
        last = self.sizes[1] - 1
        has_table = self.table and stage in (0, last)
        ends = [Marked("embedding", self.table, last > 0)] if has_table else []
        return [
            *ends,
            Marked("column.weight", "sharded"),
            Marked("row.bias", "equal"),
            Marked("norm.weight", "partial"),
        ]

    def gradient(self, which: Marked, data: int, stage: int, tensor: int) -> Tensor:
        """The gradient of a parameter that backward computes on one rank."""
        import torch

        key = (which.name, data, stage, 0 if which.kind == "equal" else tensor)
        draw = torch.Generator().manual_seed(drawn_seed(self.seed, str(key)))
        scale = 2.0 ** (stage - 4) * (1 + key[-1])  # ranks differ in their norms
        return torch.randint(-99, 100, (self.elements,), generator=draw) * scale

    def reduced(self, which: Marked, stage: int, tensor: int) -> Tensor:
        """The correct gradient after reduction: that of one process, for this rank's elements."""
        data, pipeline, ranks = self.sizes
        stages = (0, pipeline - 1) if which.tied else (stage,)
        parts = range(ranks) if which.kind == "partial" else (tensor,)
        return self.mean(which, range(data), stages, parts)

    def mean(
        self, which: Marked, data: Sequence[int], stages: Sequence[int], parts: Sequence[int]
    ) -> Tensor:
        """The ranks' gradients, summed over stages and tensor ranks, averaged over data ranks."""
        first, *others = (
            self.gradient(which, d, stage, part)
            for d in data
            for stage in stages
            for part in parts
        )
        return sum(others, first) / len(data)


def place_of(rank: int, sizes: Sizes) -> Sizes:
    """The coordinates of a rank on the axes data, pipeline and tensor."""
    _, pipeline, tensor = sizes
    return rank // (pipeline * tensor), rank // tensor % pipeline, rank % tensor


def members_on(rank: int, axis: int, sizes: Sizes) -> list[int]:
    """The ranks that differ from this rank on one axis only, including the rank itself."""
    stride = prod(sizes[axis + 1 :])
    first = rank - place_of(rank, sizes)[axis] * stride
    return [first + stride * number for number in range(sizes[axis])]


# On ranks ----------------------------------------------------------------------------------------


def groups_on(sizes: Sizes) -> dict[str, Any]:
    """Creates this rank's process group on each axis.

    The group "embedding" has the first and the last rank of a pipeline; None on other ranks.
    """
    import torch.distributed as dist

    groups: dict[str, Any] = {"embedding": None}
    for number, axis in enumerate(AXES):
        rows = {tuple(members_on(rank, number, sizes)) for rank in range(prod(sizes))}
        for row in sorted(rows):
            group = dist.new_group(list(row))
            if dist.get_rank() in row:
                groups[axis] = group
            if axis == "pipeline":
                ends = sorted({row[0], row[-1]})
                group = dist.new_group(ends)
                if dist.get_rank() in ends:
                    groups["embedding"] = group
    return groups
