"""08/merge_blocks: the online softmax, which takes a new block of keys into a running output."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import Known, difference, same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit08.sequences import FINISHED, attention, drawn

if TYPE_CHECKING:
    from torch import Tensor

_LARGE = 30.0  # times this, the scores are too large for exp in float32


@dataclass(frozen=True)
class Merging(Faulty):
    """Calls of `fn(out, total, q, k, v)` for the `blocks` after the first one.

    With the topic "rounds" the first block is merged too: into zeros and -inf.
    """

    alone = True
    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    topic: str
    blocks: tuple[int, ...]  # tokens of each
    tokens: int  # of the queries
    size: int  # of a head

    def __str__(self) -> str:
        count = f"blocks of {' and '.join(map(str, self.blocks))} keys"
        return f"{self.tokens} queries, {count}" + ", large scores" * (self.topic == "large")

    @property
    def guilty(self) -> str:
        return "out" if self.topic == "inputs" else self.topic

    def shows(self, criterion: str) -> bool:
        both = ("out", "total", "inputs")
        return criterion in both if self.topic == "out" else criterion == self.topic

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v; the scores grow from block to block, or fall."""
        import torch

        q = drawn(self.seed, 1, 2, self.tokens, self.size)
        k, v = drawn(self.seed + 1, 2, 1, 2, sum(self.blocks), self.size)
        steps = [torch.full((n,), 1.0 + place) for place, n in enumerate(self.blocks)]
        scale = torch.cat(steps[::-1] if self.seed % 2 else steps)
        return q * (_LARGE if self.topic == "large" else 1.0), k * scale.unsqueeze(-1), v

    def over(self, count: int) -> tuple[Tensor, Tensor]:
        """The right output and log-sum-exp over the first `count` keys."""
        q, k, v = self.tensors()
        k, v = k[..., :count, :], v[..., :count, :]
        scores = q.double() @ k.double().transpose(-2, -1) / math.sqrt(self.size)
        return attention(q, k, v), scores.logsumexp(-1).float()

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        import torch

        q, k, v = self.tensors()
        first, rest = self.blocks[0], list(self.blocks[1:])
        out, total = self.over(first)
        if self.topic == "rounds":
            rest = list(self.blocks)
            first, out, total = 0, torch.zeros_like(q), torch.full(q.shape[:-1], -math.inf)
        pairs = [torch.split(t[..., first:, :], rest, -2) for t in (k, v)]
        return {"out": out, "total": total, "q": q, "blocks": list(zip(*pairs, strict=True))}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        out, total, q = given["out"], given["total"], given["q"]
        changed = ""
        with finished_calls(*FINISHED, refuse=True) as finished:
            for k, v in given["blocks"]:
                named = {"q": q, "k": k, "v": v}
                before = {name: tensor.clone() for name, tensor in named.items()}
                found = fn(out, total, q, k, v)
                kept = {name: same(named[name], before[name]) for name in named}
                changed = changed or next((name for name in named if not kept[name]), "")
                q, k, v = (named[name].copy_(before[name]) for name in named)
                if not isinstance(found, tuple | list) or len(found) != 2:
                    return {"odd": type(found).__name__, "finished": sorted(finished)}
                out, total = found
        return {"out": out, "total": total, "changed": changed, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        result = results[0]
        if result.get("odd"):
            yield self.topic, f"returned is {result['odd']}. Return two tensors: out and total."
            return
        if result["changed"]:
            yield (
                "inputs",
                f"{result['changed']} is changed afterwards. In the ring another rank still needs "
                "the keys and values, and the next block needs the queries: compute a new tensor.",
            )
        out, total = self.over(sum(self.blocks))
        judged = {"out": (result["out"], out), "total": (result["total"], total)}
        for name, (got, wanted) in judged.items():
            topic = name if self.topic == "out" else self.topic
            hint = self._cure if self.topic in ("large", "rounds") else _HINT
            known = self._known(name, wanted)
            wrong = difference(got, wanted, known, hint=hint, form="", not_finite=self._cure)
            if wrong:
                yield topic, f"{name} " + wrong

    @property
    def _cure(self) -> str:
        if self.topic == "rounds":
            return "At the beginning total is -inf. What does your formula do with it?"
        return (
            "In float32 exp overflows above 88. Take differences of logarithms first, and exp of "
            "a difference that is never positive."
        )

    def _known(self, name: str, wanted: Tensor) -> Known:
        """The values of known mistakes."""
        count, first = sum(self.blocks), self.blocks[0]
        q, k, v = self.tensors()
        new = attention(q, k[..., first:, :], v[..., first:, :])
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.size)
        old, old_total = self.over(first)
        if name == "total":
            return {
                "is the sum of exp(scores)": (wanted.exp(), "Return its logarithm."),
                "is the largest score, not the logarithm of the sum": (scores.amax(-1), ""),
                "is that of the new block alone": (scores[..., first:].logsumexp(-1), ""),
                "is that from before the block": (old_total, ""),
                "is the sum of two logarithms": (
                    old_total + scores[..., first:].logsumexp(-1),
                    "Add the sums of exp(scores), and take the logarithm of that.",
                ),
            }  # fmt: skip
        large = scores * math.sqrt(self.size)
        return {
            "is the sum of both outputs, without weights": (
                old + new, "Weight them by exp(l - L)."
            ),
            "is the mean of both outputs": (
                (old + new) / 2, "A block with larger scores must count more."
            ),
            "counts the blocks by their numbers of keys": (
                (first * old + (count - first) * new) / count,
                "Weight them by their sums of exp(scores).",
            ),
            "is the output over the new block alone": (new, ""),
            "is the output from before the block": (old, ""),
            "contains the old output, not rescaled to the new total": (
                old + scores.softmax(-1)[..., first:] @ v[..., first:, :], ""
            ),
            "comes from scores of the new block that are not divided by sqrt(head size)": (
                _mixed(old, old_total, large[..., first:], v[..., first:, :]), ""
            ),
            "comes from scores that are not divided by sqrt(head size)": (
                large.softmax(-1) @ v, ""
            ),
        }  # fmt: skip


_HINT = "With L = log(exp(total) + sum(exp(scores))), which share has each block?"


def _mixed(out: Tensor, total: Tensor, scores: Tensor, v: Tensor) -> Tensor:
    """The right merge with these scores."""
    import torch

    after = torch.logaddexp(total, scores.logsumexp(-1)).unsqueeze(-1)
    return out * (total.unsqueeze(-1) - after).exp() + (scores - after).exp() @ v


def _trials(seed: int) -> list[Trial]:
    """One block, then one with large scores either way, then a whole sequence in blocks."""
    draw = random.Random(seed)

    def case(topic: str, *blocks: int, turn: int = 0) -> Merging:
        number = 2 * draw.randrange(10**6) + turn
        return Merging(number, topic, blocks, draw.randint(3, 6), draw.choice((6, 8, 12)))

    def some(count: int) -> list[int]:
        return draw.sample(range(2, 8), count)

    return [
        Trial(1, [case("out", *some(2), turn=turn) for turn in (0, 1)]),
        Trial(1, [case("large", *some(2), turn=turn) for turn in (0, 1)]),
        Trial(1, [case("rounds", *some(4))]),
    ]


PART = Part(
    "08/merge_blocks", 2, "Merge a block into a softmax", 15, 2,
    Check(
        trials=_trials,
        rules=(
            rule("out", 2, "the output over both blocks is that of one softmax"),
            rule("total", 1, "total is the logarithm of the sum over both blocks"),
            rule("inputs", 1, "q, k and v stay as they are"),
            rule("large", 2, "scores of several hundred do not overflow", "out", "total"),
            rule("rounds", 2, "four blocks, from zeros and -inf", "out", "total", "inputs"),
        ),
    ),
)  # fmt: skip
