"""Test cases of the parts on one block: a module, its flat tensor, and a piece for each rank.

parameters    a a a a | b b b | c           in the order of `block.parameters()`
flat          a a a a b b b c .             padded to a multiple of the number of ranks
pieces        rank 0    rank 1    rank 2

A part defines `use`, which runs on a rank, and `faults`, which explains what is wrong. In
`LargeBlocks` the kernel counts the memory of several blocks while an answer trains with them.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab import torch_internals
from dtlab.checks.comparison import difference
from dtlab.checks.functions.criteria import Fault, Faulty, Noted
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.resident import Mark, Moment, ResidentCase, layers_of, use_twice
from dtlab.checks.words import amount
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["FINISHED", "LARGE", "LargeBlocks", "OnBlock", "OnLargeBlock", "draw_blocks",
           "fill", "flat_gradients", "flat_of", "gradients_of", "lay", "loss_of",
           "values_of"]  # fmt: skip

FINISHED = (  # library modules that have the functions that learners write in this unit
    "dtlab.simple",
    "dtlab.parallel.data.data_parallel",
    "dtlab.parallel.reduce_scatter",
    "dtlab.parallel.zero.optimizers",
    "dtlab.parallel.zero.fully_sharded",
    "dtlab.parallel.zero.sharded_block",
    "dtlab.parallel.zero.sharded_optimizer",
    "dtlab.parallel.zero.shards",
    "torch.nn.parallel.distributed",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    torch_internals.FULLY_SHARD,
)
LARGE = Net("chain", (64, 96, 64), "a block of 49,280 bytes")  # large enough to measure bytes


def draw_blocks(draw: random.Random) -> tuple[Net, Net]:
    """A chain of layers whose size neither 2 nor 3 divides, and a block with tied weights."""
    while True:
        sizes = tuple(draw.sample(range(3, 12), 3))
        count = sum(a * b + b for a, b in pairwise(sizes))
        if count % 2 and count % 3:
            break
    width = draw.randint(3, 7)
    return (
        Net("chain", sizes, f"a block of {count} elements"),
        Net("tied", (sizes[0], width, width, width), "a block with tied weights"),
    )


@dataclass(frozen=True)
class OnBlock(Faulty):
    """A use of a learner's function on a block whose parameters are drawn from `seed`."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    net: Net
    topic: str

    def __str__(self) -> str:
        return self.net.words

    def module(self, later: int = 0) -> nn.Module:
        """The block; `later` > 0 gives it other parameter values, as after some steps."""
        return self.net.module(self.seed + later)

    def flat(self, ranks: int, later: int = 0) -> Tensor:
        """The concatenated parameters of `module`, padded to a multiple of `ranks`."""
        return flat_of(self.module(later).parameters(), ranks)

    @property
    def elements(self) -> int:
        """The number of elements in all parameters."""
        return len(self.flat(1))

    def inputs(self, rank: int = 0) -> Tensor:
        """A batch of two for the block."""
        import torch

        draw = torch.Generator().manual_seed(1009 * self.seed + rank)
        return torch.randn(2, self.net.sizes[0], generator=draw)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """The block, a batch, and the rank's piece of later parameter values."""
        kind, sizes, _ = self.net
        return {
            "block": (kind, sizes, self.net.state(self.seed)),
            "topic": self.topic,
            "inputs": self.inputs(),
            "piece": self.flat(world_size, later=1).chunk(world_size)[rank].clone(),
        }

    @classmethod
    def on_rank(cls, fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.checks.functions.modules import filled

        with finished_calls(*FINISHED, refuse=True) as finished, undefined_after_reduce():
            noted = cls.use(fn, filled(*given["block"]), given)
        return {**noted, "finished": sorted(finished)}

    @staticmethod
    @abstractmethod
    def use(fn: Callable[..., Any], block: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
        """Run on a rank: call `fn` on the block, and return the measurements."""


class OnLargeBlock(ResidentCase):
    """A block that is large enough to measure its memory in the operating system's counters.

    `use` calls `mark()` at the beginning, and then at each of the `moments`.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    @classmethod
    def on_rank(cls, fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        return use_twice(lambda fn, width, mark: cls.use(fn, layers_of(width), mark), fn)

    @staticmethod
    @abstractmethod
    def use(fn: Callable[..., Any], layers: Any, mark: Mark) -> Any:
        """Run on a rank, with the layers of `layers_of`."""


@contextmanager
def undefined_after_reduce() -> Iterator[None]:
    """`dist.reduce` leaves the tensor undefined on all ranks but `dst`: fill it with NaN there.

    Gloo leaves partial sums there. In the rank's own chunk the sum is complete, by chance.
    """
    import torch.distributed as dist

    reduce = dist.reduce

    def reduced(tensor: Tensor, dst: int | None = None, *more: Any, **named: Any) -> Any:
        work = reduce(tensor, dst, *more, **named)
        if work is None and dst not in (None, dist.get_rank()):
            tensor.data.fill_(float("nan"))
        return work

    dist.reduce = reduced
    try:
        yield
    finally:
        dist.reduce = reduce


# Reference code of the checks, which runs on ranks and in the judge's process -------------------


def flat_of(tensors: Iterable[Tensor], world_size: int) -> Tensor:
    """The concatenated tensors, zero-padded to a multiple of the number of ranks."""
    import torch

    flat = torch.cat([t.detach().flatten() for t in tensors])
    return torch.cat([flat, flat.new_zeros(-len(flat) % world_size)])


def flat_gradients(module: nn.Module, world_size: int) -> Tensor:
    """The gradients of a module, concatenated as in `flat_of`; a missing gradient is zeros."""
    import torch

    gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters())
    return flat_of(gradients, world_size)


def lay(module: nn.Module, flat: Tensor) -> None:
    """Make the parameters views of `flat`."""
    start = 0
    for parameter in module.parameters():
        end = start + parameter.numel()
        parameter.data = flat[start:end].view(parameter.shape)
        start = end


def fill(flat: Tensor, numbers: Tensor) -> None:
    """Resize the storage of `flat` and fill it with `numbers`, without recording by autograd."""
    flat.untyped_storage().resize_(flat.numel() * flat.element_size())
    flat.data.copy_(numbers)


def values_of(module: nn.Module) -> list[Tensor]:
    """Copies of the parameters."""
    return [p.detach().clone() for p in module.parameters()]


def loss_of(module: nn.Module, inputs: Tensor) -> Any:
    """The sum of the squared outputs."""
    return module(inputs).square().sum()


def gradients_of(module: nn.Module, inputs: Tensor) -> Sequence[Tensor]:
    """The gradients of `loss_of`, one for each parameter."""
    import torch

    return torch.autograd.grad(loss_of(module, inputs), list(module.parameters()))


# Many large blocks, of which few may be whole at a time: the memory of 05/stage_3 ----------------

_BLOCKS, _WIDTH = 8, 1024
_EVERY = 4099  # every so many elements of a gradient are judged
_WHOLE = "The memory of a block must be free when `free` returns: keep no copy of it."


@dataclass(frozen=True)
class LargeBlocks(ResidentCase):
    """A case with blocks so large that the kernel's count shows how many of them are whole."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    elements = _BLOCKS * _WIDTH**2
    moments = (
        Moment(
            "peak",
            "before the first step",
            lambda size, n: size / n - size,
            _WHOLE,
        ),
        Moment(
            "peak",
            "after forward",
            lambda size, n: 0,
            _WHOLE,
            peak=lambda size, n: 3 * size / _BLOCKS,  # two blocks, and what a gather sends
            passes=lambda size, n: size / _BLOCKS,
        ),
        Moment(
            "peak",
            "after backward",
            lambda size, n: size / n,
            _WHOLE,
            passes=lambda size, n: size / n,
        ),
    )

    seed: int

    def __str__(self) -> str:
        return f"{counted(_BLOCKS, 'block')} of {amount(4 * _WIDTH**2)}"

    def given(self, rank: int, world_size: int) -> Tensor:
        import torch

        draw = torch.Generator().manual_seed(1009 * self.seed + rank)
        return torch.randn(2, _WIDTH, generator=draw)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Tensor) -> dict[str, Any]:
        def use(fn: Callable[..., Any], width: int, mark: Mark) -> dict[str, Any]:
            return _train_large(fn, given[:, :width], mark)

        with finished_calls(*FINISHED, refuse=True) as finished:
            try:
                result = use_twice(use, fn, large=_WIDTH)
            except Exception as error:  # noqa: BLE001  what `free` frees cannot be read
                result = {"failed": f"{type(error).__name__}: {error}"[:300]}
        return {**result, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        from torch import nn

        if any(result.get("failed") for result in results):
            return  # 05/stage_3 reports it
        ranks, blocks = len(results), _large_blocks(_WIDTH)
        for rank in range(ranks):
            loss = nn.Sequential(*blocks)(self.given(rank, ranks)).square().mean()
            (loss / ranks).backward()
        for rank, result in enumerate(results):
            right = [flat_gradients(b, ranks).chunk(ranks)[rank][::_EVERY] for b in blocks]
            got = result["gradients"]
            if len(got) != len(right) or any(map(difference, got, right)):
                yield "large", f"rank {rank}: the gradients of blocks of this size are wrong."
                return


def _large_blocks(width: int) -> list[nn.Module]:
    import torch
    from torch import nn

    draw, blocks = torch.Generator().manual_seed(width), list[nn.Module]()
    for _ in range(_BLOCKS):
        layer = nn.Linear(width, width, bias=False, device="meta")
        numbers = torch.empty(width, width).uniform_(-1, 1, generator=draw) / width**0.5
        layer.weight = nn.Parameter(numbers)
        blocks.append(nn.Sequential(layer, nn.Tanh()))
    return blocks


def _train_large(fn: Callable[..., Any], inputs: Tensor, mark: Mark) -> dict[str, Any]:
    """Run on a rank: one forward and one backward pass, with functions that free memory."""
    import torch
    import torch.distributed as dist
    from torch import nn

    rank, ranks = dist.get_rank(), dist.get_world_size()

    def shard(block: nn.Module) -> tuple[Tensor, Tensor]:
        flat = flat_of(block.parameters(), ranks)
        lay(block, flat)
        return flat, nn.Parameter(flat.chunk(ranks)[rank].clone())

    def gather(block: nn.Module, flat: Tensor, piece: Tensor) -> None:
        flat.untyped_storage().resize_(flat.nbytes)
        dist.all_gather_single(flat.data, piece.detach().clone())

    def free(block: nn.Module, flat: Tensor) -> None:
        flat.untyped_storage().resize_(0)

    def reduce(block: nn.Module, piece: Tensor) -> None:
        flat = flat_gradients(block, ranks)
        block.zero_grad()
        dist.all_reduce(flat)
        piece.grad = flat.chunk(ranks)[rank] / ranks

    blocks = _large_blocks(inputs.shape[1])
    model = nn.Sequential(*blocks)
    mark()
    pieces = fn(list(blocks), shard, gather, free, reduce)
    mark()
    loss = model(inputs).square().mean()
    mark()
    loss.backward()
    mark()
    gradients = [torch.zeros(1) if p.grad is None else p.grad[::_EVERY].clone() for p in pieces]
    return {"gradients": gradients}
