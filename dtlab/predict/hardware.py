"""What there is: cards, links, and clusters of GPUs joined by them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from dtlab.predict.cards import CARDS, Card, card_from
from dtlab.predict.units import check_count, in_units, is_number

__all__ = ["CARDS", "LINKS", "Bytes", "Card", "Cluster", "Link", "card_from", "check_count"]

Bytes = TypeVar("Bytes", float, npt.NDArray[np.float64])


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
        return f"{in_units(self.bandwidth, 'B/s')} {in_units(self.latency, 's')}"


NVLINK = Link(2e-6, 300e9)  # of an A100
INFINIBAND = Link(5e-6, 25e9)  # HDR, one 200 Gb/s adapter per GPU

# Bandwidths are the standards' and the vendors', one-way per GPU. Latencies are round figures of a
# whole message, from program to program: for teaching, and not measured.
LINKS: Final[Mapping[str, Link]] = MappingProxyType(
    {
        "NVLink 3": NVLINK,  # A100: 12 links of 25 GB/s
        "NVLink 4": Link(2e-6, 450e9),  # H100 and H200: 18 links of 25 GB/s
        "InfiniBand HDR": INFINIBAND,  # 200 Gb/s
        "InfiniBand NDR": Link(5e-6, 50e9),  # 400 Gb/s
        "PCIe 4": Link(3e-6, 31e9),  # 16 lanes
        "PCIe 5": Link(3e-6, 63e9),  # 16 lanes
        "10 Gb Ethernet": Link(30e-6, 1.25e9),
        "100 Gb Ethernet": Link(30e-6, 12.5e9),
    }
)


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
