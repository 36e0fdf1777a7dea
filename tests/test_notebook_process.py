"""A notebook's cells in the sandbox: what they return, how they end, and what stays of them."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dtlab.ranks.launch.client import Server
from dtlab.ranks.plain import Opaque, PickledFunction
from dtlab.ranks.sandbox.isolation import Isolation
from dtlab.ranks.sandbox.notebook_process import KEPT_TEXT
from dtlab.ranks.sandbox.sandbox import NotebookEnded, NotebookHung, NotebookProcess, Sandbox
from tests.sandboxed import (
    MEMORY,
    SLACK,
    USERS,
    needs_root,
    processes,
    sandbox,
    server,
)

pytestmark = [needs_root, pytest.mark.slow]
__all__ = ["sandbox", "server"]  # fixtures


@pytest.fixture
def notebook(sandbox: Sandbox) -> Iterator[NotebookProcess]:
    one = sandbox.start_notebook()
    yield one
    one.close()


def printed(notebook: NotebookProcess, source: str, limit: float = 20.0) -> str:
    """What a cell prints; fails for one that raises."""
    outputs = notebook.run(1, textwrap.dedent(source), limit)
    assert not [one for one in outputs if one["output_type"] == "error"], outputs
    return "".join(one["text"] for one in outputs if one["output_type"] == "stream")


# Cells ------------------------------------------------------------------------------------------


def test_cells_are_run_as_in_a_notebook(notebook: NotebookProcess) -> None:
    assert printed(notebook, "x = 6 * 7\nprint(x)") == "42\n"
    (shown,) = notebook.run(2, "x + 1", 20)
    assert shown["data"]["text/plain"] == "43"
    (error,) = notebook.run(3, "y = 1\n1 / 0", 20)
    assert error["ename"] == "ZeroDivisionError"
    assert error["traceback"][0] == "  cell 3, line 2: 1 / 0"
    (error,) = notebook.run(4, "if", 20)
    assert error["ename"] == "SyntaxError"
    assert printed(notebook, "print(y)") == "1\n"


def test_figures_are_shown(notebook: NotebookProcess) -> None:
    source = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    shown = notebook.run(1, source, 20)
    assert [one["data"].keys() for one in shown] == [{"text/plain", "image/png"}]


def test_nothing_of_the_rehearsal_is_left(notebook: NotebookProcess) -> None:
    assert printed(notebook, "print('plt' in globals(), len(In), _)") == "False 1 \n"


def test_launches_in_cells_work_and_are_counted(notebook: NotebookProcess) -> None:
    source = """
        import dtlab, torch
        import torch.distributed as dist

        def average(x):
            t = torch.full((100_000,), float(dist.get_rank()))
            dist.all_reduce(t)
            return t[0].item()

        run = dtlab.launch(average, 1, world_size=3)
        print(run.values, run.trace.bytes_wire()[0] > 300_000, run.trace.hidden_bytes)
        """
    # PyTorch's sockets may say before it that names are slow, on a machine that is.
    assert printed(notebook, source).endswith("[3.0, 3.0, 3.0] True None\n")


def test_output_is_bounded(notebook: NotebookProcess) -> None:
    text = printed(notebook, "for _ in range(50):\n    print('x' * 1_000_000)", 40)
    assert KEPT_TEXT < len(text) < KEPT_TEXT + 100
    source = "from IPython.display import display\nfor i in range(500):\n"
    source += "    display({'text/plain': 'x' * 1_000_000}, raw=True)"
    outputs = notebook.run(2, source, 40)
    assert len(outputs) <= 5


def test_outputs_can_be_written_to_a_file(notebook: NotebookProcess) -> None:
    source = "print('a\\ud800b')\nraise ValueError('\\udfff')"
    stream, error = notebook.run(1, source, 20)
    assert stream["text"] == "a?b\n"
    assert error["evalue"] == "?"
    repr([stream, error]).encode()


def test_answers_are_taken_as_plain_data(notebook: NotebookProcess) -> None:
    printed(notebook, "a = {'x': (1, 2.5)}\ndef f(x):\n    return x\nc, d = object(), 2**70")
    assert notebook.take("a") == [{"x": (1, 2.5)}]
    assert notebook.take("nothing") == []
    assert isinstance(notebook.take("f")[0], PickledFunction)
    assert notebook.take("c") == [Opaque("object")]
    assert notebook.take("d") == [Opaque("int")]


# Ends -------------------------------------------------------------------------------------------

LINE = """
import os, socket, struct, time, msgpack
from dtlab.ranks.launch.client import SERVER
places = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in range(3, 20)}
fds = [fd for fd, place in places.items() if "/socket:" in place]
line = socket.socket(fileno=next(fd for fd in fds if fd != SERVER._socket.fileno()))
def frame(tag, body, size=None):
    return struct.pack("<cQ", tag, len(body) if size is None else size) + body
"""

ENDS = {
    "os._exit(3)": "it ended by itself, with exit status 3",
    "os.kill(os.getpid(), 9)": "it was ended by SIGKILL",
    "os.kill(os.getpid(), 19)": "it stopped itself",
    "os.abort()": "it aborted",
    "import ctypes; ctypes.string_at(0)": "it crashed: it accessed invalid memory",
    "if os.fork() == 0: time.sleep(1000)\nos._exit(0)": "it ended by itself, with exit status 0",
    "if os.fork() == 0: os.setsid() and None or time.sleep(1000)\nos._exit(4)": "exit status 4",
    "os.closerange(3, 1000)\ntime.sleep(5)": "it closed its line to the grader",
    "line.sendall(os.urandom(100_000))": "its answer was of the wrong kind",
    "line.sendall(frame(b'd', b'', 2**50))": "its answer was of the wrong kind, or too long",
    "line.sendall(frame(b'n', b''))": "its answer was of the wrong kind",
    "line.sendall(frame(b'd', b'\\xc1'))": "its answer is invalid",
    "line.sendall(frame(b'd', b'\\x91' * 100_000))": "its answer is invalid",
    "line.sendall(frame(b'd', msgpack.packb([1, 2])))": "its answer was not a list of outputs",
    "line.sendall(frame(b'd', b'12', 50))\nos._exit(5)": "exit status 5",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("source", ENDS)
def test_a_process_that_ends_says_how(source: str, notebook: NotebookProcess) -> None:
    begun = time.monotonic()
    with pytest.raises(NotebookEnded, match=ENDS[source]):
        notebook.run(1, LINE + source, 15)
    assert time.monotonic() - begun < 8


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "time.sleep(1000)",
        "line.sendall(frame(b'd', b'12', 50))\ntime.sleep(1000)",
        # one byte now and then, each in time
        "for byte in frame(b'd', bytes(1000)):\n    line.send(bytes([byte]))\n    time.sleep(.5)",
        "import signal\nfor n in range(1, 64):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
    ],
)
def test_a_cell_that_does_not_end_is_given_up_at_its_limit(
    source: str, notebook: NotebookProcess
) -> None:
    begun = time.monotonic()
    with pytest.raises(NotebookHung, match="still running after 2 s"):
        notebook.run(1, LINE + source, 2.0)
    assert 1.9 < time.monotonic() - begun < 4


@pytest.mark.proof
def test_pickling_that_does_not_end_is_given_up(
    notebook: NotebookProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtlab.ranks.sandbox.sandbox.TAKE_LIMIT", 2.0)
    printed(notebook, "class Slow:\n    def __call__(self): 1\n    def __reduce__(self):\n"
            "        while True: pass\nslow = Slow()")  # fmt: skip
    with pytest.raises(NotebookHung):
        notebook.take("slow")


def test_an_answer_that_is_too_long_is_none(notebook: NotebookProcess) -> None:
    printed(notebook, "long = bytes(80_000_000)")
    with pytest.raises(NotebookEnded, match="too long"):
        notebook.take("long")


@pytest.mark.proof
def test_a_notebook_over_its_memory_limit_is_named_as_such(notebook: NotebookProcess) -> None:
    source = "import mmap\nkept = []\nwhile True:\n    kept.append(mmap.mmap(-1, 2**28))\n"
    with pytest.raises(NotebookEnded, match=r"its memory limit of 3\.2 GB was exceeded"):
        notebook.run(1, source + "    kept[-1].write(bytes(2**28))", 40)


def test_a_notebook_over_its_limit_gets_a_memory_error(server: Server) -> None:
    with Sandbox(server, Isolation(user=USERS)) as sandbox:
        outputs = sandbox.start_notebook().run(1, "kept = bytearray(5 * 2**30)", 20)
    assert [one["ename"] for one in outputs] == ["MemoryError"]


# Limits -----------------------------------------------------------------------------------------

HOSTILE = {
    "fork bomb": "while True:\n    try: os.fork()\n    except OSError: pass",
    "daemons": """
for _ in range(50):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import signal
            for n in range(1, 64):
                try: signal.signal(n, signal.SIG_IGN)
                except (OSError, ValueError): pass
            while True: pass
        os._exit(0)
""",
    "threads": """
import threading
try:
    for _ in range(100_000): threading.Thread(target=time.sleep, args=(1000,)).start()
except RuntimeError: pass
""",
    "full disks": """
for folder in ("/tmp", "/dev/shm", "."):
    try:
        for number in range(1000):
            with open(f"{folder}/{number}", "wb") as file:
                for _ in range(200): file.write(bytes(2**20))
    except OSError: pass
""",
    "open files": """
kept = []
try:
    while True: kept.append(open("/dev/null"))
except OSError: pass
""",
    "groups of signals": "os.killpg(0, 15)",
    "its own shared memory": """
from multiprocessing import shared_memory
kept = [shared_memory.SharedMemory(create=True, size=2**20) for _ in range(20)]
""",
}


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_stays_of_a_notebook(what: str, server: Server) -> None:
    before = leftovers()
    with Sandbox(server, Isolation(user=USERS, memory=MEMORY)) as sandbox:
        notebook = sandbox.start_notebook()
        with contextlib.suppress(NotebookHung, NotebookEnded):
            notebook.run(1, "import os, time\n" + HOSTILE[what], 4.0)
        begun = time.monotonic()
    assert time.monotonic() - begun < SLACK
    assert processes() == []
    assert leftovers() == before


def leftovers() -> dict[str, Any]:
    """What could stay, outside."""
    groups = [path for path in Path("/sys/fs/cgroup").glob("*/dtlab-*") if is_ours(path)]
    return {
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "shared memory": sorted(
            path.name for path in Path("/dev/shm").iterdir() if "dtlab" not in path.name
        ),
        "groups": sorted(map(str, groups)),
    }


def is_ours(group: Path) -> bool:
    """Whether a control group is of this process, since other programs may have sandboxes, too."""
    try:
        owner = psutil.Process(int(group.name.removeprefix("dtlab-")))
        return any(parent.pid == os.getpid() for parent in owner.parents())
    except psutil.NoSuchProcess:
        return True


@pytest.mark.proof
@pytest.mark.parametrize("which", ["server", "outer process"])
def test_nothing_stays_when_one_of_ours_is_killed(which: str) -> None:
    own = Server("IPython.core.interactiveshell")
    try:
        with Sandbox(own, Isolation(user=USERS, memory=MEMORY)) as sandbox:
            notebook = sandbox.start_notebook()
            source = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)"
            notebook.run(1, source, limit=20)
            assert _comes_to(3)  # the notebook, its fork, and its server, which takes a moment
            assert own._process is not None
            victim = psutil.Process(own._process.pid)
            if which == "outer process":
                (victim,) = victim.children()
            victim.kill()
            assert _comes_to(0)
            with pytest.raises(NotebookEnded):
                notebook.run(2, "1", 5)
    finally:
        own.stop()


def _comes_to(count: int) -> bool:
    """Whether there are so many processes in the sandbox, within a while."""
    deadline = time.monotonic() + 15
    while len(processes()) != count and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(processes()) == count


def test_groups_whose_owners_were_killed_are_removed_by_others(server: Server) -> None:
    stale = [parent / f"dtlab-{2**22 + 1}" for parent in Path("/sys/fs/cgroup").glob("memory")]
    for group in stale:
        group.mkdir()
    with Sandbox(server, Isolation(user=USERS, memory=MEMORY)):
        assert not any(map(Path.exists, stale))
    assert leftovers()["groups"] == []


# Sight ------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_secrets_of_the_grader_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are neither in the environment nor anywhere in memory."""
    monkeypatch.setenv("DTLAB_TEST_TOKEN", "-".join(["very", "secret", "indeed"]))
    source = """
        import os
        wanted, found = b"-".join([b"very", b"secret", b"inde" + b"ed"]), []
        for line in open("/proc/self/maps"):
            area, rights, *_ = line.split()
            begin, end = (int(each, 16) for each in area.split("-"))
            if rights.startswith("rw"):
                with open("/proc/self/mem", "rb") as memory:
                    try:
                        memory.seek(begin)
                        for _ in range(begin, end, 2**20):
                            if wanted in memory.read(2**20):
                                found.append(area)
                    except (OSError, ValueError):
                        pass
        place = id(wanted)
        def mine(area):
            begin, end = (int(each, 16) for each in area.split("-"))
            return begin <= place < end
        print(len([area for area in found if not mine(area)]), "DTLAB_TEST_TOKEN" in os.environ)
        print(open("/proc/self/environ").read().count("TOKEN"))
        """
    own = Server("IPython.core.interactiveshell")
    try:
        with Sandbox(own, Isolation(user=USERS, memory=MEMORY)) as sandbox:
            assert printed(sandbox.start_notebook(), source, 60).split() == ["0", "False", "0"]
    finally:
        own.stop()


def test_a_notebook_has_no_inherited_file_descriptors(notebook: NotebookProcess) -> None:
    source = """
        import os
        names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                 if os.path.lexists(f"/proc/self/fd/{fd}")]
        print(sorted(name.split(":")[0] for name in names))
        print([name for name in os.listdir("/proc") if name.isdigit() and
               os.stat(f"/proc/{name}").st_uid != os.getuid()])
        """
    lines, others = printed(notebook, source).splitlines()
    assert lines == str(["/dev/null"] * 3 + ["socket"] * 2)
    assert others == "[]"


def test_which_system_calls_a_notebook_may_make(notebook: NotebookProcess) -> None:
    source = """
        import ctypes, errno, os, socket
        libc = ctypes.CDLL(None, use_errno=True)
        def refused(number):
            result = libc.syscall(number, -1, -1, -1, -1, -1)
            return result == -1 and ctypes.get_errno() == errno.EPERM
        print([n for n in (101, 250, 29, 425, 272, 165, 298, 321, 294) if not refused(n)])
        one, other = socket.socketpair()
        socket.send_fds(one, [b"x"], [0])
        data, fds, _, _ = socket.recv_fds(other, 1, 1)
        server = socket.socket(socket.AF_UNIX)
        server.bind("/tmp/socket")
        print(len(fds))
        """
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86")
    assert printed(notebook, source) == "[]\n1\n"


def test_the_host_is_out_of_sight(notebook: NotebookProcess) -> None:
    here = Path(__file__)
    source = f"""
        import os
        places = ({str(here)!r}, "/root/.ssh", "/etc/shadow", "/var/log", "/sys/fs/cgroup",
                  "/dev/sda", "/dev/kmsg", "/run", "/mnt", "/usr/local/share/nbgrader")
        print([p for p in places
               if os.path.exists(p) and (not os.path.isdir(p) or os.listdir(p))])
        import subprocess
        print(subprocess.run(["id", "-u"], capture_output=True, text=True).stdout.strip())
        """
    assert printed(notebook, source).split() == ["[]", str(USERS)]


def test_hidden_folders_are_empty(server: Server, tmp_path: Path) -> None:
    inside = Path(sys.prefix, "lib")
    assert inside.is_dir()
    hidden = ("/usr/share", "/usr/bin/env", "/nowhere")
    isolation = Isolation(user=USERS, memory=MEMORY, hidden_files=hidden)
    with Sandbox(server, isolation) as sandbox:
        assert sandbox.missing == []
        source = "import os\nprint(os.listdir('/usr/share'), os.path.getsize('/usr/bin/env'))"
        assert printed(sandbox.start_notebook(), source) == "[] 0\n"
