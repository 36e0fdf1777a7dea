"""Validation of the arguments of `launch` and `session`."""

from __future__ import annotations

import os
import sys
from typing import Any

from dtlab.errors import LaunchError
from dtlab.predict import Cluster
from dtlab.ranks import system
from dtlab.ranks.launch import client, gpus, inplace
from dtlab.ranks.protocol import IN_RANK, MOST_SECONDS, Spec

__all__ = [
    "allowed", "check", "check_for_ray", "check_timeout", "choose_backend", "spec_for",
    "surroundings",
]  # fmt: skip

DEFAULT_WORLD_SIZE = 2
MOST_RANKS = 256


def check(world_size: object, timeout: object, threads: object, memory: object) -> None:
    """Check the types and ranges of arguments. Raises LaunchError."""
    if IN_RANK in os.environ:
        raise LaunchError(
            f"dtlab.launch was called inside rank {os.environ[IN_RANK]} of another launch. "
            "Call it from the notebook; inside a rank, use torch.distributed directly."
        )
    for name, value, most in (
        ("world_size", world_size, MOST_RANKS),
        ("threads", threads, 4096),
        ("memory_limit", memory, None),
    ):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or value < 1 or (most and value > most)):  # type: ignore[operator]
            limits = f"from 1 to {most}" if most else "of at least 1 (bytes)"
            raise LaunchError(f"{name} must be a whole number {limits}, not {value!r}.")
    check_timeout(timeout)


def check_for_ray(backend: object) -> None:
    """Raise LaunchError for what engine="ray" does not support."""
    if backend not in (None, "gloo"):
        raise LaunchError(
            f"engine='ray' starts ranks that use gloo, not {backend!r}. For GPUs, use "
            "engine='local' on a machine that has them."
        )
    if inplace.environment_is_set():
        raise LaunchError(
            "this process is a rank already (WORLD_SIZE is set, as by torchrun). Leave "
            "engine='ray' out: the function then runs on these ranks."
        )


def check_timeout(timeout: object) -> None:
    """Raise LaunchError if `timeout` is neither None nor a number above 0."""
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise LaunchError(
            f"timeout must be a number of seconds above 0, or None, not {timeout!r}."
        )


def spec_for(
    world_size: int | None,
    backend: str | None,
    timeout: float | None,
    trace: bool,
    seed: int,
    threads: int | None,
    memory_limit: int | None,
    cluster: Cluster | None,
    engine: str = "local",
    seed_by_rank: bool = False,
    survivors: bool = False,
) -> Spec:
    """Return the `Spec` for the arguments of `launch`, and start the server.

    With `engine="ray"`, no server is started here, and 0 threads mean that the node divides its
    CPUs.

    Raises LaunchError if ranks cannot be started with these arguments.
    """
    chooses = backend is None
    if cluster is not None:
        world_size, backend = _on_cluster(cluster, world_size, backend)
    if system.WINDOWS:
        raise LaunchError("dtlab needs Linux, macOS or WSL2. On Windows, use WSL2.")
    on_ray = engine == "ray"
    if not on_ray:
        client.SERVER.start()
    world_size = DEFAULT_WORLD_SIZE if world_size is None else world_size
    if threads is None and memory_limit is not None:
        threads = 1  # the stack and the heap of a thread count, 15 MB or more
    backend = "gloo" if on_ray else choose_backend(backend, world_size)
    described = surroundings()
    if chooses and backend == "gloo":  # else fully_shard and scripts take the GPU that is there
        described["environment"][gpus.VISIBLE] = ""
    return Spec(
        world_size=world_size,
        backend=backend,
        timeout=allowed(timeout),
        trace=trace,
        seed=seed,
        threads=threads or (0 if on_ray else max(1, int(system.usable_cpus() / world_size))),
        memory_limit=memory_limit,
        cluster=cluster,
        seed_by_rank=seed_by_rank,
        survivors=survivors,
        **described,
    )


def surroundings() -> dict[str, Any]:
    """The fields of a `Spec` that describe this process: environment, folder and import path."""
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": [os.path.abspath(entry) for entry in sys.path],
    }


def _on_cluster(cluster: object, world_size: int | None, backend: str | None) -> tuple[int, str]:
    """The number of ranks to launch on an emulated cluster, and their backend.

    Raises LaunchError if `cluster` is not a Cluster, or does not fit the other arguments.
    """
    if not isinstance(cluster, Cluster):
        raise LaunchError(f"cluster must be a dtlab.Cluster, or None, not {cluster!r}.")
    if backend not in (None, "gloo"):
        raise LaunchError(
            f"cluster= emulates links between processes on the CPU, but backend={backend!r} uses "
            "the machine's real links. Leave one of the two out."
        )
    if world_size is None and cluster.size > MOST_RANKS:
        raise LaunchError(
            f"{cluster!r} has room for {cluster.size} ranks, but launch starts at most "
            f"{MOST_RANKS}. Pass a world_size: ranks fill one node after the other."
        )
    if world_size is not None and world_size > cluster.size:
        raise LaunchError(
            f"world_size={world_size} is more than {cluster!r} has room for: {cluster.size}. "
            "Leave world_size out, or pass a cluster with more nodes or gpus_per_node."
        )
    return cluster.size if world_size is None else world_size, "gloo"


def choose_backend(backend: str | None, world_size: int) -> str:
    """The backend to use. Raises LaunchError if it is unknown, or if there are too few GPUs."""
    if backend is None:
        return system.WITH_GPUS if 0 < world_size <= _gpu_count() else "gloo"
    if backend not in ("gloo", "nccl", system.WITH_GPUS):
        raise LaunchError(
            f"backend={backend!r} is not known: use 'gloo', 'nccl', {system.WITH_GPUS!r}, or None."
        )
    if "nccl" in backend and _gpu_count() < world_size:
        each = "the one rank" if world_size == 1 else f"each of the {world_size} ranks"
        count = _gpu_count()
        there = f"there are {count}" if count > 1 else f"there is {count or 'none'}"
        advice = f"Use world_size={count}, or backend='gloo' on the CPU."
        raise LaunchError(
            f"backend={backend!r} needs a GPU for {each}; {there}. "
            + (advice if count else "Use backend='gloo', which runs on the CPU.")
        )
    return backend


def allowed(timeout: float | None) -> float | None:
    """The time limit in seconds, or the grader's limit for this notebook if that is shorter."""
    most = os.environ.get(MOST_SECONDS)
    return min(timeout or float(most), float(most)) if most else timeout


def _gpu_count() -> int:
    """Number of GPUs that ranks could use; creates no CUDA context in this process."""
    if not system.has_nvidia_driver():
        return 0
    import torch

    return torch.cuda.device_count()
