"""The collectives that a benchmark compares: those of torch.distributed and `dtlab.collectives`.

The meaning of S, the bytes of a measurement, on each of N ranks, as in nccl-tests:

    collective                  input    output
    all_reduce, broadcast       S        in place
    reduce_scatter              S        S/N
    all_gather                  S/N      S
    all_to_all                  S        S
    send_recv                   S        S         one way of a ping-pong, half of the round trip

Element i of rank r's input is i mod 7 + 1 + r. So the check detects a chunk that is missing, comes
from the wrong rank, or is in the wrong place. All sums are exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

import dtlab.collectives as collectives
from dtlab.bench.names import BETWEEN_NODES, BUILT_IN

__all__ = ["ELEMENT", "OURS", "Buffers", "Subject"]

Call = Callable[[Tensor, Tensor], Any]  # output, input

ELEMENT: Final = 4  # bytes of a float32
_PERIOD: Final = 7
_IN_PIECES: Final = ("reduce_scatter", "all_gather", "all_to_all")  # N must divide S in elements
_BUILT_IN: Final[Mapping[str, Call]] = MappingProxyType(
    {
        "all_reduce": lambda output, _: dist.all_reduce(output),
        "reduce_scatter": dist.reduce_scatter_single,
        "all_gather": dist.all_gather_single,
        "broadcast": lambda output, _: dist.broadcast(output, 0),
        "all_to_all": dist.all_to_all_single,
    }
)
OURS: Final[Mapping[str, Callable[..., None]]] = MappingProxyType(
    {
        "all_reduce": collectives.ring_all_reduce,
        "reduce_scatter": collectives.ring_reduce_scatter,
        "all_gather": collectives.ring_all_gather,
        "broadcast": collectives.tree_broadcast,
        "all_to_all": collectives.pairwise_all_to_all,
    }
)


@dataclass(frozen=True)
class Buffers:
    """A rank's float32 tensors; `output` is `input` if the collective works in place."""

    output: Tensor
    input: Tensor


@dataclass(frozen=True)
class Subject:
    """One implementation of one collective, on this rank.

    `function` is None for the built-in implementation; `partner` is the rank with which rank 0
    exchanges messages in a ping-pong.
    """

    collective: str
    function: Callable[..., Any] | None = None
    partner: int = 1

    @property
    def implementation(self) -> str:
        """`built-in`, or the name of the function."""
        return BUILT_IN if self.function is None else _name(self.function)

    @property
    def trips(self) -> int:
        """How many times a call sends the tensor: 2 for a ping-pong, else 1."""
        return 2 if self._ping_pong else 1

    def rounded(self, nbytes: int, ranks: int) -> int:
        """Round `nbytes` up to a size that this collective can divide among the ranks."""
        step = ELEMENT * (ranks if self.collective in _IN_PIECES else 1)
        return -(-nbytes // step) * step

    def buffers(self, nbytes: int, rank: int, ranks: int, device: torch.device) -> Buffers:
        """Create tensors for S = `nbytes`; the output is zero, or it is the filled input."""
        count = nbytes // ELEMENT
        sent = count // ranks if self.collective == "all_gather" else count
        data = _pattern(torch.arange(sent, device=device)).add_(rank)
        if self.collective in ("all_reduce", "broadcast"):
            return Buffers(data, data)
        received = count // ranks if self.collective == "reduce_scatter" else count
        return Buffers(torch.zeros(received, device=device), data)

    def call(self, buffers: Buffers, rank: int) -> None:
        """Run the collective once."""
        if self._ping_pong:
            _ping_pong(buffers, rank, self.partner)
        elif self.function is None:
            _BUILT_IN[self.collective](buffers.output, buffers.input)
        elif self.collective == "all_reduce":
            self.function(buffers.output)
        elif self.collective == "broadcast":
            self.function(buffers.output, 0)
        else:
            self.function(buffers.output, buffers.input)

    def expected(self, buffers: Buffers, rank: int, ranks: int) -> Tensor:
        """Return the correct content of `buffers.output` after one call."""
        places = torch.arange(len(buffers.output), device=buffers.output.device)
        piece = max(1, len(places) // ranks)
        if self.collective == "all_reduce":
            return _pattern(places) * ranks + ranks * (ranks - 1) / 2
        if self.collective == "reduce_scatter":
            return _pattern(places + rank * len(places)) * ranks + ranks * (ranks - 1) / 2
        if self.collective == "all_gather":
            return _pattern(places % piece) + places // piece
        if self.collective == "all_to_all":
            return _pattern(places % piece + rank * piece) + places // piece
        if self._ping_pong and rank not in (0, self.partner):
            return torch.zeros_like(buffers.output)
        return _pattern(places)

    @property
    def _ping_pong(self) -> bool:
        return self.collective in ("send_recv", BETWEEN_NODES)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _pattern(places: Tensor) -> Tensor:
    return (places % _PERIOD + 1).float()


def _ping_pong(buffers: Buffers, rank: int, partner: int) -> None:
    """Send a tensor from rank 0 to `partner` and back; other ranks take no part."""
    if rank == 0:
        dist.send(buffers.input, partner)
        dist.recv(buffers.output, partner)
    elif rank == partner:
        dist.recv(buffers.output, 0)
        dist.send(buffers.output, 0)
