"""05/stage_3: when the four functions are called, by hooks on the blocks of a model.

forward                              backward
gather 0, forward 0, free 0, ...     ..., gather 0, backward 0, free 0, reduce 0
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial, drawn_seed
from dtlab.grading.parts import Part
from dtlab.units.unit05.blocks import FINISHED, alike, flat_gradients, flat_of, lay, off_from

if TYPE_CHECKING:
    from torch import Tensor, nn

_STEPS, _RATE = 2, 0.2
_MOST = 2  # blocks that may be whole at a time: the one that computes, and the next one

Log = list[tuple[str, int]]  # what happened, to which block


# What a rank does: it trains blocks, and notes what happens in which order ----------------------


def make_blocks(sizes: Sequence[int], seed: int, log: Log) -> list[nn.Module]:
    """A block for each pair of sizes, a linear layer and tanh, which notes when it computes.

    It notes this at the linear layer: after hooks before the block's forward, and before those
    after it; in backward after hooks on the gradient of the block's output.
    """
    import torch
    from torch import nn

    draw, blocks = torch.Generator().manual_seed(seed), list[nn.Module]()
    for number, pair in enumerate(pairwise(sizes)):
        linear = nn.Linear(*pair)
        for parameter in linear.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=draw) * 0.6)

        def note(module: nn.Module, inputs: Any, output: Any, number: int = number) -> None:
            log.append(("forward", number))
            output.register_hook(lambda _: log.append(("backward", number)))

        linear.register_forward_hook(note)
        blocks.append(nn.Sequential(linear, nn.Tanh()))
    return blocks


def four_functions(blocks: Sequence[nn.Module], log: Log) -> tuple[Callable[..., Any], ...]:
    """shard, gather, free and reduce, each of which notes its call and works in a plain way.

    What is freed is NaN, and keeps its memory: an answer that forgets to gather does not crash.
    """
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()

    def note(what: str, block: nn.Module) -> None:
        log.append((what, list(blocks).index(block)))

    def shard(block: nn.Module) -> tuple[Tensor, Tensor]:
        note("shard", block)  # it has all its parameters until it is freed
        flat = flat_of(block.parameters(), ranks)
        lay(block, flat)
        return flat, torch.nn.Parameter(flat.chunk(ranks)[rank].clone())

    def gather(block: nn.Module, flat: Tensor, piece: Tensor) -> None:
        note("gather", block)
        dist.all_gather_single(flat.data, piece.detach().clone())
        lay(block, flat)

    def free(block: nn.Module, flat: Tensor) -> None:
        note("free", block)
        flat.data.fill_(torch.nan)

    def reduce(block: nn.Module, piece: Tensor) -> None:
        missing = any(one.grad is None for one in block.parameters())
        note("incomplete" if missing else "reduce", block)
        flat = flat_gradients(block, ranks)
        dist.all_reduce(flat)
        mean = flat.chunk(ranks)[rank] / ranks
        piece.grad = mean if piece.grad is None else piece.grad + mean
        block.zero_grad()

    return shard, gather, free, reduce


# How it is judged -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hooked(Faulty):
    """`fn(blocks, shard, gather, free, reduce)` once, then some steps of SGD on the pieces."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    sizes: tuple[int, ...]
    topic: str = "result"

    def __str__(self) -> str:
        return f"{len(self.sizes) - 1} blocks"

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        batches = [self.batch(rank, step) for step in range(_STEPS)]
        return {"sizes": self.sizes, "seed": drawn_seed(self.seed, "start"), "batches": batches}

    def batch(self, rank: int, step: int) -> Tensor:
        """What a rank trains on in a step."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + rank) * 97 + step)
        return torch.randn(3, self.sizes[0], generator=draw)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from torch import Tensor, nn

        log: Log = []
        blocks = make_blocks(given["sizes"], given["seed"], log)
        model, four = nn.Sequential(*blocks), four_functions(blocks, log)
        with finished_calls(*FINISHED, refuse=True) as finished:
            pieces = fn(list(blocks), *four)
            listed = isinstance(pieces, list | tuple)
            if not listed or not all(isinstance(one, Tensor) for one in pieces):
                return {"form": type(pieces).__name__}
            for inputs in given["batches"]:
                loss = model(inputs).square().mean()
                log.append(("loss", 0))
                loss.backward()
                log.append(("step", 0))
                for piece in pieces:
                    if piece.grad is not None:
                        piece.data -= _RATE * piece.grad
                        piece.grad = None
        after = [one.detach().clone() for one in pieces]
        return {"log": log, "pieces": after, "finished": sorted(finished)}

    def in_one_process(self, ranks: int) -> list[nn.Module]:
        """The blocks after the steps, each with the mean gradient of the ranks' batches."""
        from torch import nn

        blocks = make_blocks(self.sizes, drawn_seed(self.seed, "start"), [])
        model = nn.Sequential(*blocks)
        for step in range(_STEPS):
            model.zero_grad()
            for rank in range(ranks):
                (model(self.batch(rank, step)).square().mean() / ranks).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data -= _RATE * parameter.grad
        return blocks

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        ranks, blocks = len(results), self.in_one_process(len(results))
        for rank, seen in enumerate(results):
            if form := seen.get("form"):
                yield "result", f"stage_3 returns {form}: return the pieces, a list."
                return
            log = [(str(what), int(block)) for what, block in seen["log"]]
            for name, words in faults_in(log, len(blocks)):
                yield name, f"rank {rank}, {words}"
            for number, block in enumerate(blocks):
                got = seen["pieces"][number] if len(seen["pieces"]) == len(blocks) else None
                own = flat_of(block.parameters(), ranks).chunk(ranks)[rank]
                if not alike(got, own):
                    what = f"after {_STEPS} steps the piece of block {number} {off_from(got, own)}"
                    yield "result", f"rank {rank}: {what}. Return the pieces of shard, in order."


def faults_in(log: Log, blocks: int) -> Iterator[Fault]:
    """What is wrong with the order of things on a rank."""
    whole: dict[int, str] = {}  # blocks, and by what they became whole
    passing = "forward"
    reduced = [0] * blocks  # how often in this step, with all gradients
    early = set[int]()  # blocks that were whole when they were reduced
    for what, block in log:
        if what == "gather" == whole.get(block):
            yield passing, f"block {block} is gathered in {passing} while it is whole. {_ONCE}"
        elif what in ("forward", "backward") and block not in whole:
            yield what, f"block {block} computes in {what} while it is freed. {_WHEN[what]}"
        elif what == "incomplete":
            yield "reduce", f"block {block} is reduced while gradients of it are missing. {_ALL}"
        elif what in ("loss", "step") and whole:
            yield "peak", f"after {passing} {_blocks(whole)} still whole. {_WHEN['free']}"
        if what in ("shard", "gather"):
            whole[block] = what
        elif what == "free":
            whole.pop(block, None)
        elif what == "reduce":
            reduced[block] += 1
            early |= {block} & whole.keys()
        elif what == "loss":
            passing = "backward"
        elif what == "step":
            for number, times in enumerate(reduced):
                if times != 1:
                    yield "reduce", f"block {number} is reduced {times} times in a step. {_ALL}"
            passing, reduced = "forward", [0] * blocks
        if len(whole) > _MOST:
            yield "peak", f"{_blocks(whole)} whole at the same time. {_WHEN['free']}"
    if early and not any(what == "incomplete" for what, _ in log):
        yield "peak", f"block {max(early)} is reduced while it is whole. {_FIRST}"


def _blocks(whole: Iterable[int]) -> str:
    listed = ", ".join(map(str, sorted(whole)))
    return f"blocks {listed} are" if "," in listed else f"block {listed} is"


_WHEN = {
    "forward": "A forward pre-hook comes before it.",
    "backward": "Backward enters a block by the gradient of its output.",
    "free": "A block is freed when its forward is through, and again when its backward is.",
}
_ONCE = "That sends all of it once more."
_FIRST = "`reduce` needs memory for all gradients, end to end: free the block's weights before."
_ALL = "Once for each backward pass, when the last of its gradients is there."


def _trials(seed: int) -> list[Trial]:
    """Four blocks on 2 and 3 ranks, and on one."""
    draw = random.Random(seed)

    def case() -> Hooked:
        return Hooked(draw.randrange(10**6), tuple(draw.sample(range(3, 12), 5)))

    return [Trial(ranks, [case()]) for ranks in (2, 3, 1)]


PART = Part(
    name="05/stage_3",
    level=2,
    title="Stage 3",
    minutes=16,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("result", 2, "it trains as one process does", "forward", "backward", "reduce"),
            rule("forward", 2, "gathered before each forward"),
            rule("backward", 2, "gathered before each backward"),
            rule("peak", 1, "two blocks are whole at most, and freed before they are reduced"),
            rule("reduce", 1, "reduced once, with all gradients", "backward"),
        ),
    ),
    reference="dtlab.parallel.zero.fully_sharded.NaiveZero3",
)
