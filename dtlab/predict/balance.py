"""Balances layers over pipeline stages so that the slowest stage is as fast as possible.

    layers   3  1  1  1  2  4        three stages
             └─4┘  └──4──┘  4        the slowest takes 4: no other cut is better
    A pipeline of M microbatches takes about the sum over stages + (M - 1) x the slowest.

Greedy filling is not optimal; dynamic programming over the stages considers all cuts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["LayerCost", "balance_stages"]


@dataclass(frozen=True)
class LayerCost:
    """Seconds of a layer per microbatch, forward and both halves of backward, and its bytes.

    `held` bytes are permanent: parameters, with gradients and optimizer state if you count them.
    `saved` bytes are saved for backward, for each microbatch in flight.
    """

    forward: float
    backward_input: float = 0.0
    backward_weight: float = 0.0
    held: float = 0.0
    saved: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward."""
        return self.forward + self.backward_input + self.backward_weight


def balance_stages(
    costs: Sequence[float | LayerCost],
    num_stages: int,
    *,
    memory_limit: float = math.inf,
    in_flight: Sequence[int] | None = None,
) -> list[range]:
    """Return the layers of each stage, in order, that minimize the slowest stage's seconds.

    `costs` are seconds or `LayerCost` of each layer. A stage holds at most `memory_limit` bytes;
    `in_flight` is the number of microbatches whose activations each stage holds, by default as in
    1F1B: num_stages for the first stage, and one less for each later stage. Of equally good cuts,
    the one with the fewest layers on the last stage is chosen, then on the stage before it.
    Raises: ValueError for fewer layers than stages, another number of `in_flight`, costs below 0,
    or if no cut fits.
    """
    layers = [cost if isinstance(cost, LayerCost) else LayerCost(cost) for cost in costs]
    flights = list(in_flight or range(num_stages, 0, -1))
    if not 1 <= num_stages <= len(layers) or len(flights) != num_stages:
        raise ValueError(
            f"balance_stages got {len(layers)} layers, {num_stages} stages and {len(flights)} "
            "numbers in in_flight. Each stage needs at least one layer and one such number."
        )
    if not all(value >= 0 for layer in layers for value in vars(layer).values()):
        raise ValueError("Seconds and bytes of a layer must be 0 or more.")
    best, cuts = _best_cuts(layers, flights, memory_limit)
    if best == math.inf:
        raise ValueError(f"No cut into {num_stages} stages fits {memory_limit:g} bytes on each.")
    return _ranges(cuts, len(layers))


def _best_cuts(
    layers: Sequence[LayerCost], flights: Sequence[int], memory_limit: float
) -> tuple[float, list[list[int]]]:
    """Return the seconds of the slowest stage, and each stage's best first layer for each end."""
    seconds, held, saved = (
        [0.0, *accumulate(getattr(layer, name) for layer in layers)]
        for name in ("seconds", "held", "saved")
    )

    def stage_seconds(flight: int, start: int, end: int) -> float:
        """Return the seconds of these layers, or infinity if they exceed the memory limit."""
        size = held[end] - held[start] + flight * (saved[end] - saved[start])
        return seconds[end] - seconds[start] if size <= memory_limit else math.inf

    best = [0.0] + [math.inf] * len(layers)  # index: number of layers on the stages so far
    cuts: list[list[int]] = []
    for flight in flights:
        options = [
            min(
                (max(best[start], stage_seconds(flight, start, end)), -start)
                for start in range(max(1, end))
            )
            for end in range(len(layers) + 1)
        ]
        best = [math.inf, *(option[0] for option in options[1:])]
        cuts.append([-option[1] for option in options])
    return best[-1], cuts


def _ranges(cuts: list[list[int]], end: int) -> list[range]:
    """Reconstruct the stages from last to first: each ends where the next one begins."""
    stages: list[range] = []
    for begins in reversed(cuts):
        stages.append(range(begins[end], end))
        end = begins[end]
    return stages[::-1]
