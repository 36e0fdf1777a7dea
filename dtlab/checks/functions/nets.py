"""Descriptions of the models that checks draw; `modules` builds them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Net", "draw_nets"]


class Net(NamedTuple):
    """A model: its kind (see `modules`), its sizes, and its description for messages."""

    kind: str
    sizes: tuple[int, ...]
    words: str

    def state(self, seed: int) -> list[Tensor]:
        """Draws the contents of its parameters and buffers from `seed`."""
        from dtlab.checks.functions.modules import KINDS, numbers

        return numbers(KINDS[self.kind](self.sizes), seed)

    def module(self, seed: int) -> nn.Module:
        """Builds the model with the contents `state(seed)`."""
        from dtlab.checks.functions.modules import filled

        return filled(self.kind, self.sizes, self.state(seed))


def draw_nets(draw: random.Random) -> tuple[Net, Net]:
    """Draws a chain of three layers, and a chain in which two layers share their weights."""
    sizes = draw.sample(range(4, 13), 4)
    width = draw.randint(4, 9)
    return (
        Net("chain", tuple(sizes), "three layers"),
        Net("tied", (sizes[0], width, width, width), "two layers with the same weights"),
    )
