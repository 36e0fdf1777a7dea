"""Ray: a private cluster, and `launch(engine="ray")`, whose ranks run on a node of a cluster."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

import dtlab
from dtlab.errors import DtlabError, LaunchError
from dtlab.ranks.ray import cluster, local_ray
from tests.with_ray import SECONDS, Marked, needs_ray, running_cluster

FUNCTIONS = """
import os, re, signal, sys, time
import torch, torch.distributed as dist
import dtlab

def mean(ours):
    rank = dist.get_rank()
    print("rank", rank, "of", dist.get_world_size(), file=sys.stderr if rank == 1 else sys.stdout)
    tensor = torch.full((1000,), float(rank)) + ours
    with dtlab.span("averaging"):
        dist.all_reduce(tensor)
    return tensor / dist.get_world_size(), torch.rand(1), torch.get_num_threads()

def raises():
    if dist.get_rank() == 1:
        raise ValueError("no such thing")
    dist.barrier()

def waits_in_a_ring():
    dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size())

def is_killed():
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

def never_ends():
    print("runs", flush=True)
    while True:
        time.sleep(0.01)

def needs_much():
    return torch.ones(10**9)
"""
SAME = (
    FUNCTIONS
    + """
def run(engine):
    options = {"world_size": 4, "seed": 7, "threads": 2, "engine": engine}
    return dtlab.launch(mean, torch.ones(1000), **options)

here, there = run("local"), run("ray")
for one, other in zip(here.values, there.values):
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, other))
    other[0].add_(1)  # Ray's own memory is read-only
assert here.stdout == there.stdout and here.stderr == there.stderr, there
assert there.stderr[1] == "rank 1 of 4\\n"
assert min(there.trace.bytes_wire(rank) for rank in range(4)) > 1000
names = [sorted((e.rank, e.name) for e in run.trace.events) for run in (here, there)]
assert names[0] == names[1] and (3, "averaging") in names[1], names

def error(fn, **options):
    try:
        dtlab.launch(fn, world_size=3, **options)
    except dtlab.DtlabError as raised:
        print(type(raised).__name__, raised)
        lasting = re.sub(r"after [.0-9]+ s|in all|[0-9,]{7,} bytes", "", str(raised))
        return type(raised), re.split(r"\\nrank \\d then lost", lasting)[0], raised

for fn, options in (
    (raises, {}), (waits_in_a_ring, {"timeout": None}), (is_killed, {}),
    (never_ends, {"timeout": 1}), (needs_much, {"memory_limit": 10**8}),
):
    here, there = error(fn, **options), error(fn, engine="ray", **options)
    assert here[:2] == there[:2], (here, there)
    if fn is waits_in_a_ring:
        assert [waiting.rank for waiting in there[2].waiting] == [0, 1, 2]
        assert there[2].waiting[2].code.startswith("dist.recv(torch.zeros(1)")
print("all the same")
"""
)


def program(code: str, path: Path) -> Marked:
    """A script in a new process group, with processes that are marked."""
    path.write_text(code)
    return Marked(
        lambda env: subprocess.Popen(
            [sys.executable, str(path)], env=env, cwd=path.parent, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
    )  # fmt: skip


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)


class TestLaunch:
    pytestmark = needs_ray

    def test_a_launch_is_the_same_as_without_ray(self, script: Path, no_cluster: None) -> None:
        """Values, output, trace, and five errors with their lines; then nothing is left."""
        run = program(SAME, script)
        out, error = run.process.communicate(timeout=SECONDS)
        assert run.process.returncode == 0, out + error
        assert out.endswith("all the same\n"), out
        assert {*error.splitlines()} <= {
            "Ray is starting ...", "Ray starts a process for the ranks ...",
            "The first launch imports PyTorch; later launches start at once ...",
        }, error  # fmt: skip
        run.demand_nothing_left()

    @pytest.mark.proof
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_nothing_is_left_of_a_script_that_is_ended(
        self, script: Path, no_cluster: None, number: signal.Signals
    ) -> None:
        launch = "dtlab.launch(never_ends, timeout=None, engine='ray')"
        run = program(f"import ray\n{FUNCTIONS}\n{launch}", script)
        assert run.process.stdout is not None
        assert "runs" in run.process.stdout.readline()
        run.demand_loopback()  # though Ray was imported first
        os.killpg(run.process.pid, number) if number == signal.SIGINT else os.kill(
            run.process.pid, number
        )
        _, error = run.process.communicate(timeout=SECONDS)
        assert "Traceback" not in error
        interrupted = "KeyboardInterrupt: the launch was stopped; its ranks have ended."
        assert (interrupted in error) == (number == signal.SIGINT), error
        run.demand_nothing_left()

    @pytest.mark.proof
    def test_a_launch_in_a_cluster_that_is_running(
        self, script: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The launch uses the cluster, waits for CPUs, and does not end it.

        An agent that is killed is an error, and the next launch works.
        """
        (script.parent / "lacks" / "dtlab").mkdir(parents=True)
        (script.parent / "lacks" / "dtlab" / "__init__.py").write_text(LACKS)
        with running_cluster(monkeypatch, cpus=1):
            run = program(f"{FUNCTIONS}\n{BUSY}", script)
            out, error = run.process.communicate(timeout=SECONDS)
            assert run.process.returncode == 0, out + error
            assert "no free CPU for 3 s" in out
            assert "another version, and this machine" in out
            assert "installed as on this machine. Ray says: ImportError: no dtlab here\n" in out
            assert "3 ranks on gloo" in out
            assert "the process that ran the ranks on the Ray cluster has ended" in out
            assert "2 ranks on gloo" in out
            assert "worker died" not in out
            assert run.folders() == []


LACKS = "raise ImportError('no dtlab here')"
BUSY = """
import threading
import ray
from dtlab.ranks.ray import cluster, engine, local_ray
local_ray()

@ray.remote(num_cpus=1)
class Busy:
    def version(self):
        return "another version"

busy = Busy.remote()
ray.get(busy.version.remote())
engine.ROOM_LIMIT = 3.0
try:
    dtlab.launch(mean, 1.0, engine="ray")
except dtlab.LaunchError as error:
    print(error)
try:
    cluster.demand_our_version(ray, [busy])
except dtlab.DtlabError as error:
    print(error)
del busy
lacks = {"env_vars": {"PYTHONPATH": os.path.dirname(__file__) + "/lacks"}}
agent = ray.remote(num_cpus=0, runtime_env=lacks)(engine.Agent).remote()
try:
    cluster.demand_our_version(ray, [agent])
except dtlab.DtlabError as error:
    print(error)
print(dtlab.launch(mean, 1.0, engine="ray", world_size=3))

(agent,) = engine._AGENTS.values()
pid = ray.get(agent.__ray_call__.remote(lambda self: os.getpid()))
threading.Timer(2.0, os.kill, (pid, signal.SIGKILL)).start()
try:
    dtlab.launch(never_ends, timeout=None, engine="ray")
except dtlab.LaunchError as error:
    print(error)
print(dtlab.launch(mean, 1.0, engine="ray"))
"""


CELLS = [
    "from dtlab.ranks.ray import local_ray\nray = local_ray(num_cpus=4)\nray is local_ray()",
    FUNCTIONS,
    "dtlab.launch(mean, 1.0, world_size=4, engine='ray')",
    "dtlab.launch(waits_in_a_ring, world_size=3, engine='ray')",
    "@ray.remote\ndef threads():\n    import torch, dtlab\n    return torch.get_num_threads()\n"
    "ray.get(threads.remote())",
]


@pytest.mark.proof
class TestNotebook:
    pytestmark = needs_ray

    @pytest.mark.parametrize("end", ["local_ray.stop()", "os.kill(os.getpid(), 9)", ""])
    def test_a_notebook_with_ray(
        self, monkeypatch: pytest.MonkeyPatch, no_cluster: None, end: str
    ) -> None:
        """Errors of the notebook name cells, and nothing is left, however the kernel ends."""
        cells = [nbformat.v4.new_code_cell(source) for source in [*CELLS, end]]
        notebook = nbformat.v4.new_notebook(cells=cells)

        def execute(env: dict[str, str]) -> subprocess.Popen[str]:
            client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3",
                                    allow_errors=True)  # fmt: skip
            try:
                client.execute(env=env)
            except DeadKernelError:
                assert "kill" in end
            return subprocess.Popen([sys.executable, "-c", ""], text=True)

        run = Marked(execute)
        run.process.wait()
        run.demand_nothing_left()
        shown = ["".join(map(str, cell.outputs)) for cell in cells]
        assert "True" in shown[0]
        assert "4 ranks on gloo" in shown[2]
        assert re.search(r"rank 1 waits in recv\(src=2\)   cell 2, line \d+:", shown[3])
        assert "'1'" in shown[4]


# Without Ray -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", [local_ray, lambda: dtlab.launch(int, engine="ray")], ids=["local_ray", "launch"]
)
def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DtlabError, match=r"not installed here. Install it: pip install 'dtlab\["):
        call()


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'dtlab[ray]'")
def test_ray_is_not_started_in_a_thread_with_which_it_would_end(no_cluster: None) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(DtlabError, match="Ray must be started in the main thread"),
    ):
        pool.submit(local_ray).result()


def test_what_ray_does_not_support_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match="engine='ray' starts ranks that use gloo, not 'nccl'"):
        dtlab.launch(int, engine="ray", backend="nccl")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(LaunchError, match="Leave engine='ray' out"):
        dtlab.launch(int, engine="ray")


def test_which_cluster_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_cluster: None
) -> None:
    """It is the one that RAY_ADDRESS names, or one that this user has started."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert cluster.running_cluster() is None
    (tmp_path / "ray").mkdir()
    file = tmp_path / "ray" / "ray_current_cluster"
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        file.write_text(address)
        assert cluster.running_cluster() == address
        monkeypatch.setattr(cluster.os, "getuid", lambda: os.geteuid() + 1)
        assert cluster.running_cluster() is None, "it is another user's"
        monkeypatch.undo()
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        monkeypatch.setenv("RAY_ADDRESS", "local")
        assert cluster.running_cluster() is None
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        assert cluster.running_cluster() == "10.0.0.1:6379"
    monkeypatch.delenv("RAY_ADDRESS")
    assert cluster.running_cluster() is None, "it was killed, and its file is still there"


def test_folders_of_clusters_that_were_killed_are_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cluster, "LONGEST", 500)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"ray-{ended.pid}-abc").mkdir()
    (tmp_path / "ray-of-light").mkdir()
    ours = Path(cluster.short_folder())
    again = Path(cluster.short_folder())
    assert {path.name for path in tmp_path.iterdir()} == {ours.name, again.name, "ray-of-light"}
