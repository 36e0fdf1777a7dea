"""Script that imports a module in a separate process, because a broken module may crash or hang.

    python -P probe.py torch         {"version": "2.13.0+cpu", "cuda": null, "gloo": true, ...}
    python -P probe.py matplotlib    {"version": "3.11.2"}

It prints one line of JSON, with "trouble" if the module cannot be imported. It does not import
dtlab, because the packages that dtlab needs may be broken.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main(name: str) -> None:
    """Print the facts about a module as JSON."""
    facts: dict[str, Any] = {}
    try:
        module = importlib.import_module(name)
        facts["version"] = str(getattr(module, "__version__", "unknown"))
        if name == "torch":
            facts |= of_torch(module)
    except BaseException as error:  # noqa: BLE001  a broken package may raise anything
        facts["trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
    print(json.dumps(facts))


def of_torch(torch: Any) -> dict[str, Any]:
    """Return the build options of torch, and the GPUs that it sees.

    "cuda" and "hip" are versions, or None. "devices" have a name and memory in bytes. "no_peers"
    are pairs of devices of which the first cannot read the memory of the second.
    """
    import torch.distributed as dist

    available = dist.is_available()
    facts: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "distributed": available,
        "gloo": available and dist.is_gloo_available(),
        "nccl": nccl_version(torch) if available and dist.is_nccl_available() else None,
        "devices": [],
        "no_peers": [],
        "cuda_trouble": "",
    }
    if not (facts["cuda"] or facts["hip"]):
        return facts
    try:
        torch.cuda.init()
        facts |= of_devices(torch.cuda)
    except Exception as error:  # noqa: BLE001  no driver, an old one, no device, ...
        facts["cuda_trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return facts


def nccl_version(torch: Any) -> str:
    """Return the version of NCCL, such as "2.27.3"."""
    return ".".join(map(str, torch.cuda.nccl.version()))


def of_devices(cuda: Any) -> dict[str, Any]:
    """Return the devices that torch can use, and the pairs without peer access."""
    numbers = range(cuda.device_count())
    properties = [cuda.get_device_properties(each) for each in numbers]
    pairs = [(a, b) for a in numbers for b in numbers if a != b]
    return {
        "devices": [{"name": each.name, "memory_bytes": each.total_memory} for each in properties],
        "no_peers": [pair for pair in pairs if not cuda.can_device_access_peer(*pair)],
    }


if __name__ == "__main__":
    main(sys.argv[1])
