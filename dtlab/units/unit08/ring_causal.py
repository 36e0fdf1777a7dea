"""08/ring_causal: ring attention with a causal mask, on tokens in zig-zag order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtlab.checks.comparison import Known
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import confirmed
from dtlab.checks.parts import Part
from dtlab.units.unit08.sequences import OnTokens, attention

if TYPE_CHECKING:
    from torch import Tensor

_MORE, _LESS = 1.02, 0.98  # allowed ratios to the products that are due


@dataclass(frozen=True)
class Causal(OnTokens):
    """A call on tokens in zig-zag order: an early and a late run on each rank."""

    nan = (
        "If all scores of a query are hidden, their logsumexp is -inf, and "
        "-inf - (-inf) is NaN: skip such a block. Does each token see itself?"
    )
    topic: str = "result"

    def shows(self, criterion: str) -> bool:
        return (criterion == "own") == (self.topic == "own")

    @property
    def hint(self) -> str:
        if self.topic == "own":
            return "Which keys does the first token see, and which the last one?"
        return (
            "Write down which of the four pairs of runs are visible, for an earlier and for a "
            "later rank."
        )

    def places(self, rank: int, ranks: int) -> list[int]:
        run = self.tokens // 2
        starts = rank * run, (2 * ranks - 1 - rank) * run
        return [place for start in starts for place in range(start, start + run)]

    def visible(self, rank: int, ranks: int) -> Tensor:
        import torch

        own = torch.tensor(self.places(rank, ranks))
        return own.unsqueeze(1) >= torch.arange(ranks * self.tokens)

    def more_known(self, rank: int, ranks: int) -> Known:
        import torch

        q, k, v = self.whole(ranks)
        blocks = [self.places(other, ranks) for other in range(ranks)]
        mine, order = q[..., blocks[rank], :], [place for block in blocks for place in block]
        s = self.tokens
        contiguous = torch.ones(s, ranks * s, dtype=torch.bool).tril(rank * s)
        unmasked = self.visible(rank, ranks)
        unmasked[:, blocks[rank]] = True
        return {
            "has the mask of tokens in order, rank after rank": (
                attention(mine, k[..., order, :], v[..., order, :], contiguous),
                "Here each rank has an early and a late run.",
            ),
            "has no mask in its own block: a token attends to later ones": (
                attention(mine, k, v, unmasked), ""
            ),
        }  # fmt: skip

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        yield from super().faults(results)
        ranks, run = len(results), self.tokens // 2
        unit = 2 * self.heads * run * run * self.size  # scores, and their product with values
        for rank, result in enumerate(results):
            pairs = result["products"] / unit
            enough = 4 + 2 * (ranks - 1)
            if pairs > enough * _MORE:
                yield (
                    "work",
                    f"rank {rank} computes {pairs:.3g} pairs of a run of {run} queries and a run "
                    f"of {run} keys. {enough} are enough: 4 in its own block, and 2 in each other "
                    "one. Leave hidden pairs out before the product, do not mask them.",
                )
            visible = 2 + 2 * (ranks - 1)  # without the hidden half of the own block
            if pairs < visible * _LESS:
                yield (
                    "work",
                    f"rank {rank} computes {pairs:.3g} pairs of runs with products of PyTorch, "
                    f"and at least {visible} are visible. Only these products are counted: "
                    "compute scores and outputs with @, in the thread that calls your function.",
                )

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        where = observation.trial.words(0)
        texts = [*self.wrong_peers(observation), *self.wrong_bytes(observation)]
        faults = (("wire", f"{where}: {text}") for text in texts)
        yield from confirmed("wire", observation, faults, self.needed(observation))


def _trials(seed: int) -> list[Trial]:
    """One rank, whose tokens are in order; then 2 to 4 ranks, and one that counts bytes."""
    draw = random.Random(seed)

    def case(topic: str, tokens: int = 0, size: int = 8) -> Causal:
        tokens = tokens or 2 * draw.randint(2, 4)
        return Causal(draw.randrange(10**6), draw.randint(1, 3), tokens, size, topic)

    return [
        Trial(1, [case("own")]),
        *(Trial(ranks, [case("result")]) for ranks in (3, 2, 4)),
        Trial(4, [case("result", 32, 128)]),
    ]


PART = Part(
    "08/ring_causal", 2, "A causal ring in zig-zag order", 25, 3,
    Check(
        trials=_trials,
        rules=(
            rule("own", 2, "on one rank, a token attends to itself and to earlier ones"),
            rule("result", 4, "causal attention over all tokens, on 2 to 4 ranks", "own"),
            rule("work", 1, "each rank computes the same, and no hidden block", "own", "result"),
            rule("wire", 3, "N-1 blocks go to the right neighbour", "own", "result"),
        ),
    ),
    reference="dtlab.parallel.context.ring_attention",
)  # fmt: skip
