"""08/ring_forward: attention over the tokens of all ranks, with keys that go round a ring."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, Seen, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.resident import Mark, Moment, ResidentCase, grown_by, use_twice
from dtlab.checks.functions.trials import Observation, Trial, drawn_seed
from dtlab.checks.functions.unseen import confirmed
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.units.unit08.sequences import FINISHED, OnTokens, attention, drawn

if TYPE_CHECKING:
    from torch import Tensor

_BLOCKS = 7.0  # most blocks of keys and values that living tensors may take; measured: 3 to 5
_TOKENS, _SIZE = 64, 8192  # of each rank, and of a head, where the kernel counts: 4.2 MB a block
_RESIDENT = 5.0  # most of these blocks that a rank's memory may grow by; measured: 3.4 to 4.5
_SHOWN = 61  # every so many columns of the output are judged


@dataclass(frozen=True)
class Ring(OnTokens):
    """A call on tokens in order, without a mask."""

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        where = observation.trial.words(0)
        peers = (("peers", f"{where}: {text}") for text in self.wrong_peers(observation))
        yield from confirmed("peers", observation, peers, self.needed(observation))
        yield from (("bytes", f"{where}: {text}") for text in self.wrong_bytes(observation))


@dataclass(frozen=True)
class LargeRing(ResidentCase):
    """A call with blocks so large that the kernel's count shows how many a rank holds."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    elements = 2 * _TOKENS * _SIZE  # of a block
    ready = 4.0 * 3 * _TOKENS * _SIZE  # bytes of q, k and v
    moments = (
        Moment(
            "holds",
            "when the output is returned",
            lambda block, n: block / 2,
            "Two blocks are enough at any time: the one in use and the one that arrives. Drop a "
            "block after its round, and keep no copy of it in any form.",
            peak=lambda block, n: _RESIDENT * block,
            passes=lambda block, n: block,
        ),
    )

    seed: int

    def __str__(self) -> str:
        return f"{_TOKENS} tokens each, 1 head of size {_SIZE}"

    def given(self, rank: int, world_size: int) -> int:
        return drawn_seed(self.seed, f"tokens of rank {rank}")

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: int) -> dict[str, Any]:
        with finished_calls(*FINISHED, refuse=True) as finished:
            result = use_twice(partial(_attend, given), fn, 8, _SIZE)
        return {**result, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        import torch

        parts = [_large(self.given(rank, len(results)), _SIZE) for rank in range(len(results))]
        k, v = (torch.cat([part[place] for part in parts], -2) for place in (1, 2))
        for rank, result in enumerate(results):
            wanted = attention(parts[rank][0], k, v[..., ::_SHOWN])
            if difference(result["out"], wanted):
                message = f"rank {rank}: the output is wrong with blocks of this size."
                yield "holds", f"{message} Nothing in your function may depend on a certain size."


def _large(seed: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = drawn(seed, 3, 1, 1, _TOKENS, size).unbind()
    return q.clone(), k.clone(), v.clone()


def _attend(seed: int, fn: Callable[..., Any], size: int, mark: Mark) -> dict[str, Any]:
    """Run on a rank: its q, k and v; the count of its memory before and after the call."""
    q, k, v = _large(seed, size)
    mark()
    out = fn(q, k, v)
    mark()
    return {"out": None if out is None else out.detach()[..., ::_SHOWN].clone()}


def _holds(seen: Seen) -> str:
    """A message if tensors of a rank take as much as many blocks; judged on the most ranks."""
    rings = [one for one in seen if isinstance(one.trial.cases[0], Ring)]
    if not rings:  # one case that is run again
        return _resident(seen)
    last = max(rings, key=lambda one: one.trial.world_size)
    case = last.trial.cases[0]
    assert isinstance(case, Ring)
    for rank, result in enumerate(last.results[0] if last.results else ()):
        held = result["peak"] / case.block
        if held > _BLOCKS:
            return (
                f"{last.trial.words(0)}: the tensors that rank {rank} makes take "
                f"{amount(result['peak'])} at one time, which is {held:.1f} blocks of keys and "
                f"values, and there are {last.trial.world_size}. Two blocks are enough: the one "
                "in use and the one that arrives. Drop a block after its round."
            )
    return _resident(seen)


_resident = grown_by("holds")


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks, and on 6, where all blocks take far more than two."""
    draw = random.Random(seed)

    def case(tokens: int = 0, size: int = 8) -> Ring:
        return Ring(draw.randrange(10**6), draw.randint(1, 3), tokens or draw.randint(3, 6), size)

    return [
        *(Trial(ranks, [case()]) for ranks in (3, 1, 2)),
        Trial(4, [case(32, 128)]),
        Trial(6, [case(4, 256)]),
        Trial(6, [LargeRing(draw.randrange(10**6))]),
    ]


PART = Part(
    "08/ring_forward", 2, "Ring attention", 20, 3,
    Check(
        trials=_trials,
        rules=(
            rule("result", 4, "attention over all tokens, on 1 to 6 ranks"),
            rule("peers", 2, "each rank sends to its right neighbour only", "result"),
            rule("bytes", 2, "each rank passes on N-1 blocks of keys and values", "result"),
            rule("holds", 2, "no rank ever holds the keys of all ranks", "result", also=_holds),
        ),
    ),
    reference="dtlab.simple.ring_attention",
)  # fmt: skip
