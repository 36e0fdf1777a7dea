"""05/stage_3: when the four functions are called, by hooks on the blocks of a model.

forward                              backward
gather 0, forward 0, free 0, ...     ..., gather 0, backward 0, free 0, reduce 0
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial, drawn_seed
from dtlab.grading.parts import Part
from dtlab.units.unit05.blocks import FINISHED

if TYPE_CHECKING:
    from torch import Tensor

_STEPS, _RATE = 2, 0.2
_MOST = 2  # blocks that may be whole at a time: the one that computes, and the next one

Entry = tuple[str, int]  # what happened, to which block


@dataclass(frozen=True)
class Hooked(Faulty):
    """`fn(blocks, shard, gather, free, reduce)` once, then some steps."""

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
        from dtlab.units.unit05.hooked import run

        with finished_calls(*FINISHED, refuse=True) as finished:
            seen = run(fn, given["sizes"], given["seed"], given["batches"], _RATE)
        return {**seen, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        from dtlab.units.unit05.blocks import alike, off_from
        from dtlab.units.unit05.hooked import in_one_process

        blocks, size = len(self.sizes) - 1, len(results)
        for rank, seen in enumerate(results):
            log = [(str(what), int(block)) for what, block in seen["log"]]
            yield from ((name, f"rank {rank}, {words}") for name, words in faults_in(log, blocks))
        batches = [[self.batch(rank, step) for rank in range(size)] for step in range(_STEPS)]
        start = drawn_seed(self.seed, "start")
        wanted = in_one_process(self.sizes, start, batches, _RATE)
        for rank, seen in enumerate(results):
            if seen["form"]:
                yield "result", f"stage_3 returns {seen['form']}: return the pieces, a list."
                return
            for block, flat in enumerate(wanted):
                own = _padded(flat, size).chunk(size)[rank]
                if len(seen["pieces"]) != blocks or not alike(seen["pieces"][block], own):
                    got = seen["pieces"][block] if len(seen["pieces"]) == blocks else None
                    yield (
                        "result",
                        (
                            f"rank {rank}: after {_STEPS} steps the piece of block {block} "
                            f"{off_from(got, own)}. Return the pieces of shard, in order."
                        ),
                    )
                    return


def _padded(flat: Tensor, size: int) -> Tensor:
    from torch.nn.functional import pad

    return pad(flat, (0, -len(flat) % size))


def faults_in(log: Sequence[Entry], blocks: int) -> Iterator[Fault]:
    """What is wrong with the order of things on a rank, each kind of it once."""
    seen: set[str] = set()
    for name, words in _all_faults_in(log, blocks):
        if name not in seen:
            seen.add(name)
            yield name, words


def _all_faults_in(log: Sequence[Entry], blocks: int) -> Iterator[Fault]:
    whole: set[int] = set()
    gathered, passing = set[int](), "forward"
    complete = [0] * blocks  # gradients that reduce found, in this step
    early = set[int]()  # blocks that were whole when they were reduced
    for what, block in log:
        if what in ("shard", "gather"):
            if what == "gather" and block in gathered:
                yield passing, f"block {block} is gathered in {passing} while it is whole. {_ONCE}"
            whole.add(block)
            gathered |= {block} if what == "gather" else set()
        elif what == "free":
            whole.discard(block)
            gathered.discard(block)
        elif what in ("forward", "backward") and block not in whole:
            yield what, f"block {block} computes in {what} while it is freed. {_WHEN[what]}"
        elif what == "reduce":
            complete[block] += 1
            early |= {block} & whole
        elif what == "incomplete":
            yield "reduce", f"block {block} is reduced while gradients of it are missing. {_ALL}"
        elif what in ("loss", "step"):
            if whole:
                yield "peak", f"after {_PASS[what]} {_blocks(whole)} still whole. {_WHEN['free']}"
            passing = "backward" if what == "loss" else "forward"
            if what == "step":
                for number, times in enumerate(complete):
                    if times != 1:
                        yield (
                            "reduce",
                            f"block {number} is reduced {times} times in a step. {_ALL}",
                        )
                complete = [0] * blocks
        if len(whole) > _MOST:
            yield "peak", f"{_blocks(whole)} whole at the same time. {_WHEN['free']}"
    if early and not any(what == "incomplete" for what, _ in log):
        yield "peak", f"block {max(early)} is reduced while it is whole. {_FIRST}"


def _blocks(whole: set[int]) -> str:
    listed = ", ".join(map(str, sorted(whole)))
    return f"block {listed} is" if len(whole) == 1 else f"blocks {listed} are"


_PASS = {"loss": "forward", "step": "backward"}
_WHEN = {
    "forward": "A forward pre-hook comes before it.",
    "backward": "Backward enters a block by the gradient of its output.",
    "free": "A block is freed when its forward is through, and again when its backward is.",
}
_ONCE = "That sends all of it once more."
_FIRST = (
    "`reduce` needs memory for all of its gradients, end to end: give that of its weights back "
    "before."
)
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
