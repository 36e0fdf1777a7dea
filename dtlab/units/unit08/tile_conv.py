"""08/tile_conv: a convolution on tiles that equals the one on the whole field, with gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import close, difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.units.unit08.sequences import drawn
from dtlab.units.unit08.tiles import FINISHED

if TYPE_CHECKING:
    from torch import Tensor


def exchange(to_above: Tensor, to_below: Tensor) -> tuple[Tensor, Tensor]:
    """Runs on ranks: what comes from the ranks above and below; zeros at the edge of the field."""
    import torch
    import torch.distributed as dist

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    from_above, from_below = torch.zeros_like(to_below), torch.zeros_like(to_above)
    works: list[Any] = []
    for peer, sent, arriving in (
        (rank - 1, to_above.contiguous(), from_above),
        (rank + 1, to_below.contiguous(), from_below),
    ):
        if 0 <= peer <= last:
            works += [dist.isend(sent, peer), dist.irecv(arriving, peer)]
    for work in works:
        work.wait()
    return from_above, from_below


@dataclass(frozen=True)
class Convolving(Faulty):
    """A call of `fn(tile, weight, bias, dilation, exchange)`, and backward from the output."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    topic: str
    kernel: tuple[int, int]
    dilation: int
    rows: tuple[int, ...]  # of each rank's tile
    columns: int
    channels: tuple[int, int] = (2, 3)  # of the input and of the output

    def __str__(self) -> str:
        return f"kernel {self.kernel[0]} x {self.kernel[1]}, dilation {self.dilation}"

    def shows(self, criterion: str) -> bool:
        return (criterion == "narrow") == (self.topic == "narrow")

    @property
    def width(self) -> int:
        """The halo that the kernel needs above and below."""
        return self.dilation * (self.kernel[0] - 1) // 2

    def tensors(self) -> dict[str, Tensor]:
        """The field, the weight, the bias, and the gradient of the output."""
        inputs, outputs = self.channels
        sizes = sum(self.rows), self.columns
        return {
            "tile": drawn(self.seed, 1, inputs, *sizes),
            "weight": drawn(self.seed + 1, outputs, inputs, *self.kernel),
            "bias": drawn(self.seed + 2, outputs),
            "back": drawn(self.seed + 3, 1, outputs, *sizes),
        }

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        import torch

        tensors = self.tensors()
        for name in ("tile", "back"):
            tensors[name] = torch.split(tensors[name], list(self.rows), -2)[rank].clone()
        return {**tensors, "dilation": self.dilation}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        leaves = {name: given[name].requires_grad_() for name in ("tile", "weight", "bias")}
        with finished_calls(*FINISHED, refuse=True) as finished:
            y = fn(*(1 * leaf for leaf in leaves.values()), given["dilation"], exchange)
            is_right = isinstance(y, torch.Tensor) and y.shape == given["back"].shape
            if is_right and y.requires_grad:
                y.backward(given["back"])
        return {
            "y": y.detach() if isinstance(y, torch.Tensor) else type(y).__name__,
            **{name: leaf.grad for name, leaf in leaves.items()},
            "finished": sorted(finished),
        }

    def convolved(self, kept: Sequence[int] = ()) -> dict[str, Tensor]:
        """Output and gradients of one process; with `kept`, from these rows of the output only."""
        import torch
        from torch.nn.functional import conv2d

        tensors = {name: tensor.double() for name, tensor in self.tensors().items()}
        back = tensors.pop("back")
        for tensor in tensors.values():
            tensor.requires_grad_()
        across = self.dilation * (self.kernel[1] - 1) // 2
        field, weight, bias = tensors.values()
        padding = self.width, across
        y = conv2d(field, weight, bias, padding=padding, dilation=self.dilation)
        if kept:
            chosen = torch.zeros_like(back)
            chosen[..., list(kept), :] = back[..., list(kept), :]
            back = chosen
        y.backward(back)  # type: ignore[no-untyped-call]
        gradients = {name: tensor.grad for name, tensor in tensors.items()}
        found = {"y": y.detach(), **gradients}
        return {name: tensor.float() for name, tensor in found.items() if tensor is not None}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for name, message in self._wrong(results):
            yield "narrow" if self.topic == "narrow" else name, message

    def _wrong(self, results: Sequence[Noted]) -> Iterator[Fault]:
        whole, first = self.convolved(), 0
        for rank, (result, count) in enumerate(zip(results, self.rows, strict=True)):
            own = range(first, first + count)
            first += count
            y, wanted = result["y"], whole["y"][..., own.start : own.stop, :]
            if isinstance(y, str) or y.shape != wanted.shape:
                found = y if isinstance(y, str) else f"shape {list(y.shape)}"
                yield (
                    "output",
                    f"rank {rank} returns {found}, not {list(wanted.shape)}. Its tile has {count} "
                    f"rows and needs {self.width} more above and below. Which sides has conv2d "
                    "still to pad?",
                )
                return
            if not close(y, wanted):
                rows = [r for r in range(count) if not close(y[..., r, :], wanted[..., r, :])]
                yield (
                    "output",
                    f"rank {rank}: {len(rows)} of {count} rows differ from those of one process, "
                    f"row {rows[0] if rows else 0} is the first. {self._where(rows, count)}",
                )
            part, mine = self.convolved(own), slice(own.start, own.stop)
            known = {_ALONE: (part["tile"][..., mine, :], f"{_OTHERS} {_TILE}")}
            if wrong := difference(result["tile"], whole["tile"][..., mine, :], known, hint=_TILE):
                yield "tile", f"rank {rank}: the gradient of the tile " + wrong
            for name in ("weight", "bias"):
                known = {
                    _ALONE: (part[name], _OTHERS),
                    "is the mean over the ranks": (
                        whole[name] / len(results), "One process has the sum."
                    ),
                }  # fmt: skip
                if wrong := difference(result[name], whole[name], known, hint=_NOT):
                    yield "weights", f"rank {rank}: the gradient of the {name} " + wrong

    def _where(self, rows: Sequence[int], count: int) -> str:
        """A hint from the rows that are wrong."""
        if len(rows) < count and all(min(row, count - 1 - row) < self.width for row in rows):
            return "They are at the border of the tile: how far does the dilated kernel look?"
        return "Are weight, bias and dilation those that are passed?"

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        ranks = observation.trial.world_size
        for rank in range(ranks):
            sides = (rank > 0) + (rank < ranks - 1)
            rows = 4 * self.channels[0] * self.columns * self.width
            weights = self.channels[1] * (self.channels[0] * self.kernel[0] * self.kernel[1] + 1)
            goal = 2 * sides * rows + 2 * (ranks - 1) / ranks * 4 * weights
            if (sent := observation.sent_beyond(rank, goal)) is not None:
                yield (
                    "bytes",
                    f"{observation.trial.words(0)}: {amount(sent)} left rank {rank}. The halo of "
                    f"{self.width} rows, forward and backward, and the gradients of the weights "
                    f"are {amount(goal)}. Are more rows exchanged than the kernel needs?",
                )


_ALONE = "comes from this rank's outputs alone"
_OTHERS = "It must include the other ranks' parts."
_NOT = "It should be that of one process."
_TILE = "What do the neighbours compute from its border rows?"


def _trials(seed: int) -> list[Trial]:
    """Dilated kernels on 1 to 4 ranks, a kernel of one row, and a field with many columns."""
    draw = random.Random(seed)

    def trial(
        ranks: int, topic: str = "output", high: int = 0, dilation: int = 0, columns: int = 0
    ) -> Trial:
        kernel = high or draw.choice((3, 5)), draw.choice((1, 3, 5))
        dilation = dilation or draw.randint(2, 3)
        least = max(2, dilation * (kernel[0] - 1) // 2)
        rows = tuple(least + draw.randint(0, 3) for _ in range(ranks))
        columns = columns or draw.randint(5, 8)
        number = draw.randrange(10**6)
        case = Convolving(number, topic, kernel, dilation, rows, columns)
        return Trial(ranks, [case], limit=10.0)  # the first convolution of a rank takes a while

    return [
        trial(3),
        trial(2, high=3, dilation=1),
        trial(1),
        trial(4, columns=1500),
        trial(2, "narrow", high=1),
    ]


PART = Part(
    "08/tile_conv", 2, "A convolution on tiles", 25, 3,
    Check(
        trials=_trials,
        rules=(
            rule("output", 3, "each tile of the output is that of one process"),
            rule("tile", 3, "the gradient of the tile is right", "output"),
            rule("weights", 2, "all ranks have the gradients of the whole field", "output"),
            rule("narrow", 1, "the same for a kernel of one row, without a halo", "output", "tile",
                 "weights"),
            rule("bytes", 1, "each rank sends the halo that the kernel needs", "output", "tile"),
        ),
    ),
    reference="dtlab.parallel.domain.DomainParallelConv2d",
    stretch=True,
)  # fmt: skip
