"""Checks of GPUs: which ones the driver lists, which PyTorch can use, how they are connected."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence

from dtlab.doctor.finding import Finding, in_gb, note, ok, wrong
from dtlab.doctor.smi import Gpu, link_words, links_from
from dtlab.doctor.visit import Visit, pip_install
from dtlab.ranks import system

__all__ = ["cards", "links", "peers", "usable"]

AREA = "gpus"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LINK_LIMIT = 20.0  # seconds
_LOG = "sudo dmesg | grep -iE 'nvrm|xid'"


def cards(visit: Visit) -> Iterator[Finding]:
    """List the GPUs, with memory, driver, compute mode and MIG devices."""
    if shutil.which("nvidia-smi") is None:
        yield _without_smi()
        return
    gpus, trouble = visit.smi
    if trouble:
        message = f"nvidia-smi: {trouble}. The driver's log gives the cause; a reboot often helps"
        yield wrong(AREA, "GPUs", message, _LOG, gpus=None)
        return
    if not gpus:
        yield note(AREA, "GPUs", "the driver lists no GPU: ranks run on the CPU", _LOG, gpus=[])
        return
    yield ok(AREA, "GPUs", _in_words(gpus), gpus=[_as_data(gpu) for gpu in gpus])
    yield from _modes(gpus)
    yield from _slices(gpus)


def _without_smi() -> Finding:
    if not system.has_nvidia_driver():
        return note(AREA, "GPUs", "none: ranks run on the CPU, with gloo", gpus=[])
    message = "there is a driver, but no nvidia-smi on PATH. If this is a container, start it with"
    repair = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
    return note(AREA, "GPUs", message, repair, gpus=None)


def _in_words(gpus: Sequence[Gpu]) -> str:
    """Describe the GPUs, as in "4 x NVIDIA H200 of 151 GB, driver 580.65"."""
    kinds = Counter((gpu.name, gpu.memory_bytes) for gpu in gpus)
    each = [
        f"{count} x {name}" + (f" of {in_gb(memory)}" if memory else "")
        for (name, memory), count in kinds.items()
    ]
    return f"{', '.join(each)}, driver {gpus[0].driver}"


def _as_data(gpu: Gpu) -> dict[str, object]:
    return {
        "index": gpu.index,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "memory_bytes": gpu.memory_bytes,
        "compute_mode": gpu.compute_mode,
        "mig_enabled": gpu.mig_enabled,
        "mig_devices": [{"profile": mig.profile, "uuid": mig.uuid} for mig in gpu.mig_devices],
    }


def _modes(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Report compute modes that restrict which processes can use a GPU."""
    for mode in sorted({gpu.compute_mode for gpu in gpus}):
        indices = [gpu.index for gpu in gpus if gpu.compute_mode == mode]
        repair, message = _on_each(indices, "-c DEFAULT"), f"{_named(indices)} in mode {mode}: "
        if mode == "Prohibited":
            yield wrong(AREA, "compute mode", message + "no program can use it", repair,
                        gpus=indices, compute_mode=mode)  # fmt: skip
        elif mode.startswith("Exclusive"):
            yield note(AREA, "compute mode", message + "one process at a time", repair,
                       gpus=indices, compute_mode=mode)  # fmt: skip


def _slices(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Report GPUs split by MIG: for CUDA, one MIG device is one GPU (NVIDIA's MIG User Guide)."""
    whole = [gpu.index for gpu in gpus if gpu.mig_enabled and not gpu.mig_devices]
    if whole:
        message = f"{_named(whole)} in MIG mode without MIG devices: CUDA cannot use it"
        yield wrong(AREA, "MIG", message, _on_each(whole, "-mig 0"), gpus=whole, mig_devices=0)
    cut = [gpu for gpu in gpus if gpu.mig_enabled and gpu.mig_devices]
    if cut:
        profiles = Counter(device.profile for gpu in cut for device in gpu.mig_devices)
        each = ", ".join(f"{count} x {profile}" for profile, count in profiles.items())
        indices = [gpu.index for gpu in cut]
        message = (
            f"{_named(indices)} split into {each}. A process can use only one MIG device, so "
        )
        message += "several ranks run on the CPU"
        yield note(AREA, "MIG", message, gpus=indices, mig_devices=profiles.total())


def _named(indices: Sequence[int]) -> str:
    """Return a subject and verb, such as "GPU 2 is" or "GPUs 0, 1 are"."""
    numbers = ", ".join(map(str, indices))
    return f"GPUs {numbers} are" if len(indices) > 1 else f"GPU {numbers} is"


def _on_each(indices: Sequence[int], options: str) -> str:
    """Return the command that changes a setting of these GPUs."""
    if len(indices) == 1:
        return f"sudo nvidia-smi -i {indices[0]} {options}"
    numbers = " ".join(map(str, indices))
    return f"for i in {numbers}; do sudo nvidia-smi -i $i {options}; done"


def usable(visit: Visit) -> Iterator[Finding]:
    """Report how many GPUs torch can use, and which ones CUDA_VISIBLE_DEVICES hides."""
    gpus, info = visit.smi[0], visit.torch
    if "trouble" in info or not (gpus or info["devices"]):
        return
    total, devices = max(len(gpus), len(info["devices"])), len(info["devices"])
    chosen = os.environ.get(_VISIBLE)
    value = {
        "visible_gpus": devices, "devices": info["devices"], "cuda_visible_devices": chosen,
    }  # fmt: skip
    message = f"torch sees {devices} of {total}"
    if devices and chosen is None:
        yield ok(AREA, "usable", message, **value)
    elif chosen is not None and gpus and (bad := _unknown(chosen, gpus)):
        message += (
            f": {_VISIBLE} names GPU {bad}, which does not exist, so CUDA ignores it and all "
            "GPUs after it"
        )
        yield wrong(AREA, "usable", message, f"unset {_VISIBLE}", **value)
    elif chosen is not None and (devices or chosen.strip() in ("", "-1")):
        yield note(
            AREA, "usable", f"{message}: {_VISIBLE}={chosen!r}", f"unset {_VISIBLE}", **value
        )
    elif not (info["cuda"] or info["hip"]):
        message += ": it is a CPU build. Install the CUDA build"
        version = info["version"].partition("+")[0]
        repair = pip_install("--force-reinstall", f"torch=={version}")
        yield wrong(AREA, "usable", message, repair, **value)
    else:
        reason = info["cuda_trouble"] or "no reason given"
        message += f": {reason}. Its CUDA {info['cuda']} may need a newer driver"
        yield wrong(AREA, "usable", message, "nvidia-smi | grep 'CUDA Version'", **value)


def _unknown(chosen: str, gpus: Sequence[Gpu]) -> str:
    """Return the first number in CUDA_VISIBLE_DEVICES that is not a GPU; "" if all are."""
    known = {str(gpu.index) for gpu in gpus}
    names = [name.strip() for name in chosen.split(",")]
    return next((name for name in names if name.isdigit() and name not in known), "")


def links(visit: Visit) -> Iterator[Finding]:
    """Report the links between GPUs, from `nvidia-smi topo -m`."""
    if len(visit.smi[0]) < 2:
        return
    output = visit.ask(["nvidia-smi", "topo", "-m"], _LINK_LIMIT)
    by_pair = links_from(output.out)
    if not by_pair:
        message = f"unknown: nvidia-smi topo -m: {output.trouble or 'no matrix of GPUs'}"
        yield note(AREA, "links", message, links=None)
        return
    kinds = Counter(by_pair.values()).most_common()
    message = "; ".join(
        f"{count} pair{'s' if count > 1 else ''} by {link_words(link)} ({link})"
        for link, count in kinds
    )
    message = (
        message if len(kinds) > 1 else f"all pairs by {link_words(kinds[0][0])} ({kinds[0][0]})"
    )
    value = [{"gpus": list(pair), "link": link} for pair, link in sorted(by_pair.items())]
    yield ok(AREA, "links", message, links=value)


def peers(visit: Visit) -> Iterator[Finding]:
    """Check that GPUs can read each other's memory; else NCCL copies through host memory."""
    info = visit.torch
    count = len(info.get("devices", ()))
    if count < 2:
        return
    without = [list(pair) for pair in info["no_peers"]]
    value = {"pairs_without_peer_access": without}
    if without:
        message = (
            f"{len(without)} of {count * (count - 1)} directions have no peer access: NCCL uses "
        )
        message += "host memory there. This is usual in a virtual machine, or if PCIe ACS is on"
        yield note(AREA, "peer access", message, "sudo lspci -vvv | grep -i acsctl", **value)
    else:
        yield ok(AREA, "peer access", "each GPU can read the memory of every other GPU", **value)
