"""Ranks that stay: state, turns, and what is left of both after each kind of trouble."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import dtlab
from dtlab.ranks.session import current
from tests.leftovers import descendants

START = "import os, time, torch, torch.distributed as dist\nx = torch.ones(3)"
ALL_REDUCE = "dist.all_reduce(x)"


@pytest.fixture(scope="module")
def shared(warm: None) -> Iterator[dtlab.Session]:
    """Ranks for tests that leave them as they are."""
    with dtlab.session(3) as made:
        made.cell(START)
        yield made


@pytest.fixture
def own(warm: None) -> Iterator[dtlab.Session]:
    """Ranks for one test alone."""
    with dtlab.session(3) as made:
        made.cell(START)
        yield made


def check_works(session: dtlab.Session) -> None:
    """Check that the ranks kept their variables and can communicate."""
    session.cell("x.fill_(dist.get_rank())\n" + ALL_REDUCE)
    assert [one.tolist() for one in session.pull("x")] == [[3.0] * 3] * 3


# State and turns --------------------------------------------------------------------------------


def test_variables_stay_from_cell_to_cell(shared: dtlab.Session) -> None:
    shared.cell("y = dist.get_rank()")
    shared.cell("y += 10")
    assert shared.pull("y") == [10, 11, 12]
    assert shared.pull("y * 2", ranks=1) == [None, 22, None]


def test_ranks_are_in_a_process_group(shared: dtlab.Session) -> None:
    run = shared.run(lambda: (dist.get_rank(), dist.get_world_size()))
    assert run.values == [(0, 3), (1, 3), (2, 3)]


def test_a_function_gets_copies_of_its_arguments(shared: dtlab.Session) -> None:
    given = torch.zeros(2)
    run = shared.run(lambda one, two: one.add_(two + dist.get_rank()), given, 1.0)
    assert [value.tolist() for value in run.values] == [[1, 1], [2, 2], [3, 3]]
    assert given.tolist() == [0, 0]


def test_variables_are_pushed_to_some_ranks_or_all(shared: dtlab.Session) -> None:
    shared.push(factor=2, names=["a"])
    shared.push(1, factor=3)
    assert shared.pull("factor") == [2, 3, 2]
    assert shared.pull("names") == [["a"]] * 3


@pytest.fixture
def notebook() -> Iterator[dict[str, Any]]:
    """The names of a notebook, which are those of `__main__`."""
    main = vars(sys.modules["__main__"])
    before = dict(main)
    yield main
    main.clear()
    main.update(before)


def test_functions_cells_and_push_share_the_names_of_a_rank(
    own: dtlab.Session, notebook: dict[str, Any]
) -> None:
    exec("def make():\n    global net\n    net = dist_rank() + 10", notebook)
    exec("def dist_rank():\n    import torch.distributed as dist\n"
         "    return dist.get_rank()", notebook)  # fmt: skip
    own.run(notebook["make"])
    assert own.pull("net") == [10, 11, 12]
    assert own.run(eval("lambda: net + 1", notebook)).values == [11, 12, 13]
    own.cell("y = 3\ndef h():\n    return y")
    assert own.run(eval("lambda: h() + y", notebook)).values == [6] * 3
    own.push(f=lambda: 1, data=[1])
    assert own.run(eval("lambda: (f(), data)", notebook)).values == [(1, [1])] * 3


def test_ranks_get_the_notebooks_names(own: dtlab.Session, notebook: dict[str, Any]) -> None:
    use = eval("lambda: rate", notebook)
    for rate in (0.1, 0.2):
        notebook["rate"] = rate
        assert own.run(use).values == [rate] * 3
    assert own.pull("rate") == [0.2] * 3
    notebook["Pair"] = type("Pair", (), {"__module__": "__main__"})
    exec("def twice(n):\n    return 1 if n == 0 else 2 * twice(n - 1)", notebook)
    assert own.run(notebook["twice"], 5).values == [32] * 3
    assert own.run(eval("lambda: isinstance(Pair(), Pair)", notebook)).values == [True] * 3


def test_an_error_of_a_wrapper_made_before_a_hang_says_what_to_do(own: dtlab.Session) -> None:
    own.cell("old = dist.new_group([0, 1, 2])")
    with pytest.raises(dtlab.DeadlockError):
        own.cell(ALL_REDUCE, ranks=0)
    with pytest.raises(dtlab.RankError, match="created before the ranks got their new process"):
        own.cell("raise RuntimeError('Connection closed by peer [127.0.0.1]:1')", ranks=0)


def test_a_second_session_says_that_cells_run_there(
    own: dtlab.Session, capsys: pytest.CaptureFixture[str]
) -> None:
    with dtlab.session(1):
        assert "%%ranks uses this session from now on" in capsys.readouterr().out


def test_closing_does_not_wait_for_a_cell_of_another_thread(warm: None) -> None:
    session = dtlab.session(1)
    told: list[BaseException] = []

    def busy() -> None:
        try:
            session.cell("import time\ntime.sleep(60)", timeout=90)
        except dtlab.LaunchError as error:
            told.append(error)

    thread = threading.Thread(target=busy)
    thread.start()
    until(session._lock.locked)
    start = time.perf_counter()
    session.close()
    thread.join(10)
    assert time.perf_counter() - start < 5 and not session.is_open
    assert "closed during this call" in str(told[0])


def test_the_last_expression_is_shown_by_rank(
    shared: dtlab.Session, capsys: pytest.CaptureFixture[str]
) -> None:
    shared.cell("print('first')\ndist.get_rank() + 5", ranks=[0, 2])
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["rank 0: first", "rank 0: 5", "rank 2: first", "rank 2: 7"]


def test_what_a_cell_shows_comes_after_what_it_printed_before(
    shared: dtlab.Session, capsys: pytest.CaptureFixture[str]
) -> None:
    shared.cell("print(1)\ndisplay(2)\nprint(3)\n4", ranks=0)
    assert capsys.readouterr().out.split("rank 0: ")[1:] == ["1\n", "2\n", "3\n", "4\n"]


def test_cells_have_magics_the_shell_and_await(
    shared: dtlab.Session, capsys: pytest.CaptureFixture[str]
) -> None:
    shared.cell("import asyncio\n!echo from the shell\n%time 1\nawait asyncio.sleep(0, 'then')", 0)
    shown = capsys.readouterr().out
    assert "rank 0: from the shell" in shown
    assert "Wall time" in shown and "rank 0: 'then'" in shown


def test_each_turn_has_a_separate_trace(shared: dtlab.Session) -> None:
    shared.cell("x = torch.ones(1_000_000)\nfor _ in range(3):\n    dist.all_reduce(x)")
    assert shared.trace is not None
    assert shared.trace.ops(1)["all_reduce"] == 3
    assert shared.trace.bytes_wire(1) == pytest.approx(3 * 4e6 * 4 / 3, rel=0.01)
    shared.cell("with torch.no_grad():\n    dist.all_reduce(x)")
    assert [shared.trace.ops(rank).total() for rank in range(3)] == [1, 1, 1]
    assert shared.trace.bytes_wire(1) == pytest.approx(4e6 * 4 / 3, rel=0.01)
    shared.cell(START)


def test_an_operation_begun_in_one_cell_may_be_finished_in_another(
    shared: dtlab.Session, capsys: pytest.CaptureFixture[str]
) -> None:
    shared.cell("work = dist.isend(torch.full((3,), 7.0), 1)", ranks=0)
    shared.cell("dist.recv(x, 0)", ranks=1)
    shared.cell("work.wait()", ranks=0)
    assert shared.pull("x", ranks=1)[1].tolist() == [7.0] * 3
    shared.cell("work = dist.all_reduce(x, async_op=True)", ranks=[0, 2])
    shared.cell("dist.all_reduce(x)", ranks=1)
    shared.cell("work.wait()", ranks=[0, 2])
    assert "warning" not in capsys.readouterr().out
    check_works(shared)


def test_many_turns_leave_no_file_open(shared: dtlab.Session) -> None:
    open_files = psutil.Process().num_fds()
    for _ in range(50):
        shared.run(int)
    assert psutil.Process().num_fds() == open_files


def test_destroyed_groups_leave_no_threads(shared: dtlab.Session) -> None:
    ranks = [psutil.Process(pid) for pid in shared.pull("os.getpid()")]
    counts = []
    for _ in range(4):
        shared.cell(
            "group = dist.new_group([0, 1])\n"
            "if dist.get_rank() < 2:\n"
            "    dist.all_reduce(torch.ones(3), group=group)\n"
            "dist.barrier()\n"  # now no rank is still connecting
            "if dist.get_rank() < 2:\n"
            "    dist.destroy_process_group(group)\n"
            "del group"
        )
        counts.append([one.num_threads() for one in ranks])
    assert counts[0] == counts[3]


def test_a_turn_is_quick(shared: dtlab.Session) -> None:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        shared.run(int)
        times.append(time.perf_counter() - start)
    assert statistics.median(times) < 0.15  # 0.01 when nothing else runs


def test_large_tensors_come_and_go(shared: dtlab.Session) -> None:
    large = torch.arange(5_000_000)
    run = shared.run(lambda tensor: tensor + dist.get_rank(), large, ranks=[2])
    assert torch.equal(run.values[2], large + 2)


def test_classes_of_the_notebook_are_themselves_on_the_ranks(own: dtlab.Session) -> None:
    own.cell("class Pair:\n    pass\none = Pair()")
    own.cell("got = [None] * 3\ndist.all_gather_object(got, one)")
    assert own.pull("all(isinstance(each, Pair) for each in got)") == [True] * 3


def test_links_can_be_emulated(warm: None) -> None:
    cluster = dtlab.Cluster(1, 2, intra=dtlab.Link(0.0, 10e6))
    with dtlab.session(cluster=cluster) as session:
        session.cell("import torch, torch.distributed as dist\nx = torch.ones(500_000)")
        seconds = session.run(timed).values
    assert min(seconds) == pytest.approx(0.2, abs=0.05)


def timed() -> float:
    """Seconds of an all-reduce of the variable x."""
    x = vars(sys.modules["__main__"])["x"]
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(x)
    return time.perf_counter() - start


# Errors -----------------------------------------------------------------------------------------


def test_an_error_names_ranks_and_lines_and_the_session_lives_on(shared: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError) as caught:
        shared.cell("a = 1\n\nif dist.get_rank() == 1:\n    a / 0\nb = 2")
    text = str(caught.value)
    assert text.startswith("rank 1 raised ZeroDivisionError: division by zero\n")
    assert "line 4:   a / 0" in text and "process group" not in text
    assert [*caught.value.failures] == [1]
    assert shared.pull("a") == [1, 1, 1]
    check_works(shared)


def test_an_error_in_an_earlier_cell_names_the_cell_that_called_it(shared: dtlab.Session) -> None:
    shared.cell("def helper(x):\n    return x.mistake\ndef other(x):\n    return helper(x)")
    with pytest.raises(dtlab.RankError) as caught:
        shared.cell("y = 1\nother(y)")
    assert re.search(r"return x.mistake\n  called in .*, line 2:   other\(y\)$", str(caught.value))
    with pytest.raises(dtlab.RankError) as caught:
        shared.cell("def here(x):\n    return x.mistake\nhere(1)")
    assert "called in" not in str(caught.value)


def test_the_traceback_begins_in_the_cell(shared: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError) as caught:
        shared.cell("def f():\n    raise KeyError('no')\n\nf()")
    told = caught.value.failures[0].traceback or ""
    assert "line 4" in told and "line 2, in f" in told
    assert "interactiveshell" not in told


def test_leaving_a_cell_by_exit_ends_no_rank(shared: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError, match="left by sys.exit"):
        shared.cell("import sys\nsys.exit(3)")
    check_works(shared)


def test_a_missing_name_is_reported_by_rank(shared: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError, match=r"NameError.*'missing'"):
        shared.pull("missing")


def test_a_result_that_cannot_be_sent_back_is_named(shared: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError, match="cannot be sent back"):
        shared.pull("dist.group.WORLD")
    check_works(shared)


def test_wrong_arguments_are_refused(shared: dtlab.Session) -> None:
    for ask, words in (
        (lambda: shared.cell("1", ranks=3), "there is no rank 3: the session has ranks 0 to 2"),
        (lambda: shared.cell("1", ranks=[]), "ranks is empty"),
        (lambda: shared.cell("1", timeout=0), "timeout must be a number of seconds above 0"),
        (lambda: shared.run("print"), "runs a function on its ranks, not 'print'"),
        (lambda: shared.run(threading.Lock().acquire), "cannot be sent to the ranks"),
        (lambda: shared.push(good=1, lock=threading.Lock()), "^lock cannot be sent"),
        (lambda: dtlab.session(0), "world_size must be a whole number from 1"),
        (lambda: dtlab.session(2, backend="nccl"), "needs a GPU"),
    ):
        with pytest.raises(dtlab.LaunchError, match=words):
            ask()  # type: ignore[no-untyped-call]
    check_works(shared)


def test_under_torchrun_the_error_names_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(dtlab.LaunchError, match="Use dtlab.launch, which runs in this process"):
        dtlab.session(2)


def test_a_rank_cannot_open_a_session(shared: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError, match="called inside rank"):
        shared.cell("import dtlab\ndtlab.launch(int)")


# Hangs and time limits --------------------------------------------------------------------------


def test_a_rank_that_fails_frees_those_that_wait_for_it(own: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError) as caught:
        own.cell(f"if dist.get_rank() == 0:\n    raise ValueError('oh')\n{ALL_REDUCE}")
    text = str(caught.value)
    assert text.startswith("rank 0 raised ValueError: oh")
    assert "rank 2 was waiting in all_reduce and was interrupted" in text
    assert "The ranks keep their variables. Their process group is new" in text
    assert [*caught.value.failures] == [0]
    check_works(own)


def test_a_hang_is_explained_and_costs_no_variables(own: dtlab.Session) -> None:
    own.cell("kept = dist.get_rank()")
    start = time.perf_counter()
    with pytest.raises(dtlab.DeadlockError) as caught:
        own.cell("dist.recv(x, (dist.get_rank() + 1) % 3)")
    assert time.perf_counter() - start < 5
    assert "Every rank receives before it sends" in str(caught.value)
    assert {one.rank for one in caught.value.waiting} == {0, 1, 2}
    assert own.pull("kept") == [0, 1, 2]
    check_works(own)


def test_a_collective_on_some_ranks_names_those_that_are_missing(own: dtlab.Session) -> None:
    with pytest.raises(dtlab.DeadlockError) as caught:
        own.cell(ALL_REDUCE, ranks=[0, 1])
    text = str(caught.value)
    assert "rank 2 does not run this cell" in text
    assert "The operation that ranks 0 and 1 called also needs rank 2" in text
    check_works(own)


def test_operations_that_do_not_match_are_explained(own: dtlab.Session) -> None:
    with pytest.raises(dtlab.DeadlockError, match="All ranks must pass the same"):
        own.cell("dist.all_reduce(torch.ones(3 + dist.get_rank() % 2))")
    check_works(own)


def test_threads_of_an_earlier_turn_are_not_blamed(own: dtlab.Session) -> None:
    own.cell("import threading\nt = threading.Thread(target=dist.all_reduce, args=(x,))\n"
             "t.start()\nt.join()\ndist.all_reduce(x)")  # fmt: skip
    with pytest.raises(dtlab.DeadlockError, match="All ranks must pass the same") as caught:
        own.cell("dist.all_reduce(torch.ones(3 + dist.get_rank() % 2))")
    assert "Several threads" not in str(caught.value)


@pytest.mark.proof
@pytest.mark.slow
def test_a_group_that_others_do_not_make_costs_no_variables(own: dtlab.Session) -> None:
    own.cell("kept = dist.get_rank()")
    with pytest.raises(dtlab.DeadlockError, match="The operation that rank 0 called also needs"):
        own.cell("dist.new_group([0, 1])", ranks=0)
    assert own.pull("kept") == [0, 1, 2]
    check_works(own)


@pytest.mark.proof
def test_repeated_hangs_leave_no_more_files_and_threads(own: dtlab.Session) -> None:
    ranks = [psutil.Process(pid) for pid in own.pull("os.getpid()")]

    def open_things() -> list[tuple[int, int]]:
        return [(one.num_fds(), one.num_threads()) for one in ranks]

    counts = []
    for _ in range(3):
        with pytest.raises(dtlab.DeadlockError):
            own.cell(ALL_REDUCE, ranks=[0, 1])
        check_works(own)
        counts.append(open_things())
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.slow
def test_a_hang_inside_backward_is_freed(own: dtlab.Session) -> None:
    own.cell(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = DDP(torch.nn.Linear(4, 4))",
        timeout=60,
    )
    with pytest.raises(dtlab.DeadlockError):
        own.cell("if dist.get_rank():\n    model(torch.ones(1, 4)).sum().backward()")
    check_works(own)
    own.cell("model = DDP(model.module)\nmodel(torch.ones(1, 4)).sum().backward()")


@pytest.mark.slow
def test_groups_made_before_a_hang_are_refused_after_it(own: dtlab.Session) -> None:
    own.cell("old = dist.new_group([0, 1])")
    with pytest.raises(dtlab.DeadlockError):
        own.cell(ALL_REDUCE, ranks=0)
    with pytest.raises(dtlab.RankError):
        own.cell("dist.all_reduce(x, group=old)", ranks=[0, 1], timeout=5)
    check_works(own)
    own.cell("new = dist.new_group([0, 1])\nif dist.get_rank() < 2: dist.all_reduce(x, group=new)")


def test_a_time_limit_says_where_ranks_are(shared: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankTimeoutError) as caught:
        shared.cell("if dist.get_rank() == 1:\n    time.sleep(60)", ranks=[0, 1], timeout=0.3)
    text = str(caught.value)
    assert "the time limit of 0.3 s has passed" in text
    assert "rank 1 was still running" in text and "line 2:   time.sleep(60)" in text
    assert "rank 2 took no part" in text and "%%ranks --timeout" in text
    check_works(shared)


@pytest.mark.proof
@pytest.mark.slow
def test_a_rank_that_does_not_return_ends_the_session(own: dtlab.Session) -> None:
    stubborn = (
        "for _ in range(10**9):\n    try:\n        time.sleep(0.01)\n"
        "    except BaseException:\n        pass"
    )
    with pytest.raises(dtlab.RankTimeoutError) as caught:
        own.cell(stubborn, ranks=[1], timeout=0.2)
    assert "The session is closed: rank 1 did not stop" in str(caught.value)
    assert not own.is_open
    with pytest.raises(dtlab.LaunchError, match=r"session.restart\(\) starts new ranks"):
        own.pull("x")
    own.restart()
    own.cell(START)
    check_works(own)


# Ctrl-C -----------------------------------------------------------------------------------------


def interrupted(session: dtlab.Session, source: str, after: float = 0.3) -> float:
    """Press Ctrl-C while a cell runs; seconds until the notebook has its prompt again."""
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, press)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt, match="The ranks keep their variables"):
            session.cell(source)
    finally:
        timer.cancel()
        timer.join()
    return time.perf_counter() - pressed[0]


def test_ctrl_c_ends_a_cell_that_computes(shared: dtlab.Session) -> None:
    seconds = interrupted(shared, "time.sleep(60)")
    assert seconds < 3  # 0.1 when nothing else runs
    check_works(shared)


def test_ctrl_c_ends_a_collective(own: dtlab.Session) -> None:
    seconds = interrupted(own, f"if dist.get_rank() == 0:\n    time.sleep(60)\n{ALL_REDUCE}")
    assert seconds < 3  # 0.4 when nothing else runs
    check_works(own)


def test_a_cell_may_take_ctrl_c_for_itself(shared: dtlab.Session) -> None:
    interrupted(shared, "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    taken = True")
    assert shared.pull("taken") == [True] * 3
    check_works(shared)


# Beginning and end ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_session_opens_in_half_a_second(warm: None) -> None:
    times = []
    for _ in range(3):
        with dtlab.session(4) as session:
            times.append(session.seconds)
    assert min(times) < 1.5  # 0.1 when nothing else runs: see make bench


def test_the_last_session_is_the_one_that_cells_use(own: dtlab.Session) -> None:
    assert current() is own
    with dtlab.session(1) as other:
        assert current() is other
    assert current() is None


def test_a_restart_begins_from_nothing(own: dtlab.Session) -> None:
    own.restart()
    with pytest.raises(dtlab.RankError, match="'x' is not defined"):
        own.pull("x")


def test_a_restart_takes_what_has_changed_around_it(
    own: dtlab.Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DTLAB_NEWS", "good")
    monkeypatch.chdir(tmp_path)
    own.restart()
    assert own.pull("__import__('os').environ['DTLAB_NEWS']") == ["good"] * 3
    assert own.pull("__import__('os').getcwd()") == [str(tmp_path)] * 3


def test_closing_leaves_no_process(warm: None) -> None:
    before = set(descendants())
    session = dtlab.session(2)
    session.cell("import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)")
    assert len(set(descendants()) - before) >= 4
    session.close()
    session.close()
    until(lambda: set(descendants()) <= before)
    assert repr(session) == "session of 2 ranks on gloo, closed"


def test_a_session_without_references_is_closed(warm: None) -> None:
    before = set(descendants())
    dtlab.session(1)
    with dtlab.session(1):  # takes its place
        pass
    until(lambda: set(descendants()) <= before)


def test_a_rank_that_dies_in_its_cell_is_named(own: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError) as caught:
        own.cell("if dist.get_rank() == 2:\n    os._exit(5)\ndist.barrier()")
    text = str(caught.value)
    assert text.startswith("rank 2 left by os._exit(5)")
    assert "The session is closed: rank 2 has ended." in text
    assert not own.is_open


def test_a_rank_that_dies_between_cells_is_named_in_the_next(own: dtlab.Session) -> None:
    (pid,) = [one for one in own.pull("os.getpid()", ranks=1) if one]
    os.kill(pid, signal.SIGKILL)
    start = time.perf_counter()
    with pytest.raises(dtlab.RankError, match="rank 1 was ended by SIGKILL") as caught:
        own.cell("1")
    assert time.perf_counter() - start < 2
    assert "rank 0" not in str(caught.value) and "rank 1 has ended" in str(caught.value)
    assert not own.is_open


def test_a_crash_is_explained(own: dtlab.Session) -> None:
    with pytest.raises(dtlab.RankError, match="rank 0 was ended by SIGSEGV"):
        own.cell("import ctypes\nctypes.string_at(0)", ranks=0)


@pytest.mark.slow
def test_a_memory_limit_holds_in_each_cell(warm: None) -> None:
    with dtlab.session(1, memory_limit=300_000_000) as session:
        for _ in range(2):
            with pytest.raises(dtlab.RankError, match="ran out of memory"):
                session.cell("import torch\ntorch.ones(100_000_000).sum()")
            session.cell("small = torch.ones(10)")


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_when_their_notebook_is_killed(how: signal.Signals, script: Path) -> None:
    script.write_text(
        "import dtlab, time\ns = dtlab.session(2)\n"
        "s.cell('import os')\nprint(*s.pull('os.getpid()'), flush=True)\n"
        "s.cell('import time; time.sleep(600)', timeout=None or 900)\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ranks = [int(pid) for pid in process.stdout.readline().split()]
        assert len(ranks) == 2 and all(map(psutil.pid_exists, ranks))
        process.send_signal(how)
        process.wait(10)
        until(lambda: not any(map(psutil.pid_exists, ranks)))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def until(condition: Callable[[], bool], seconds: float = 6.0) -> None:
    """Wait until `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.proof
@pytest.mark.slow
def test_a_session_that_runs_a_cell_refuses_another_thread(own: dtlab.Session) -> None:
    thread = threading.Thread(target=own.cell, args=("time.sleep(1.5)",))
    thread.start()
    until(lambda: own._lock.locked())
    with pytest.raises(dtlab.LaunchError, match="running a cell"):
        own.pull("x")
    thread.join()
    check_works(own)


# GPUs -------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_ranks_with_a_gpu_each_keep_what_is_on_it() -> None:
    with dtlab.session(1) as session:
        assert "nccl" in session.backend
        session.cell(
            "import torch, torch.distributed as dist\nx = torch.ones(3, device='cuda')\n"
            "dist.all_reduce(x)"
        )
        with pytest.raises(dtlab.RankTimeoutError):
            session.cell("import time\nx += 1\ntime.sleep(60)", timeout=1)
        session.cell("dist.all_reduce(x)")
        assert session.pull("x.tolist()") == [[2.0] * 3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_tensors_on_a_gpu_that_ranks_share_survive_a_hang() -> None:
    with dtlab.session(2, backend="gloo") as session:
        session.cell(
            "import torch, torch.distributed as dist\nx = torch.ones(3, device='cuda')\n"
            "kept = torch.full((3,), 7.0, device='cuda')"
        )
        with pytest.raises(dtlab.DeadlockError):
            session.cell(ALL_REDUCE, ranks=0)
        session.cell("x.fill_(1)\n" + ALL_REDUCE)
        assert session.pull("(x + kept).tolist()") == [[9.0] * 3] * 2
