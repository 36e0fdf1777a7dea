"""Test cases of Level II on a mesh, and the parameters of each rank.

mesh             axes data, pipeline, tensor; the last one varies fastest
column.weight    sharded    each tensor rank has a different part of the weight
row.bias         equal      a copy on each tensor rank, whose gradients are equal
norm.weight      partial    a copy, used on this rank's tokens: each gradient is a part of the sum
embedding        tied       on the first and the last pipeline stage, if these differ
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dtlab.checks.functions.criteria import Faulty, Noted
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import drawn_seed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ANSWER", "AXES", "Marked", "OnMesh", "Place", "WithGradients", "groups_on", "place_of"]

AXES = ("data", "pipeline", "tensor")
ANSWER = "answer"  # the span around the learner's function

Place = tuple[int, int, int]  # a number for each axis: the coordinates of a rank, or the sizes


def place_of(rank: int, sizes: Place) -> Place:
    """The coordinates of a rank on the axes data, pipeline and tensor."""
    _, pipeline, tensor = sizes
    return rank // (pipeline * tensor), rank // tensor % pipeline, rank % tensor


@dataclass(frozen=True)
class OnMesh(Faulty):
    """A case on a mesh of these sizes, with data drawn from a seed."""

    finished: ClassVar[tuple[str, ...]] = ("dtlab.parallel.gpt",)

    seed: int
    sizes: Place

    def __str__(self) -> str:
        return " x ".join(f"{axis}={size}" for axis, size in self.axes.items())

    @property
    def axes(self) -> dict[str, int]:
        """The sizes by axis."""
        return dict(zip(AXES, self.sizes, strict=True))

    def where(self, rank: int) -> str:
        """A rank and its coordinates as text, for messages."""
        if prod(self.sizes) == 1:
            return "rank 0"
        places = zip(AXES, place_of(rank, self.sizes), strict=True)
        return f"rank {rank} ({', '.join(f'{axis} {at}' for axis, at in places)})"


class Marked(NamedTuple):
    """A parameter of a pipeline stage: its name, its kind, and whether it is tied."""

    name: str
    kind: str  # over the tensor axis: sharded, partial or equal
    tied: bool = False


@dataclass(frozen=True)
class WithGradients(OnMesh):
    """A case with gradients drawn for every rank.

    `table` is the kind of the embedding; "" means that the model has none.
    """

    topic: str
    table: str = "sharded"
    elements: int = 4096  # of a parameter, on each rank

    def __str__(self) -> str:
        is_tied = self.table and self.sizes[1] > 1
        return super().__str__() + (f", the tied embedding is {self.table}" if is_tied else "")

    def before(self, which: Marked, place: Place) -> Tensor | None:
        """The gradient of a parameter on one rank before the learner's function runs."""
        return self.gradient(which, place)

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the learner's function between the parameters and the groups."""
        return ()

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        place = place_of(rank, self.sizes)
        marked = [(which, self.before(which, place)) for which in self.parameters(place[1])]
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

    def gradients(
        self, results: Sequence[Noted]
    ) -> Iterator[tuple[int, Place, Marked, Tensor | None]]:
        """Yields (rank, its coordinates, parameter, gradient after the call) for all of them."""
        for rank, result in enumerate(results):
            place = place_of(rank, self.sizes)
            for which, after in zip(self.parameters(place[1]), result["after"], strict=True):
                yield rank, place, which, after

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

    def gradient(self, which: Marked, place: Place) -> Tensor:
        """The gradient of a parameter that backward computes on one rank."""
        import torch

        data, stage, tensor = place
        key = (which.name, data, stage, 0 if which.kind == "equal" else tensor)
        draw = torch.Generator().manual_seed(drawn_seed(self.seed, str(key)))
        scale = 2.0 ** (stage - 4) * (1 + key[-1])  # ranks differ in their norms
        return torch.randint(-99, 100, (self.elements,), generator=draw) * scale

    def mean(self, which: Marked, *places: Sequence[int]) -> Tensor:
        """The sum of the gradients at these places, divided by the number of data coordinates."""
        first, *others = (self.gradient(which, (d, p, t)) for d, p, t in product(*places))
        return sum(others, first) / len(places[0])

    def holders(self, which: Marked, place: Place) -> tuple[Sequence[int], ...]:
        """The coordinates, by axis, of the ranks whose gradients one process would add up."""
        data, pipeline, tensor = map(range, self.sizes)
        stages = (0, pipeline[-1]) if which.tied else place[1:2]
        return data, stages, tensor if which.kind == "partial" else place[2:]

    def reduced(self, which: Marked, place: Place) -> Tensor:
        """The correct gradient after reduction: that of one process, for this rank's elements."""
        return self.mean(which, *self.holders(which, place))


def groups_on(sizes: Place) -> dict[str, Any]:
    """Runs on ranks: creates this rank's process group on each axis.

    The group "embedding" has the first and the last rank of a pipeline; None on other ranks.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=AXES)
    groups: dict[str, Any] = {axis: mesh.get_group(axis) for axis in AXES}
    pipelines = torch.arange(prod(sizes)).view(sizes).movedim(1, 2).reshape(-1, sizes[1])
    ends = [sorted({*pair}) for pair in pipelines[:, [0, -1]].tolist()]
    groups["embedding"], _ = dist.new_subgroups_by_enumeration(ends)  # type: ignore[no-untyped-call]
    return groups
