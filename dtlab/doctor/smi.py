"""Parser for the output of `nvidia-smi`.

    --query-gpu=index,uuid,memory.total,...   0, GPU-5d5b..., 143771, Default, Enabled, 580.65, NVIDIA H200
    -L                                        GPU 0: NVIDIA H200 (UUID: GPU-5d5b...)
                                                MIG 1g.18gb     Device  0: (UUID: MIG-c6d4...)
    topo -m                                           GPU0    GPU1    NIC0    CPU Affinity
                                              GPU0     X      NV18    SYS     0-51

`nvidia-smi --help-query-gpu` describes the fields, NVIDIA's MIG User Guide the MIG devices, and
the legend below the matrix the names of links. Escape codes may underline the matrix's header.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LINK_WORDS", "Gpu", "MigDevice", "gpus_from", "link_words", "links_from"]

_MIB = 2**20
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LISTED = re.compile(r"^GPU (\d+): ")
_MIG_LISTED = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: ([^)\s]+)\)")
_GPU_TITLE = re.compile(r"GPU(\d+)")

LINK_WORDS: Mapping[str, str] = {  # the legend of topo -m, the nearest first
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between CPUs",
}


@dataclass(frozen=True)
class MigDevice:
    """A MIG device, a slice of a GPU; `profile` is its size, such as "1g.18gb"."""

    profile: str
    uuid: str


@dataclass(frozen=True)
class Gpu:
    """A GPU as reported by its driver; `memory_bytes` is None if it is not reported."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    compute_mode: str
    mig_enabled: bool
    driver: str
    mig_devices: tuple[MigDevice, ...] = ()


def gpus_from(query: str, listing: str) -> list[Gpu]:
    """Parse the GPUs from the outputs of a query and of `-L`. Raises ValueError for other text."""
    slices = _mig_devices(listing)
    gpus = []
    for line in filter(str.strip, query.splitlines()):
        fields = [field.strip() for field in line.split(",", 6)]
        if len(fields) != 7 or not fields[0].isdigit():
            raise ValueError(f"nvidia-smi described a GPU in an unknown format: {line!r}")
        index, uuid, mib, mode, mig, driver, name = fields
        memory = int(mib) * _MIB if mib.isdigit() else None
        devices = tuple(slices.get(int(index), ()))
        gpus.append(Gpu(int(index), name, uuid, memory, mode, mig == "Enabled", driver, devices))
    return gpus


def _mig_devices(listing: str) -> dict[int, list[MigDevice]]:
    devices: dict[int, list[MigDevice]] = {}
    index = -1
    for line in listing.splitlines():
        if gpu := _LISTED.match(line):
            index = int(gpu[1])
        elif device := _MIG_LISTED.match(line):
            devices.setdefault(index, []).append(MigDevice(device[1], device[2]))
    return devices


def links_from(matrix: str) -> dict[tuple[int, int], str]:
    """Parse the link of each pair of GPUs, the lower number first: {(0, 1): "NV18"}."""
    columns: list[int | None] = []
    links: dict[tuple[int, int], str] = {}
    for line in _ESCAPE.sub("", matrix).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        row = _GPU_TITLE.fullmatch(cells[0])
        if row is None:
            titles = [_GPU_TITLE.fullmatch(cell) for cell in cells]
            if any(titles):
                columns = [int(title[1]) if title else None for title in titles]
            continue
        for column, link in zip(columns, cells, strict=False):
            if column is not None and int(row[1]) < column and link:
                links[int(row[1]), column] = link
    return links


def link_words(link: str) -> str:
    """Describe a link: "NV18" as "18 NVLinks"."""
    if link.startswith("NV") and link[2:].isdigit():
        return f"{int(link[2:])} NVLink{'s' if int(link[2:]) > 1 else ''}"
    return LINK_WORDS.get(link, link)
