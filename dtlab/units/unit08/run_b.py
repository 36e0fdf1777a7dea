"""08/run_b: fix a ring attention that is right only without a causal mask, by two faults.

Only the mask needs to know which tokens a block holds. Two lines say it: which rank a block comes
from, and which tokens that rank has in zig-zag order.

    both faults      later runs: right where the two faults cancel; earlier runs: wrong
    only the source  later runs: wrong on every rank; earlier runs: right
    only the tokens  right on two ranks, where the source cannot be wrong, and on no more than two

The values are rows of the identity. So the result of a query is its weights, one for each token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.criteria import Objection, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Case, Observation, Trial
from dtlab.checks.programs.training import Scene, proof, script_part
from dtlab.checks.words import amount, ranks_in_words
from dtlab.units.unit08.run_a import collective_in

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Attending"]

_NEAR = 1e-9
_MORE = 1.1  # times the bytes of a block
_LIMIT = 15.0  # seconds for runs that take a tenth of one


@dataclass(frozen=True)
class Attending(Case):
    """A run of `program(q, k, v, causal)` on ranks, each with two runs of `run` tokens."""

    finished: ClassVar[tuple[str, ...]] = (
        "dtlab.simple", "dtlab.parallel.context.ring", "dtlab.parallel.context.ulysses",
    )  # fmt: skip

    seed: int
    ranks: int
    run: int
    causal: bool = True
    heads: int = 1
    size: int = 4

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {'with' if self.causal else 'without'} a causal mask"

    @property
    def tokens(self) -> int:
        """The tokens of all ranks."""
        return 2 * self.ranks * self.run

    @cached_property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [heads, tokens, size], and values [heads, tokens, tokens]."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        q, k = torch.randn(2, self.heads, self.tokens, self.size, generator=draw).double()
        return q, k, torch.eye(self.tokens, dtype=q.dtype).expand(self.heads, -1, -1)

    @cached_property
    def one_process(self) -> Tensor:
        """The weights of all queries in one process: [heads, tokens, tokens]."""
        import torch

        q, k, _ = self.inputs
        scores = q @ k.transpose(-2, -1) / self.size**0.5
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        weights: Tensor = scores.softmax(-1)
        return weights

    def of_rank(self, rank: int) -> Tensor:
        """The positions of a rank's tokens."""
        from dtlab.parallel.context import tokens_of

        return tokens_of(rank, self.ranks, self.tokens, zigzag=True)

    def given(self, rank: int, world_size: int) -> list[Any]:
        own = self.of_rank(rank)
        return [*(each[:, own].clone() for each in self.inputs), self.causal]

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: list[Any]) -> dict[str, Any]:
        with finished_calls(*Attending.finished, refuse=True):
            return {"weights": fn(*given)}

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`; empty, since objections say what is wrong with a run."""
        return ""

    def weights(self, results: Sequence[Any]) -> Tensor:
        """The weights of all queries, in the order of the tokens: [heads, tokens, tokens]."""
        import torch

        weights = torch.zeros_like(self.one_process)
        for rank, result in enumerate(results):
            own = self.of_rank(rank)
            if result["weights"].shape != weights[:, own].shape:
                raise ValueError("the result has another shape")
            weights[:, own] = result["weights"].to(weights.dtype)
        return weights

    def pairs(self, results: Sequence[Any]) -> tuple[int, int]:
        """How many pairs have a weight that they should not have, and how many have none.

        A pair is a query and a key; all heads have the same.
        """
        seen, right = self.weights(results)[0] > 0, self.one_process[0] > 0
        return int((seen & ~right).sum()), int((right & ~seen).sum())


def _differs(causal: bool, ranks: Sequence[int]) -> Objection:
    """Returns an objection to other weights than those of one process, in some of the cases."""

    def objection(case: Attending, results: Sequence[Any], run: Observation) -> str:
        if case.causal != causal or case.ranks not in ranks:
            return ""
        off = ~((case.weights(results) - case.one_process).abs() <= _NEAR)
        if not off.any():
            return ""
        _, query, key = off.nonzero()[0].tolist()
        more, fewer = case.pairs(results)
        rank = next(r for r in range(case.ranks) if query in case.of_rank(r))
        return (
            f"{more} pairs of a query and a later key have a weight, and {fewer} pairs that "
            f"should have one have none. The first that differs from one process is query "
            f"{query}, of rank {rank}, with key {key}."
        )

    return objection


def _holds_more(case: Attending, results: Sequence[Any], run: Observation) -> str:
    """A message if ranks call collectives, or send more than each block once per hop."""
    if run.trace is None:
        return ""
    if called := collective_in(run):
        return f"the ranks call {called}: a rank may hold two blocks, not those of all ranks."
    cases: Sequence[Any] = run.trial.cases
    most = sum(8 * each.heads * 2 * each.run * (each.size + each.tokens) for each in cases)
    most *= case.ranks - 1
    for rank in range(case.ranks):
        sent, peers = run.trace.bytes_sent(rank), sorted(run.trace.peers(rank))
        if sent > _MORE * most or len(peers) > 2:  # with more peers it is no ring
            return (
                f"rank {rank} sends {amount(sent)}, and its messages are with "
                f"{ranks_in_words(peers)}. On a ring a rank sends {amount(most)}, and has one "
                "neighbour on each side."
            )
    return ""


# The part ---------------------------------------------------------------------------------------


def _measured(scene: Scene) -> dict[str, int]:
    later, _ = scene.case.pairs(scene.results)
    return {"later": later, "all": scene.case.tokens * (scene.case.tokens - 1) // 2}


def _trials(seed: int) -> list[Trial]:
    """Trials on two to four ranks, with and without a mask."""
    draw = random.Random(seed)
    trials = []
    for ranks in (2, 3, 4):
        about = draw.randrange(1, 10**6), ranks, draw.randint(3, 5)
        shape = draw.randint(1, 3), draw.choice((3, 5, 6))
        cases = [Attending(*about, causal, *shape) for causal in (False, True)]
        trials.append(Trial(ranks, cases, limit=_LIMIT))
    return trials


PART = script_part(
    "08/run_b", "Run B", 20, 3,
    "dtlab.units.unit08.runs_scripts.attend",
    Trial(4, [Attending(0, 4, 2)], limit=_LIMIT),
    _trials,
    (
        rule("whole", 1, "right without a mask", by=(_differs(False, (2, 3, 4)),)),
        rule("two", 2, "right with a mask on two ranks", by=(_differs(True, (2,)),)),
        rule("more", 2, "the same on three and four", by=(_differs(True, (3, 4)),), after="two"),
        rule("ring", 1, "blocks travel around a ring", by=_holds_more, after="more"),
    ),
    [
        "positions = [torch.cat([runs[r], runs[ranks + r]]) for r in range(ranks)]",
        "source = (rank + step) % ranks",
        "dist.P2POp(dist.isend, block, (rank + 1) % ranks),",
        "dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks),",
    ],
    "Take a pair with a wrong weight. In which round do the two meet, and what decides about it?",
    proof=proof(
        _measured,
        "later",
        "Run the program on four ranks, and count the pairs of a query and a later key that have "
        "a weight.",
        {
            "0": "that is the number in one process.",
            "2 * later": "that is with the pairs that should have a weight. Leave them out.",
            "later / ranks": "that is the mean of a rank. Count them on all ranks.",
            "all": "those are all pairs of a query and a later key. How many have a weight?",
        },
    ),
)  # fmt: skip
