"""08/ring_forward: attention over the tokens of all ranks, with keys that go round a ring."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Seen, rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.units.unit08.sequences import OnTokens

_BLOCKS = 7.0  # most blocks of keys and values that living tensors may take; measured: 3 to 5


@dataclass(frozen=True)
class Ring(OnTokens):
    """A call on tokens in order, without a mask."""

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        where = observation.trial.words(0)
        yield from (("peers", f"{where}: {text}") for text in self.wrong_peers(observation))
        yield from (("bytes", f"{where}: {text}") for text in self.wrong_bytes(observation))


def _holds(seen: Seen) -> str:
    """A message if tensors of a rank take as much as many blocks; judged on the most ranks."""
    last = max(seen, key=lambda one: one.trial.world_size)
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
    return ""


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks, and on 6, where all blocks take far more than two."""
    draw = random.Random(seed)

    def case(tokens: int = 0, size: int = 8) -> Ring:
        return Ring(draw.randrange(10**6), draw.randint(1, 3), tokens or draw.randint(3, 6), size)

    return [
        *(Trial(ranks, [case()]) for ranks in (3, 1, 2)),
        Trial(4, [case(32, 128)]),
        Trial(6, [case(4, 256)]),
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
