"""`dtlab.launch`: run a function on N rank processes, from a notebook cell or a script.

    kernel (client.py)                server.py             supervisor.py          process.py
    ──────────────────                ─────────             ─────────────          ──────────
    launch(fn, *args)
      pack fn and args
      open channels and pipes ─fds─►  fork ───────────────► read spec, call
                                      (torch is             fork ────────────────► join group
                                       imported already)    all ready? ─── go ───► fn(*args)
      show output  ◄─────────────────────────────────────────────────────────────  print
      values, failures, records  ◄───────────────────────────────────────────────  deliver
      outcome  ◄──────────────────────────────────────────  all done? ── leave ──► _exit
      Run, or an error                                      kill whatever is left

If the environment already describes a process group (torchrun, an SPMD kernel), nothing is
forked, and the function runs in this process, which is a rank already (inplace.py).

`launch` in `dtlab/simple.py` is the idea: it forks the ranks, and returns what they return. This
package adds a server that has imported torch once, output while the ranks run, limits of time and
memory, errors at the learner's line, and ranks that all end, whatever happens to one of them.
"""

from __future__ import annotations

import inspect
import os
import reprlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtlab.errors import DtlabError, Interrupted, LaunchError
from dtlab.predict import Cluster
from dtlab.ranks import protocol
from dtlab.ranks.launch import arguments as asked
from dtlab.ranks.launch import client, inplace
from dtlab.ranks.launch import gpus as reservations
from dtlab.ranks.launch.output import Output
from dtlab.ranks.protocol import Spec
from dtlab.ranks.sandbox import isolation, untrusted_data
from dtlab.ranks.sandbox.graded_launch import GradedConversation
from dtlab.ranks.sandbox.sandbox import Sandbox
from dtlab.ranks.transport import Packed, pack
from dtlab.ranks.watch import explain
from dtlab.ranks.words import count_ranks
from dtlab.trace import Trace


@dataclass
class Run:
    """The result of a launch; `values` and `stdout` have one entry per rank."""

    values: list[Any]
    stdout: list[str]
    trace: Trace | None
    seconds: float  # wall time of the whole call
    backend: str
    stderr: list[str] = field(default_factory=list, repr=False)
    cluster: Cluster | None = None  # the cluster whose links were emulated
    resident: list[list[int | None]] = field(default_factory=list, repr=False)  # bytes
    warnings: list[str] = field(default_factory=list, repr=False)  # as `launch` has printed them
    lost: list[int] = field(default_factory=list)  # ranks that died, if `survivors` was set

    @property
    def world_size(self) -> int:
        """How many ranks ran."""
        return len(self.values)

    def __repr__(self) -> str:
        short = reprlib.Repr()
        short.maxother = short.maxstring = 60
        head = f"{count_ranks(self.world_size)} on {self.backend}, {self.seconds:.2f} s"
        if self.cluster is not None:
            head += f", emulated {self.cluster}"
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
    seed_by_rank: bool | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    cluster: Cluster | None = None,
    engine: str = "local",
    survivors: bool = False,
) -> Run:
    """Run `fn(*args)` on every rank, each in a separate process, and return the results.

    The default process group is initialised before `fn` runs, so `dist.get_rank()` and all other
    functions of `torch.distributed` work. Each call starts new ranks, which end with it.

    Args:
        fn: any function, even one that is defined in a cell and uses the notebook's variables; or
            the path of a script, which runs on each rank as `__main__`, as under `torchrun`.
        args: the arguments of `fn`; each rank gets a copy. For a script, its command line.
        world_size: number of ranks; None means 2, or the size of `cluster`, or the number that
            the environment (torchrun) gives.
        backend: "gloo", "nccl", "cpu:gloo,cuda:nccl" or None. None selects the last of these if
            there is a GPU for every rank (NCCL moves GPU tensors, gloo moves CPU tensors), else
            gloo, and the ranks see no GPU. GPUs are reserved for the launch; other notebooks'
            launches on this node wait.
        timeout: seconds that `fn` may take; None for no limit. On a busy machine, time in which
            ranks wait for a CPU does not count, up to nine times the limit.
        trace: record communication and `dtlab.span`s into `Run.trace`.
        seed: seed of torch, NumPy and random, the same on every rank (see `rank_generator`).
        seed_by_rank: True gives each rank a different seed, made from `seed` and the rank. Then a
            program that forgets to send the first parameters from one rank to all trains
            different replicas, as it would under torchrun, which seeds nothing. None means True
            for a script and False for a function. The hash of strings, and with it the order of a
            set, is the same on all ranks of `launch`; under torchrun it may differ.
        threads: threads of torch on each rank; None divides the usable CPUs equally, or means 1
            with `memory_limit`, because each thread takes memory.
        memory_limit: bytes that each rank may allocate beyond those of a new rank.
        cluster: emulated cluster: every communication takes the time that its links would need,
            and LOCAL_RANK is the GPU's number in its node. Computation and data stay real.
        engine: "local" runs the ranks as processes on this machine, "ray" on a node of a Ray
            cluster: that of RAY_ADDRESS, else one that is started on this machine and ends with
            this process (see `dtlab.ranks.ray.local_ray`). All ranks are on one node, which needs
            the same version of dtlab; they use gloo. A script must exist on that node.
        survivors: True lets the other ranks go on if a rank is killed or exits. Their operations
            with it fail, as gloo notices that it is gone, and they must create a new process group
            without it; `Run.lost` names the ranks that died. The value of a lost rank is None. A
            rank that raises an exception still ends the launch.

    Raises:
        LaunchError: the ranks cannot be started with these arguments.
        RankError: a rank raised, exited, was killed, ran out of memory, or returned something
            that cannot be sent.
        DeadlockError: no rank can make progress, or (`MismatchError`) operations do not match.
        RankTimeoutError: some rank was still running after `timeout` seconds.
        Interrupted: Ctrl-C, or Interrupt Kernel.
    """
    begun = time.perf_counter()
    if isinstance(fn, (str, os.PathLike)):
        args = _existing(fn), list(map(str, args))
        fn = _run_script
    if seed_by_rank is None:
        seed_by_rank = fn is _run_script
    if not callable(fn):
        raise LaunchError(
            f"launch needs a function to run on every rank, or the path of a script, not {fn!r}."
        )
    refuse_wrong_arguments(fn, args)
    if engine not in ("local", "ray"):
        raise LaunchError(f"engine={engine!r} is not known: use 'local' or 'ray'.")
    asked.check(world_size, timeout, threads, memory_limit)
    if engine == "ray":
        asked.check_for_ray(backend)
    elif inplace.environment_is_set():
        if survivors:
            raise LaunchError(
                "survivors=True needs ranks that launch starts itself, but these were started "
                "already (WORLD_SIZE is set, as by torchrun), and torchrun ends them together."
            )
        fields = fn, args, world_size, backend, trace, seed, begun, cluster, seed_by_rank
        return Run(**inplace.run(*fields))
    conversation = None
    try:
        spec = asked.spec_for(
            world_size, backend, timeout, trace, seed, threads, memory_limit, cluster, engine,
            seed_by_rank, survivors,
        )  # fmt: skip
        call, output = pack_call(fn, args), Output(spec.world_size)
        modules = _slow_modules(call, args[0] if fn is _run_script else None)
        with reservations.reserved(spec) as spec:
            conversation = _conversation(engine, spec, call, output, modules)
            run = _carry_out(conversation, begun)
    except KeyboardInterrupt:
        for warning in explain.thread_warnings(conversation.collected) if conversation else []:
            print(warning)
        raise Interrupted("the launch was stopped; its ranks have ended.") from None
    for warning in run.warnings:
        print(warning)
    return run


def launch_graded(
    fn: Callable[..., Any],
    *args: Any,
    inputs: Sequence[Any],
    door: Sandbox,
    timeout: float,
    memory_limit: int | None = None,
    cluster: Cluster | None = None,
) -> Run:
    """Run `fn(*args, inputs[rank])` on ranks in the sandbox `door`.

    `fn` itself is trusted, but it may unpickle and call untrusted code. Each rank receives
    only its own input. Values are returned as plain data, and printed text is dropped. Raises
    the errors of `launch`.
    """
    begun, world_size = time.perf_counter(), len(inputs)
    spec = Spec(
        world_size=world_size,
        backend="gloo",
        timeout=timeout,
        trace=True,
        seed=0,
        threads=1,  # on a busy machine, threads that wait for each other make no progress
        memory_limit=memory_limit,
        environment={**isolation.environment(), "OMP_NUM_THREADS": "1"},
        folder=door.folder,
        path=[os.path.abspath(entry) for entry in sys.path],
        cluster=cluster,
        inputs=True,
        graded=True,
    )
    with open(os.devnull, "w") as nowhere:
        output = Output(world_size, nowhere)
        packed = [pack(value) for value in inputs]
        call = pack_call(fn, args)
        try:
            run = _carry_out(GradedConversation(spec, call, output, packed, door), begun)
        except DtlabError:
            raise
        except Exception as error:  # untrusted results that the checks did not foresee
            raise untrusted_data.nonsense(error) from error
    return run


def _carry_out(conversation: client.Conversation, begun: float) -> Run:
    """Run a launch and return its `Run`. Raises the launch's error."""
    return run_of(conversation.run(), conversation.spec, conversation.output, begun)


def run_of(collected: client.Collected, spec: Spec, output: Output, begun: float) -> Run:
    """The `Run` of the collected results. Raises the launch's error."""
    error = explain.error_of(collected, spec, output.kept("out"), output.kept("err"))
    if error is not None:
        raise error
    return Run(
        values=collected.values,
        stdout=output.kept("out"),
        trace=_trace(collected, spec.cluster) if spec.trace else None,
        seconds=time.perf_counter() - begun,
        backend=spec.backend,
        stderr=output.kept("err"),
        cluster=spec.cluster,
        resident=collected.outcome.resident if collected.outcome else [],
        warnings=explain.warnings_of(collected),
        lost=list(collected.outcome.lost) if collected.outcome else [],
    )


def _trace(collected: client.Collected, cluster: Cluster | None) -> Trace:
    outcome = collected.outcome
    wire = outcome.wire if outcome else None
    trace = Trace.from_records(collected.records, wire, str(cluster) if cluster else "")
    if outcome is not None:
        trace.hidden_bytes = outcome.hidden
        pairs = outcome.pairs
        trace.wire_pairs = None if pairs is None else {(s, t): count for s, t, count in pairs}
    return trace


def _existing(script: str | os.PathLike[str]) -> str:
    """The absolute path of a script. Raises LaunchError if there is no such file."""
    path = os.path.abspath(script)
    if not os.path.isfile(path):
        raise LaunchError(f"there is no script {path} to run on every rank.")
    return path


def _run_script(path: str, arguments: list[str]) -> None:
    """Run a script on a rank, as `torchrun path *arguments` would."""
    import runpy

    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> Packed:
    """Pickle a call for the ranks. Raises LaunchError if that is not possible."""
    try:
        return pack((fn, args))
    except Exception as error:  # anything: objects define how they are pickled
        name = getattr(fn, "__name__", repr(fn))
        raise LaunchError(
            f"{name} cannot be sent to the ranks: {type(error).__name__}: {error}\n"
            "It uses an object that exists only in this process (a lock, an open file, a process "
            "group, ...). Create that object inside the function instead."
        ) from error


def _conversation(
    engine: str, spec: Spec, call: Packed, output: Output, modules: Sequence[str]
) -> client.Conversation:
    """A launch that has not begun; the server imports `modules` once for all ranks."""
    if engine == "ray":
        from dtlab.ranks.ray.engine import RayConversation

        return RayConversation(spec, call, output, modules)
    client.SERVER.share(*modules)
    return client.Conversation(spec, call, output)


def _slow_modules(call: Packed, script: str | None) -> Sequence[str]:
    """The slow modules that a call is likely to import."""
    code = call.pickled if script is None else Path(script).read_bytes()
    return protocol.SLOW_MODULES if any(word in code for word in protocol.SLOW_WORDS) else ()


def refuse_wrong_arguments(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise LaunchError if `fn` cannot be called with these arguments."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # written in C: its parameters are not known
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", repr(fn))
        about_ranks = ""
        if next(iter(signature.parameters), "") in ("rank", "local_rank"):
            about_ranks = (
                " Unlike mp.spawn, launch passes no rank: drop that parameter and call "
                "dist.get_rank() in the function."
            )
        given = f"{len(args)} argument{'s' * (len(args) != 1)}"
        raise LaunchError(
            f"{name}{signature} cannot be called with {given}: {error}.{about_ranks}"
        ) from None


def rank_generator() -> Any:
    """A `torch.Generator` that differs from rank to rank and is the same in every run.

    Its seed is computed from the launch's seed and the rank.
    """
    import torch
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_initialized() else 0
    return torch.Generator().manual_seed(protocol.mixed_seed(torch.initial_seed(), rank))
