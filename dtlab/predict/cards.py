"""Cards: what a GPU has, in bytes and one-way bandwidths.

    an "80 GB" card     80e9 bytes as vendors count; an A100's driver reports 81920 MiB, 85.9e9
    "600 GB/s NVLink"   both directions together: 300e9 one-way
    "1979 TFLOP/s"      with sparsity: 989e12 dense

What the driver reports is not all for tensors: the CUDA context, libraries' buffers and gaps
between blocks take their part. So exercises name a budget in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dtlab.predict.units import in_gb

__all__ = ["CARDS", "Card", "card_from"]

_MIB: Final = 2**20


@dataclass(frozen=True)
class Card:
    """A GPU: bytes of memory, and per second what moves and what is computed; None: not known.

    `memory` is what the driver reports, where `source` does not say otherwise. `nvlink` and `nic`
    are bytes/s one-way, `nic` with the network adapter that usually goes with each GPU.
    `bf16_flops` are dense.
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
    """The learner's own card, from what `torch.cuda.get_device_properties(0)` returns.

    `memory` is `total_memory`, which is a little less than the driver reports. Of a card that is
    in `CARDS`, by its name and about its memory, the rest is known too; a part of one (MIG), or a
    PCIe board, is another card. Of those, the bandwidth of the memory follows from its clock and
    its width: two transfers in each cycle.
    Raises: ValueError for something without a name and a total memory.
    """
    name, memory = (getattr(properties, each, None) for each in ("name", "total_memory"))
    if not isinstance(name, str) or not isinstance(memory, int) or memory < 1:
        raise ValueError(
            "card_from takes what torch.cuda.get_device_properties(0) returns, with a name and a "
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
    """The card of `CARDS` whose model is in the name, with about that memory."""
    if re.search(r"PCIe|NVL|MIG", name, re.IGNORECASE):
        return None
    for card in CARDS.values():
        model = card.name.split()[0]
        if re.search(rf"\b{model}\b", name) and 0.9 < memory / card.memory < 1.1:
            return card
    return None
