"""Notebooks that share a node's GPUs wait in turn. Only the driver's list is made up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtlab.errors import LaunchError
from dtlab.ranks.launch import gpus as reservations
from dtlab.ranks.launch.gpus import reserved, visible
from dtlab.ranks.protocol import Spec

NODE = f"{os.getpid()}"  # cards of this run of the tests alone
PLAIN = "\n".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{NODE}-{i})" for i in range(4))
MIG = f"""GPU 0: NVIDIA H100 (UUID: GPU-{NODE}-0)
  MIG 3g.40gb     Device  0: (UUID: MIG-{NODE}-a)
  MIG 3g.40gb     Device  1: (UUID: MIG-{NODE}-b)
GPU 1: NVIDIA H100 (UUID: GPU-{NODE}-1)
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose content `nvidia-smi -L` prints."""
    listed, tool = tmp_path / "cards", tmp_path / "nvidia-smi"
    listed.write_text(PLAIN)
    tool.write_text(f"#!/bin/sh\ncat {listed}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return listed


def spec(ranks: int, backend: str = "nccl", **environment: str) -> Spec:
    """What a launch asks for."""
    return Spec(ranks, backend, None, False, 0, 1, None, environment, ".", [])


def cards_of(one: Spec) -> list[str]:
    """The numbers of the cards that its ranks see."""
    seen = one.environment["CUDA_VISIBLE_DEVICES"].split(",")
    return [card.rpartition("-")[2] for card in seen]


# Which cards exist -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        (None, "0 1 2 3"),
        ("2,0", "2 0"),
        ("1", "1"),
        ("1,7,2", "1"),  # CUDA stops at the first that there is not
        ("", ""),
        ("GPU-NODE-3,1", "3 1"),
        ("NoDevFiles", ""),
        ("1,1", "1"),
    ],
)
def test_cards_are_those_that_the_environment_names(
    driver: Path, wish: str | None, found: str
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": (wish or "").replace("NODE", NODE)}
    cards = visible({} if wish is None else environment)
    assert cards is not None
    assert " ".join(card.rpartition("-")[2] for card in cards) == found


def test_parts_of_a_card_replace_it_in_the_list(driver: Path) -> None:
    driver.write_text(MIG)
    assert visible({}) == [f"MIG-{NODE}-a", f"MIG-{NODE}-b", f"GPU-{NODE}-1"]
    assert visible({"CUDA_VISIBLE_DEVICES": f"MIG-{NODE}-b"}) == [f"MIG-{NODE}-b"]
    assert visible({"CUDA_VISIBLE_DEVICES": "0"}) == [f"MIG-{NODE}-a"]


def test_without_a_driver_nothing_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible({}) is None
    asked = spec(2)
    with reserved(asked) as got:
        assert got is asked


def test_ranks_on_the_cpu_reserve_nothing(driver: Path) -> None:
    asked = spec(8, "gloo")
    with reserved(asked) as got:
        assert got is asked


# Within one notebook ----------------------------------------------------------------------------


def test_ranks_see_the_reserved_cards_and_no_others(driver: Path) -> None:
    with reserved(spec(2, CUDA_VISIBLE_DEVICES="3,1,0")) as got:
        assert cards_of(got) == ["3", "1"]
    with reserved(spec(1)) as got:
        assert cards_of(got) == ["0"]
    assert not reservations._held and not +reservations._uses


def test_a_notebook_shares_its_cards_with_itself_but_takes_free_ones_first(driver: Path) -> None:
    with reserved(spec(3)) as session:
        with reserved(spec(2)) as launch:
            assert cards_of(launch) == ["3", "0"]
        with reserved(spec(1)) as again:
            assert cards_of(again) == ["3"]
        assert cards_of(session) == ["0", "1", "2"]
        assert len(reservations._held) == 3
    assert not reservations._held


def test_too_few_cards_are_refused_at_once(driver: Path) -> None:
    few, words = spec(3, CUDA_VISIBLE_DEVICES="0,1"), "3 ranks need a GPU each.*names 2 existing"
    with pytest.raises(LaunchError, match=words), reserved(few):
        pass


# Between notebooks ------------------------------------------------------------------------------

OTHER = """
import sys
from dtlab.ranks.protocol import Spec
from dtlab.ranks.launch.gpus import reserved
spec = Spec(int(sys.argv[1]), "nccl", None, False, 0, 1, None, {}, ".", [])
with reserved(spec) as got:
    print("HAS", got.environment["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.readline()
"""


class Other:
    """Another notebook on this node, which reserves cards and waits."""

    def __init__(self, ranks: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(ranks)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.line = ""

    def says(self) -> str:
        """The next line that this notebook prints."""
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        return self.line

    def end(self, number: signal.Signals | None = None) -> None:
        """Let the notebook finish, or end it by a signal."""
        if number is not None:
            self.process.send_signal(number)
        self.process.communicate("\n" if number is None else None, timeout=20)


@pytest.fixture
def others() -> Iterator[list[Other]]:
    """Other notebooks; those that live are ended."""
    made: list[Other] = []
    yield made
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@pytest.mark.slow
def test_a_notebook_without_a_free_card_waits_with_a_notice(
    driver: Path, others: list[Other], capsys: pytest.CaptureFixture[str]
) -> None:
    others.append(Other(3))
    assert others[0].says().startswith("HAS")
    other_ends = threading.Timer(0.6, others[0].end)
    other_ends.start()
    start = time.perf_counter()
    with reserved(spec(2)) as got:
        assert len(cards_of(got)) == 2
    assert time.perf_counter() - start > 0.4
    other_ends.join()  # else it reads from the other notebook while the fixture ends that too
    assert capsys.readouterr().out == (
        "Waiting for 2 GPUs: 1 of 4 is free, the others are reserved by launches of other "
        "notebooks on this node. Ctrl-C gives up.\n"
    )


@pytest.mark.slow
def test_a_notebook_that_is_killed_holds_nothing(driver: Path, others: list[Other]) -> None:
    others.append(Other(4))
    assert others[0].says().startswith("HAS")
    others[0].end(signal.SIGKILL)
    with reserved(spec(4)) as got:
        assert cards_of(got) == ["0", "1", "2", "3"]


@pytest.mark.proof
@pytest.mark.slow
def test_small_requests_do_not_overtake_a_large_one(driver: Path, others: list[Other]) -> None:
    others.append(Other(1))
    assert others[0].says().startswith("HAS")
    others.append(Other(4))
    assert others[1].says().startswith("Waiting for 4 GPUs: 3 of 4 are free")
    others.append(Other(1))
    time.sleep(1.0)  # it begins after the large one, and would find a free card
    others[0].end()
    assert others[1].says().startswith("HAS")
    others[1].end()
    assert "HAS" in others[2].says() + others[2].says()


@pytest.mark.slow
@pytest.mark.usefixtures("receives_ctrl_c")
def test_ctrl_c_gives_up_waiting(driver: Path, others: list[Other]) -> None:
    others.append(Other(4))
    assert others[0].says().startswith("HAS")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), reserved(spec(1)):
        pass
    assert not reservations._held
