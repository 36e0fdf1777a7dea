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

import inspect
import os
import reprlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtlab.errors import DtlabError, Interrupted, LaunchError
from dtlab.predict import Cluster
from dtlab.ranks.launch import arguments as asked
from dtlab.ranks.launch import client, inplace
from dtlab.ranks.launch import gpus as reservations
from dtlab.ranks.launch.output import Output
from dtlab.ranks.protocol import Spec
from dtlab.ranks.sandbox import untrusted as strangers
from dtlab.ranks.sandbox import walls
from dtlab.ranks.sandbox.enclosure import Enclosure
from dtlab.ranks.sandbox.sealed import SealedConversation
from dtlab.ranks.transport import Packed, pack
from dtlab.ranks.watch import explain
from dtlab.trace import Trace


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
    resident: list[list[int | None]] = field(default_factory=list, repr=False)  # counts of memory

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
    fn: Callable[..., Any] | str | os.PathLike[str],
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
        fn: any function, also one defined in a cell with the notebook's names in it; or the path
            of a script, which runs on each rank as `__main__`, as under `torchrun`.
        args: the arguments of `fn`; each rank gets a copy. For a script, its command line.
        world_size: number of ranks; None means 2, or as many as `cluster` has room for, or what
            the environment (torchrun) says.
        backend: "gloo", "nccl" or "cpu:gloo,cuda:nccl", which is what None means if there is a GPU
            for every rank: NCCL moves tensors on GPUs, and gloo those on the CPU. Else it is gloo.
            GPUs are reserved meanwhile: launches of other notebooks on this node wait for them.
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
        Interrupted: Ctrl-C, or Interrupt Kernel.
    """
    begun = time.perf_counter()
    if isinstance(fn, (str, os.PathLike)):
        args = _existing(fn), list(map(str, args))
        fn = _run_script
    if not callable(fn):
        raise LaunchError(
            f"launch needs a function to run on every rank, or the path of a script, not {fn!r}."
        )
    refuse_wrong_arguments(fn, args)
    if engine != "local":
        raise LaunchError(f"engine={engine!r} is not known: use 'local'.")
    asked.check(world_size, timeout, threads, memory_limit)
    if inplace.environment_is_set():
        return Run(**inplace.run(fn, args, world_size, backend, trace, seed, begun, cluster))
    try:
        spec = asked.spec_for(
            world_size, backend, timeout, trace, seed, threads, memory_limit, cluster
        )
        call, output = pack_call(fn, args), Output(spec.world_size)
        with reservations.reserved(spec) as spec:
            run, warnings = _carry_out(client.Conversation(spec, call, output), begun)
    except KeyboardInterrupt:
        raise Interrupted("the launch was stopped; its ranks have ended.") from None
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
        threads=1,  # on a busy machine, threads that wait for each other stand still
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
        call = pack_call(fn, args)
        try:
            run, _ = _carry_out(SealedConversation(spec, call, output, packed, door), begun)
        except DtlabError:
            raise
        except Exception as error:  # whatever ranks told that nobody had thought of
            raise strangers.nonsense(error) from error
    return run


def _carry_out(conversation: client.Conversation, begun: float) -> tuple[Run, list[str]]:
    """Hold the conversation; what came of it, and what to warn of. Raises what went wrong."""
    return run_of(conversation.run(), conversation.spec, conversation.output, begun)


def run_of(
    collected: client.Collected, spec: Spec, output: Output, begun: float
) -> tuple[Run, list[str]]:
    """The `Run` of what came back, and what to warn of. Raises what went wrong."""
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
        resident=collected.outcome.resident if collected.outcome else [],
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


def _existing(script: str | os.PathLike[str]) -> str:
    """The full path of a script. Raises LaunchError where there is none."""
    path = os.path.abspath(script)
    if not os.path.isfile(path):
        raise LaunchError(f"there is no script {path} to run on every rank.")
    return path


def _run_script(path: str, arguments: list[str]) -> None:
    """Runs on a rank: a script, as `torchrun path *arguments` would."""
    import runpy

    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> Packed:
    """A call, ready to be sent. Raises LaunchError for what cannot be."""
    try:
        return pack((fn, args))
    except Exception as error:  # anything: objects define how they are pickled
        name = getattr(fn, "__name__", repr(fn))
        raise LaunchError(
            f"{name} cannot be sent to the ranks: {type(error).__name__}: {error}\n"
            "It uses something that only lives in this process (a lock, an open file, a process "
            "group, ...). Make that inside the function instead."
        ) from error


def refuse_wrong_arguments(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raises LaunchError where `fn` does not take these arguments, a first one `rank` say."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # written in C: nothing is known of its parameters
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", repr(fn))
        about_ranks = ""
        if next(iter(signature.parameters), "") in ("rank", "local_rank"):
            about_ranks = (
                " launch passes no rank, as mp.spawn does: drop that parameter and call "
                "dist.get_rank() in the function."
            )
        given = f"{len(args)} argument{'s' * (len(args) != 1)}"
        raise LaunchError(
            f"{name}{signature} cannot be called with {given}: {error}.{about_ranks}"
        ) from None


def rank_generator() -> Any:
    """A `torch.Generator` for this rank: differs from rank to rank, repeats from run to run.

    Its seed is made of the seed of the launch and the rank.
    """
    import torch
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_initialized() else 0
    mixed = (torch.initial_seed() * 1_000_003 + rank + 1) % 2**63
    return torch.Generator().manual_seed(mixed)
