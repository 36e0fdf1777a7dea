"""`dtlab.session`: the notebook's side of ranks that keep their state between calls."""

from __future__ import annotations

import contextlib
import linecache
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dtlab.errors import Interrupted, LaunchError, RankError
from dtlab.predict import Cluster
from dtlab.ranks.launch import arguments as asked
from dtlab.ranks.launch import client, inplace
from dtlab.ranks.launch import gpus as reservations
from dtlab.ranks.launch import launcher as launch
from dtlab.ranks.launch.output import Output
from dtlab.ranks.protocol import Spec, Turn
from dtlab.ranks.session.line import Line
from dtlab.ranks.transport import Packed, pack
from dtlab.ranks.watch import early, explain
from dtlab.ranks.words import count_ranks, ranks_in_words
from dtlab.trace import Trace

__all__ = ["IN_RANKS", "Session", "current", "session"]

OLD_GROUP = (
    "A group, or a wrapper such as DDP, that was created before the ranks got their new process\n"
    "  group fails in this way. Create it again, as in DDP(model.module)."
)
IN_RANKS = "dtlab.ranks.session.rank"  # module that ranks run; not imported here: it loads torch
GATHER = 0.3  # seconds for which lines are collected and then shown rank by rank
_CURRENT: list[Session] = []  # the session opened last, which %%ranks uses


def session(
    world_size: int | None = None,
    *,
    backend: str | None = None,
    timeout: float | None = 30.0,
    trace: bool = True,
    seed: int = 0,
    threads: int | None = None,
    memory_limit: int | None = None,
    cluster: Cluster | None = None,
) -> Session:
    """Start ranks that keep their variables and process group from call to call.

    `%%ranks` in a cell, after `%load_ext dtlab`, and `Session.run` run code on them. The ranks end
    with `close` or with the notebook's kernel. They also end when another session is opened, if no
    variable refers to this one.

    Args:
        world_size: number of ranks; None means 2, or the size of `cluster`.
        timeout: default limit in seconds for a cell or function; None: no limit.
        backend, trace, seed, threads, memory_limit, cluster: as in `dtlab.launch`.

    Raises:
        LaunchError: the ranks cannot be started with these arguments.
    """
    asked.check(world_size, timeout, threads, memory_limit)
    if inplace.environment_is_set():
        raise LaunchError(
            "this process is a rank already (WORLD_SIZE is set, as by torchrun), and it keeps its "
            "variables from cell to cell anyway. Use dtlab.launch, which runs in this process."
        )
    spec = asked.spec_for(
        world_size, backend, timeout, trace, seed, threads, memory_limit, cluster
    )
    opened = Session(replace(spec, stays=True))
    if current() is not None:
        print("%%ranks uses this session from now on; the previous one stays open until closed.")
    _CURRENT[:] = [opened]
    return opened


def current() -> Session | None:
    """The session that was opened last, or None if it is closed."""
    return _CURRENT[0] if _CURRENT and _CURRENT[0].is_open else None


class Session:
    """Ranks that keep their state between calls; created by `dtlab.session`; a context manager."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._last: launch.Run | None = None
        self._cells = 0
        self.seconds = 0.0  # time that opening took
        self.renewed = False  # whether the ranks have replaced their process group
        self._open()

    # ------------------------------------------------------------------ properties

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._spec.world_size

    @property
    def backend(self) -> str:
        """The backend of the process group, such as "gloo"."""
        return self._spec.backend

    @property
    def is_open(self) -> bool:
        """Whether the ranks are running."""
        return self._line is not None

    @property
    def last(self) -> launch.Run | None:
        """The result of the last cell or function that ended without an error."""
        return self._last

    @property
    def trace(self) -> Trace | None:
        """The trace of the last cell or function that ended without an error."""
        return self._last.trace if self._last is not None else None

    def __repr__(self) -> str:
        what = f"{count_ranks(self.world_size)} on {self.backend}"
        if self._spec.cluster is not None:
            what += f", emulated {self._spec.cluster}"
        state = f"opened in {self.seconds:.2f} s" if self.is_open else "closed"
        return f"session of {what}, {state}"

    # ------------------------------------------------------------------ running code

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | int | None = None,
        timeout: float | None = None,
    ) -> launch.Run:
        """Call `fn(*args)` on all ranks of the session, or on `ranks`, as `dtlab.launch` does.

        Global names in `fn` that the notebook defines are copied to the ranks. All other names are
        the ranks' own variables, which a cell, `push`, or `global` in a function has set.
        `Run.values` is None for ranks that took no part. `timeout` is in seconds; None means that
        of the session.

        Raises:
            LaunchError: the session is closed, there is no such rank, or `fn` cannot be sent.
            RankError, DeadlockError, RankTimeoutError: as in `dtlab.launch`. Ranks keep their
                variables unless the message says otherwise.
        """
        if not callable(fn):
            raise LaunchError(f"a session runs a function on its ranks, not {fn!r}.")
        launch.refuse_wrong_arguments(fn, args)
        return self._turn(launch.pack_call(fn, args), ranks, timeout)

    def cell(
        self,
        source: str,
        ranks: Sequence[int] | int | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> launch.Run:
        """Run the source of a cell in IPython on all ranks, or on `ranks`.

        The value of its last expression and its figures are shown for each rank. `name` is the
        cell's file name in tracebacks. `Run.values` are None. Raises the errors of `run`.
        """
        if name is None:
            self._cells += 1
            name = f"<cell {self._cells} of the ranks>"
            lines = source.splitlines(keepends=True)
            linecache.cache[name] = (len(source), None, lines, name)
        return self._turn(pack((_Remote("run_cell"), (source, name))), ranks, timeout)

    def push(self, ranks: Sequence[int] | int | None = None, /, **names: Any) -> None:
        """Set variables on the ranks: `session.push(data=data)`. Each rank gets a copy."""
        for name, value in names.items():  # one by one, so that an error names the variable
            self._turn(launch.pack_call(_Remote("set_name", name), (name, value)), ranks, None)

    def pull(self, expression: str, ranks: Sequence[int] | int | None = None) -> list[Any]:
        """The value of a variable or expression on each rank; None for ranks not in `ranks`.

        Raises RankError if a rank has no such variable, or if its value cannot be sent.
        """
        return self.run(_Remote("value_of"), expression, ranks=ranks).values

    def restart(self) -> None:
        """Replace the ranks by new ones, which have none of the old variables."""
        self._hang_up()
        with self._lock:
            self._close()
            self._open()

    def close(self) -> None:
        """End the ranks, even if they are busy. Closing again does nothing."""
        self._hang_up()
        with self._lock:
            self._close()

    def _hang_up(self) -> None:
        """Have the supervisor end the ranks, even if another thread waits for them."""
        line = self._line
        if line is not None:
            line.hang_up()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ turns

    def _open(self) -> None:
        begun = time.perf_counter()
        self._is_in_order = True  # whether ranks have waited for all messages of earlier turns
        client.SERVER.share(IN_RANKS)
        client.SERVER.start()
        with contextlib.ExitStack() as all_that_ends:
            spec = replace(self._spec, **asked.surroundings())
            line = Line(all_that_ends.enter_context(reservations.reserved(spec)))
            all_that_ends.callback(line.close)
            try:
                error = line.open()
            except KeyboardInterrupt:
                raise Interrupted("no session was opened; its ranks have ended.") from None
            if error is not None:
                raise error
            self._finalizer = weakref.finalize(self, all_that_ends.pop_all().close)
        self._line, self.seconds = line, time.perf_counter() - begun

    def _close(self) -> None:
        if self._line is not None:
            self._finalizer()
        self._line = None

    def _turn(
        self, call: Packed, ranks: Sequence[int] | int | None, timeout: float | None
    ) -> launch.Run:
        chosen = self._chosen(ranks)
        limit = self._spec.timeout if timeout is None else timeout
        asked.check_timeout(limit)
        if not self._lock.acquire(blocking=False):
            raise LaunchError(
                "the ranks of this session are running a cell of another thread. Wait for it, "
                "or open another session."
            )
        try:
            if self._line is None:
                raise LaunchError("the session is closed. session.restart() starts new ranks.")
            return self._hold(self._line, Turn(chosen, asked.allowed(limit)), call)
        finally:
            self._lock.release()

    def _hold(self, line: Line, turn: Turn, call: Packed) -> launch.Run:
        begun = time.perf_counter()
        output = Output(self.world_size, gather=GATHER)
        try:
            interrupted = line.turn(turn, call, output)
        except BaseException:
            self._close()
            raise
        outcome = line.collected.outcome
        assert outcome is not None
        if outcome.over:
            self._close()
        if interrupted:
            raise Interrupted(explain.what_stays(outcome) or "The ranks keep their variables.")
        spec = replace(self._spec, timeout=turn.timeout)
        is_in_order, self._is_in_order = self._is_in_order, False
        try:
            self._last = launch.run_of(line.collected, spec, output, begun)
        except RankError as error:
            if self.renewed and explain.is_about_a_lost_peer(error):
                error.args = (f"{error}\n{OLD_GROUP}",)
            raise
        finally:
            self.renewed = self.renewed or outcome.rejoined
        if is_in_order:
            self._is_in_order = not early.has_open_messages(line.collected.records)
        else:  # it is not known which tensors are still in use
            self._last.warnings = explain.thread_warnings(line.collected)
        for warning in self._last.warnings:
            print(warning)
        return self._last

    def _chosen(self, ranks: Sequence[int] | int | None) -> tuple[int, ...]:
        if ranks is None:
            return tuple(range(self.world_size))
        chosen = [ranks] if isinstance(ranks, int) else list(ranks)
        wrong = [rank for rank in chosen if rank not in range(self.world_size)]
        if wrong or not chosen:
            raise LaunchError(
                f"there is no rank {wrong[0]!r}: the session has "
                f"{ranks_in_words(range(self.world_size))}."
                if wrong
                else "ranks is empty. Leave it out to use all ranks."
            )
        return tuple(sorted({*chosen}))


class _Remote:
    """A reference to a function of the ranks' module, which this process does not import."""

    def __init__(self, name: str, meaning: str = "") -> None:
        self.name, self.__name__ = name, meaning or name

    def __call__(self, *_: Any) -> Any:
        """Raise TypeError: the function can be called only on ranks."""
        raise TypeError(f"{self.name} runs on ranks")

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_of_ranks, (self.name,)


def _function_of_ranks(name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(IN_RANKS), name)
