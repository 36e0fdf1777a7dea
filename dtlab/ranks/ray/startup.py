"""Starts Ray with the time that a busy machine needs, and says why if it does not start.

Ray 2.60 has further time limits in three places:

- Variables of the environment: LIMITS sets them. They count for the servers and for workers.
- `Node` gives up if the node is not registered after 30 s, a number in its code. `_node_of` is
  called there, and returns only when the node is registered, when its raylet has ended, or after
  NODE_LIMIT.
- The raylet ends if its agents have not written their ports to files after some 15 s. It does not
  wait for the port of the agent for environments if it gets one as an argument. No argument gives
  it the ports of the dashboard's agent, so `_with_ports` writes those files before it starts, with
  -1, which Ray uses for "no such service". Nothing here needs that agent: it serves metrics.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import socket
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil

from dtlab.errors import DtlabError
from dtlab.ranks.system import in_a_kernel

__all__ = ["LIMITS", "did_not_start", "end_processes", "patient", "replaced"]

NODE_LIMIT = 120.0  # seconds for a node to be registered
LIMITS = {
    "RAY_gcs_server_port_wait_time_s": "60",
    "RAY_agent_register_timeout_ms": "240000",
    "RAY_worker_register_timeout_seconds": "240",
}
UNUSED = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
NEEDED_BYTES = 2 * 10**9  # of free memory, for Ray and four workers that import PyTorch
WIDTH = 80  # characters of a line of advice
END_LIMIT = 5.0  # seconds for processes to end after they were killed


@contextlib.contextmanager
def patient(ray: Any) -> Iterator[None]:
    """`ray.init` waits in this context as long as a busy machine needs."""
    from ray._private import parameter, services

    started: list[Any] = []  # the process of each raylet
    node_of, start_raylet = services.get_node, services.start_raylet
    with (
        _no_log_lines(),
        replaced(services, "start_raylet", partial(_with_ports, ray, start_raylet, started)),
        replaced(services, "get_node", partial(_node_of, node_of, started)),
        replaced(
            parameter, "RayParams", partial(parameter.RayParams, runtime_env_agent_port=_port())
        ),
    ):
        yield


@contextlib.contextmanager
def _no_log_lines() -> Iterator[None]:
    """In a notebook, discards what Ray's C++ code logs to stderr; no setting of Ray does.

    A notebook's own output does not go through this file.
    """
    if not in_a_kernel():
        yield
        return
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _with_ports(ray: Any, start_raylet: Any, started: list[Any], *args: Any, **kwargs: Any) -> Any:
    node = inspect.signature(start_raylet).bind(*args, **kwargs).arguments
    for name in UNUSED:
        ray._raylet.persist_port(node["session_dir"], node["node_id"], name, -1)
    information = start_raylet(*args, **kwargs)
    started.append(information.process)
    return information


def _node_of(node_of: Any, started: list[Any], address: str, node_id: str) -> Any:
    deadline = time.monotonic() + NODE_LIMIT
    while True:
        try:
            return node_of(address, node_id)
        except RuntimeError:  # it is not registered yet
            if started and started[-1].poll() is not None:
                raise DtlabError("the process of the node, its raylet, has ended") from None
            if time.monotonic() > deadline:
                limit = f"the node was not registered after {NODE_LIMIT:.0f} s"
                raise DtlabError(limit) from None
        time.sleep(0.1)


def _port() -> int:
    """A port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def end_processes(folder: str) -> None:
    """End the processes of a cluster that were started by this process and named `folder`.

    `ray.shutdown` ends them unless the start has failed: then Ray has forgotten them.
    """
    left: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if any(folder in word for word in child.cmdline()):
                left += [child, *child.children(recursive=True)]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, END_LIMIT)


def did_not_start(error: BaseException, seconds: float) -> DtlabError:
    """The error for a learner: the machine's load and memory, and what to do."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    free = psutil.virtual_memory().available
    if load > cores:
        cause = (
            "Other programs use the cores, which may be the cause. Stop what you do not need, "
            "such as other notebooks and their kernels, or wait until the load is below the "
            "number of cores."
        )
    elif free < NEEDED_BYTES:
        cause = (
            "Memory is short, which may be the cause. Stop what you do not need, such as other "
            f"notebooks and their kernels, until {NEEDED_BYTES / 1e9:.0f} GB are free."
        )
    else:
        cause = "The machine is not busy now. If another program was the cause, it has ended."
    again = (
        "Then run this cell again. If Ray still does not start, restart the kernel and run the "
        "notebook from the beginning."
        if in_a_kernel()
        else "Then run the same command again."
    )
    reason = re.split(r"\n|\s+Last \d+ lines", str(error).strip())[0] or type(error).__name__
    return DtlabError(
        f"Ray did not start on this machine. Two attempts took {seconds:.0f} s.\n"
        f"  load average   {load:.1f} in the last minute\n"
        f"  cores          {cores}\n"
        f"  free memory    {free / 1e9:.1f} GB\n"
        f"  Ray says       {reason}\n"  # a notebook would break long lines inside words
        + textwrap.fill(f"{cause} {again}", WIDTH)
    )


@contextlib.contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an attribute of a module another value in this context."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
