"""`dtlab bench`: nccl-tests' arithmetic, wrong results are reported, and known links are found."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import dtlab
from dtlab import collectives, predict
from dtlab.bench import BUILT_IN, COLLECTIVES, Measurement, Results, bench, command
from dtlab.bench import measure as measuring
from dtlab.bench.measure import OURS, Plan, Subject, measure
from dtlab.bench.results import BETWEEN_NODES, misfit
from dtlab.cli import main
from dtlab.errors import DtlabError
from dtlab.predict import Cluster, Link
from dtlab.show import bus_bandwidths
from tests.drawn import check_layout, lines, texts

IN_PIECES = ("reduce_scatter", "all_gather", "all_to_all")


# What follows from a time ---------------------------------------------------------------------


@pytest.mark.parametrize("n", range(2, 9))
def test_bandwidths_are_those_of_nccl_tests(n: int) -> None:
    factors = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1, "send_recv": 1, BETWEEN_NODES: 1}
    factors |= dict.fromkeys(IN_PIECES, (n - 1) / n)  # doc/PERFORMANCE.md, and alltoall.cu
    assert factors.keys() >= set(COLLECTIVES)
    for name, factor in factors.items():
        one = Measurement(name, BUILT_IN, "gloo", n, 1_000_000, 0.002)
        assert one.algorithm_bandwidth == pytest.approx(500e6)
        assert one.bus_bandwidth == pytest.approx(500e6 * factor)


def test_a_single_rank_has_no_bus_bandwidth() -> None:
    one = Measurement("all_reduce", BUILT_IN, "gloo", 1, 1000, 0.001, wrong=0)
    assert (one.algorithm_bandwidth, one.bus_bandwidth) == (1e6, 0)
    assert Results([one], 1).links() == {}
    with pytest.raises(DtlabError, match="a single rank sends nothing"):
        Results([one], 1).figure()


def by_hand() -> list[Measurement]:
    rows = [
        (BUILT_IN, 8, 100e-6), ("ring_all_reduce", 8, 250e-6),
        (BUILT_IN, 4_000_000, 2e-3), ("ring_all_reduce", 4_000_000, 1e-3),
    ]  # fmt: skip
    found = [Measurement("all_reduce", *row[:1], "gloo", 4, *row[1:], 0) for row in rows]
    return [*found, Measurement("send_recv", BUILT_IN, "gloo", 4, 4_000_000, 4e-3, 0)]


TABLE = """\
all_reduce   (size: the tensor of one rank)
                                built-in                 ring_all_reduce
    size      time      algbw      busbw      time      algbw      busbw  ours/built-in
     8 B    100 µs  80.0 kB/s   120 kB/s    250 µs  32.0 kB/s  48.0 kB/s           2.50
 4.00 MB   2.00 ms  2.00 GB/s  3.00 GB/s   1.00 ms  4.00 GB/s  6.00 GB/s           0.50

send_recv   (size: one message; the time is half of a round trip between ranks 0 and 1)
                                built-in
    size      time      algbw      busbw
 4.00 MB   4.00 ms  1.00 GB/s  1.00 GB/s"""


def test_the_table_is_the_one_worked_out_by_hand() -> None:
    told = Results(by_hand(), ranks_per_node=2).table()
    assert told.startswith("Collectives, 4 ranks on gloo, 2 nodes, float32.")
    assert f"\n\n{TABLE}\n\n" in told
    assert "Every result was compared with the expected one and is right." in told
    assert all(len(line) < 100 for line in told.splitlines())


def test_json_there_and_back() -> None:
    results = Results(by_hand(), 2, stopped=True, left_out=[10**9])
    again = Results.from_json(results.to_json())
    assert again == results
    rows = json.loads(results.to_json())["measurements"]
    assert rows[3]["algorithm_bandwidth"] == pytest.approx(4e9)
    assert rows[3]["bus_bandwidth"] == pytest.approx(6e9)
    for text in ("{", "[]", '{"format": "another"}', '{"format": "dtlab bench 1"}'):
        with pytest.raises(DtlabError, match="not what dtlab bench --json writes"):
            Results.from_json(text)


def test_missing_results_are_named() -> None:
    told = Results(by_hand(), 4, stopped=True, left_out=[8 * 10**9, 64 * 10**9]).table()
    assert "Stopped: these are the measurements so far." in told
    assert "Left out: 8.00 GB and 64.0 GB." in told
    unchecked = [Measurement("all_reduce", BUILT_IN, "gloo", 2, 8, 1e-4)]
    assert "Every result" not in Results(unchecked, 2).table()
    assert Results([], 2, stopped=True).table().startswith("Collectives, float32")


# The link behind the times --------------------------------------------------------------------

FORMS: dict[tuple[str, str], Callable[[float, int, Link], float]] = {
    ("all_reduce", BUILT_IN): predict.ring_all_reduce_seconds,
    ("all_reduce", "ring_all_reduce"): predict.ring_all_reduce_seconds,
    ("all_reduce", "naive_all_reduce"): predict.naive_all_reduce_seconds,
    ("all_reduce", "halving_doubling_all_reduce"): predict.halving_doubling_all_reduce_seconds,
    ("all_reduce", "mine"): predict.ring_all_reduce_seconds,
    ("reduce_scatter", BUILT_IN): predict.reduce_scatter_seconds,
    ("all_gather", "ring_all_gather"): predict.all_gather_seconds,
    ("all_to_all", "pairwise_all_to_all"): predict.all_to_all_seconds,
    ("broadcast", BUILT_IN): predict.broadcast_seconds,
    ("broadcast", "tree_broadcast"): predict.tree_broadcast_seconds,
    ("send_recv", BUILT_IN): lambda nbytes, ranks, link: link.seconds(nbytes),
    (BETWEEN_NODES, BUILT_IN): lambda nbytes, ranks, link: link.seconds(nbytes),
}


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_the_link_of_synthetic_times_is_found(ranks: int) -> None:
    links = {key: Link(2e-6 * (i + 1), 3e9 * (i + 1)) for i, key in enumerate(FORMS)}
    made = [
        Measurement(*key, "gloo", ranks, size, FORMS[key](size, ranks, link))
        for key, link in links.items()
        for size in (8, 4096, 2**20, 2**26)
    ]
    results = Results(made, ranks)
    found = results.links()
    assert found.keys() == links.keys()
    for key, link in links.items():
        assert found[key].latency == pytest.approx(link.latency, rel=1e-4)
        assert found[key].bandwidth == pytest.approx(link.bandwidth, rel=1e-4)
        assert misfit(*key, results.curves()[key], link) < 1e-9


def test_the_error_of_a_link_is_printed() -> None:
    curve = [Measurement("send_recv", BUILT_IN, "gloo", 2, 1000, s) for s in (1e-3, 2e-3, 8e-3)]
    assert misfit("send_recv", BUILT_IN, curve, Link(1e-3, 1e6)) == pytest.approx(0.75)


def test_links_that_cannot_be_fitted_are_left_out() -> None:
    def row(collective: str, size: int, seconds: float) -> Measurement:
        return Measurement(collective, BUILT_IN, "gloo", 2, size, seconds)

    falling = [row("all_reduce", 8, 2e-3), row("all_reduce", 64, 1e-3)]
    single = [row("broadcast", 8, 1e-3)]
    told = [row("send_recv", 1000, 2e-3), row("send_recv", 2000, 3e-3)]
    assert list(Results([*falling, *single, *told], 2).links()) == [("send_recv", BUILT_IN)]


def test_a_link_that_explains_nothing_is_no_code() -> None:
    sizes, key = (8, 10_000, 1_000_000, 8_000_000), ("all_reduce", BUILT_IN, "gloo", 2)
    wild = [Measurement(*key, size, seconds, 0) for size, seconds in
            zip(sizes, (1e-3, 1e-5, 2e-2, 1e-3), strict=True)]  # fmt: skip
    falling = [Measurement("broadcast", BUILT_IN, "gloo", 2, size, 1 / size, 0) for size in sizes]
    names: dict[str, object] = {}
    text = Results([*wild, *falling], 2).paste()
    exec(text, names)
    assert names["links"] == {} and "Cluster" not in names
    assert '# ("broadcast", "built-in"): these times determine no link' in text


def test_links_can_be_pasted() -> None:
    inside, between = Link(20e-6, 1.5e9), Link(150e-6, 0.1e9)
    rows = [
        Measurement(name, BUILT_IN, "gloo", 4, size, link.seconds(size))
        for name, link in (("send_recv", inside), (BETWEEN_NODES, between))
        for size in (8, 10**4, 10**7)
    ]
    names: dict[str, Any] = {}
    exec(Results(rows, 2).paste(), names)
    assert names["cluster"] == Cluster(nodes=2, gpus_per_node=2, intra=inside, inter=between)
    assert names["links"] == {("send_recv", BUILT_IN): inside, (BETWEEN_NODES, BUILT_IN): between}
    assert "Link(latency=20e-6, bandwidth=1.5e9)" in Results(rows, 2).paste()


def test_a_cluster_has_no_link_that_explains_nothing() -> None:
    sizes, seconds = (8, 10_000, 1_000_000, 8_000_000), (1e-3, 1e-5, 2e-2, 1e-3)
    wild = [
        Measurement("send_recv", BUILT_IN, "gloo", 2, *pair)
        for pair in zip(sizes, seconds, strict=True)
    ]
    assert Results(wild, 2).links()
    assert "Cluster" not in Results(wild, 2).paste()


@pytest.mark.proof
@pytest.mark.slow
def test_links_that_are_emulated_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTLAB_UNWATCHED", "1")
    inside, between = Link(4e-3, 10e6), Link(12e-3, 4e6)
    plan = Plan(("send_recv",), (64, 200_000), 3, 2, open_end=False, seconds=0.5)
    for _ in range(4):  # a busy machine disturbs a measurement
        run = dtlab.launch(measure, plan, cluster=Cluster(2, 2, inside, between), world_size=3,
                           trace=False)  # fmt: skip
        found = Results(run.values[0], 2).links()
        pairs = [(found.get((name, BUILT_IN)), link)
                 for name, link in (("send_recv", inside), (BETWEEN_NODES, between))]  # fmt: skip
        if all(
            link is not None
            and link.latency == pytest.approx(described.latency, rel=0.3)
            and link.bandwidth == pytest.approx(described.bandwidth, rel=0.3)
            for link, described in pairs
        ):
            return
    pytest.fail(f"found {found}, not {inside} and {between}")


# On real ranks --------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_of_them_are_measured_and_right(ranks: int, warm: None) -> None:
    results = bench(ranks=ranks, begin=8, end=4000, factor=16, seconds=0.05, backend="gloo")
    for (name, implementation), curve in results.curves().items():
        step = 4 * ranks if name in IN_PIECES else 4
        assert [one.bytes for one in curve] == [-(-size // step) * step for size in (8, 128, 2048)]
        assert implementation in (BUILT_IN, getattr(OURS.get(name), "__name__", ""))
        for one in curve:
            assert (one.backend, one.world_size, one.wrong) == ("gloo", ranks, 0)
            assert one.seconds > 0
    assert {name for name, _ in results.curves()} == set(COLLECTIVES)
    assert len(results.curves()) == len(COLLECTIVES) + len(OURS)
    assert not results.stopped and not results.left_out and not results.wrong


def nothing(*_: Any) -> None:
    """The answer of a learner who has not begun."""


def shifted(output: Tensor, input: Tensor) -> None:
    """The right pieces, each in the place of its neighbour."""
    dist.all_gather_single(output, input)
    output.copy_(output.roll(1))


def wrong_at_the_end(tensor: Tensor) -> None:
    """The sum, except in the last element."""
    dist.all_reduce(tensor)
    tensor[-1] += 1


@pytest.mark.slow
def test_wrong_results_are_reported(warm: None) -> None:
    wrong = dict.fromkeys(OURS, nothing)
    results = bench(list(OURS), ranks=2, begin=16, end=16, seconds=0.01, ours=wrong)
    assert [(one.collective, one.implementation) for one in results.wrong] == [
        (name, "nothing") for name in OURS
    ]
    assert "WRONG RESULTS: nothing of all_reduce at 16 B, 8 elements, and 4 more." in (
        results.table().replace("\n", " ")
    )
    results = bench(["all_gather"], ranks=2, end=8, seconds=0.01, ours={"all_gather": shifted})
    assert [one.wrong for one in results.measurements] == [0, 4]
    size = 4 * (2 * measuring._BLOCK + 1)
    ours = {"all_reduce": wrong_at_the_end}
    results = bench(["all_reduce"], ranks=2, begin=size, end=size, seconds=0.01, ours=ours)
    assert [one.wrong for one in results.measurements] == [0, 2]
    again = bench(["all_reduce"], ranks=2, end=8, seconds=0.01, check=False, ours=wrong)
    assert [one.wrong for one in again.measurements] == [None, None]


@pytest.mark.slow
def test_the_slowest_rank_counts(warm: None) -> None:
    def late(tensor: Tensor) -> None:
        dist.all_reduce(tensor)
        if dist.get_rank() == 1:
            time.sleep(0.02)

    found = bench(["all_reduce"], ranks=2, end=8, seconds=0.2, ours={"all_reduce": late})
    _, ours = found.measurements
    assert ours.seconds >= 0.02
    assert ours.implementation == "late"


@pytest.mark.slow
def test_a_single_rank_is_measured(warm: None) -> None:
    results = bench(ranks=1, end=64, seconds=0.01, backend="gloo")
    assert {name for name, _ in results.curves()} == set(COLLECTIVES) - {"send_recv"}
    assert not results.wrong
    with pytest.raises(DtlabError, match="send_recv needs two ranks"):
        bench(["send_recv"], ranks=1, backend="gloo")


@pytest.mark.slow
def test_an_open_end_stops_where_there_is_no_time_or_no_memory(warm: None) -> None:
    def slowly(plan: Plan) -> tuple[list[int], list[int]]:
        def sleep(_: Tensor) -> None:
            time.sleep(0.01)

        plan.functions["all_reduce"] = sleep  # type: ignore[index]
        own = [one.bytes for one in measure(plan) if one.implementation == "sleep"]
        measuring._largest_size = lambda *_: 100  # type: ignore[assignment]
        patient = replace(plan, seconds=3.0, functions={})
        return own, [one.bytes for one in measure(patient) if one.implementation == BUILT_IN]

    plan = Plan(("all_reduce",), (8, 64, 512, 4096), 1, 1, seconds=0.1, functions={})
    timed, held = dtlab.launch(slowly, plan, world_size=1, backend="gloo").values[0]
    assert timed[0] == 8 and len(timed) < 4
    assert held == [8, 64]


def test_small_sizes_say_little_of_how_long_large_ones_take() -> None:
    assert measuring._likely(2**20, 8, 1e-3) < 0.02  # latency
    assert measuring._likely(8 * 10**7, 10**7, 1.0) == pytest.approx(8.0)
    assert measuring._likely(8 * 10**5, 10**5, 1e-4) == pytest.approx(8e-4)


@pytest.mark.slow
def test_sizes_that_do_not_fit_into_memory_are_left_out(warm: None) -> None:
    size = 10**15
    results = bench("broadcast", ranks=1, begin=size, end=size, backend="gloo")
    assert (results.measurements, results.left_out) == ([], [size])


def test_messages_between_nodes_are_measured_too() -> None:
    def partners(ranks: int, per_node: int) -> list[tuple[str, int]]:
        subjects = Plan(("send_recv",), (8,), ranks, per_node).subjects()
        return [(one.collective, one.partner) for one in subjects]

    assert partners(8, 4) == [("send_recv", 1), (BETWEEN_NODES, 4)]
    assert partners(4, 4) == [("send_recv", 1)]
    assert partners(2, 1) == [(BETWEEN_NODES, 1)]
    assert partners(1, 1) == []


@pytest.mark.slow
def test_nodes_of_different_sizes_agree_on_the_partners(warm: None) -> None:
    def of_its_node() -> list[Measurement]:
        per_node = 2 if dist.get_rank() < 2 else 1
        return measure(Plan(("send_recv",), (8,), 3, per_node, seconds=0.01))

    values = dtlab.launch(of_its_node, world_size=3, backend="gloo", timeout=20).values
    assert [one.collective for one in values[0]] == ["send_recv", BETWEEN_NODES]
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("name", sorted(OURS))
def test_expected_results_are_those_of_one_process(name: str, ranks: int) -> None:
    subject, here = Subject(name), torch.device("cpu")
    size = subject.rounded(40 * ranks + 3, ranks)
    outputs, inputs = zip(
        *(subject.buffers(size, rank, ranks, here) for rank in range(ranks)), strict=True
    )
    rows, length = torch.stack(inputs), len(outputs[0])
    pieces = rows.view(ranks, ranks, -1) if name in ("reduce_scatter", "all_to_all") else rows
    for rank in range(ranks):
        wanted = {
            "all_reduce": lambda: rows.sum(0),
            "reduce_scatter": lambda rank=rank: pieces.sum(0)[rank],
            "all_gather": lambda: rows.flatten(),
            "broadcast": lambda: rows[0],
            "all_to_all": lambda rank=rank: pieces[:, rank].flatten(),
        }[name]()
        blocks = torch.arange(length).split(7)
        found = [subject.expected(places, length, rank, ranks) for places in blocks]
        assert torch.equal(torch.cat(found), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nccl_on_one_gpu() -> None:
    results = bench(ranks=1, end="1 MiB", backend="nccl", seconds=0.2)
    assert {one.backend for one in results.measurements} == {"nccl"}
    assert len(results.curves()) == 2 * len(OURS)
    assert not results.wrong


# The command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm: None
) -> None:
    files = [tmp_path / "bench.json", tmp_path / "bench.svg"]
    options = ["--collectives", "all_reduce, send_recv", "--end", "2 kB", "--seconds", "0.05"]
    written = ["--json", str(files[0]), "--figure", str(files[1])]
    assert main(["bench", "--ranks", "2", "--backend", "gloo", *options, *written]) == 0
    told = capsys.readouterr().out
    results = Results.from_json(files[0].read_text())
    assert told.startswith(results.table())
    assert list(results.curves()) == [
        ("all_reduce", BUILT_IN), ("all_reduce", "ring_all_reduce"), ("send_recv", BUILT_IN),
    ]  # fmt: skip
    assert files[1].read_text().startswith("<?xml")


@pytest.mark.slow
def test_wrong_results_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warm: None
) -> None:
    monkeypatch.setattr("dtlab.bench.command.OURS", {"broadcast": nothing})
    assert main(["bench", "--collectives", "broadcast", "--end", "8", "--ranks", "2"]) == 1
    assert "WRONG RESULTS: nothing of broadcast" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--ranks 0", "ranks must be a whole number from 1 to 256, not 0"),
        ("--ranks 1000", "ranks must be a whole number from 1 to 256, not 1000"),
        ("--end 1XB", "end: '1XB' is not understood. Type digits and a point, then B, kB, MB, GB"),
        ("--begin 2", "begin must be a number of bytes, at least 4 (one float32)"),
        ("--begin 1MB --end 1kB", "end (1,000 bytes) is below begin (1,000,000 bytes)"),
        ("--factor 1", "factor must be a whole number of at least 2, not 1"),
        ("--collectives all_reduce,al_gather", "'al_gather' is not known. The collectives are "
         "all_reduce, reduce_scatter, all_gather, broadcast, all_to_all and send_recv."),
        ("--collectives ,", "'' is not known. The collectives are all_reduce"),
        ("--collectives broadcast,broadcast", "broadcast is named twice"),
        ("--backend mpi", "backend must be 'gloo' or 'nccl', or left out; not 'mpi'"),
        ("--seconds 0", "seconds must be a number above 0, for one curve; not 0.0"),
        ("--figure a.gif", "the figure's name must end in .png or .svg; a.gif does not"),
        ("--json nowhere/a.json", "a.json cannot be written: there is no folder nowhere"),
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused(
    options: str, told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *options.split()]) == 1
    assert f"dtlab bench: {told}" in capsys.readouterr().err


def test_only_functions_are_compared_with_built_in_collectives() -> None:
    for ours in ({"send_recv": nothing}, {"all_reduce": "ring"}):
        with pytest.raises(DtlabError, match="ours must map names of collectives"):
            bench(ours=ours)  # type: ignore[arg-type]
    with pytest.raises(DtlabError, match="'gossip' is not known"):
        bench(ours={"gossip": collectives.ring_all_reduce})


@pytest.mark.slow
def test_nccl_needs_a_gpu_for_each_rank(warm: None) -> None:
    with pytest.raises(DtlabError, match="needs a GPU for each of the 200 ranks"):
        bench(ranks=200, backend="nccl")


LONG = ("--collectives", "all_reduce", "--end", "256MiB", "--factor", "2", "--seconds", "600")


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.usefixtures("receives_ctrl_c")
def test_an_interrupt_shows_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dtlab", "bench", "--ranks", "2", "--backend", "gloo"]
    program = subprocess.Popen(
        [*command, *LONG], env={**os.environ, "TMPDIR": str(tmp_path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = interrupted(program, tmp_path)
    assert program.returncode == 1, err
    assert "Traceback" not in err
    assert "Stopped: these are the measurements so far." in out
    assert "     8 B " in out
    assert not list(tmp_path.glob("dtlab-bench-*"))


def interrupted(program: subprocess.Popen[str], folder: Path) -> tuple[str, str]:
    """The output of a program that was interrupted after its first measurement."""
    deadline = time.monotonic() + 60
    while not any(command._read(one) for one in folder.glob("dtlab-bench-*/measurements")):
        assert program.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    return program.communicate(timeout=60)


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.usefixtures("receives_ctrl_c")
def test_an_interrupt_under_torchrun_too(tmp_path: Path) -> None:
    program = under_torchrun(tmp_path, *LONG)
    out, err = interrupted(program, tmp_path)
    assert "Stopped: these are the measurements so far." in out, err
    assert "     8 B " in out


def under_torchrun(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", "--nproc-per-node=2", "-m", "dtlab", "bench", *options]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment |= {"TMPDIR": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.proof
@pytest.mark.slow
def test_under_torchrun_rank_0_prints(tmp_path: Path) -> None:
    options = ["--end", "512", "--seconds", "0.05", "--json", str(tmp_path / "bench.json")]
    done = under_torchrun(tmp_path, *options)
    out, err = done.communicate(timeout=100)
    assert done.returncode == 0, err
    results = Results.from_json((tmp_path / "bench.json").read_text())
    assert out.count("Collectives, 2 ranks on gloo") == 1
    assert out.startswith(results.table())
    assert len(results.curves()) == len(COLLECTIVES) + len(OURS)


def test_another_number_of_ranks_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DtlabError, match="ranks=4 was given, but this process is one of 2"):
        bench(ranks=4)


# The figure -----------------------------------------------------------------------------------


def test_each_collective_has_a_panel_with_both_curves() -> None:
    slower, faster = ([8.0, 64.0, 4e6], [1e4, 2e5, 1e9]), ([8.0, 64.0, 4e6], [2e4, 9e5, 3e9])
    panels = {name: {BUILT_IN: faster, "ours": slower} for name in COLLECTIVES[:5]}
    figure = bus_bandwidths(
        {**panels, "send_recv": {BUILT_IN: faster}},
        title="Collectives, 4 ranks on gloo",
        notes={"all_reduce": "ring_all_reduce", "all_to_all": "pairwise_all_to_all"},
    )
    check_layout(figure)
    curves = [axes.lines for axes in figure.axes if axes.get_xscale() == "log"]
    assert [len(each) for each in curves] == [2, 2, 2, 2, 2, 1]
    assert [list(each[0].get_ydata()) for each in curves] == [faster[1]] * 6
    limits = {(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes
              if axes.get_xscale() == "log"}  # fmt: skip
    assert len(limits) == 1
    assert "ours: ring_all_reduce" in texts(figure)
    two = {"all_reduce": panels["all_reduce"], "send_recv": {BUILT_IN: faster}}
    assert {"ours", BUILT_IN} <= set(texts(bus_bandwidths(two, title="Collectives")))  # the key
    assert "ours from 10.0 kB/s at 8 B to 1.00 GB/s at 4.00 MB" in figure.alt_text


@pytest.mark.parametrize("speeds", [[2e3, 3e3], [1e-2, 9e11]])
def test_one_panel_reads_well_too(speeds: list[float]) -> None:
    figure = bus_bandwidths({"broadcast": {BUILT_IN: ([8e8, 8.0], speeds)}}, title="Collectives")
    check_layout(figure)
    assert list(lines(figure)[f"measured {BUILT_IN}"].get_xdata()) == [8.0, 8e8]


@pytest.mark.parametrize(
    ("curves", "told"),
    [
        ({}, "nothing to draw"),
        ({"ours": ([8.0], [1.0, 2.0])}, "1 sizes and 2 bandwidths"),
        ({"ours": ([8.0], [0.0])}, "must be above 0"),
    ],
)
def test_results_that_cannot_be_drawn_are_refused(curves: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        bus_bandwidths({"all_reduce": curves}, title="Collectives")


def test_results_draw_themselves() -> None:
    figure = Results(by_hand(), 4).figure()
    check_layout(figure)
    assert "Collectives, 4 ranks on gloo: bus bandwidth" in figure.alt_text
    assert "all_reduce: built-in from 120 kB/s at 8 B to 3.00 GB/s at 4.00 MB" in figure.alt_text
    assert "send_recv: built-in from 1.00 GB/s at 4.00 MB" in figure.alt_text


# The bar --------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def test_the_bar_follows_the_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(command, "_DELAY", 0.0)
    monkeypatch.setattr(command, "_EVERY", 0.01)
    log = tmp_path / "measurements"
    plan = Plan(("all_reduce", "broadcast"), (8, 16, 32, 64), 2, 2)

    def write(collective: str) -> None:
        measurement = Measurement(collective, BUILT_IN, "gloo", 2, 8, 1e-3)
        with log.open("a") as file:
            file.write(json.dumps(asdict(measurement)) + "\n")

    def until(words: str) -> None:
        deadline = time.monotonic() + 20
        while words not in terminal.getvalue():
            assert time.monotonic() < deadline, terminal.getvalue()
            time.sleep(0.005)

    with command._progress_bar(log, plan):
        write("all_reduce")
        until("1/8")
        write("broadcast")
        until("5/8")  # the sizes for which there was no time count as done
    assert "broadcast, built-in" in terminal.getvalue()
    with log.open("a") as file:
        file.write('{"collective": "all')  # torn
    assert len(command._read(log)) == 2
