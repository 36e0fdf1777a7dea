"""Test cases on a sequence whose tokens are split over the ranks, for the first half of Level II.

    check's process                       rank r
    q, k, v of all tokens  ────────────>  fn(q, k, v) on its own tokens
    attention of one process  <────────   its rows of the output, bytes held, products computed

`Watched` sees each operator of the learner's function, so it can count both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab import torch_internals
from dtlab.checks.comparison import Known, difference
from dtlab.checks.functions.criteria import Fault, Faulty, Noted
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Observation
from dtlab.checks.words import Explanation, amount
from dtlab.predict.units import counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["FINISHED", "OnTokens", "attention", "drawn"]

_ROUNDS = "How many rounds does the ring take?"

FINISHED = ("dtlab.simple", "dtlab.parallel.context.ring", "dtlab.parallel.context.ulysses")


def drawn(seed: int, *shape: int) -> Tensor:
    """Random numbers in float32. Queries and keys of twice their size make scores differ."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
    """Attention of one process, without any trick; `visible` is True for pairs that count."""
    scores = q.double() @ k.double().transpose(-2, -1) / math.sqrt(q.shape[-1])
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return (scores.softmax(-1) @ v.double()).to(q.dtype)


def watched() -> Any:
    """A mode that counts bytes of living tensors, and multiplications of matrix products."""
    from dtlab.training.live import Storages

    class Watched(Storages):  # type: ignore[no-untyped-call]
        peak, products = 0, 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            result = super().__torch_dispatch__(func, types, args, kwargs)
            name = func.overloadpacket.__name__
            if name in ("mm", "bmm", "addmm", "baddbmm"):
                left = args[-2]
                self.products += left.numel() * args[-1].shape[-1]
            elif name.startswith(torch_internals.ATTENTION_OPERATORS):
                self.products += 2 * args[0].numel() * args[1].shape[-2]
            return result

        def note(self) -> None:
            self.peak = max(self.peak, self.bytes)

    return Watched()


@dataclass(frozen=True)
class OnTokens(Faulty):
    """A call of `fn(q, k, v)`: this rank's tokens, [1, heads, tokens, head size] each."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    topic = "result"

    seed: int
    heads: int
    tokens: int  # of each rank
    size: int  # of a head

    def __str__(self) -> str:
        heads = counted(self.heads, "head")
        return f"{counted(self.tokens, 'token')} each, {heads} of size {self.size}"

    def places(self, rank: int, ranks: int) -> list[int]:
        """The positions of a rank's tokens in the sequence."""
        return [*range(rank * self.tokens, (rank + 1) * self.tokens)]

    def whole(self, ranks: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of all tokens."""
        q, k, v = drawn(self.seed, 3, 1, self.heads, ranks * self.tokens, self.size)
        return 2 * q, 2 * k, v

    def given(self, rank: int, world_size: int) -> tuple[Tensor, ...]:
        places = self.places(rank, world_size)
        return tuple(each[..., places, :].clone() for each in self.whole(world_size))

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Tensor, ...]) -> dict[str, Any]:
        with finished_calls(*FINISHED, refuse=True) as finished, watched() as seen:
            out = fn(*given)
        return {
            "out": out,
            "peak": seen.peak,
            "products": seen.products,
            "finished": sorted(finished),
        }

    def visible(self, rank: int, ranks: int) -> torch.Tensor | None:
        """Which of all keys each query of a rank attends to; None: to all."""
        return None

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        ranks = len(results)
        q, k, v = self.whole(ranks)
        for rank, result in enumerate(results):
            own = self.places(rank, ranks)
            wanted = attention(q[..., own, :], k, v, self.visible(rank, ranks))
            wrong = difference(
                result["out"], wanted, self.known(rank, ranks), hint=self.hint,
                form="Return the output for this rank's own tokens.", not_finite=self.nan,
            )  # fmt: skip
            if wrong:
                yield self.topic, f"rank {rank}: the output " + wrong

    def known(self, rank: int, ranks: int) -> Known:
        """Outputs of known mistakes."""
        q, k, v = self.whole(ranks)
        blocks = [self.places(other, ranks) for other in range(ranks)]
        mine, visible = q[..., blocks[rank], :], self.visible(rank, ranks)

        def over(*others: int) -> Tensor:
            """The output over the keys of these ranks only."""
            places = [place for other in others for place in blocks[other]]
            sight = None if visible is None else visible[..., places]
            return attention(mine, k[..., places, :], v[..., places, :], sight)

        alone = [over(other) for other in range(ranks)]
        known: dict[str, Any] = {
            "comes from scores that are not divided by sqrt(head size)": (
                attention(mine * math.sqrt(self.size), k, v, visible), ""
            ),
            "is attention over this rank's own keys alone": (
                alone[rank], "The rank must also receive the blocks of the other ranks."
            ),
            "is the sum of the blocks' outputs, without weights": (
                sum(alone[1:], alone[0]),
                "Rescale what you have, and what is new, by exp(l - L).",
            ),
            "is the mean of the blocks' outputs": (
                sum(alone[1:], alone[0]) / ranks, "A block with larger scores must count more."
            ),
            "is attention over all keys, without a mask": (attention(mine, k, v), ""),
            **self.more_known(rank, ranks),
            "counts this rank's own block twice": (over(*range(ranks), rank), _ROUNDS),
            "combines the keys of all ranks with this rank's values only": (
                attention(mine, k, v[..., blocks[rank], :].repeat(1, 1, ranks, 1), visible),
                "Values must travel with their keys.",
            ),
        }  # fmt: skip
        for other in range(ranks if ranks > 1 else 0):
            fact = Explanation(f"lacks the keys of rank {other}", "lacks the keys of a rank")
            known[fact] = over(*(each for each in range(ranks) if each != other)), _ROUNDS
        return known

    def more_known(self, rank: int, ranks: int) -> Known:
        """Outputs of known mistakes of one kind of case."""
        return {}

    nan: ClassVar[str] = "Which difference is inf - inf?"

    @property
    def hint(self) -> str:
        """What to look at if no mistake is known that gives this output."""
        return (
            "Does every block count with its own weight, and do the weights of all blocks add up "
            "to 1?"
        )

    # What the trace shows ------------------------------------------------------------------------

    @property
    def block(self) -> int:
        """Bytes of the keys and values of one rank."""
        return 2 * 4 * self.heads * self.tokens * self.size

    def wrong_peers(self, seen: Observation) -> Iterator[str]:
        """Yields a sentence for each rank that talks to others than its neighbours in the ring."""
        ranks, trace = seen.trial.world_size, seen.trace
        for rank in range(ranks if trace is not None and ranks > 1 else 0):
            assert trace is not None
            others = sorted({*trace.ops(rank)} - {"send", "recv"})
            if others:
                yield (
                    f"rank {rank} calls {others[0]}, after which it has the keys of all ranks, or "
                    "could have. Pass blocks on with isend and irecv."
                )
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            for event in trace.events:
                to = right if event.name == "send" else left
                if event.rank == rank and event.name in ("send", "recv") and event.peers != (to,):
                    way = "sends to" if event.name == "send" else "receives from"
                    yield (
                        f"rank {rank} {way} rank {event.peers[0]}. In a ring it {way} its "
                        f"{'right' if to == right else 'left'} neighbour only, rank {to}."
                    )
                    break

    @staticmethod
    def needed(seen: Observation) -> int:
        """The bytes that all ranks together must send: each block goes to all other ranks."""
        blocks = sum(case.block for case in seen.trial.cases if isinstance(case, OnTokens))
        return seen.trial.world_size * (seen.trial.world_size - 1) * blocks

    def wrong_bytes(self, seen: Observation) -> Iterator[str]:
        """Yields a sentence for each rank that sends more than all blocks but one."""
        ranks = seen.trial.world_size
        goal = sum(case.block for case in seen.trial.cases if isinstance(case, OnTokens))
        goal *= ranks - 1
        for rank in range(ranks):
            if (sent := seen.sent_beyond(rank, goal)) is not None:
                yield (
                    f"{amount(sent)} left rank {rank}; {counted(ranks - 1, 'block')} of keys and "
                    f"values are {amount(goal)}. {_too_much(sent, goal / (ranks - 1), ranks)}"
                )


def _too_much(sent: float, block: float, ranks: int) -> str:
    """A hint on what is sent too much, from the bytes sent and those of a block."""
    if abs(sent / block - ranks) < 0.05:
        return "After the last round no rank needs the block: do not send it on."
    return "Each element has 4 bytes. What else do you send beside keys and values?"
