"""What a ring all-reduce has done after each of its rounds, as data that a figure draws.

With three ranks, chunk by chunk, the ranks whose contribution is in it:

    start            rank 0: 0   0   0     rank 1: 1   1   1     rank 2: 2   2   2
    reduce-scatter 1 rank 0: 0   02  0     rank 1: 1   1   01    rank 2: 12  2   2
    reduce-scatter 2 rank 0: 012 02  0     rank 1: 1   012 01    rank 2: 12  2   012
    all-gather 1     rank 0: 012 02  012   rank 1: 012 012 01    rank 2: 12  012 012
    all-gather 2     rank 0: 012 012 012   rank 1: 012 012 012   rank 2: 012 012 012
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Move", "Round", "ring_rounds"]

Held = tuple[tuple[frozenset[int], ...], ...]


@dataclass(frozen=True)
class Move:
    """One message of a round: `src` hands its copy of `chunk` to `dst`."""

    src: int
    dst: int
    chunk: int


@dataclass(frozen=True)
class Round:
    """One round: its messages, and what every rank holds once they have arrived.

    `held[rank][chunk]` is the set of ranks whose contribution is in that copy of the chunk.
    `number` counts from 1 within the phase; the start is round 0 of the phase "start".
    """

    phase: str
    number: int
    moves: tuple[Move, ...]
    held: Held

    @property
    def title(self) -> str:
        """The phase, and which of its rounds this is."""
        return self.phase if self.phase == "start" else f"{self.phase} {self.number}"


def ring_rounds(num_ranks: int) -> list[Round]:
    """The start and the 2(N-1) rounds of a ring all-reduce among `num_ranks` ranks.

    In round s of reduce-scatter rank r sends chunk r-s, and the receiver adds it to its own; the
    last sum that rank r makes is chunk r, complete. In round s of all-gather it sends chunk
    r-s+1, and the receiver overwrites. Raises `ValueError` for less than one rank.
    """
    if num_ranks < 1:
        raise ValueError(f"a ring needs at least one rank, not {num_ranks}")
    held: Held = tuple(
        tuple(frozenset({rank}) for _ in range(num_ranks)) for rank in range(num_ranks)
    )
    rounds = [Round("start", 0, (), held)]
    for phase, offset in (("reduce-scatter", 0), ("all-gather", 1)):
        for number in range(1, num_ranks):
            moves = tuple(
                Move(rank, (rank + 1) % num_ranks, (rank - number + offset) % num_ranks)
                for rank in range(num_ranks)
            )
            held = _after(held, moves, add=phase == "reduce-scatter")
            rounds.append(Round(phase, number, moves, held))
    return rounds


def _after(held: Held, moves: tuple[Move, ...], *, add: bool) -> Held:
    """What every rank holds once `moves` have arrived, all sent at the same time."""
    table = [list(row) for row in held]
    for move in moves:
        arrived = held[move.src][move.chunk]
        own = held[move.dst][move.chunk]
        table[move.dst][move.chunk] = arrived | own if add else arrived
    return tuple(tuple(row) for row in table)
