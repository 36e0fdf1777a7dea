"""The script that tells whether nodes work together: every way to start it, and where it fails.

Two torchruns on loopback stand for two nodes, and scripts replace `srun` and `scontrol`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psutil
import pytest
import torch

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "notebooks" / "several_nodes.py"
JOB = ROOT / "notebooks" / "several_nodes.sbatch"
PAGE = ROOT / "notebooks" / "several_nodes.md"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ONE_NODE = [*TORCHRUN, "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
SECONDS = 100  # a guard: each of these takes some ten


class Ended(NamedTuple):
    """What came of a command."""

    status: int
    stdout: str
    stderr: str


def run(folder: Path, *commands: list[str], **variables: str) -> list[Ended]:
    """Run commands in parallel; whatever happens, no process of theirs survives."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment |= {"TMPDIR": str(folder), **variables}  # torchrun leaves a folder there
    with contextlib.ExitStack() as stack:
        started = []
        for number, command in enumerate(commands):
            files = [folder / f"{number}-{name}" for name in ("stdout", "stderr")]
            out, err = (stack.enter_context(file.open("w")) for file in files)
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)
            stack.callback(end, process)
            started.append((process, files))
        statuses = [process.wait(SECONDS) for process, _ in started]
    texts = [[file.read_text() for file in files] for _, files in started]
    return [Ended(status, *text) for status, text in zip(statuses, texts, strict=True)]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that this test has started, and all below it."""
    if process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is this test's until it ends, and on which a rendezvous may listen.

    It is bound with SO_REUSEADDR and does not listen. So Linux does not give it to a program that
    wants any free port, and a program that binds it with SO_REUSEADDR, as PyTorch's TCPStore does,
    may listen on it.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def on_node(node: int, port: int) -> list[str]:
    """The command of one of two nodes."""
    there = ["--master-addr=127.0.0.1", f"--master-port={port}"]
    return [*TORCHRUN, "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", *there]


def rows(output: str) -> list[tuple[int, int, int]]:
    """Rank, node and local rank of each row of the table."""
    found = re.findall(rf"^ *(\d+) +(\d+)  {socket.gethostname()} +(\d+)  cpu$", output, re.M)
    return [(int(rank), int(node), int(local)) for rank, node, local in found]


def timed(output: str) -> dict[str, str]:
    """{group: its ranks} of the all-reduces that were timed, each at some speed above 0."""
    line = r"^((?:in|across|all) \S+(?: \d+)?) +(\d[\d, -]*?)  +16 MB +[\d.]+ ms +([\d.]+) GB/s$"
    found = re.findall(line, output, re.M)
    assert all(float(speed) > 0 for _, _, speed in found), output
    return {name: ranks for name, ranks, _ in found}


def check_two_nodes(output: str) -> None:
    """All is well with two nodes of two ranks."""
    assert output.startswith("4 ranks on 2 nodes, gloo\n"), output
    assert output.endswith("All is well.\n"), output
    assert rows(output) == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    assert timed(output) == {
        "in node 0": "0-1", "in node 1": "2-3", "across nodes": "0, 2", "all ranks": "0-3"
    }  # fmt: skip
    assert "sum of 1 to 4 by all-reduce: 10\n" in output
    assert "2 nodes on 1 host" in output
    for line in output.splitlines():
        if line.startswith(("rank  node", "all-reduce  ")):
            assert line in PAGE.read_text(), "the page shows another table"


# Where all is well ----------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.slow
def test_one_process_launches_two_ranks(tmp_path: Path) -> None:
    (ended,) = run(tmp_path, [sys.executable, str(SCRIPT)])
    assert ended.status == 0, ended
    assert ended.stdout.startswith("2 ranks on 1 node, gloo\n")
    assert rows(ended.stdout) == [(0, 0, 0), (1, 0, 1)]
    assert timed(ended.stdout) == {"in node 0": "0-1"}
    assert ended.stdout.endswith("All is well.\n")
    slow = "The first launch imports PyTorch; later launches start at once ...\n"
    assert ended.stderr in ("", slow)


@pytest.mark.proof
@pytest.mark.slow
def test_torchrun_on_one_node(tmp_path: Path) -> None:
    (ended,) = run(tmp_path, [*ONE_NODE, str(SCRIPT)])
    assert ended.status == 0, ended
    assert rows(ended.stdout) == [(0, 0, 0), (1, 0, 1)]
    assert "sum of 1 to 2 by all-reduce: 3\n" in ended.stdout
    assert ended.stdout.endswith("All is well.\n")


@pytest.mark.proof
@pytest.mark.slow
def test_two_torchruns_are_two_nodes(tmp_path: Path, port: int) -> None:
    first, second = run(tmp_path, *([*on_node(node, port), str(SCRIPT)] for node in (0, 1)))
    assert first.status == second.status == 0, (first, second)
    check_two_nodes(first.stdout)
    assert second.stdout == ""  # only rank 0 prints


# Where it is not ------------------------------------------------------------------------------

BROKEN = """
    import os, platform, runpy, sys, time
    import torch.distributed as dist

    rank, all_reduce = int(os.environ["RANK"]), dist.all_reduce

    def nothing(tensor, *args, **options):
        return None

    def not_gradients(tensor, *args, async_op=False, **options):
        sent = tensor.clone() if async_op else tensor
        return all_reduce(sent, *args, async_op=async_op, **options)

    def stuck(*args, **options):
        return time.sleep(3600) if rank == 1 else all_reduce(*args, **options)

    if sys.argv[1] == "other_python":
        platform.python_version = lambda: f"3.{11 + rank}"
    elif sys.argv[1] == "other_backend":
        dist.init_process_group("cpu:gloo" if rank == 1 else "gloo")
    else:
        dist.all_reduce = globals()[sys.argv[1]]
    sys.argv[:2] = []
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def broken(script: Path) -> Path:
    """Runs the script named behind a defect, with that defect."""
    script.write_text(textwrap.dedent(BROKEN))
    return script


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "sentence"),
    [
        ("nothing", "The all-reduce is wrong: ranks 0-1 got 1, 2 instead of 3."),
        ("not_gradients", "Training differs from one process: after 3 steps, the parameters of r"),
        ("other_python", "The software differs. Make it the same on every node. rank 0: Python 3"),
        ("other_backend", "The backend differs. Make it the same on every node. rank 0: cpu:gloo"),
    ],
    ids=["sum", "gradients", "software", "backend"],
)
def test_a_defect_is_named_and_the_status_is_1(
    tmp_path: Path, broken: Path, defect: str, sentence: str
) -> None:
    (ended,) = run(tmp_path, [*ONE_NODE, str(broken), defect, str(SCRIPT)])
    assert ended.status == 1
    assert rows(ended.stdout) == [(0, 0, 0), (1, 0, 1)], ended
    assert sentence in ended.stdout.splitlines()[-1]
    assert "All is well" not in ended.stdout
    assert bool(timed(ended.stdout)) == (not defect.startswith("other"))


@pytest.mark.proof
@pytest.mark.slow
def test_a_rank_that_waits_too_long_names_its_line(tmp_path: Path, broken: Path) -> None:
    (ended,) = run(tmp_path, [*ONE_NODE, str(broken), "stuck", str(SCRIPT), "--limit", "3"])
    assert ended.status == 1
    assert f"rank 1 on {socket.gethostname()} still waits after 3 s:\n" in ended.stderr
    assert "time.sleep(3600)" in ended.stderr
    assert ended.stdout == ""


# On GPUs --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_rank_for_each_card_goes_by_nccl(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    (ended,) = run(tmp_path, [*ONE_NODE[:-1], f"--nproc-per-node={count}", str(SCRIPT)])
    assert ended.status == 0, ended
    assert ended.stdout.startswith(f"{count} ranks on 1 node, cpu:gloo,cuda:nccl\n")
    cards = {str(torch.cuda.get_device_properties(card).uuid) for card in range(count)}
    assert {uuid for uuid in cards if uuid in ended.stdout} == cards
    assert ended.stdout.endswith("All is well.\n")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_nodes_on_one_card_are_named(tmp_path: Path, port: int) -> None:
    commands = [[*on_node(node, port), "--nproc-per-node=1", str(SCRIPT)] for node in (0, 1)]
    first, second = run(tmp_path, *commands)
    assert first.status == second.status == 1, (first, second)
    assert "One GPU is shared by ranks 0-1: " in first.stdout


# Under Slurm ----------------------------------------------------------------------------------

SCONTROL = """\
    #!/bin/bash
    [ "$*" = "show hostnames lab[1-2]" ] || exit 9
    printf '127.0.0.1\\nlab2\\n'
"""
SRUN = """\
    #!/bin/bash
    # Two nodes on this machine: srun's options are dropped, and its command runs on both.
    while [[ $1 == --* ]]; do shift; done
    export SLURM_STEP_NUM_NODES=2
    for node in 0 1; do SLURM_NODEID=$node "$@" & nodes+=($!); done
    status=0
    for node in "${nodes[@]}"; do wait "$node" || status=1; done
    exit "$status"
"""
SHOWS = """\
    #!/bin/bash
    printf '%s\\n' "$@" "$MASTER_ADDR" "$MASTER_PORT" "$RANKS_PER_NODE"
"""
SLURM = {
    "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "lab[1-2]", "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "6", "PYTHON": sys.executable,
}  # fmt: skip


def with_slurm(folder: Path, srun: str) -> dict[str, str]:
    """The environment of a job: Slurm's variables, and its commands as these scripts."""
    for name, text in (("srun", srun), ("scontrol", SCONTROL)):
        (folder / name).write_text(textwrap.dedent(text))
        (folder / name).chmod(0o755)
    return {**SLURM, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.proof
@pytest.mark.slow
def test_the_slurm_job_starts_a_torchrun_on_each_node(tmp_path: Path, port: int) -> None:
    variables = with_slurm(tmp_path, SRUN)
    (ended,) = run(tmp_path, ["bash", str(JOB)], MASTER_PORT=str(port), **variables)
    assert ended.status == 0, ended
    check_two_nodes(ended.stdout)


def test_the_slurm_job_requests_one_task_a_node_and_a_separate_port(tmp_path: Path) -> None:
    variables = with_slurm(tmp_path, SHOWS) | {"SLURM_GPUS_ON_NODE": "4"}
    (ended,) = run(tmp_path, ["bash", str(JOB), "--limit", "60"], **variables)
    assert ended.status == 0, ended
    lines = ended.stdout.splitlines()
    assert {"--ntasks-per-node=1", "--cpus-per-task=6", "--kill-on-bad-exit=1"} <= set(lines)
    assert lines[-6:] == ["torchrun", "--limit", "60", "127.0.0.1", "23456", "4"]


def test_the_slurm_job_is_bash() -> None:
    subprocess.run(["bash", "-n", str(JOB)], check=True)
    options = re.findall(r"^#SBATCH (--[a-z-]+)", JOB.read_text(), re.M)
    assert {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--time"} <= set(options)


# Sentences and tables -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[ModuleType]:
    """The script, imported."""
    spec = importlib.util.spec_from_file_location("several_nodes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["several_nodes"] = module  # where dataclasses look for its annotations
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["several_nodes"]


def ranks(nodes: ModuleType, *where: int, **others: Any) -> list[Any]:
    """One rank for each node that is named, all without faults, each with a different card."""
    same = {"host": "a", "backend": "cpu:gloo,cuda:nccl", "software": "S", "interface": ""}
    return [
        nodes.Rank(
            rank=rank, node=node, local_rank=where[:rank].count(node), card=f"card {rank}",
            total=len(where) * (len(where) + 1) / 2, **{**same, **others},
        )
        for rank, node in enumerate(where)
    ]  # fmt: skip


def test_ranks_on_one_card_are_named(nodes: ModuleType) -> None:
    everyone = ranks(nodes, 0, 0, 1, 1)
    assert nodes.what_does_not_fit(everyone) == []
    everyone[2].card = everyone[0].card
    (sentence,) = nodes.what_does_not_fit(everyone)
    assert sentence.startswith("One GPU is shared by ranks 0, 2: card 0.")


def test_a_node_without_cards_is_named_if_another_has_some(nodes: ModuleType) -> None:
    everyone = ranks(nodes, 0, 0, 1, 1)
    for one in everyone[2:]:
        one.backend, one.card = "cpu:gloo,cuda:gloo", "cpu"
    (sentence,) = nodes.what_does_not_fit(everyone)
    assert sentence.startswith("The backend differs.")
    assert "ranks 0-1: cpu:gloo,cuda:nccl; ranks 2-3: cpu:gloo,cuda:gloo" in sentence


def test_parameters_that_are_no_numbers_are_off(nodes: ModuleType) -> None:
    everyone = ranks(nodes, 0, 0)
    assert nodes.what_went_wrong(everyone) == []
    everyone[1].furthest = float("nan")
    (sentence,) = nodes.what_went_wrong(everyone)
    assert "rank 1 are off by up to nan" in sentence


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ([0], []),
        ([0, 0], ["in node 0"]),
        ([0, 1], ["across nodes"]),
        ([0, 0, 1], ["in node 0", "across nodes", "all ranks"]),
        ([0, 0, 1, 1], ["in node 0", "in node 1", "across nodes", "all ranks"]),
    ],
)
def test_each_way_that_data_take_is_timed_once(
    nodes: ModuleType, where: list[int], names: list[str]
) -> None:
    assert list(nodes.groups_of(ranks(nodes, *where))) == names


@pytest.mark.parametrize(("given", "said"), [("2", False), ("3", True)])
def test_nodes_that_srun_has_started_and_that_are_missing_are_counted(
    nodes: ModuleType, monkeypatch: pytest.MonkeyPatch, given: str, said: bool
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", given)
    monkeypatch.setattr(nodes, "STARTED_ALREADY", True)
    assert bool(nodes.unlike_slurm(ranks(nodes, 0, 1))) == said
    monkeypatch.setattr(nodes, "STARTED_ALREADY", False)
    assert nodes.unlike_slurm(ranks(nodes, 0, 1)) == []


def test_an_all_reduce_is_as_slow_as_its_slowest_rank(nodes: ModuleType) -> None:
    everyone = ranks(nodes, 0, 0, 1, nbytes=256_000_000)
    for one in everyone:
        one.seconds = {"in node 0": 1e-3, "across nodes": 1e-2, "all ranks": (1 + one.rank) / 100}
    lines = nodes.table(everyone).splitlines()
    assert lines[-3:] == [  # 2(N-1)/N x S/t, by hand
        "in node 0     0-1         256 MB    1.0 ms    256.00 GB/s",
        "across nodes  0, 2        256 MB   10.0 ms     25.60 GB/s",
        "all ranks     0-2         256 MB   30.0 ms     11.38 GB/s",
    ]


@pytest.mark.parametrize(
    ("numbers", "listed"), [([0], "0"), ([0, 1, 2, 8], "0-2, 8"), ([0, 4, 8, 9], "0, 4, 8-9")]
)
def test_ranks_are_listed_briefly(nodes: ModuleType, numbers: list[int], listed: str) -> None:
    assert nodes.listing(numbers) == listed


def test_links_of_the_page_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGE.read_text())
    assert {"several_nodes.py", "several_nodes.sbatch"} <= set(links)
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
