"""Runs a learner's script of 00/train_within and measures its memory. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dtlab.units.unit00.measured import SGDByHand, Watch, one_thread

__all__ = ["run"]


def run(
    fn: Callable[..., Any], seed: int, widths: Sequence[int], rows: int, steps: int, held_out: int
) -> list[Any] | str:
    """The result of `fn` for a drawn model, and the peak bytes of all tensors during the call.

    If the result is not a pair of a mean and a list of losses, returns a message instead.
    """
    with one_thread():
        return _measured(fn, seed, widths, rows, steps, held_out)


def _measured(
    fn: Callable[..., Any], seed: int, widths: Sequence[int], rows: int, steps: int, held_out: int
) -> list[Any] | str:
    draw = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.GELU())][:-1]
    model = nn.Sequential(*layers)

    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, widths[0], generator=draw)
        return x, torch.randn(count, widths[-1], generator=draw)

    last = rows // 2  # the last batch of the epoch is smaller
    batches, rest = [*(batch(rows) for _ in range(steps - 1)), batch(last)], batch(held_out)
    data = [tensor for pair in (*batches, rest) for tensor in pair]
    with Watch(*model.parameters(), *data) as watch, watch.phase("run"):
        result = fn(model, SGDByHand(list(model.parameters()), 0.5), batches, rest)
    try:
        mean, losses = result
        return [float(mean), [float(loss) for loss in losses], watch.peaks["run"]]
    except (TypeError, ValueError):
        kind = "None" if result is None else f"a {type(result).__name__}"
        return f"returns {kind}, not a pair of a mean and a list of losses"
