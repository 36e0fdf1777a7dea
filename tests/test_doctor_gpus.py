"""The doctor reads GPUs from NVIDIA's driver, and says what is wrong with them. Needs no GPU."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dtlab.doctor import checks, probe
from dtlab.doctor.probe import Facts
from dtlab.ranks import system
from tests.test_doctor_machine import fake_module

MIB = 2**20
H200 = 143771 * MIB

# The functions of pynvml that the doctor calls, for four GPUs: 0 and 1 have 18 links to an
# NVSwitch, 2 and 3 have one link to each other; 2 is split by MIG, 3 has MIG mode but no devices.
PYNVML = """
from types import SimpleNamespace as Info
__version__ = "12.575.51"
class NVMLError(Exception): pass
class NVMLError_NotSupported(NVMLError): pass
class NVMLError_LibraryNotFound(NVMLError): pass
class NVMLError_LibRmVersionMismatch(NVMLError): pass
NVML_COMPUTEMODE_PROHIBITED, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 2, 3
NVML_DEVICE_MIG_ENABLE = 1
NVML_NVLINK_MAX_LINKS, NVML_NVLINK_DEVICE_TYPE_SWITCH = 36, 2
(NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE, NVML_TOPOLOGY_HOSTBRIDGE,
 NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM) = 0, 10, 20, 30, 40, 50
def unless(fails):
    if fails:
        raise NVMLError_NotSupported("Not Supported")
nvmlInit = lambda: None
nvmlDeviceGetCount = lambda: 4
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlSystemGetDriverVersion = lambda: "580.65.06"
nvmlDeviceGetName = lambda gpu: f"NVIDIA H200 MIG {gpu}" if isinstance(gpu, str) else "NVIDIA H200"
def nvmlDeviceGetMemoryInfo(gpu):
    unless(gpu == 3)
    return Info(total=143771 * 2**20)
nvmlDeviceGetComputeMode = lambda gpu: [0, 3, 2, 0][gpu]
def nvmlDeviceGetMigMode(gpu):
    unless(gpu == 0)
    return [int(gpu >= 2), 0]
nvmlDeviceGetMaxMigDeviceCount = lambda gpu: 7
def nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot):
    unless(gpu == 3 or slot not in (0, 2, 3))
    return {0: "3g.71gb", 2: "1g.18gb", 3: "1g.18gb"}[slot]
nvmlDeviceGetPciInfo = lambda gpu: Info(domain=0, bus=16 * gpu, device=0)
def nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link):
    unless(link >= (18 if gpu < 2 else 1))
    return 2 if gpu < 2 else 0
def nvmlDeviceGetNvLinkRemotePciInfo(gpu, link):
    unless(gpu < 2)  # as in a virtual machine, which does not see the switch
    return nvmlDeviceGetPciInfo(5 - gpu)
nvmlDeviceGetTopologyCommonAncestor = lambda gpu, other: 50
"""


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """What the doctor learns from `PYNVML`."""
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, "pynvml", __init__=PYNVML))
    return Facts()


def driver_that_fails(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    source = f"{PYNVML}\ndef nvmlInit(): raise {error}\n"
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, "pynvml", __init__=source))
    return Facts()


def gpu(index: int = 0, **changes: Any) -> dict[str, Any]:
    facts = {"index": index, "name": "NVIDIA H200", "memory_bytes": H200}
    facts |= {"compute_mode": "Default", "mig_enabled": False, "mig_devices": []}
    return facts | changes


def device_facts(count: int) -> list[dict[str, Any]]:
    return [{"name": "NVIDIA H200", "memory_bytes": 150 * 10**9}] * count


def known(*gpus: dict[str, Any], **torch: Any) -> Facts:
    """Facts about these GPUs, and those that torch reports."""
    info = {
        "version": "2.13.0+cu130", "cuda": "13.0", "hip": None, "distributed": True, "gloo": True,
        "nccl": "2.28.9", "devices": [], "no_peers": [], "cuda_trouble": "",
    }  # fmt: skip
    driver = {"driver": "580.65", "gpus": list(gpus), "links": [], "links_trouble": ""}
    return Facts(pynvml=driver, torch=info | torch)


# What the driver reports -----------------------------------------------------------------------


def test_gpus_are_read_from_the_driver(four_gpus: Facts) -> None:
    first, second, third, fourth = four_gpus["pynvml"]["gpus"]
    assert first == gpu(0)
    assert second == gpu(1, compute_mode="Exclusive_Process")
    assert third == gpu(2, compute_mode="Prohibited", mig_enabled=True,
                        mig_devices=["3g.71gb", "1g.18gb", "1g.18gb"])  # fmt: skip
    assert fourth == gpu(3, memory_bytes=None, mig_enabled=True)


def test_the_bindings_have_the_names_that_are_used() -> None:
    pynvml = pytest.importorskip("pynvml")
    source = Path(probe.__file__).read_text()
    used = set(re.findall(r"nvml\.((?:nvml|NVML)\w+)", source))
    assert len(used) > 15
    assert {name for name in used if not hasattr(pynvml, name)} == set()
    assert pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND).__name__ == (
        "NVMLError_LibraryNotFound"
    )


def test_gpus_are_listed_with_their_faults(four_gpus: Facts) -> None:
    found = checks.cards(four_gpus)
    assert (found.status, found.message) == (
        "ok", "3 x NVIDIA H200 of 151 GB, 1 x NVIDIA H200, driver 580.65.06",
    )  # fmt: skip
    mode = checks.compute_mode(four_gpus)
    assert mode is not None and mode.status == "wrong"
    assert mode.message == "Prohibited on GPU 2: no program can run there"
    assert mode.repair == "for i in 2; do sudo nvidia-smi -i $i -c DEFAULT; done"
    mig = checks.mig(four_gpus)
    assert mig is not None and mig.status == "wrong"
    assert mig.message.startswith("on, but without MIG devices on GPU 3:")
    assert mig.repair == "for i in 3; do sudo nvidia-smi -i $i -mig 0; done"


def test_an_exclusive_mode_is_a_note() -> None:
    gpus = [gpu(index, compute_mode="Exclusive_Process") for index in range(3)]
    found = checks.compute_mode(known(*gpus))
    assert found is not None and found.status == "note"
    assert found.message == "Exclusive_Process on GPUs 0, 1, 2: one process at a time"
    assert found.repair == "for i in 0 1 2; do sudo nvidia-smi -i $i -c DEFAULT; done"
    assert checks.compute_mode(known(gpu())) is None


def test_mig_devices_are_a_note() -> None:
    split = gpu(1, mig_enabled=True, mig_devices=["3g.71gb", "1g.18gb", "1g.18gb"])
    found = checks.mig(known(gpu(0), split))
    assert found is not None and found.status == "note"
    assert found.message.startswith("on GPU 1, split into 1 x 3g.71gb, 2 x 1g.18gb. A process can")
    assert checks.mig(known(gpu())) is None


def test_links_are_reported(four_gpus: Facts) -> None:
    found = checks.links(four_gpus)
    assert found is not None
    assert found.message == (
        "4 pairs by the link between CPUs (SYS); 1 pair by 18 NVLinks (NV18); "
        "1 pair by 1 NVLink (NV1)"
    )
    assert {"gpus": [2, 3], "link": "NV1"} in found.value["links"]
    assert {"gpus": [0, 1], "link": "NV18"} in found.value["links"]
    assert checks.links(known(gpu())) is None  # one GPU has no links


def test_links_that_the_driver_does_not_report_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"{PYNVML}\nnvmlDeviceGetTopologyCommonAncestor = lambda gpu, other: unless(True)\n"
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, "pynvml", __init__=source))
    facts = Facts()
    found = checks.links(facts)
    assert found is not None and (found.status, found.value["links"]) == ("note", None)
    assert found.message == "unknown: NVMLError_NotSupported: Not Supported"
    assert checks.cards(facts).status == "ok"


def test_a_driver_that_fails_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = "NVMLError_LibRmVersionMismatch('RM has detected an NVML/RM version mismatch.')"
    found = checks.cards(driver_that_fails(error, tmp_path, monkeypatch))
    assert found.status == "wrong"
    assert "RM has detected an NVML/RM version mismatch" in found.message
    assert found.repair.startswith("sudo dmesg")


@pytest.mark.parametrize(
    ("trouble", "words", "repair"),
    [
        ("ModuleNotFoundError: No module named 'pynvml'", "not installed", "nvidia-ml-py>="),
        ("NVMLError_LibraryNotFound: NVML Shared Library Not Found", "container", "--gpus all"),
    ],
)
def test_a_driver_that_cannot_be_asked(
    trouble: str, words: str, repair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = Facts(pynvml={"trouble": trouble})
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(system, "has_nvidia_driver", lambda: False)
    found = checks.cards(facts)
    assert (found.status, found.message[:5], found.repair) == ("note", "none:", "")
    monkeypatch.setattr(system, "has_nvidia_driver", lambda: True)
    found = checks.cards(facts)
    assert found.status == "note" and words in found.message and repair in found.repair


def test_the_missing_library_is_named_as_in_the_bindings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "has_nvidia_driver", lambda: True)
    error = "NVMLError_LibraryNotFound('NVML Shared Library Not Found')"
    assert "--gpus all" in checks.cards(driver_that_fails(error, tmp_path, monkeypatch)).repair
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, "pynvml", __init__="import nowhere"))
    assert "nvidia-ml-py" in checks.cards(Facts()).repair


# What torch can use ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "seen", "status", "words"),
    [
        (None, 2, "ok", "torch sees 2 of 2"),
        (None, 0, "wrong", "torch sees 0 of 2: RuntimeError: the driver is too old."),
        ("1", 1, "note", "torch sees 1 of 2: CUDA_VISIBLE_DEVICES='1'"),
        ("", 0, "note", "torch sees 0 of 2: CUDA_VISIBLE_DEVICES=''"),
        ("-1", 0, "note", "torch sees 0 of 2: CUDA_VISIBLE_DEVICES='-1'"),
        ("0,7,1", 1, "wrong", "names GPU 7, which does not exist, so CUDA ignores it and all GPU"),
        ("GPU-1", 1, "note", "CUDA_VISIBLE_DEVICES='GPU-1'"),
        ("0,1", 0, "wrong", "the driver is too old"),
    ],
)
def test_what_torch_may_use(
    chosen: str | None, seen: int, status: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    trouble = "" if seen else "RuntimeError: the driver is too old"
    facts = known(gpu(0), gpu(1), devices=device_facts(seen), cuda_trouble=trouble)
    found = checks.usable(facts)
    assert found is not None and found.status == status
    assert len(found.value["devices"]) == seen
    assert words in found.message
    assert bool(found.repair) == (status != "ok")


def test_a_torch_for_cpus_on_a_machine_with_gpus_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/nvidia-smi")
    unlisted = known(cuda=None)
    unlisted["pynvml"] = {"trouble": "ModuleNotFoundError: No module named 'pynvml'"}
    for facts in (known(gpu(), cuda=None), unlisted):
        found = checks.usable(facts)
        assert found is not None and found.status == "wrong"
        assert "it is a CPU build" in found.message
        assert found.repair.endswith("-m pip install --force-reinstall 'torch>=2.13,<2.14'")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert checks.usable(unlisted) is checks.usable(known()) is None  # no GPU, nothing to say


def test_without_a_list_of_gpus_no_choice_of_them_is_doubted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = checks.usable(known(devices=device_facts(1)))
    assert found is not None
    assert (found.status, found.message) == ("note", "torch sees 1: CUDA_VISIBLE_DEVICES='0'")


def test_peer_access() -> None:
    assert checks.peer_access(known(gpu(), devices=device_facts(1))) is None
    found = checks.peer_access(known(devices=device_facts(3)))
    assert found is not None and found.status == "ok"
    found = checks.peer_access(known(devices=device_facts(3), no_peers=[[0, 2], [2, 0]]))
    assert found is not None and found.status == "note"
    assert found.message.startswith("2 of 6 directions have no peer access: NCCL uses host memory")
    assert found.repair.startswith("sudo lspci")


def test_nccl_is_tried_only_if_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[str, int]] = []
    monkeypatch.setattr(checks, "on_ranks", lambda *arguments: launched.append(arguments))
    assert checks.nccl(known()) is None and launched == []
    found = checks.nccl(known(devices=device_facts(1), nccl=None))
    assert found is not None and found.status == "note" and "without NCCL" in found.message
    checks.nccl(known(devices=device_facts(16)))
    assert launched == [("nccl", checks.MOST_GPUS)]


@pytest.mark.proof
@pytest.mark.gpu
@pytest.mark.slow
def test_nccl_on_this_machine() -> None:
    facts = Facts()
    if not facts["torch"]["devices"]:
        pytest.skip("there is no GPU")
    if importlib.util.find_spec("pynvml") is not None:
        assert checks.cards(facts).value["gpus"]
    found = checks.nccl(facts)
    assert found is not None and (found.status, found.value["wrong_elements"]) == ("ok", 0)
    assert found.value["ranks"] == min(len(facts["torch"]["devices"]), checks.MOST_GPUS)
