"""Checks of GPUs: what the driver lists, what PyTorch may use, and how the GPUs are connected."""

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
    """Which GPUs there are, with memory, driver, compute mode and MIG devices."""
    if shutil.which("nvidia-smi") is None:
        yield _without_smi()
        return
    gpus, trouble = visit.smi
    if trouble:
        told = f"nvidia-smi: {trouble}. The log of the driver says why; a restart often helps"
        yield wrong(AREA, "GPUs", told, _LOG, gpus=None)
        return
    if not gpus:
        yield note(AREA, "GPUs", "the driver lists none: ranks run on the CPU", _LOG, gpus=[])
        return
    yield ok(AREA, "GPUs", _in_words(gpus), gpus=[_as_data(gpu) for gpu in gpus])
    yield from _modes(gpus)
    yield from _slices(gpus)


def _without_smi() -> Finding:
    if not system.has_nvidia_driver():
        return note(AREA, "GPUs", "none: ranks run on the CPU, with gloo", gpus=[])
    told = "a driver, but no nvidia-smi on PATH. In a container, start that with"
    mend = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
    return note(AREA, "GPUs", told, mend, gpus=None)


def _in_words(gpus: Sequence[Gpu]) -> str:
    """As "4 x NVIDIA H200 of 151 GB, driver 580.65"."""
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
        "mig_devices": [{"profile": one.profile, "uuid": one.uuid} for one in gpu.mig_devices],
    }


def _modes(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Compute modes other than the default: who may use a GPU."""
    for mode in sorted({gpu.compute_mode for gpu in gpus}):
        those = [gpu.index for gpu in gpus if gpu.compute_mode == mode]
        mend, told = _on_each(those, "-c DEFAULT"), f"{_named(those)} in mode {mode}: "
        if mode == "Prohibited":
            yield wrong(AREA, "compute mode", told + "no program may use it", mend,
                        gpus=those, compute_mode=mode)  # fmt: skip
        elif mode.startswith("Exclusive"):
            yield note(AREA, "compute mode", told + "one process at a time", mend,
                       gpus=those, compute_mode=mode)  # fmt: skip


def _slices(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """GPUs that are cut up (MIG): for CUDA, one slice is one GPU (NVIDIA's MIG User Guide)."""
    whole = [gpu.index for gpu in gpus if gpu.mig_enabled and not gpu.mig_devices]
    if whole:
        told = f"{_named(whole)} in MIG mode without MIG devices: CUDA does not see it"
        yield wrong(AREA, "MIG", told, _on_each(whole, "-mig 0"), gpus=whole, mig_devices=0)
    cut = [gpu for gpu in gpus if gpu.mig_enabled and gpu.mig_devices]
    if cut:
        profiles = Counter(device.profile for gpu in cut for device in gpu.mig_devices)
        each = ", ".join(f"{count} x {profile}" for profile, count in profiles.items())
        those = [gpu.index for gpu in cut]
        told = f"{_named(those)} cut into {each}. CUDA shows a process one of them, so several "
        told += "ranks run on the CPU"
        yield note(AREA, "MIG", told, gpus=those, mig_devices=profiles.total())


def _named(indices: Sequence[int]) -> str:
    """As "GPU 2 is" or "GPUs 0, 1 are"."""
    numbers = ", ".join(map(str, indices))
    return f"GPUs {numbers} are" if len(indices) > 1 else f"GPU {numbers} is"


def _on_each(indices: Sequence[int], options: str) -> str:
    """The command that changes a setting of these GPUs."""
    if len(indices) == 1:
        return f"sudo nvidia-smi -i {indices[0]} {options}"
    numbers = " ".join(map(str, indices))
    return f"for i in {numbers}; do sudo nvidia-smi -i $i {options}; done"


def usable(visit: Visit) -> Iterator[Finding]:
    """What torch may use of them, and what CUDA_VISIBLE_DEVICES hides."""
    gpus, seen = visit.smi[0], visit.torch
    if "trouble" in seen or not (gpus or seen["devices"]):
        return
    there, devices = max(len(gpus), len(seen["devices"])), len(seen["devices"])
    chosen = os.environ.get(_VISIBLE)
    value = {
        "visible_gpus": devices, "devices": seen["devices"], "cuda_visible_devices": chosen,
    }  # fmt: skip
    told = f"torch sees {devices} of {there}"
    if devices and chosen is None:
        yield ok(AREA, "usable", told, **value)
    elif chosen is not None and gpus and (bad := _unknown(chosen, gpus)):
        told += f": {_VISIBLE} names {bad}, which is not there, and hides it and all after it"
        yield wrong(AREA, "usable", told, f"unset {_VISIBLE}", **value)
    elif chosen is not None and (devices or chosen.strip() in ("", "-1")):
        yield note(AREA, "usable", f"{told}: {_VISIBLE}={chosen!r}", f"unset {_VISIBLE}", **value)
    elif not (seen["cuda"] or seen["hip"]):
        told += ": it is a build for CPUs. Install the one for CUDA"
        version = seen["version"].partition("+")[0]
        mend = pip_install("--force-reinstall", f"torch=={version}")
        yield wrong(AREA, "usable", told, mend, **value)
    else:
        why = seen["cuda_trouble"] or "no reason given"
        told += f": {why}. Its CUDA {seen['cuda']} may need a newer driver"
        yield wrong(AREA, "usable", told, "nvidia-smi | grep 'CUDA Version'", **value)


def _unknown(chosen: str, gpus: Sequence[Gpu]) -> str:
    """The first number in CUDA_VISIBLE_DEVICES for which there is no GPU; "" where all are."""
    known = {str(gpu.index) for gpu in gpus}
    names = [name.strip() for name in chosen.split(",")]
    return next((name for name in names if name.isdigit() and name not in known), "")


def links(visit: Visit) -> Iterator[Finding]:
    """How each two GPUs are joined, after `nvidia-smi topo -m`."""
    if len(visit.smi[0]) < 2:
        return
    said = visit.ask(["nvidia-smi", "topo", "-m"], _LINK_LIMIT)
    joined = links_from(said.out)
    if not joined:
        told = f"not known: nvidia-smi topo -m: {said.trouble or 'no matrix of GPUs'}"
        yield note(AREA, "links", told, links=None)
        return
    kinds = Counter(joined.values()).most_common()
    told = "; ".join(
        f"{count} pair{'s' if count > 1 else ''} by {link_words(link)} ({link})"
        for link, count in kinds
    )
    told = told if len(kinds) > 1 else f"all pairs by {link_words(kinds[0][0])} ({kinds[0][0]})"
    value = [{"gpus": list(pair), "link": link} for pair, link in sorted(joined.items())]
    yield ok(AREA, "links", told, links=value)


def peers(visit: Visit) -> Iterator[Finding]:
    """Whether GPUs read each other's memory; else NCCL goes through that of the host."""
    seen = visit.torch
    count = len(seen.get("devices", ()))
    if count < 2:
        return
    without = [list(pair) for pair in seen["no_peers"]]
    value = {"pairs_without_peer_access": without}
    if without:
        told = f"{len(without)} of {count * (count - 1)} directions without: there, NCCL goes "
        told += "through the host's memory. In a virtual machine, or with PCIe ACS on, it is usual"
        yield note(AREA, "peer access", told, "sudo lspci -vvv | grep -i acsctl", **value)
    else:
        yield ok(AREA, "peer access", "each GPU reads the memory of each other", **value)
