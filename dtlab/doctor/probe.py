"""Imports a module in a separate process, because a broken module may crash or hang.

    python -P probe.py torch         {"version": "2.13.0+cpu", "cuda": null, "gloo": true, ...}
    python -P probe.py matplotlib    {"version": "3.11.2"}

Prints one line of JSON, with "trouble" where the module cannot be imported. A script without
dtlab: it may be dtlab's own packages that are broken.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main(name: str) -> None:
    """Print what there is to say of a module."""
    told: dict[str, Any] = {}
    try:
        module = importlib.import_module(name)
        told["version"] = str(getattr(module, "__version__", "unknown"))
        if name == "torch":
            told |= of_torch(module)
    except BaseException as error:  # noqa: BLE001  whatever a broken package does
        told["trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
    print(json.dumps(told))


def of_torch(torch: Any) -> dict[str, Any]:
    """What it was built for, and the GPUs that it sees.

    "cuda" and "hip" are versions, or None; "devices" have a name and memory in bytes; "no_peers"
    are pairs of devices of which the first cannot read the memory of the second.
    """
    import torch.distributed as dist

    there = dist.is_available()
    told: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "distributed": there,
        "gloo": there and dist.is_gloo_available(),
        "nccl": nccl_version(torch) if there and dist.is_nccl_available() else None,
        "devices": [],
        "no_peers": [],
        "cuda_trouble": "",
    }
    if not (told["cuda"] or told["hip"]):
        return told
    try:
        torch.cuda.init()
        told |= of_devices(torch.cuda)
    except Exception as error:  # noqa: BLE001  no driver, an old one, no device, ...
        told["cuda_trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return told


def nccl_version(torch: Any) -> str:
    """As "2.27.3"."""
    return ".".join(map(str, torch.cuda.nccl.version()))


def of_devices(cuda: Any) -> dict[str, Any]:
    """The devices that torch may use, and those that do not reach each other."""
    numbers = range(cuda.device_count())
    properties = [cuda.get_device_properties(each) for each in numbers]
    pairs = [(a, b) for a in numbers for b in numbers if a != b]
    return {
        "devices": [{"name": one.name, "memory_bytes": one.total_memory} for one in properties],
        "no_peers": [pair for pair in pairs if not cuda.can_device_access_peer(*pair)],
    }


if __name__ == "__main__":
    main(sys.argv[1])
