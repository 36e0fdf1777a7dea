"""The order in which blocks are called: what to gather next is learned from the pass before."""

from __future__ import annotations

from collections.abc import Sequence

from dtlab.parallel.sharded_block import ShardedBlock

__all__ = ["CallOrder"]


class CallOrder:
    """Blocks in the order of their calls, read forwards and then backwards.

    Until a first pass has shown the order, it is that of registration. A wrong guess costs a
    gather that nobody needed. All ranks call the same blocks, so all guess the same.
    """

    def __init__(self, blocks: Sequence[ShardedBlock]) -> None:
        self._order = list(blocks)
        self._seen: list[ShardedBlock] = []
        self._at, self._step = -1, 1  # place of the last call, and where the next one is

    def begin(self) -> None:
        """A forward pass begins."""
        self._seen, self._at, self._step = [], -1, 1

    def learn(self) -> None:
        """It is over."""
        self._order = self._seen or self._order

    def turn_round(self) -> None:
        """A backward pass begins."""
        self._at, self._step = len(self._order), -1

    def called(self, block: ShardedBlock) -> None:
        """Move on to the next call of this block, wherever that is."""
        if not block.is_leaf:
            return
        if self._step > 0:
            self._seen.append(block)
        places = range(self._at + 1, len(self._order)) if self._step > 0 else range(self._at)[::-1]
        self._at = next((n for n in places if self._order[n] is block), self._at)

    def was_called(self, block: ShardedBlock) -> bool:
        """In this forward pass; blocks with others inside always count as called."""
        return not block.is_leaf or block in self._seen

    def next(self, count: int) -> list[ShardedBlock]:
        """The blocks that should come next."""
        places = [self._at + self._step * (1 + n) for n in range(count)]
        return [self._order[n] for n in places if 0 <= n < len(self._order)]
