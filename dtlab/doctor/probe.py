"""Facts about modules that may be broken, such as torch: each is imported in another process.

    python -P probe.py torch         {"version": "2.13.0+cpu", "cuda": null, "gloo": true, ...}
    python -P probe.py pynvml        {"driver": "580.65", "gpus": [...], "links": [...], ...}
    python -P probe.py matplotlib    {"version": "3.11.2"}

A broken module may crash or hang the process that imports it. `Facts` runs this file as a script,
which prints one line of JSON, with "trouble" if something fails, and imports nothing of dtlab.
Ranks run `all_reduce`.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from contextlib import suppress
from itertools import combinations, permutations
from signal import Signals
from typing import Any

__all__ = ["IMPORT_LIMIT", "ROUNDS", "Facts", "all_reduce", "main"]

IMPORT_LIMIT = 120.0  # seconds to import torch from a slow disk, as in the server of ranks
ROUNDS = 5  # timed all-reduces; the fastest one counts


class Facts(dict[str, dict[str, Any]]):
    """Facts about modules, each imported once: `facts["torch"]` has those of `of_torch`."""

    def __missing__(self, module: str) -> dict[str, Any]:
        self[module] = probe(module)
        return self[module]


def probe(module: str) -> dict[str, Any]:
    """Return the facts that `main` prints, with "trouble" if it fails or takes too long."""
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, module], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=IMPORT_LIMIT)
        facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process stuck in a driver stays
            process.communicate(timeout=1.0)
        return {"trouble": f"no answer within {IMPORT_LIMIT:g} s"}
    except (IndexError, ValueError):
        status = process.returncode
        end = f"killed by {Signals(-status).name}" if status < 0 else f"exit status {status}"
        return {"trouble": "; ".join([end, *err.splitlines()[-3:]])}
    return facts


def main(name: str) -> None:
    """Import a module and print facts about it as JSON."""
    facts: dict[str, Any] = {}
    try:
        module = importlib.import_module(name)
        facts["version"] = str(getattr(module, "__version__", "unknown"))
        if name == "torch":
            facts |= of_torch(module)
        elif name == "pynvml":
            facts |= of_driver(module)
    except BaseException as error:  # noqa: BLE001  a broken package may raise anything
        facts["trouble"] = _first_line(error)
    print(json.dumps(facts))


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def of_torch(torch: Any) -> dict[str, Any]:
    """Return the build options of torch, and the GPUs that it sees.

    "cuda" and "hip" are versions, or None. "devices" have a name and memory in bytes. "no_peers"
    are pairs of devices of which the first cannot read the memory of the second.
    """
    import torch.distributed as dist

    available = dist.is_available()
    nccl = available and dist.is_nccl_available()
    facts: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "distributed": available,
        "gloo": available and dist.is_gloo_available(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
        "devices": [],
        "no_peers": [],
        "cuda_trouble": "",
    }
    if facts["cuda"] or facts["hip"]:
        try:
            torch.cuda.init()
            numbers = range(torch.cuda.device_count())
            gpus = [torch.cuda.get_device_properties(number) for number in numbers]
            facts["devices"] = [{"name": g.name, "memory_bytes": g.total_memory} for g in gpus]
            readable = torch.cuda.can_device_access_peer
            facts["no_peers"] = [p for p in permutations(numbers, 2) if not readable(*p)]
        except Exception as error:  # noqa: BLE001  no driver, an old one, no device, ...
            facts["cuda_trouble"] = _first_line(error)
    return facts


def of_driver(nvml: Any) -> dict[str, Any]:
    """Return what NVIDIA's driver reports: its version, the GPUs, and the link of each pair."""
    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    facts: dict[str, Any] = {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "gpus": [{"index": index, **_of_gpu(nvml, gpu)} for index, gpu in enumerate(gpus)],
        "links": [],
        "links_trouble": "",
    }
    try:
        for (a, first), (b, second) in combinations(enumerate(gpus), 2):
            facts["links"].append({"gpus": [a, b], "link": _link(nvml, first, second)})
    except nvml.NVMLError as error:
        facts["links_trouble"] = _first_line(error)
    return facts


def _of_gpu(nvml: Any, gpu: Any) -> dict[str, Any]:
    """Return the facts about a GPU. Not every driver and GPU reports memory, modes and MIG."""
    modes = {
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
    }
    facts: dict[str, Any] = {"name": nvml.nvmlDeviceGetName(gpu), "memory_bytes": None}
    facts |= {"compute_mode": "Default", "mig_enabled": False, "mig_devices": []}
    with suppress(nvml.NVMLError):
        facts["memory_bytes"] = nvml.nvmlDeviceGetMemoryInfo(gpu).total
    with suppress(nvml.NVMLError):
        facts["compute_mode"] = modes.get(nvml.nvmlDeviceGetComputeMode(gpu), "Default")
    with suppress(nvml.NVMLError):
        facts["mig_enabled"] = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if facts["mig_enabled"] else 0):
        with suppress(nvml.NVMLError):  # an empty slot
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
            name = nvml.nvmlDeviceGetName(device)  # such as "NVIDIA H200 MIG 1g.18gb"
            facts["mig_devices"].append(name.rpartition("MIG ")[2])
    return facts


def _link(nvml: Any, gpu: Any, other: Any) -> str:
    """Return the link between two GPUs in the notation of `nvidia-smi topo -m`: "NV18", "SYS"."""
    if nvlinks := min(_nvlinks(nvml, gpu, other), _nvlinks(nvml, other, gpu)):
        return f"NV{nvlinks}"
    names = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # on one board
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
    }
    return names.get(nvml.nvmlDeviceGetTopologyCommonAncestor(gpu, other), "SYS")


def _nvlinks(nvml: Any, gpu: Any, other: Any) -> int:
    """Count the NVLinks from a GPU to another one, or to an NVSwitch, which joins all GPUs.

    PyTorch's NVLinkDetector counts in the same way
    (torch/csrc/distributed/c10d/symm_mem/CudaDMAConnectivity.cpp).
    """
    count, place = 0, nvml.nvmlDeviceGetPciInfo(other)
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        with suppress(nvml.NVMLError):  # the GPU has no such link, or it is not connected
            end = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, number)
            if end == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                count += 1
                continue
            at = nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, number)
            count += (at.domain, at.bus, at.device) == (place.domain, place.bus, place.device)
    return count


def all_reduce(elements: int, on_gpu: bool) -> tuple[int, float]:
    """Run all-reduces on a rank; return the number of wrong elements, and the fastest time in s.

    Rank r of N starts with r + 1, so the first sum is N(N + 1)/2, and each further sum is N times
    the previous one. These sums are exact in single precision up to 8 ranks. `elements` have 4
    bytes each.
    """
    import torch
    import torch.distributed as dist

    def finish() -> None:
        if on_gpu:  # which runs operations asynchronously
            torch.cuda.synchronize()

    ranks = dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    tensor = torch.full((elements,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(tensor)  # also opens the connections
    seconds = []
    for _ in range(ROUNDS):
        finish()
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        finish()
        seconds.append(time.perf_counter() - begun)
    expected = ranks * (ranks + 1) / 2 * ranks**ROUNDS
    return int((tensor != expected).sum()), min(seconds)


if __name__ == "__main__":
    main(sys.argv[1])
