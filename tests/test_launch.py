"""`dtlab.launch` as people use it: arguments, results, and what must not matter."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group  # as tutorials import it

import dtlab
from dtlab.checks.functions.bench import warm_up
from dtlab.ranks import protocol
from dtlab.ranks.launch import arguments as asked
from dtlab.ranks.launch import client
from dtlab.ranks.launch.client import SERVER


def run_script(script: Path, text: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run `text` as a separate script, as a user would."""
    script.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, **kwargs
    )


def test_values_are_in_the_order_of_ranks() -> None:
    def rank_and_size() -> tuple[int, int]:
        return dist.get_rank(), dist.get_world_size()

    run = dtlab.launch(rank_and_size, world_size=3)
    assert run.values == [(0, 3), (1, 3), (2, 3)]
    assert run.world_size == 3
    assert 0 < run.seconds < 30


def test_two_ranks_by_default() -> None:
    assert dtlab.launch(lambda: dist.get_world_size()).values == [2, 2]


def test_one_rank_is_a_group_too() -> None:
    def alone() -> float:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    assert dtlab.launch(alone, world_size=1).values == [1.0]


def test_ranks_talk_to_each_other() -> None:
    def total(scale: float) -> torch.Tensor:
        tensor = torch.full((5,), scale * (dist.get_rank() + 1))
        dist.all_reduce(tensor)
        return tensor

    for value in dtlab.launch(total, 2.0, world_size=4).values:
        assert torch.equal(value, torch.full((5,), 20.0))


def test_lambdas_closures_and_globals() -> None:
    factor = 7
    names = {"module": np}

    def inner(x: int) -> int:
        return factor * x + int(names["module"].ones(1)[0])

    assert dtlab.launch(lambda: inner(dist.get_rank())).values == [1, 8]


def test_results_have_the_very_classes_that_are_defined_here() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

    def build() -> Net:
        return Net()

    first, second = dtlab.launch(build).values
    assert isinstance(first, Net)
    assert torch.equal(first.layer.weight, second.layer.weight)  # the same seed on every rank


def test_arguments_are_copies_and_results_may_be_changed() -> None:
    tensor, array = torch.zeros(3), np.zeros(3)

    def change(t: torch.Tensor, a: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        t += 1
        a += 1
        return t, a

    values = dtlab.launch(change, tensor, array).values
    assert tensor.sum() == 0 and array.sum() == 0
    values[0][0].add_(1)
    values[0][1][0] = 5
    assert torch.equal(values[1][0], torch.ones(3))


def test_shared_storage_stays_shared_and_parameters_stay_tied() -> None:
    def tied() -> tuple[torch.Tensor, torch.Tensor, nn.Module]:
        base = torch.arange(6.0)
        module = nn.Module()
        module.first = nn.Linear(2, 2)
        module.second = module.first
        return base, base[2:4], module

    base, view, module = dtlab.launch(tied, world_size=1).values[0]
    base[2] = 99
    assert view[0] == 99
    assert module.first is module.second


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int8, torch.complex64])
def test_tensors_of_every_kind(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, 3).to(dtype).t()
    value = dtlab.launch(lambda t: t, tensor, world_size=1).values[0]
    assert value.dtype == dtype and torch.equal(value, tensor)
    empty = dtlab.launch(lambda: torch.empty(0, 4, dtype=dtype), world_size=1).values[0]
    assert empty.shape == (0, 4)


@pytest.mark.proof
@pytest.mark.slow
def test_results_of_hundreds_of_megabytes() -> None:
    values = dtlab.launch(lambda: torch.full((50_000_000,), float(dist.get_rank()))).values
    assert [value.numel() for value in values] == [50_000_000] * 2
    assert [value[-1].item() for value in values] == [0.0, 1.0]


@pytest.mark.slow
def test_environment_folder_and_path_reach_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtlab.launch(lambda: None)  # the server is warm before anything changes
    (tmp_path / "my_module.py").write_text("answer = 42")
    monkeypatch.setenv("DTLAB_TEST", "yes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def look() -> tuple[str, str, int]:
        import my_module

        return os.environ["DTLAB_TEST"], os.getcwd(), my_module.answer

    assert dtlab.launch(look).values == [("yes", str(tmp_path), 42)] * 2
    (tmp_path / "my_module.py").write_text("answer = 'changed'")
    assert dtlab.launch(look).values[0][2] == "changed"


def test_a_removed_variable_is_not_set_in_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTLAB_TEST", "yes")
    dtlab.launch(lambda: None)
    monkeypatch.delenv("DTLAB_TEST")
    assert dtlab.launch(lambda: os.environ.get("DTLAB_TEST")).values == [None, None]


@pytest.mark.slow
def test_seeds_are_the_same_on_every_rank_and_rank_generators_differ() -> None:
    def draw() -> tuple[float, float, float, float]:
        own = torch.rand(1, generator=dtlab.rank_generator()).item()
        return torch.rand(1).item(), np.random.rand(), random.random(), own  # noqa: NPY002

    first, second = dtlab.launch(draw, seed=5).values
    assert first[:3] == second[:3]
    assert first[3] != second[3]
    assert dtlab.launch(draw, seed=5).values == [first, second]
    assert dtlab.launch(draw, seed=6).values[0] != first


def test_cpus_are_shared_fairly() -> None:
    assert dtlab.launch(torch.get_num_threads, world_size=4).values == [1] * 4
    assert dtlab.launch(torch.get_num_threads, world_size=1, threads=3).values == [3]


def test_threads_take_no_memory_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtlab.ranks.system.usable_cpus", lambda: 16)
    limited = dtlab.launch(torch.get_num_threads, world_size=1, memory_limit=10**9)
    assert limited.values == [1]


@pytest.mark.proof
@pytest.mark.slow
def test_a_script_without_a_main_guard(script: Path) -> None:
    done = run_script(
        script,
        """
        import torch, torch.distributed as dist
        import dtlab

        class Point:
            def __init__(self, x): self.x = x

        def exchange():
            points = [None] * dist.get_world_size()
            dist.all_gather_object(points, Point(dist.get_rank()))   # pickled by name
            return [point.x for point in points], points[0]

        run = dtlab.launch(exchange, world_size=3)
        print(run.values[0][0], isinstance(run.values[2][1], Point))
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2] True\n"


@pytest.mark.proof
@pytest.mark.slow
def test_a_script_ends_without_waiting_and_leaves_no_server(script: Path) -> None:
    done = run_script(
        script,
        """
        import dtlab, psutil
        dtlab.launch(lambda: None)
        print(*[child.pid for child in psutil.Process().children(recursive=True)])
        """,
    )
    import psutil

    for pid in map(int, done.stdout.split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.proof
@pytest.mark.slow
def test_launches_in_a_row_pay_for_a_slow_import_only_at_first(script: Path) -> None:
    """The first optimizer of a process imports torch's compiler: seconds, for each rank."""
    done = run_script(
        script,
        """
        import sys
        import dtlab

        def made():
            import torch
            was_there = "torch._dynamo" in sys.modules
            torch.optim.SGD([torch.zeros(1, requires_grad=True)])
            return was_there

        print([dtlab.launch(made, world_size=1).values[0] for _ in range(6)])
        """,
    )
    assert done.stdout.strip().endswith("True, True, True]"), done.stderr


@pytest.mark.proof
@pytest.mark.slow
def test_ranks_begin_with_what_the_notebook_has_imported_of_dtlab(script: Path) -> None:
    """A check's own modules take longer to import than its ranks need to run."""
    done = run_script(
        script,
        """
        import sys
        import dtlab

        def there():  # cells hold nothing of dtlab's, so opening it imports nothing
            return [name in sys.modules for name in
                    ("dtlab.training.metrics", "dtlab.parallel.mesh", "dtlab.show.drawing.style")]

        before = dtlab.launch(there).values[0]
        import dtlab.parallel.mesh, dtlab.show.drawing.style, dtlab.training.metrics
        print(before, dtlab.launch(there).values[0])
        """,
    )
    assert done.stdout == "[False, False, False] [True, True, False]\n", done.stderr


def test_the_server_has_one_thread_and_its_name() -> None:
    import psutil

    dtlab.launch(lambda: None)
    server = psutil.Process(SERVER._process.pid)
    assert server.num_threads() == 1
    assert server.cmdline()[0] == "dtlab-rank-server"
    title = dtlab.launch(lambda: psutil.Process().cmdline()[0]).values
    assert title == ["dtlab-rank 0", "dtlab-rank 1"]


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="huge pages are Linux's")
def test_the_server_tidies_its_memory_though_launches_leave_no_time_for_it(script: Path) -> None:
    """With huge pages, forking and ending a rank takes three fifths of the CPU time."""
    done = run_script(
        script,
        """
        import dtlab, psutil
        for _ in range(6):
            dtlab.launch(lambda: None, world_size=1)
        [server] = [each for each in psutil.Process().children() if "server" in each.name()]
        with open(f"/proc/{server.pid}/smaps_rollup") as lines:
            size = {line.split()[0]: int(line.split()[1]) for line in list(lines)[1:]}
        print(size["AnonHugePages:"] > size["Anonymous:"] / 2)
        """,
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.proof
@pytest.mark.slow
def test_a_killed_server_is_replaced() -> None:
    dtlab.launch(lambda: None)
    SERVER._process.kill()
    SERVER._process.wait()
    assert dtlab.launch(lambda: 1).values == [1, 1]


def test_a_request_waits_until_the_server_has_imported_what_was_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or else the time limit of what is requested would include the imports."""
    sent, order = client.send_request, list[str]()

    def send(sock: socket.socket, kind: bytes, fds: list[int]) -> None:
        if kind != protocol.MODULES:
            order.append("request")
            sent(sock, kind, fds)
            return
        reader, writer = os.pipe()  # the server reads the names until the pipe is closed
        sent(sock, kind, [reader])
        os.close(reader)

        def finish() -> None:
            time.sleep(0.3)
            order.append("imports")
            os.close(writer)

        threading.Thread(target=finish).start()

    SERVER.wait()
    monkeypatch.setattr(SERVER, "_shared", set())
    monkeypatch.setattr(client, "send_request", send)
    assert dtlab.launch(lambda: 1).values == [1, 1]
    assert order == ["imports", "request"]


@pytest.mark.proof
@pytest.mark.slow
def test_what_takes_long_to_import_is_imported_once_for_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SERVER, "_modules", ())  # a test that grades a class has set it

    def trains() -> bool:
        begun_with = "torch._dynamo" in sys.modules
        torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
        return begun_with

    def only_counts() -> bool:
        return "torch._dynamo" in sys.modules

    script = tmp_path / "job.py"
    script.write_text("import sys\nprint('torch._dynamo' in sys.modules)  # then fully_shard\n")
    SERVER.stop()
    SERVER._wanted.clear()
    assert dtlab.launch(only_counts).values == [False, False]
    assert dtlab.launch(trains).values == [True, True]
    SERVER.stop()
    SERVER._wanted.clear()
    assert dtlab.launch(script).stdout == ["True\n", "True\n"]
    SERVER.stop()
    SERVER._wanted.clear()
    warm_up()  # as a check of a training program does
    assert dtlab.launch(only_counts).values == [True, True]


def test_a_fork_of_the_notebook_process_gets_a_separate_server() -> None:
    dtlab.launch(lambda: None)
    pid = os.fork()
    if pid == 0:
        ok = dtlab.launch(lambda: dist.get_rank()).values == [0, 1]
        SERVER.stop()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert dtlab.launch(lambda: 1).values == [1, 1]


@pytest.mark.slow
def test_launches_from_several_threads() -> None:
    found: dict[int, list[int]] = {}

    def one(number: int) -> None:
        found[number] = dtlab.launch(lambda: number * 10 + dist.get_rank()).values

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [n * 10, n * 10 + 1] for n in range(4)}


@pytest.mark.proof
@pytest.mark.slow
def test_two_hundred_launches_in_a_row() -> None:
    import psutil

    dtlab.launch(lambda: None)
    before = psutil.Process().num_fds(), psutil.Process(SERVER._process.pid).num_fds()
    for _ in range(200):
        dtlab.launch(lambda: dist.get_rank(), trace=False)
    after = psutil.Process().num_fds(), psutil.Process(SERVER._process.pid).num_fds()
    assert after == before


@pytest.mark.slow
def test_many_ranks() -> None:
    def total() -> float:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    assert dtlab.launch(total, world_size=16).values == [16.0] * 16


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        ({"world_size": 0}, "world_size must be a whole number from 1 to"),
        ({"world_size": 2.0}, "not 2.0"),
        ({"world_size": True}, "not True"),
        ({"threads": 0}, "threads must be a whole number"),
        ({"timeout": -1}, "timeout must be a number of seconds above 0"),
        ({"memory_limit": 0}, "memory_limit"),
        ({"backend": "mpi"}, "backend='mpi' is not known"),
        ({"engine": "cloud"}, "engine='cloud' is not known"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], piece: str) -> None:
    with pytest.raises(dtlab.LaunchError, match=piece):
        dtlab.launch(lambda: None, **arguments)


def test_nccl_without_gpus_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "_gpu_count", lambda: 0)
    with pytest.raises(dtlab.LaunchError, match="for each of the 4 ranks; there is none"):
        dtlab.launch(lambda: None, world_size=4, backend="nccl")
    monkeypatch.setattr(asked, "_gpu_count", lambda: 2)
    with pytest.raises(dtlab.LaunchError, match="here are 2. Use world_size=2"):
        dtlab.launch(lambda: None, world_size=4, backend="nccl")
    with pytest.raises(dtlab.LaunchError, match="cpu:gloo,cuda:nccl' needs a GPU for each"):
        dtlab.launch(lambda: None, world_size=4, backend="cpu:gloo,cuda:nccl")


def test_with_a_gpu_for_every_rank_nccl_moves_what_is_there_and_gloo_what_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asked, "_gpu_count", lambda: 2)
    assert asked.choose_backend(None, 2) == "cpu:gloo,cuda:nccl"
    assert asked.choose_backend(None, 3) == "gloo"


def test_ranks_see_no_gpu_where_there_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `fully_shard` and scripts would use a GPU that only some ranks have."""

    def visible() -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert dtlab.launch(visible, world_size=2).values == ["", ""]
    assert dtlab.launch(visible, cluster=dtlab.Cluster(2, 1)).values == ["", ""]
    assert dtlab.launch(visible, world_size=2, backend="gloo").values == ["0", "0"]


def test_an_error_without_a_gpu_says_why_there_is_none() -> None:
    def fails() -> None:
        raise RuntimeError("No CUDA GPUs are available")

    with pytest.raises(dtlab.RankError, match="there is none, or there are fewer"):
        dtlab.launch(fails)


def test_something_that_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(dtlab.LaunchError, match=r"uses_lock cannot be sent to the ranks.*lock"):

        def uses_lock() -> None:
            with lock:
                pass

        dtlab.launch(uses_lock)


def test_a_class_that_torch_renamed_can_be_sent() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend() -> object:
        with sdpa_kernel(SDPBackend.MATH):
            return SDPBackend, SDPBackend.MATH

    assert dtlab.launch(attend).values == [(SDPBackend, SDPBackend.MATH)] * 2


def test_a_module_whose_class_is_local_can_be_sent() -> None:
    def add() -> list[float]:
        return torch.ops.aten.add(torch.ones(2), 1).tolist()  # type: ignore[no-any-return]

    assert dtlab.launch(add).values == [[2.0, 2.0]] * 2


def test_launch_inside_a_rank_is_refused() -> None:
    def nested() -> None:
        dtlab.launch(lambda: None)

    with pytest.raises(dtlab.RankError, match=r"called inside rank [01] of another\s+launch"):
        dtlab.launch(nested)


def test_not_a_function() -> None:
    with pytest.raises(dtlab.LaunchError, match="needs a function"):
        dtlab.launch(5)


def test_a_run_shows_itself() -> None:
    text = repr(dtlab.launch(lambda: dist.get_rank() * 10))
    assert text.startswith("2 ranks on gloo, ")
    assert text.endswith("  rank 0: 0\n  rank 1: 10")
    alone = dtlab.launch(lambda: 5, world_size=1)
    assert repr(alone).startswith("1 rank on gloo, ")
    assert repr(alone.trace).startswith("<Trace: 1 rank, ")


@pytest.mark.slow
def test_importing_dtlab_loads_no_torch() -> None:
    code = "import sys, dtlab, dtlab.errors, dtlab.trace, dtlab.ranks.launch.launcher; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_lazy_face_is_complete() -> None:
    for name in dtlab.__all__:
        assert getattr(dtlab, name) is not None
    assert dtlab.__all__ == sorted(dtlab.__all__)
    with pytest.raises(AttributeError, match="dtlab has no name 'lunch'"):
        dtlab.lunch  # noqa: B018


# Tutorials and scripts run unchanged ----------------------------------------------------------


def _as_in_a_tutorial() -> float:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    init_process_group("gloo", rank=dist.get_rank(), world_size=dist.get_world_size())
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.item()


def test_a_tutorial_may_initialise_the_group_that_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert dtlab.launch(_as_in_a_tutorial, world_size=3).values == [3, 3, 3]
    assert capsys.readouterr().out == (
        "rank 0: note: dtlab.launch has already initialised the process group (gloo, 3 ranks). "
        "init_process_group changes nothing.\n"
    )


def _destroys_and_begins_again(times: int) -> float:
    for _ in range(times):
        dist.barrier()  # until then the other rank may still be connecting
        dist.destroy_process_group()
        dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def test_a_group_that_was_destroyed_is_made_anew() -> None:
    assert dtlab.launch(_destroys_and_begins_again, 3).values == [2, 2]


def _begins_again_in_reverse() -> None:
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", rank=1 - rank, world_size=2)


def test_ranks_keep_their_numbers_in_a_group_that_is_made_anew() -> None:
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(_begins_again_in_reverse, world_size=2)
    message = caught.value.failures[0].message
    assert "torchrun allows other values after destroy_process_group" in " ".join(message.split())
    assert "has already initialised" not in message  # since it has been destroyed


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ({"backend": "nccl"}, "backend='gloo'"),
        ({"world_size": 4}, "world_size=2"),
        ({"rank": 7}, "rank=dist.get_rank()"),
    ],
)
def test_another_group_than_there_is_is_one_clear_error(asked: dict[str, Any], there: str) -> None:
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(lambda: dist.init_process_group(**asked))
    ((name, value),) = asked.items()
    words = f"init_process_group({name}={value!r}): dtlab.launch has already"
    assert words in caught.value.failures[0].message
    assert f"process group, with {there}." in caught.value.failures[0].message


def test_a_rank_of_another_process_is_reported_once_for_all_ranks() -> None:
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(lambda: dist.init_process_group("gloo", rank=0, world_size=4), world_size=3)
    text = " ".join(str(caught.value).split())
    assert text.startswith("ranks 0 to 2 raised ValueError: init_process_group(backend='gloo', ")
    assert "with backend='gloo', world_size=3, rank=dist.get_rank()." in text
    assert text.count("init_process_group(backend") == 1


SPMD = """
import os
import sys

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    tensor = torch.full((1,), float(os.environ["RANK"]))
    dist.all_reduce(tensor)
    print(sys.argv[1:], tensor.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def test_a_script_with_a_main_guard_runs_as_it_is(script: Path) -> None:
    script.write_text(SPMD)
    run = dtlab.launch(script, "--epochs", 3, world_size=2)
    assert [text.splitlines()[-1] for text in run.stdout] == ["['--epochs', '3'] 1.0"] * 2
    with pytest.raises(dtlab.LaunchError, match="there is no script .*/none.py"):
        dtlab.launch(script.with_name("none.py"))


def test_a_script_may_end_by_sys_exit(script: Path) -> None:
    script.write_text("import sys\nprint('done')\nsys.exit(int(sys.argv[1]))")
    assert dtlab.launch(script, 0, world_size=2).stdout == ["done\n"] * 2
    with pytest.raises(dtlab.RankError, match=r"ranks 0 and 1 left by sys.exit\(3\)"):
        dtlab.launch(script, 3, world_size=2)


def test_a_function_with_other_parameters_is_refused_at_once() -> None:
    def train(rank: int, world_size: int) -> None:
        """A function with the parameters that mp.spawn passes."""

    with pytest.raises(dtlab.LaunchError) as error:
        dtlab.launch(train, 2, world_size=2)
    assert "cannot be called with 1 argument: missing a required" in str(error.value)
    assert "drop that parameter and call dist.get_rank()" in str(error.value)
    with pytest.raises(dtlab.LaunchError, match="too many positional arguments.$"):
        dtlab.launch(lambda: None, 1)
    assert dtlab.launch(max, 1, 2, world_size=1).values == [2]


class _Communicates(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> torch.Tensor:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor


def test_a_process_that_a_rank_starts_gets_an_explanation() -> None:
    def starts_its_own() -> str:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        told = context.SimpleQueue()

        def work() -> None:
            try:
                dist.init_process_group("gloo", rank=0, world_size=2)
            except RuntimeError as error:
                told.put(str(error))

        process = context.Process(target=work)
        process.start()
        process.join()
        return told.get()

    (told,) = dtlab.launch(starts_its_own, world_size=1).values
    assert "pass it the function that this process runs" in told


def test_a_forked_worker_that_communicates_fails_at_once() -> None:
    def load() -> None:
        list(torch.utils.data.DataLoader(_Communicates(), num_workers=1))

    begun = time.monotonic()
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(load)
    assert time.monotonic() - begun < 10
    first, *lines, place = str(caught.value).splitlines()
    assert first.startswith(
        "ranks 0 and 1 raised RuntimeError in DataLoader worker process 0: all_reduce was called"
    )
    assert place.endswith("dist.all_reduce(tensor)") and len(lines) <= 4


def test_an_error_in_a_callback_has_its_line_and_no_frames_in_its_text() -> None:
    def callback(future: torch.futures.Future[Any]) -> torch.Tensor:
        return future.value()[0] + torch.ones(2)

    def reduced() -> None:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        work.get_future().then(callback).then(lambda future: future.value()).wait()

    def hooked() -> None:
        module = nn.parallel.DistributedDataParallel(nn.Linear(1, 2))
        module.register_comm_hook(  # type: ignore[no-untyped-call]
            None,
            lambda _, bucket: (
                dist.all_reduce(bucket.buffer()[:3], async_op=True).get_future().then(callback)
            ),
        )
        module(torch.ones(1, 1)).sum().backward()

    for function in (reduced, hooked):
        with pytest.raises(dtlab.RankError) as caught:
            dtlab.launch(function)
        first, *lines, place = str(caught.value).splitlines()
        assert first.startswith("ranks 0 and 1 raised RuntimeError: The size of tensor a (3)")
        assert place.endswith("return future.value()[0] + torch.ones(2)") and len(lines) <= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.cuda.set_device(0),
        lambda: torch.ones(1, device="cuda"),
        lambda: nn.Linear(1, 1).to(0),
        lambda: torch.cuda.Event(enable_timing=True).record(),
        lambda: dist.init_device_mesh("cuda", (2,)),
    ],
)
def test_without_a_gpu_an_error_says_to_use_the_cpu(use: Any) -> None:
    with pytest.raises(dtlab.RankError, match=r"PyTorch finds no GPU here\. Write \"cpu\""):
        dtlab.launch(use)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_an_error_of_fsdp_names_the_argument_for_the_cpu() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    def wrap(**arguments: Any) -> None:
        FullyShardedDataParallel(nn.Linear(1, 1), **arguments)

    with pytest.raises(dtlab.RankError, match=r'Pass\s+device_id=torch\.device\("cpu"\)'):
        dtlab.launch(wrap)
    dtlab.launch(lambda: wrap(device_id=torch.device("cpu")))


# A program that forgets to send its first parameters ---------------------------------------------


def _trains_without_a_broadcast() -> float:
    model = torch.nn.Linear(8, 2)
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.01 * parameter.grad
    return float(sum(parameter.detach().sum() for parameter in model.parameters()))


def test_a_seed_for_each_rank_shows_a_forgotten_broadcast() -> None:
    alike = dtlab.launch(_trains_without_a_broadcast).values
    assert alike[0] == alike[1]
    apart = [dtlab.launch(_trains_without_a_broadcast, seed_by_rank=True).values for _ in "ab"]
    assert abs(apart[0][0] - apart[0][1]) > 1e-3  # as under torchrun
    assert apart[0] == apart[1]  # but the same in every run
    other = dtlab.launch(_trains_without_a_broadcast, seed=1, seed_by_rank=True).values
    assert len({*apart[0], *other}) == 4


def test_numpy_and_random_differ_by_rank_too() -> None:
    def drawn() -> tuple[float, float]:
        return random.random(), float(np.random.rand())  # noqa: NPY002

    first, second = dtlab.launch(drawn, seed_by_rank=True).values
    assert first[0] != second[0] and first[1] != second[1]


def test_a_script_has_a_seed_for_each_rank_as_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "draws.py"
    script.write_text("import torch\nprint(torch.rand(1).item())\n")
    apart, alike = (dtlab.launch(script, seed_by_rank=each).stdout for each in (None, False))
    assert apart[0] != apart[1] and alike[0] == alike[1]
