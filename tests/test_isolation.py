"""The isolation of ranks: what they are kept from, what ends them, and what they cost others."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist

from dtlab import collectives
from dtlab.errors import RanksError
from dtlab.ranks.sandbox import system_calls as calls
from tests import sandboxed
from tests.sandboxed import (
    SLACK,
    Launch,
    launch,
    needs_root,
    processes,
    rank_of,
    sandbox,
    server,
    spin,
)

pytestmark = [needs_root, pytest.mark.slow]
__all__ = ["launch", "sandbox", "server"]  # fixtures
for module in (sys.modules[__name__], sandboxed):
    cloudpickle.register_pickle_by_value(module)  # the sandbox has no tests

# System calls -----------------------------------------------------------------------------------


def _outcome_of(number: int, *arguments: int) -> str:
    """The name of the error that a system call ends with; empty for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return errno.errorcode[ctypes.get_errno()] if result == -1 else ""


def _refused_to_a_rank(rank: int) -> dict[str, str]:
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    numbers = {
        name: number if isinstance(number, int) else number[column]
        for name, number in calls._REFUSED["rank"].items()
    }
    bad = (-1,) * 6  # so that nothing happens where a call is let through
    return {name: _outcome_of(n, *bad) for name, n in numbers.items() if n is not None}


def test_ranks_are_refused_all_calls_of_the_list(launch: Launch) -> None:
    for outcomes in launch(_refused_to_a_rank).values:
        assert len(outcomes) > 50
        assert set(outcomes.values()) == {"EPERM"}, outcomes


def _sockets(rank: int) -> dict[str, str]:
    def outcome(*arguments: int, pair: bool = False) -> str:
        try:
            if pair:
                for one in socket.socketpair(*arguments):
                    one.close()
            else:
                socket.socket(*arguments).close()
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return ""

    unix, stream, datagrams = socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_DGRAM
    return {
        "unix": outcome(unix, stream),
        "udp": outcome(socket.AF_INET, datagrams),
        "udp 6": outcome(socket.AF_INET6, datagrams),
        "raw": outcome(socket.AF_INET, socket.SOCK_RAW),
        "mptcp": outcome(socket.AF_INET, stream, 262),
        "vsock": outcome(40, stream),
        "packet": outcome(17, datagrams),
        "messages by netlink": outcome(socket.AF_NETLINK, socket.SOCK_RAW, 2),
        "all sockets by netlink": outcome(socket.AF_NETLINK, socket.SOCK_RAW, 4),
        "pair of datagrams": outcome(unix, datagrams, pair=True),
        "tcp": outcome(socket.AF_INET, stream),
        "tcp 6": outcome(socket.AF_INET6, stream, socket.IPPROTO_TCP),
        "non-blocking tcp": outcome(socket.AF_INET, stream | socket.SOCK_NONBLOCK),
        "addresses by netlink": outcome(socket.AF_NETLINK, socket.SOCK_RAW, 0),
        "pair of streams": outcome(unix, stream, pair=True),
    }


def test_ranks_have_tcp_and_no_other_sockets(launch: Launch) -> None:
    outcomes = launch(_sockets).values[0]
    allowed = ("tcp", "tcp 6", "non-blocking tcp", "addresses by netlink", "pair of streams")
    assert {name for name, error in outcomes.items() if not error} == set(allowed)
    assert {error for error in outcomes.values() if error} == {"EPERM"}


def _arguments_decide(rank: int) -> dict[str, str]:
    import fcntl

    fd = os.open(os.__file__, os.O_RDONLY)
    flags = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    lock = bytearray(32)
    results = {"new network by clone": _outcome_of(flags, 0x40000000 | signal.SIGCHLD, 0, 0, 0, 0)}
    results["clone3"] = _outcome_of(435, 0, 0)
    results["a call of tomorrow"] = _outcome_of(463, 0, 0, 0)
    results["personality"] = _outcome_of({"x86_64": 135, "aarch64": 92}[platform.machine()], 8)
    for name in ("F_SETLK", "F_GETLK", "F_SETLEASE", "F_NOTIFY"):
        try:
            fcntl.fcntl(fd, getattr(fcntl, name), bytes(lock) if "LK" in name else 0)
            results[name] = ""
        except OSError as error:
            results[name] = errno.errorcode[error.errno or 0]
    results["F_GETFL"] = "" if fcntl.fcntl(fd, fcntl.F_GETFL) >= 0 else "?"
    return results


def test_arguments_decide_on_some_calls(launch: Launch) -> None:
    results = launch(_arguments_decide).values[0]
    assert results.pop("F_GETFL") == ""
    assert results.pop("clone3") == results.pop("a call of tomorrow") == "ENOSYS"
    assert set(results.values()) == {"EPERM"}, results


def _call_of_another_machine(rank: int) -> int:
    """The end of a process that makes a system call as a 32-bit program would: getpid."""
    import mmap

    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    pid = os.fork()
    if pid == 0:
        call()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86")
def test_calls_of_another_machine_end_the_process(launch: Launch) -> None:
    assert launch(_call_of_another_machine).values[0] in (-signal.SIGSYS, -signal.SIGSEGV)


def _ordinary_things(rank: int) -> list[str]:
    """What honest functions do, and libraries below them."""
    import asyncio
    import multiprocessing
    import tempfile

    done = []
    assert subprocess.run(["echo", "1"], capture_output=True, text=True).stdout == "1\n"
    done.append("subprocess")
    assert asyncio.run(asyncio.sleep(0, 7)) == 7
    done.append("asyncio")
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    done.append("files")
    thread = threading.Thread(target=done.append, args=("thread",))
    thread.start()
    thread.join()
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = multiprocessing.get_context("fork").Process(target=queue.put, args=(5,))
    process.start()
    assert queue.get() == 5
    process.join()
    done.append("multiprocessing")
    assert socket.getaddrinfo("localhost", 80)
    done.append("names")
    assert torch.ones(300, 300).mm(torch.ones(300, 300)).sum() == 300**3
    done.append("torch")
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1000), group=group)
    dist.barrier()
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(2, 3)).sum().backward()
    done.append("groups")
    return done


@pytest.mark.proof
def test_ordinary_things_work_in_the_sandbox(launch: Launch) -> None:
    expected = ["subprocess", "asyncio", "files", "thread", "multiprocessing", "names", "torch"]
    assert launch(_ordinary_things).values == [[*expected, "groups"]] * 2


# What ranks share -------------------------------------------------------------------------------


def _what_is_shared(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with open("/proc/self/maps") as lines:
        found["memory"] = sum("rw-s" in line for line in lines)
    found["processes"] = [name for name in os.listdir("/proc") if name.isdigit()]
    found["own"] = str(os.getpid())
    for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")):
        Path(folder, f"of-rank-{rank}").touch()
    dist.barrier()
    folders = ("/tmp", "/dev/shm", os.path.expanduser("~"))
    paths = [Path(folder, name) for folder in folders for name in os.listdir(folder)]
    here = Path(__file__)  # which may itself be in one of them
    found["files"] = sorted({path.name for path in paths if not here.is_relative_to(path)})
    found["writable"] = [
        folder for folder, _, _ in os.walk("/")
        if os.access(folder, os.W_OK) and not folder.startswith(("/proc", "/dev/fd", *folders))
    ]  # fmt: skip
    fds = [f"/proc/self/fd/{fd}" for fd in range(3, 40)]
    found["fds"] = [os.readlink(fd) for fd in fds if os.path.lexists(fd)]
    return found


def test_ranks_share_neither_memory_nor_files_nor_processes(launch: Launch) -> None:
    found = launch(_what_is_shared, ranks=3).values
    for rank, one in enumerate(found):
        assert one["memory"] == 1  # what it announces; the others' parts are not its own
        assert one["processes"] == [one["own"]]
        assert one["files"] == [f"of-rank-{rank}"]
        assert one["writable"] == []
    lines = [
        name for one in found for name in set(one["fds"]) if name.startswith(("pipe:", "socket:"))
    ]
    assert len(lines) == len(set(lines)) > 10


def _look_around(rank: int) -> dict[str, bool]:
    places = ("/home/learner", "/etc/shadow", "/root/.ssh", "/var", "/sys/fs/cgroup", "/run",
              "/usr/local/share/nbgrader/exchange", str(Path(__file__).parent))  # fmt: skip
    return {place: os.path.exists(place) for place in places}


def test_files_of_the_machine_are_out_of_sight(launch: Launch) -> None:
    seen = launch(_look_around).values[0]
    assert [place for place, there in seen.items() if there] == ["/home/learner"]


def _leave_a_network_and_look(rank: int) -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


def test_there_is_no_network_but_a_loopback(launch: Launch) -> None:
    assert set(launch(_leave_a_network_and_look).values[0]) <= {"lo", "tunl0", "sit0", "ip6tnl0"}


# What is counted --------------------------------------------------------------------------------


def _ring(count: int) -> Callable[[int], None]:
    return lambda rank: collectives.ring_all_reduce(torch.ones(count)) and None


def _small_messages(rank: int) -> None:
    world = dist.get_world_size()
    for _ in range(200):
        sent = dist.isend(torch.ones(5), (rank + 1) % world)
        dist.recv(torch.empty(5), (rank - 1) % world)
        sent.wait()


def _make_and_leave_groups(rank: int) -> None:
    for _ in range(2):
        group = dist.new_group(list(range(dist.get_world_size())))
        dist.all_reduce(torch.ones(10_000), group=group)
    dist.destroy_process_group()


@pytest.mark.sample(3)
@pytest.mark.parametrize("ranks", [2, 4, 6])
@pytest.mark.parametrize(
    "fn", [_ring(250), _ring(250_000), _ring(2_500_000), _small_messages, _make_and_leave_groups]
)
def test_honest_launches_hide_nothing(
    fn: Callable[[int], None], ranks: int, launch: Launch
) -> None:
    trace = launch(fn, ranks=ranks).trace
    assert trace is not None
    assert trace.hidden_bytes == 0
    assert all(trace.bytes_wire())


BYTES = 400_000


def _send_over(address: tuple[str, int], count: int) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(bytes(count))


def _hand_over(rank: int, send: Callable[[tuple[str, int]], None]) -> None:
    """Rank 0 gets `BYTES` from rank 1, by connections that are not recorded."""
    address: list[Any] = [None]
    if rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        address = [listener.getsockname()]
    dist.broadcast_object_list(address, src=0)
    if rank == 1:
        send(tuple(address[0]))
    else:
        came = 0
        while came < BYTES:
            connection, _ = listener.accept()
            while data := connection.recv(1 << 20):
                came += len(data)
            connection.close()
        listener.close()
    dist.barrier()


def _of_a_moment(rank: int) -> None:
    _hand_over(rank, lambda address: _send_over(address, BYTES))


def _of_many_moments(rank: int) -> None:
    def send(address: tuple[str, int]) -> None:
        for _ in range(BYTES // 100):
            _send_over(address, 100)

    _hand_over(rank, send)


def _by_a_child(rank: int) -> None:
    def send(address: tuple[str, int]) -> None:
        pid = os.fork()
        if pid == 0:
            _send_over(address, BYTES)
            os._exit(0)
        os.waitpid(pid, 0)

    _hand_over(rank, send)


def _by_the_store(rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.set("mail", bytes(BYTES))
    assert len(store.get("mail")) == BYTES


@pytest.mark.sample(1)
@pytest.mark.parametrize("fn", [_of_a_moment, _of_many_moments, _by_a_child, _by_the_store])
def test_bytes_past_the_counters_are_reported(fn: Callable[[int], None], launch: Launch) -> None:
    trace = launch(fn).trace
    assert trace is not None
    assert sum(each or 0 for each in trace.bytes_wire()) < BYTES / 2
    assert (trace.hidden_bytes or 0) > BYTES


# Limits -----------------------------------------------------------------------------------------


def _fork_bomb(rank: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            os.fork()


def _fork_and_leave(rank: int) -> None:
    """Each child leaves its parent and continues, so that each process lives only a moment."""
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
            elif rank < 10:
                rank += 10  # the rank itself continues too
            else:
                os._exit(0)
        except OSError:
            pass


def _ignore_everything(rank: int) -> None:
    spin()


def _leave_daemons(rank: int) -> None:
    for _ in range(20):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                spin()
            os._exit(0)
    spin()


def _stop_oneself(rank: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _print_without_end(rank: int) -> None:
    while True:
        os.write(1, b"x" * 65536)
        os.write(2, b"\n" * 65536)


def _start_threads(rank: int) -> None:
    while True:
        try:
            threading.Thread(target=time.sleep, args=(1000,)).start()
        except RuntimeError:
            time.sleep(0.1)


def _open_files(rank: int) -> None:
    kept: list[Any] = []
    while True:
        try:
            kept.append(socket.socket())
        except OSError:
            time.sleep(0.1)


def _fill_disks(rank: int) -> None:
    for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")):
        try:
            for number in range(10_000):
                with open(f"{folder}/{number}", "wb") as file:
                    while True:
                        file.write(bytes(1 << 20))
        except OSError:
            pass
    spin()


def _fill_with_names(rank: int) -> None:
    try:
        for number in range(10**9):
            os.mkdir(f"/tmp/{number}")
    except OSError:
        spin()


def _ask_for_stacks_and_flood(rank: int) -> None:
    """Write on the pipe for stacks without end, as soon as it is read."""
    places = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in range(40)}
    ends = list(places.values())  # of those that are the rank's own, it has both
    (pipe,) = (fd for fd, place in places.items() if "/pipe:" in place and ends.count(place) == 1)
    if os.fork() == 0:
        _write_without_end(pipe)
    spin()


def _write_without_end(fd: int) -> None:
    while True:
        os.write(fd, b'  File "x", line 1 in f\n' * 1000)


ENDLESS = [
    _fork_bomb, _fork_and_leave, _ignore_everything, _leave_daemons, _stop_oneself,
    _print_without_end, _start_threads, _open_files, _fill_disks, _fill_with_names,
    _ask_for_stacks_and_flood,
]  # fmt: skip


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize("fn", ENDLESS)
def test_what_does_not_end_is_ended_at_its_limit(
    fn: Callable[[int], None], launch: Launch
) -> None:
    begun = time.monotonic()
    with pytest.raises(RanksError):
        launch(fn, timeout=2.0)
    assert time.monotonic() - begun < 2.0 + SLACK
    assert processes() == []
    assert launch(rank_of).values == [0, 1]  # the sandbox is as good as new


def _leave_a_child(rank: int) -> None:
    if os.fork() == 0:
        os.setsid()
        spin()


def test_nothing_of_a_launch_outlives_it(launch: Launch) -> None:
    """The next launch has the same users, whose processes may signal and trace each other."""
    for _ in range(3):
        launch(_leave_a_child)
        assert processes() == []


def _take_memory(rank: int) -> None:
    taken = []
    while True:
        taken.append(torch.ones(2**26))


def _take_shared_memory(rank: int) -> None:
    import mmap

    taken = []
    while True:
        taken.append(mmap.mmap(-1, 2**28))
        taken[-1].write(bytes(2**28))


def _take_memory_in_many(rank: int) -> None:
    for _ in range(12):
        if os.fork() == 0:
            _take_shared_memory(rank)
    time.sleep(1000)


@pytest.mark.sample(1)
@pytest.mark.parametrize("fn", [_take_memory, _take_shared_memory, _take_memory_in_many])
def test_memory_has_an_end(fn: Callable[[int], None], launch: Launch) -> None:
    before, least = psutil.virtual_memory().available, [2**62]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            least[0] = min(least[0], psutil.virtual_memory().available)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(RanksError):
            launch(fn, timeout=15.0, memory_limit=2**30)
    finally:
        stop.set()
        watcher.join()
    assert before - least[0] < 4.5 * 2**30  # others on this machine take some too
    assert processes() == []
    assert launch(rank_of).values == [0, 1]


def _write_too_large_a_file(rank: int) -> str:
    try:
        with open("/tmp/large", "wb") as file:
            for _ in range(1000):
                file.write(bytes(1 << 20))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def test_files_have_a_largest_size(launch: Launch) -> None:
    assert launch(_write_too_large_a_file).values == ["EFBIG"] * 2


def _get_ahead_of_others(rank: int) -> list[str]:
    def outcome(what: Callable[[], object]) -> str:
        try:
            what()
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return ""

    return [
        outcome(lambda: os.nice(-5)),
        outcome(lambda: os.sched_setaffinity(0, {0})),
        outcome(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
        outcome(lambda: os.kill(os.getppid(), signal.SIGKILL)),
        outcome(lambda: os.kill(1, signal.SIGKILL)),
        outcome(lambda: Path("/proc/self/oom_score_adj").write_text("-1000") and None),
        outcome(lambda: os.setuid(0)),
    ]


def test_a_rank_cannot_raise_its_priority_or_kill_others(launch: Launch) -> None:
    assert set(launch(_get_ahead_of_others).values[0]) <= {"EPERM", "EACCES"}
