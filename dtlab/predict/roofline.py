"""Ceilings on the speed of training: the roofline with links as more levels, and scaling laws.

A program that does I operations per byte moved runs at most at I x bandwidth operations per
second, and at most at the peak (Williams et al. 2009, "Roofline"). A GPU's memories and links are
one such ceiling each:

    operations/s   peak ______________________
                       /        /         /
           shared     / HBM    / NVLink  / network      the slower the link, the more operations
           memory    /        /         /               per byte it takes to reach the peak

In data parallelism every parameter takes 6 operations per token, forward and backward (Kaplan et
al. 2020), and b bytes of gradient per step, of which a ring sends 2(N-1)/N. Both grow with the
parameters, so only the tokens per GPU and step decide which one takes longer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dtlab.predict.hardware import Card, Link, Numbers
from dtlab.predict.units import check_count, is_number

__all__ = [
    "Ceiling", "RunCost", "amdahl", "attainable", "break_even_tokens", "ceilings", "gustafson",
    "mfu", "run_cost",
]  # fmt: skip

# Shared memory of all multiprocessors together, bytes/s. A100: Dao et al. 2022, "FlashAttention",
# section 2.1, "around 19 TB/s"; H100: Spector et al. 2024, "GPUs Go Brrr", 33 TB/s.
_SHARED_MEMORY = {"A100": 19e12, "H100": 33e12}


class Ceiling(NamedTuple):
    """A memory or a link of one GPU: its name, and its bandwidth in bytes/s (links: one-way)."""

    name: str
    bandwidth: float

    def ridge(self, peak: float) -> float:
        """Return the operations per byte from which `peak` operations/s limit, not this level."""
        return _positive("peak", peak) / self.bandwidth


class RunCost(NamedTuple):
    """What a training run takes."""

    gpu_hours: float
    days: float
    dollars: float


def attainable(flops_per_byte: Numbers, peak: float, bandwidth: float) -> Numbers:
    """Return the operations/s that a roofline allows: at most `peak`, at most I x bandwidth."""
    limit = flops_per_byte * _positive("bandwidth", bandwidth)
    return np.minimum(limit, _positive("peak", peak))  # type: ignore[no-any-return]


def ceilings(card: Card, network: Link | None = None) -> list[Ceiling]:
    """Return the levels between a GPU's arithmetic and another node, fastest first.

    `network` is the link between nodes; None means the adapter that usually comes with the card.
    A level whose bandwidth is unknown is left out; shared memory is known for A100 and H100.
    """
    levels = {
        "shared memory": _SHARED_MEMORY.get(card.name.split()[0]),
        "HBM": card.hbm_bandwidth,
        "NVLink": card.nvlink,
        "network": card.nic if network is None else network.bandwidth,
    }
    return [Ceiling(name, bandwidth) for name, bandwidth in levels.items() if bandwidth]


def break_even_tokens(
    peak: float,
    bandwidth: float,
    ranks: int,
    bytes_per_gradient: float = 2,
    utilisation: float = 1.0,
    *,
    operations: float = 6,
) -> float:
    """Return the tokens per GPU and step from which computing takes as long as the all-reduce.

    6 P tokens / (peak x utilisation) = 2(N-1)/N b P / bandwidth, in which P cancels. Latency is
    left out.

    Args:
        peak: operations/s of one GPU.
        bandwidth: bytes/s of each GPU, one-way.
        ranks: N.
        bytes_per_gradient: b, bytes of one gradient on the wire.
        utilisation: the share of the peak that computing reaches.
        operations: per parameter and token: 6 for forward and backward. Use 4 for backward alone,
            behind which DDP sends its buckets.
    """
    rate = _positive("peak", peak) * _positive("utilisation", utilisation)
    passes = 2 * (check_count("ranks", ranks) - 1) / ranks
    seconds = passes * _positive("bytes_per_gradient", bytes_per_gradient) / bandwidth
    return seconds * rate / _positive("operations", operations)


def mfu(
    tokens_per_second: float,
    cards: int,
    peak: float,
    *,
    parameters: float | None = None,
    flops_per_token: float | None = None,
) -> float:
    """Return the model FLOPs utilisation: the model's operations/s over the peak of all cards.

    A run's tokens per second count all cards. Each token takes `flops_per_token`, or 6 times the
    `parameters`; operations that recompute activations do not count (Chowdhery et al. 2022, PaLM).
    Raises: ValueError unless exactly one of `parameters` and `flops_per_token` is given.
    """
    if (parameters is None) == (flops_per_token is None):
        raise ValueError("mfu takes either parameters or flops_per_token.")
    each = 6 * parameters if parameters is not None else flops_per_token
    rate = _positive("tokens_per_second", tokens_per_second) * _positive("operations", each)
    return rate / (check_count("cards", cards) * _positive("peak", peak))


def amdahl(serial_fraction: float, ranks: int) -> float:
    """Return how much faster N ranks do the same work: 1 / (s + (1-s)/N) (Amdahl 1967).

    `serial_fraction` is the share s of the time on one rank that does not shrink.
    """
    s = _share("serial_fraction", serial_fraction)
    return 1 / (s + (1 - s) / check_count("ranks", ranks))


def gustafson(serial_fraction: float, ranks: int) -> float:
    """Return how much more work N ranks do in the same time: s + (1-s) N (Gustafson 1988).

    `serial_fraction` is the share s of the time on N ranks that does not grow with the work.
    """
    s = _share("serial_fraction", serial_fraction)
    return s + (1 - s) * check_count("ranks", ranks)


def run_cost(
    flops: float, card: Card, cards: int, mfu: float, dollars_per_hour: float = 0.0
) -> RunCost:
    """Return the GPU hours, days and dollars of a run of `flops` operations on `cards` cards.

    `flops` are 6 P tokens for a model of P parameters, and `mfu` is the share of the card's bf16
    peak that the run reaches. Or pass 8 P tokens and a share that counts recomputed operations:
    Narayanan et al. 2021, section 5.1, have 34 days for GPT-3 so. `dollars_per_hour` is the price
    of one card. Restarts and failed nodes are not included.
    Raises: ValueError for a card whose peak is unknown, or a share outside 0 to 1.
    """
    if card.bf16_flops is None:
        raise ValueError(f"The bf16 peak of {card.name} is unknown: set bf16_flops of the Card.")
    rate = card.bf16_flops * _positive("mfu", _share("mfu", mfu))
    hours = _positive("flops", flops) / rate / 3600
    return RunCost(hours, hours / check_count("cards", cards) / 24, hours * dollars_per_hour)


def _positive(name: str, value: object) -> float:
    if not (is_number(value) and 0 < value < math.inf):  # type: ignore[operator]
        raise ValueError(f"{name} must be a number above 0, not {value!r}.")
    return value  # type: ignore[return-value]


def _share(name: str, value: float) -> float:
    if not (is_number(value) and 0 <= value <= 1):
        raise ValueError(f"{name} must be a share between 0 and 1, not {value!r}.")
    return value
