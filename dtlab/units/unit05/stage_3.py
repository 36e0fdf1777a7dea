"""05/stage_3: ZeRO stage 3 as hooks that call shard, gather, free and reduce at the right time.

forward                              backward
gather 0, forward 0, free 0, ...     ..., gather 0, backward 0, free 0, reduce 0
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen, fault, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.resident import grown_by
from dtlab.checks.functions.trials import UNREADABLE, Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit05.blocks import (
    FINISHED,
    LargeBlocks,
    flat_gradients,
    flat_of,
    lay,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_STEPS, _RATE = 2, 0.2
_MOST = 2  # blocks that may be whole at a time: the one that computes, and the next one

Log = list[tuple[str, int]]  # events in order, each with the number of its block


# On a rank: train blocks, and log the order of events --------------------------------------------


def make_blocks(sizes: Sequence[int], seed: int, log: Log) -> list[nn.Module]:
    """A block for each pair of sizes, a linear layer and tanh, which logs when it computes.

    The log entry is made at the linear layer: between the block's forward pre-hooks and forward
    hooks, and in backward after hooks on the gradient of the block's output.
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


def four_functions(
    blocks: Sequence[nn.Module], log: Log, secret: int | None = None
) -> tuple[Callable[..., Any], ...]:
    """Simple versions of shard, gather, free and reduce that log their calls.

    `free` fills a block with NaN and keeps its memory, so that an answer that does not gather
    does not crash. With a `secret` of this rank, `gather` brings other numbers at each call.
    """
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    calls = [0] * len(blocks)

    def note(event: str, block: nn.Module) -> None:
        log.append((event, list(blocks).index(block)))

    def shard(block: nn.Module) -> tuple[Tensor, Tensor]:
        note("shard", block)  # the block is whole until it is freed
        flat = flat_of(block.parameters(), ranks)
        lay(block, flat)
        return flat, torch.nn.Parameter(flat.chunk(ranks)[rank].clone())

    def gather(block: nn.Module, flat: Tensor, piece: Tensor) -> None:
        note("gather", block)
        sent = piece.detach().clone()
        if secret is not None:
            number = list(blocks).index(block)
            calls[number] += 1
            sent += drift(secret, number, calls[number], len(sent))
        dist.all_gather_single(flat.data, sent)
        lay(block, flat)

    def free(block: nn.Module, flat: Tensor) -> None:
        note("free", block)
        flat.data.fill_(torch.nan)

    def reduce(block: nn.Module, piece: Tensor) -> None:
        missing = any(p.grad is None for p in block.parameters())
        note("incomplete" if missing else "reduce", block)
        flat = flat_gradients(block, ranks)
        dist.all_reduce(flat)
        mean = flat.chunk(ranks)[rank] / ranks
        piece.grad = mean if piece.grad is None else piece.grad + mean
        block.zero_grad()

    return shard, gather, free, reduce


def drift(secret: int, block: int, call: int, size: int) -> Tensor:
    """What a rank adds to its piece of a block when the block is gathered for the nth time."""
    import torch

    draw = torch.Generator().manual_seed(secret + 1009 * block + call)
    return torch.randn(size, generator=draw) * 0.2


# Judging ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hooked(Faulty):
    """A call of `fn(blocks, shard, gather, free, reduce)`, then steps of SGD on the pieces."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    sizes: tuple[int, ...]
    topic: str = "result"

    def __str__(self) -> str:
        return counted(len(self.sizes) - 1, "block")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        batches = [self.batch(rank, step) for step in range(_STEPS)]
        return {"sizes": self.sizes, "seed": drawn_seed(self.seed, "start"), "batches": batches}

    def batch(self, rank: int, step: int) -> Tensor:
        """The batch of a rank in a step."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + rank) * 97 + step)
        return torch.randn(3, self.sizes[0], generator=draw)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from torch import Tensor, nn

        log: Log = []
        blocks = make_blocks(given["sizes"], given["seed"], log)
        model, four = nn.Sequential(*blocks), four_functions(blocks, log, given.get("secret"))
        with finished_calls(*FINISHED, refuse=True) as finished:
            pieces = fn(list(blocks), *four)
            listed = isinstance(pieces, list | tuple)
            if not listed or not all(isinstance(piece, Tensor) for piece in pieces):
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
        after = [piece.detach().clone() for piece in pieces]
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
        for rank, result in enumerate(results):
            if form := result.get("form"):
                yield "result", f"stage_3 returns {form}: return a list of the pieces."
                return
            log = [(str(event), int(block)) for event, block in result["log"]]
            for name, message in faults_in(log, len(blocks)):
                yield name, f"rank {rank}, {message}"
            if len(result["pieces"]) != len(blocks):
                pieces = counted(len(result["pieces"]), "piece")
                yield (
                    "result",
                    f"rank {rank}: stage_3 returns {pieces} for {counted(len(blocks), 'block')}. "
                    "Return the pieces of shard, in order.",
                )
                continue
            for number, block in enumerate(blocks):
                got = result["pieces"][number]
                right = flat_of(block.parameters(), ranks).chunk(ranks)[rank]
                if wrong := difference(got, right, hint="Return the pieces of shard, in order."):
                    where = f"after {_STEPS} steps the piece of block {number}"
                    yield "result", f"rank {rank}: {where} " + wrong


# Evidence that an answer cannot write itself ---------------------------------------------------
#
#     the log of calls     lies in the rank, so an answer can rewrite it
#     Drifting             weights differ at each gather by other ranks' secrets: only a rank that
#                          gathers for forward, and again for backward, gets the right pieces
#     LargeBlocks          the kernel counts the memory of blocks that are whole (blocks.py)


@dataclass(frozen=True)
class Drifting(Hooked):
    """A case in which a block has other weights each time that it is gathered."""

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {**super().given(rank, world_size), "secret": self.secret(rank)}

    def secret(self, rank: int) -> int:
        """A number that only this rank is given."""
        return drawn_seed(self.seed, f"drift of rank {rank}") % 2**40

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        yield from ()  # see `forged`

    def forged(self, results: Sequence[Noted]) -> str:
        """A message if no calls in the right order have brought these pieces; else empty."""
        wanted = self.right_pieces(len(results))
        for rank, result in enumerate(results):
            got = result.get("pieces") or []
            if len(got) != len(wanted) or any(
                difference(piece, flat.chunk(len(results))[rank])
                for piece, flat in zip(got, wanted, strict=True)
            ):
                return (
                    f"rank {rank}: the calls are noted in the right order, but the pieces are not "
                    "those that this order gives: each gather brings other weights here. Call the "
                    "four functions from the hooks, and compute with what `gather` brings."
                )
        return ""

    def right_pieces(self, ranks: int) -> list[Tensor]:
        """The pieces of all ranks, concatenated, for each block, after the steps."""
        import torch
        from torch import nn

        seed, numbers = drawn_seed(self.seed, "start"), range(len(self.sizes) - 1)
        flats = [flat_of(b.parameters(), ranks) for b in make_blocks(self.sizes, seed, [])]

        def at(number: int, call: int) -> Tensor:
            chunks = enumerate(flats[number].chunk(ranks))
            drifts = ((c, drift(self.secret(r), number, call, len(c))) for r, c in chunks)
            return torch.cat([chunk + more for chunk, more in drifts])

        for step in range(_STEPS):
            mean = [torch.zeros_like(flat) for flat in flats]
            for rank in range(ranks):
                blocks = make_blocks(self.sizes, seed, [])
                for number, block in enumerate(blocks):
                    flat, later = at(number, 2 * step + 1), at(number, 2 * step + 2)
                    lay(block, flat)

                    def hook(_: Any, __: Any, out: Any, now: Any = flat, to: Any = later) -> None:
                        def bring(_: Tensor) -> None:
                            now.data.copy_(to)

                        out.register_hook(bring)

                    block.register_forward_hook(hook)
                nn.Sequential(*blocks)(self.batch(rank, step)).square().mean().backward()
                for number in numbers:
                    mean[number] += flat_gradients(blocks[number], ranks) / ranks
            flats = [flat - _RATE * change for flat, change in zip(flats, mean, strict=True)]
        return flats


_JUDGED = "result", "forward", "backward", "peak", "reduce"


def _forged(seen: Seen) -> str:
    """A message if the log has no mistake, but is not what the ranks did."""
    if any(fault(seen, name) for name in _JUDGED):
        return ""
    for one in seen:
        case = one.trial.cases[0]
        if isinstance(case, Drifting) and one.error is None and one.results:
            try:
                message = case.forged(one.results[0])
            except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
                message = UNREADABLE  # a rank may have sent anything
            if message:
                return f"{one.trial.words(0)}, {message}"
    return ""


_grown = grown_by("peak")


def _whole(seen: Seen) -> str:
    """A message if the log has no mistake, but the kernel counts more memory; see `_forged`."""
    if any(fault(seen, name) for name in _JUDGED):
        return ""
    for one in seen:
        if isinstance(one.trial.cases[0], LargeBlocks) and one.error is None:
            failed = (str(result.get("failed") or "") for result in one.results[0])
            if message := next(filter(None, failed), ""):
                return f"{one.trial.words(0)}: {message}"
    return fault(seen, "large") or _grown(seen) or _forged(seen)


def faults_in(log: Log, blocks: int) -> Iterator[Fault]:
    """The mistakes in the order of events on a rank."""
    whole: dict[int, str] = {}  # whole blocks, with the event that made them whole
    direction = "forward"
    reduced = [0] * blocks  # number of complete reductions of each block in this step
    early = set[int]()  # blocks that were whole when they were reduced
    for event, block in log:
        if event == "gather" == whole.get(block):
            yield direction, f"block {block} is gathered in {direction} while it is whole. {_ONCE}"
        elif event in ("forward", "backward") and block not in whole:
            yield event, f"block {block} computes in {event} while it is freed. {_WHEN[event]}"
        elif event == "incomplete":
            yield "reduce", f"block {block} is reduced before all its gradients exist. {_ALL}"
        elif event in ("loss", "step") and whole:
            yield "peak", f"after {direction} {_blocks(whole)} still whole. {_WHEN['free']}"
        if event in ("shard", "gather"):
            whole[block] = event
        elif event == "free":
            whole.pop(block, None)
        elif event == "reduce":
            reduced[block] += 1
            early |= {block} & whole.keys()
        elif event == "loss":
            direction = "backward"
        elif event == "step":
            for number, times in enumerate(reduced):
                if times != 1:
                    often = counted(times, "time")
                    yield "reduce", f"block {number} is reduced {often} in a step. {_ALL}"
            direction, reduced = "forward", [0] * blocks
        if len(whole) > _MOST:
            yield "peak", f"{_blocks(whole)} whole at the same time. {_WHEN['free']}"
    if early and not any(event == "incomplete" for event, _ in log):
        yield "peak", f"block {max(early)} is reduced while it is whole. {_FIRST}"


def _blocks(whole: Iterable[int]) -> str:
    listed = ", ".join(map(str, sorted(whole)))
    return f"blocks {listed} are" if "," in listed else f"block {listed} is"


_WHEN = {
    "forward": "Gather it in a forward pre-hook.",
    "backward": "Gather it in a hook on the gradient of its output, where its backward begins.",
    "free": "Free a block before the first step, at the end of its forward pass, and again at the "
    "end of its backward.",
}
_ONCE = "That sends the whole block again."
_FIRST = "`reduce` needs memory for all gradients of the block: free its weights first."
_ALL = "Reduce once in each backward pass, when the last gradient of the block exists."


def _trials(seed: int) -> list[Trial]:
    """Trials with four blocks, on 2, 3 and 1 ranks."""
    draw = random.Random(seed)

    def case() -> Hooked:
        return Hooked(draw.randrange(10**6), tuple(draw.sample(range(3, 12), 5)))

    trials = [Trial(ranks, [case()]) for ranks in (2, 3, 1)]
    drifting = Drifting(draw.randrange(10**6), tuple(draw.sample(range(3, 12), 5)))
    large = LargeBlocks(draw.randrange(10**6))
    return [*trials, Trial(3, [drifting]), Trial(2, [large])]


PART = Part(
    name="05/stage_3",
    level=2,
    title="ZeRO stage 3, the four functions at the right time",
    minutes=16,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("result", 2, "it trains as one process does", "forward", "backward", "reduce"),
            rule("forward", 2, "blocks are gathered before each forward", also=_forged),
            rule("backward", 2, "blocks are gathered before each backward", also=_forged),
            rule(
                "peak",
                1,
                "at most two blocks are whole; they are freed before being reduced",
                also=_whole,
            ),
            rule("reduce", 1, "reduced once, with all gradients", "backward", also=_forged),
        ),
    ),
    reference="dtlab.parallel.zero.fully_sharded.NaiveZero3",
)
