"""Hardware: GPUs, links, and clusters of GPUs, with sources."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from dtlab.predict.units import check_count, in_gb, in_units, is_number

__all__ = ["CARDS", "LINKS", "Card", "Cluster", "Link", "Numbers", "card_from"]

Numbers = TypeVar("Numbers", float, npt.NDArray[np.float64])  # one number, or an array of them


@dataclass(frozen=True)
class Link:
    """A link between two ranks: `latency` in seconds, `bandwidth` in bytes/s, one-way.

    Raises: ValueError for a latency below 0 or a bandwidth that is not above 0.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (is_number(self.latency) and 0 <= self.latency < math.inf):
            raise ValueError(f"A link's latency must be 0 seconds or more, not {self.latency!r}.")
        if not (is_number(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(
                f"A link's bandwidth must be bytes/s above 0, not {self.bandwidth!r}."
            )

    def seconds(self, nbytes: Numbers) -> Numbers:
        """Return the seconds of a message of `nbytes`: a + S/B."""
        return self.latency + nbytes / self.bandwidth

    def __str__(self) -> str:
        return f"{in_units(self.bandwidth, 'B/s')} and {in_units(self.latency, 's')}"


NVLINK = Link(2e-6, 300e9)  # of an A100
INFINIBAND = Link(5e-6, 25e9)  # HDR, one 200 Gb/s adapter per GPU

# Bandwidths are those of the standards and vendors, one-way per GPU. Latencies are round figures
# for a whole message, from program to program: for teaching, not measured.
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
    """Nodes of GPUs: a link `intra` between any two GPUs of a node, a link `inter` between nodes.

    Every GPU has a separate port for each kind of link: its share of the node's switch, and a
    network adapter. Ranks fill one node after the other. `slowdown` is for emulation only: it
    multiplies all times, so that microseconds become visible. `words` are what figures say of the
    cluster; by default they list its links.

    Raises: ValueError for counts below 1, links that are not a `Link`, or a slowdown that is not
    above 0.
    """

    nodes: int = 1
    gpus_per_node: int = 4
    intra: Link = NVLINK
    inter: Link = INFINIBAND
    slowdown: float = 1.0
    words: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            check_count(name, getattr(self, name))
        for name in ("intra", "inter"):
            if not isinstance(getattr(self, name), Link):
                raise ValueError(
                    f"{name} must be a Link(latency, bandwidth), not {getattr(self, name)!r}."
                )
        if not (is_number(self.slowdown) and 0 < self.slowdown < math.inf):
            raise ValueError(f"slowdown must be a number above 0, not {self.slowdown!r}.")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.gpus_per_node

    def node_of(self, rank: int) -> int:
        """Return the node of a rank, from 0. Raises: ValueError if there is no such rank."""
        if not 0 <= rank < self.size:
            raise ValueError(f"There is no rank {rank}: {self!r} has ranks 0 to {self.size - 1}.")
        return rank // self.gpus_per_node

    def link(self, src: int, dst: int) -> Link:
        """Return the link that a message from rank `src` to another rank `dst` uses."""
        return self.intra if self.node_of(src) == self.node_of(dst) else self.inter

    def __str__(self) -> str:
        words = [self.words or self._links_in_words()]
        if self.slowdown != 1:
            words.append(f"slowed down {self.slowdown:g} times")
        return ", ".join(words)

    def _links_in_words(self) -> str:
        several = self.nodes > 1
        nodes = f"{self.nodes} nodes of " if several else ""
        words = [f"{nodes}{self.gpus_per_node} GPU{'s' * (self.gpus_per_node > 1)}"]
        if self.gpus_per_node > 1:
            words.append(f"{self.intra} {'inside a node' if several else 'between GPUs'}")
        if several:
            words.append(f"{self.inter} between nodes")
        return ", ".join(words)

    def __repr__(self) -> str:
        return f"Cluster({self})"


# Cards: memory and bandwidths of GPUs, in bytes and one-way bytes/s ------------------------------
#
#     an "80 GB" card     80e9 bytes by the vendor; an A100's driver reports 81920 MiB, 85.9e9
#     "600 GB/s NVLink"   both directions together: 300e9 one-way
#     "1979 TFLOP/s"      with sparsity: 989e12 dense
#
# Tensors cannot use all memory that the driver reports: the CUDA context, buffers of libraries and
# gaps between blocks take a part. So exercises state a budget in bytes.

_MIB: Final = 2**20


@dataclass(frozen=True)
class Card:
    """A GPU: memory in bytes, bandwidths and FLOP/s; None means unknown.

    `memory` is the driver's figure, unless `source` says otherwise. `nvlink` and `nic` are one-way
    bytes/s; `nic` is the network adapter that usually comes with each GPU. `bf16_flops` are dense.
    """

    name: str
    memory: int
    hbm_bandwidth: float | None = None  # bytes/s
    bf16_flops: float | None = None  # FLOP/s
    nvlink: float | None = None  # bytes/s
    nic: float | None = None  # bytes/s
    source: str = ""

    def __str__(self) -> str:
        return f"{self.name}, {in_gb(self.memory)}"


_PRESETS = (
    Card(
        "A100 SXM 80 GB", 81920 * _MIB, 2.039e12, 312e12, 300e9, 25e9,
        source="NVIDIA A100 Tensor Core GPU datasheet; memory as the driver reports it; DGX A100: "
        "a 200 Gb/s ConnectX-6 per GPU",
    ),
    Card(
        "H100 SXM", 81559 * _MIB, 3.35e12, 989e12, 450e9, 50e9,
        source="NVIDIA H100 Tensor Core GPU datasheet; memory as the driver reports it; DGX H100: "
        "a 400 Gb/s ConnectX-7 per GPU",
    ),
    Card(
        "H200 SXM", 143771 * _MIB, 4.8e12, 989e12, 450e9, 50e9,
        source="NVIDIA H200 Tensor Core GPU datasheet; memory as the driver reports it; DGX H200: "
        "a 400 Gb/s ConnectX-7 per GPU",
    ),
    Card(
        "B200 SXM", 183359 * _MIB, 8.0e12, 2250e12, 900e9, 50e9,
        source="NVIDIA HGX B200 datasheet, an eighth of the board's; memory as the driver reports "
        "it; DGX B200: a 400 Gb/s ConnectX-7 per GPU",
    ),
    Card(
        "B300 SXM", 288 * 10**9, 8.0e12, 2250e12, 900e9, 100e9,
        source="NVIDIA HGX B300 datasheet, an eighth of the board's; memory is the 288 GB of the "
        "vendor, 10^9 bytes each, and not read from a driver; an 800 Gb/s ConnectX-8 per GPU",
    ),
)  # fmt: skip
CARDS: Final[Mapping[str, Card]] = MappingProxyType({card.name: card for card in _PRESETS})


def card_from(properties: Any) -> Card:
    """Return your GPU, given the result of `torch.cuda.get_device_properties(0)`.

    `memory` is `total_memory`, a little less than the driver reports. For a GPU in `CARDS`, found
    by its name and roughly by its memory, the other figures are known too. A part of a GPU (MIG)
    or a PCIe board counts as a GPU that is not in `CARDS`. For such GPUs only the memory bandwidth
    is computed, from clock and bus width: two transfers per cycle.
    Raises: ValueError for an object without a name and a total memory.
    """
    name, memory = (getattr(properties, each, None) for each in ("name", "total_memory"))
    if not isinstance(name, str) or not isinstance(memory, int) or memory < 1:
        raise ValueError(
            "card_from takes the result of torch.cuda.get_device_properties(0), with a name and a "
            f"total_memory in bytes, not {properties!r}."
        )
    known = _known(name, memory)
    if known is None:
        clock = getattr(properties, "memory_clock_rate", None) or 0  # kHz
        width = getattr(properties, "memory_bus_width", None) or 0  # bits
        bandwidth = 2.0 * clock * 1e3 * width / 8 or None
        return Card(name, memory, bandwidth, source="torch.cuda.get_device_properties")
    return Card(
        name, memory, known.hbm_bandwidth, known.bf16_flops, known.nvlink, known.nic,
        source=f"memory from torch.cuda.get_device_properties; else {known.source}",
    )  # fmt: skip


def _known(name: str, memory: int) -> Card | None:
    """Return the card of `CARDS` whose model is in the name and whose memory is about the same."""
    if re.search(r"PCIe|NVL|MIG", name, re.IGNORECASE):
        return None
    for card in CARDS.values():
        model = card.name.split()[0]
        if re.search(rf"\b{model}\b", name) and 0.9 < memory / card.memory < 1.1:
            return card
    return None
