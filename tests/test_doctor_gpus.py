"""The doctor reads `nvidia-smi`, and says what is wrong with GPUs. No GPU is needed here."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtlab.doctor import backends, gpus, visit
from dtlab.doctor.smi import Gpu, gpus_from, links_from
from dtlab.doctor.visit import Visit
from dtlab.ranks import system
from tests.doctoring import only

MIB = 2**20

QUERY = """\
0, GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 143771, Default, Disabled, 580.65.06, NVIDIA H200
1, GPU-1b2c3d4e-0000-1111-2222-333344445555, 143771, Exclusive_Process, Disabled, 580.65.06, NVIDIA H200
2, GPU-9a8b7c6d-0000-1111-2222-333344445555, 143771, Prohibited, Enabled, 580.65.06, NVIDIA H200
3, GPU-0f1e2d3c-0000-1111-2222-333344445555, [N/A], Default, Enabled, 580.65.06, NVIDIA H200
"""  # noqa: E501

LISTING = """\
GPU 0: NVIDIA H200 (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA H200 (UUID: GPU-1b2c3d4e-0000-1111-2222-333344445555)
GPU 2: NVIDIA H200 (UUID: GPU-9a8b7c6d-0000-1111-2222-333344445555)
  MIG 3g.71gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.18gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
  MIG 1c.1g.18gb  Device  2: (UUID: MIG-1a2b3c4d-9bed-5b25-b243-5985ef7c9beb)
GPU 3: NVIDIA H200 (UUID: GPU-0f1e2d3c-0000-1111-2222-333344445555)
"""

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tSYS\tSYS\tPIX\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\tNODE\t0-51\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV1\tSYS\t52-103\t1\t\tN/A
GPU3\tSYS\tSYS\tNV1\t X \tSYS\t52-103\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""

Smi = Callable[[str], None]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """Puts an nvidia-smi of the test's own on PATH: the body of a shell script."""

    def put(body: str) -> None:
        command = tmp_path / "bin" / "nvidia-smi"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\n{body}\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")

    return put


@pytest.fixture
def four_gpus(smi: Smi, tmp_path: Path) -> None:
    """An nvidia-smi that tells of four GPUs, two of them in MIG mode."""
    for name, text in (("query", QUERY), ("listing", LISTING), ("topology", TOPOLOGY)):
        (tmp_path / name).write_text(text)
    smi(
        f'case "$*" in\n'
        f"  --query-gpu=index,uuid,*--format=csv,noheader,nounits) cat {tmp_path}/query;;\n"
        f"  -L) cat {tmp_path}/listing;;\n"
        f"  'topo -m') cat {tmp_path}/topology;;\n"
        "  *) echo unknown option >&2; exit 6;;\n"
        "esac"
    )


def knowing(cards: Sequence[Gpu] = (), **torch: Any) -> Visit:
    """A visit with given results: `cards` of nvidia-smi, and the facts that torch reports."""
    known = Visit()
    told = {
        "version": "2.13.0+cu130", "cuda": "13.0", "hip": None, "distributed": True, "gloo": True,
        "nccl": "2.28.9", "devices": [], "no_peers": [], "cuda_trouble": "",
    }  # fmt: skip
    vars(known).update(smi=(list(cards), ""), torch={**told, **torch})
    return known


def card(index: int = 0) -> Gpu:
    return Gpu(index, "NVIDIA H200", f"GPU-{index}", 143771 * MIB, "Default", False, "580.65")


def devices(count: int) -> list[dict[str, Any]]:
    return [{"name": "NVIDIA H200", "memory_bytes": 150 * 10**9}] * count


# What nvidia-smi prints ------------------------------------------------------------------------


def test_gpus_are_read() -> None:
    first, second, third, fourth = gpus_from(QUERY, LISTING)
    assert first == Gpu(0, "NVIDIA H200", "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77",
                        143771 * MIB, "Default", False, "580.65.06")  # fmt: skip
    assert second.compute_mode == "Exclusive_Process"
    assert [one.profile for one in third.mig_devices] == ["3g.71gb", "1g.18gb", "1c.1g.18gb"]
    assert third.mig_devices[1].uuid == "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb"
    assert (fourth.memory_bytes, fourth.mig_enabled, fourth.mig_devices) == (None, True, ())


def test_words_that_are_not_known_are_refused() -> None:
    with pytest.raises(ValueError, match="an unknown format: 'No devices were found'"):
        gpus_from("No devices were found\n", "")


def test_links_are_read() -> None:
    links = {
        (0, 1): "NV18", (0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS", (2, 3): "NV1",
    }  # fmt: skip
    assert links_from(TOPOLOGY) == links
    assert links_from(TOPOLOGY.replace("\x1b[4m", "").replace("\x1b[0m", "")) == links
    assert links_from("nothing of the kind") == {}


# Findings --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("four_gpus")
def test_four_gpus_are_reported_with_their_faults() -> None:
    found = list(gpus.cards(Visit()))
    cards = found[0]
    told = {(one.name, tuple(one.value["gpus"])): one for one in found[1:]}
    assert cards.message == "3 x NVIDIA H200 of 151 GB, 1 x NVIDIA H200, driver 580.65.06"
    assert [one["memory_bytes"] for one in cards.value["gpus"]] == [143771 * MIB] * 3 + [None]
    assert cards.value["gpus"][2]["mig_devices"][0]["profile"] == "3g.71gb"
    assert told["compute mode", (1,)].status == "note"
    assert told["compute mode", (2,)].status == "wrong"
    assert told["compute mode", (2,)].repair == "sudo nvidia-smi -i 2 -c DEFAULT"
    assert told["MIG", (2,)].status == "note"
    assert "1 x 3g.71gb, 1 x 1g.18gb, 1 x 1c.1g.18gb." in told["MIG", (2,)].message
    assert told["MIG", (3,)].status == "wrong"
    assert told["MIG", (3,)].repair == "sudo nvidia-smi -i 3 -mig 0"
    assert len(found) == 5


def test_a_fault_that_several_gpus_share_is_reported_once() -> None:
    all_of_them = [replace(card(index), compute_mode="Exclusive_Process") for index in range(8)]
    found = only(gpus._modes(all_of_them))
    assert found.message.startswith("GPUs 0, 1, 2, 3, 4, 5, 6, 7 are in mode Exclusive_Process")
    assert found.repair == (
        "for i in 0 1 2 3 4 5 6 7; do sudo nvidia-smi -i $i -c DEFAULT; done"
    )


@pytest.mark.usefixtures("four_gpus")
def test_links_are_reported() -> None:
    found = only(gpus.links(Visit()))
    assert found.message == (
        "4 pairs by the link between CPUs (SYS); 1 pair by 18 NVLinks (NV18); "
        "1 pair by 1 NVLink (NV1)"
    )
    assert {"gpus": [2, 3], "link": "NV1"} in found.value["links"]
    assert list(gpus.links(knowing([card()]))) == []  # one GPU has no links


def test_links_that_cannot_be_read_are_a_note(smi: Smi) -> None:
    smi("echo 'Insufficient Permissions' >&2; exit 4")
    found = only(gpus.links(knowing([card(0), card(1)])))
    assert (found.status, found.value["links"]) == ("note", None)
    assert "Insufficient Permissions" in found.message


def test_a_driver_that_fails_is_wrong(smi: Smi) -> None:
    smi("echo 'Failed to initialize NVML: Driver/library version mismatch'\n"
        "echo 'NVML library version: 580.65'; exit 18")  # fmt: skip
    found = only(gpus.cards(Visit()))
    assert found.status == "wrong"
    assert "NVML: Driver/library version mismatch; NVML library version: 580.65" in found.message
    assert found.repair.startswith("sudo dmesg")


def test_a_driver_that_hangs_costs_its_limit_and_nothing_stays(
    smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "_SMI_LIMIT", 0.3)
    smi("sleep 60 &\nwait")
    begun = time.monotonic()
    found = only(gpus.cards(Visit()))
    assert 0.3 <= time.monotonic() - begun < 10
    assert found.status == "wrong"
    assert "no answer within 0.3 s" in found.message


def test_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(system, "has_nvidia_driver", lambda: False)
    found = only(gpus.cards(Visit()))
    assert (found.status, found.value["gpus"]) == ("note", [])
    monkeypatch.setattr(system, "has_nvidia_driver", lambda: True)
    found = only(gpus.cards(Visit()))
    assert (found.status, found.value["gpus"]) == ("note", None)
    assert "--gpus all" in found.repair


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
    known = knowing([card(0), card(1)], devices=devices(seen), cuda_trouble=trouble)
    found = only(gpus.usable(known))
    assert (found.status, found.value["visible_gpus"]) == (status, seen)
    assert words in found.message
    assert bool(found.repair) == (status != "ok")


def test_a_torch_for_cpus_on_a_machine_with_gpus_is_a_fault(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = only(gpus.usable(knowing([card()], cuda=None, version="2.13.0+cpu")))
    assert found.status == "wrong"
    assert found.repair.endswith("-m pip install --force-reinstall torch==2.13.0")
    assert list(gpus.usable(knowing())) == []  # no GPU, nothing to say


def test_without_nvidia_smi_no_choice_of_gpus_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = only(gpus.usable(knowing(devices=devices(1))))
    assert (found.status, found.message) == ("note", "torch sees 1 of 1: CUDA_VISIBLE_DEVICES='0'")


def test_peer_access() -> None:
    assert list(gpus.peers(knowing([card()], devices=devices(1)))) == []
    found = only(gpus.peers(knowing(devices=devices(3))))
    assert found.status == "ok"
    found = only(gpus.peers(knowing(devices=devices(3), no_peers=[[0, 2], [2, 0]])))
    assert found.status == "note"
    assert found.message.startswith("2 of 6 directions have no peer access: NCCL uses host memory")


def test_nccl_is_tried_where_there_is_a_gpu_only() -> None:
    assert list(backends.nccl(knowing())) == []
    found = only(backends.nccl(knowing(devices=devices(1), nccl=None)))
    assert (found.status, found.value["ranks"]) == ("note", 0)


@pytest.mark.proof
@pytest.mark.gpu
@pytest.mark.slow
def test_nccl_on_this_machine() -> None:
    asked = Visit()
    if not asked.torch["devices"]:
        pytest.skip("there is no GPU")
    assert only(list(gpus.cards(asked))[:1]).value["gpus"]
    found = only(backends.nccl(asked))
    assert (found.status, found.value["wrong_elements"]) == ("ok", 0)
    assert found.value["ranks"] == min(len(asked.torch["devices"]), backends.MOST_GPUS)
