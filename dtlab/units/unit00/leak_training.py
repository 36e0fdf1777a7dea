"""How a check runs the script of 00/train_within. This file loads torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dtlab.units.unit00.measured import SGDByHand, Watch, one_thread

__all__ = ["run"]


@one_thread()
def run(
    fn: Callable[..., Any], seed: int, widths: Sequence[int], rows: int, steps: int, held_out: int
) -> list[Any] | str:
    """What `fn` returns for a drawn model, and the most bytes of all tensors meanwhile."""
    draw = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [one for pair in pairwise(widths) for one in (nn.Linear(*pair), nn.GELU())][:-1]
    model = nn.Sequential(*layers)

    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, widths[0], generator=draw)
        return x, torch.randn(count, widths[-1], generator=draw)

    last = rows // 2  # as an epoch may end
    batches, rest = [*(batch(rows) for _ in range(steps - 1)), batch(last)], batch(held_out)
    there = [each for pair in (*batches, rest) for each in pair]
    with Watch(*model.parameters(), *there) as watch, watch.phase("run"):
        found = fn(model, SGDByHand(list(model.parameters()), 0.5), batches, rest)
    try:
        mean, losses = found
        return [float(mean), [float(one) for one in losses], watch.peaks["run"]]
    except (TypeError, ValueError):
        kind = "None" if found is None else f"a {type(found).__name__}"
        return f"returns {kind}, not a pair of a mean and a list of losses"
