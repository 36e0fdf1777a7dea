"""What there is: links, and clusters of GPUs joined by them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Bytes", "Cluster", "Link", "check_count"]

Bytes = TypeVar("Bytes", float, npt.NDArray[np.float64])


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def check_count(name: str, value: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is a whole number from 1 on, not {value!r}.")
    return int(value)


def _in_units(value: float, unit: str) -> str:
    """A quantity with the prefix that suits it: 2.5e10, "B/s" is 25 GB/s."""
    if value == 0 or math.isinf(value):
        return f"{value:g} {unit}"
    prefixes = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}
    power = min(max(math.floor(math.log10(value) / 3 + 1e-9), -3), 4)
    return f"{value / 1000**power:.4g} {prefixes[power]}{unit}"


@dataclass(frozen=True)
class Link:
    """A way between two ranks: `latency` in seconds, `bandwidth` in bytes/s, one-way.

    Raises: ValueError for a latency below 0 or a bandwidth that is not above 0.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (is_number(self.latency) and 0 <= self.latency < math.inf):
            raise ValueError(f"A link's latency is seconds from 0 on, not {self.latency!r}.")
        if not (is_number(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(f"A link's bandwidth is bytes/s above 0, not {self.bandwidth!r}.")

    def seconds(self, nbytes: Bytes) -> Bytes:
        """How long a message of `nbytes` takes: a + S/B."""
        return self.latency + nbytes / self.bandwidth

    def __str__(self) -> str:
        return f"{_in_units(self.bandwidth, 'B/s')} {_in_units(self.latency, 's')}"


NVLINK = Link(2e-6, 300e9)  # of an A100
INFINIBAND = Link(5e-6, 25e9)  # HDR, one 200 Gb/s adapter per GPU


@dataclass(frozen=True, repr=False)
class Cluster:
    """Nodes of GPUs: a link `intra` between any two of a node, a link `inter` between nodes.

    Every GPU has a port of its own to either: its share of the switch in the node, and an
    adapter. Ranks fill one node after the other. `slowdown` is for emulation only: everything
    takes that many times as long, so that microseconds become visible.

    Raises: ValueError for counts below 1 or a slowdown that is not above 0.
    """

    nodes: int = 1
    gpus_per_node: int = 4
    intra: Link = NVLINK
    inter: Link = INFINIBAND
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            check_count(name, getattr(self, name))
        for name in ("intra", "inter"):
            if not isinstance(getattr(self, name), Link):
                raise ValueError(f"{name} is a Link(latency, bandwidth), not "
                                 f"{getattr(self, name)!r}.")
        if not (is_number(self.slowdown) and 0 < self.slowdown < math.inf):
            raise ValueError(f"slowdown is a number above 0, not {self.slowdown!r}.")

    @property
    def size(self) -> int:
        """How many ranks there are room for."""
        return self.nodes * self.gpus_per_node

    def node_of(self, rank: int) -> int:
        """The node that a rank is on, from 0. Raises: ValueError where there is no such rank."""
        if not 0 <= rank < self.size:
            raise ValueError(f"There is no rank {rank}: {self!r} has ranks 0 to {self.size - 1}.")
        return rank // self.gpus_per_node

    def link(self, src: int, dst: int) -> Link:
        """What a message from rank `src` to another rank `dst` goes through."""
        return self.intra if self.node_of(src) == self.node_of(dst) else self.inter

    def __repr__(self) -> str:
        one = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        many = f", {self.inter} between" if self.nodes > 1 else ""
        slow = f", slowed down {self.slowdown:g} times" if self.slowdown != 1 else ""
        plural = "s" if self.gpus_per_node > 1 else ""
        return f"Cluster({one}{self.gpus_per_node} GPU{plural}, {self.intra} inside{many}{slow})"
