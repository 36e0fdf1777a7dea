"""`dtlab.launch`: run a function on N real ranks, from a notebook cell or a script.

    kernel (client.py)                server.py             supervisor.py          process.py
    ──────────────────                ─────────             ─────────────          ──────────
    launch(fn, *args)
      pack fn and args
      open channels and pipes ─fds─►  fork ───────────────► read spec, call
                                      (torch is             fork ────────────────► join group
                                       imported already)    all ready? ─── go ───► fn(*args)
      show output  ◄─────────────────────────────────────────────────────────────  print
      values, failures, records  ◄───────────────────────────────────────────────  hand over
      outcome  ◄──────────────────────────────────────────  all done? ── leave ──► _exit
      Run, or an error                                      kill whatever is left

Where the environment already names a process group (torchrun, an SPMD kernel), nothing is forked:
the function runs in place on this rank (inplace.py).
"""

from __future__ import annotations

import os
import reprlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtlab.errors import DtlabError, LaunchError
from dtlab.predict import Cluster
from dtlab.ranks import client, explain, inplace, strangers, system, walls
from dtlab.ranks.enclosure import Enclosure
from dtlab.ranks.output import Output
from dtlab.ranks.protocol import IN_RANK, MOST_SECONDS, Spec
from dtlab.ranks.sealed import SealedConversation
from dtlab.ranks.transport import Packed, pack
from dtlab.trace import Trace

DEFAULT_WORLD_SIZE = 2
MOST_RANKS = 256


@dataclass
class Run:
    """What came of a launch: one entry per rank in `values` and `stdout`."""

    values: list[Any]
    stdout: list[str]
    trace: Trace | None
    seconds: float  # wall time of the whole call
    backend: str
    stderr: list[str] = field(default_factory=list, repr=False)
    cluster: Cluster | None = None  # whose links were emulated

    @property
    def world_size(self) -> int:
        """How many ranks ran."""
        return len(self.values)

    def __repr__(self) -> str:
        short = reprlib.Repr()
        short.maxother = short.maxstring = 60
        head = f"{self.world_size} ranks on {self.backend}, {self.seconds:.2f} s"
        if self.cluster is not None:
            head += f", emulated {self.cluster!r}"
        if all(value is None for value in self.values):
            return head
        lines = [f"  rank {rank}: {short.repr(value)}" for rank, value in enumerate(self.values)]
        return "\n".join([head, *lines])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int | None = None,
    backend: str | None = None,
    timeout: float | None = 30.0,
    trace: bool = True,
    seed: int = 0,
    threads: int | None = None,
    memory_limit: int | None = None,
    cluster: Cluster | None = None,
    engine: str = "local",
) -> Run:
    """Run `fn(*args)` on every rank, each a process of its own, and return what came of it.

    Inside, the default process group is initialised: `dist.get_rank()` and the rest of
    `torch.distributed` work as anywhere. Ranks are fresh at each call; nothing of them stays.

    Args:
        fn: any function, also one defined in a cell with the notebook's names in it.
        args: handed to `fn` on each rank, as a copy of its own.
        world_size: number of ranks; None means 2, or as many as `cluster` has room for, or what
            the environment (torchrun) says.
        backend: "gloo", "nccl" or "cpu:gloo,cuda:nccl", which is what None means if there is a GPU
            for every rank: NCCL moves tensors on GPUs, and gloo those on the CPU. Else it is gloo.
        timeout: seconds that `fn` may take; None for no limit.
        trace: record communication and `dtlab.span`s into `Run.trace`.
        seed: of torch, NumPy and random, the same on every rank (see `rank_generator`).
        threads: of torch on each rank; None shares the CPUs that may be used fairly.
        memory_limit: bytes that each rank may allocate beyond what a fresh one has.
        cluster: links to emulate: every communication takes the time that they would need, and
            LOCAL_RANK is the seat in the emulated node. What ranks compute and send stays real.
        engine: "local", processes on this machine.

    Raises:
        LaunchError: what was asked for cannot be launched.
        RankError: a rank raised, exited, was killed, ran out of memory, or returned something
            that cannot be sent.
        DeadlockError: no rank can move any more, or operations do not fit each other.
        RankTimeoutError: some rank was still running after `timeout` seconds.
    """
    begun = time.perf_counter()
    _check(fn, world_size, timeout, threads, memory_limit, engine)
    if inplace.environment_is_set():
        return inplace.run(fn, args, world_size, backend, trace, seed, begun, cluster)
    if cluster is not None:
        world_size, backend = _on_cluster(cluster, world_size, backend)
    if system.WINDOWS:
        raise LaunchError("dtlab needs Linux, macOS or WSL2. On Windows, use WSL2.")
    client.SERVER.start()
    world_size = DEFAULT_WORLD_SIZE if world_size is None else world_size
    spec = Spec(
        world_size=world_size,
        backend=choose_backend(backend, world_size),
        timeout=_allowed(timeout),
        trace=trace,
        seed=seed,
        threads=threads or max(1, int(system.usable_cpus() / world_size)),
        memory_limit=memory_limit,
        environment=dict(os.environ),
        folder=os.getcwd(),
        path=[os.path.abspath(entry) for entry in sys.path],
        cluster=cluster,
    )
    output = Output(world_size)
    conversation = client.Conversation(spec, _pack_call(fn, args), output)
    run, warnings = _carry_out(conversation, begun)
    for warning in warnings:
        print(warning)
    return run


def launch_sealed(
    fn: Callable[..., Any],
    *args: Any,
    inputs: Sequence[Any],
    door: Enclosure,
    timeout: float,
    memory_limit: int | None = None,
    cluster: Cluster | None = None,
) -> Run:
    """Run `fn(*args, inputs[rank])` on ranks behind `door`, for somebody who trusts none of them.

    `fn` itself comes from the caller; what it opens there may be anybody's. Each rank gets its own
    input only. Values come back as plain data, and what ranks print is dropped. Raises as
    `launch` does.
    """
    begun, world_size = time.perf_counter(), len(inputs)
    spec = Spec(
        world_size=world_size,
        backend="gloo",
        timeout=timeout,
        trace=True,
        seed=0,
        threads=max(1, int(system.usable_cpus() / world_size)),
        memory_limit=memory_limit,
        environment={**walls.environment(), "OMP_NUM_THREADS": "1"},
        folder=door.folder,
        path=[os.path.abspath(entry) for entry in sys.path],
        cluster=cluster,
        inputs=True,
        sealed=True,
    )
    with open(os.devnull, "w") as nowhere:
        output = Output(world_size, nowhere)
        packed = [pack(each) for each in inputs]
        call = _pack_call(fn, args)
        try:
            run, _ = _carry_out(SealedConversation(spec, call, output, packed, door), begun)
        except DtlabError:
            raise
        except Exception as error:  # whatever ranks told that nobody had thought of
            raise strangers.nonsense(error) from error
    return run


def _carry_out(conversation: client.Conversation, begun: float) -> tuple[Run, list[str]]:
    """Hold the conversation; what came of it, and what to warn of. Raises what went wrong."""
    collected, spec, output = conversation.run(), conversation.spec, conversation.output
    error = explain.error_of(collected, spec, output.kept("out"), output.kept("err"))
    if error is not None:
        raise error
    run = Run(
        values=collected.values,
        stdout=output.kept("out"),
        trace=_trace(collected, spec.cluster) if spec.trace else None,
        seconds=time.perf_counter() - begun,
        backend=spec.backend,
        stderr=output.kept("err"),
        cluster=spec.cluster,
    )
    return run, explain.warnings_of(collected)


def _trace(collected: client.Collected, cluster: Cluster | None) -> Trace:
    outcome = collected.outcome
    wire = outcome.wire if outcome else None
    trace = Trace.from_records(collected.records, wire, repr(cluster) if cluster else "")
    if outcome is not None:
        trace.hidden_bytes = outcome.hidden
        pairs = outcome.pairs
        trace.wire_pairs = None if pairs is None else {(s, t): count for s, t, count in pairs}
    return trace


def _pack_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> Packed:
    try:
        return pack((fn, args))
    except Exception as error:  # anything: objects define how they are pickled
        name = getattr(fn, "__name__", repr(fn))
        raise LaunchError(
            f"{name} cannot be sent to the ranks: {type(error).__name__}: {error}\n"
            "It uses something that only lives in this process (a lock, an open file, a process "
            "group, ...). Make that inside the function instead."
        ) from error


def _on_cluster(
    cluster: object, world_size: int | None, backend: str | None
) -> tuple[int, str]:
    """How many ranks are launched on an emulated cluster, and with which backend."""
    if not isinstance(cluster, Cluster):
        raise LaunchError(f"cluster is a dtlab.Cluster, or None, not {cluster!r}.")
    if backend not in (None, "gloo"):
        raise LaunchError(
            f"cluster= emulates links between processes on the CPU, and backend={backend!r} uses "
            "the links there are. Leave one of the two out."
        )
    if world_size is None and cluster.size > MOST_RANKS:
        raise LaunchError(
            f"{cluster!r} has room for {cluster.size} ranks, more than the {MOST_RANKS} that "
            "launch starts at most. Pass a world_size: ranks fill one node after the other."
        )
    if world_size is not None and world_size > cluster.size:
        raise LaunchError(
            f"world_size={world_size} is more than {cluster!r} has room for: {cluster.size}. "
            "Leave world_size out, or pass a cluster with more nodes or gpus_per_node."
        )
    return cluster.size if world_size is None else world_size, "gloo"


def choose_backend(backend: str | None, world_size: int) -> str:
    """The backend to use, or a LaunchError that says what is missing for the one asked for."""
    if backend is None:
        return system.WITH_GPUS if 0 < world_size <= _gpu_count() else "gloo"
    if backend not in ("gloo", "nccl", system.WITH_GPUS):
        raise LaunchError(
            f"backend={backend!r} is not known: use 'gloo', 'nccl', {system.WITH_GPUS!r}, or None."
        )
    if "nccl" in backend and _gpu_count() < world_size:
        raise LaunchError(
            f"backend={backend!r} needs a GPU for each of the {world_size} ranks; here are "
            f"{_gpu_count()}. Use world_size={_gpu_count()}, or backend='gloo' on the CPU."
            if _gpu_count()
            else f"backend={backend!r} needs a GPU for each of the {world_size} ranks; here is "
            "none. Use backend='gloo', which runs on the CPU."
        )
    return backend


def _allowed(timeout: float | None) -> float | None:
    """The time limit, or that of whoever runs this notebook, if it is shorter."""
    most = os.environ.get(MOST_SECONDS)
    return min(timeout or float(most), float(most)) if most else timeout


def _gpu_count() -> int:
    """GPUs that ranks could use. Asked without making a CUDA context in this process."""
    if not system.has_nvidia_driver():
        return 0
    import torch

    return torch.cuda.device_count()


def _check(
    fn: object, world_size: object, timeout: object, threads: object, memory: object, engine: str
) -> None:
    """Refuse what cannot be meant, saying what was given and what is allowed."""
    if IN_RANK in os.environ:
        raise LaunchError(
            f"dtlab.launch was called inside rank {os.environ[IN_RANK]} of another launch. "
            "Call it from the notebook; inside a rank, use torch.distributed directly."
        )
    if not callable(fn):
        raise LaunchError(f"launch needs a function to run on every rank, not {fn!r}.")
    if engine != "local":
        raise LaunchError(f"engine={engine!r} is not known: use 'local'.")
    for name, value, most in (
        ("world_size", world_size, MOST_RANKS),
        ("threads", threads, 4096),
        ("memory_limit", memory, None),
    ):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or value < 1 or (most and value > most)):  # type: ignore[operator]
            limits = f"from 1 to {most}" if most else "of at least 1 (bytes)"
            raise LaunchError(f"{name} is a whole number {limits}, not {value!r}.")
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise LaunchError(f"timeout is a number of seconds above 0, or None, not {timeout!r}.")


def rank_generator() -> Any:
    """A `torch.Generator` for this rank: differs from rank to rank, repeats from run to run.

    Its seed is made of the seed of the launch and the rank.
    """
    import torch
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_initialized() else 0
    mixed = (torch.initial_seed() * 1_000_003 + rank + 1) % 2**63
    return torch.Generator().manual_seed(mixed)
