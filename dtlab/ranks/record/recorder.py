"""The recorder: records every communication call of a rank, from any thread.

    dist.all_reduce, DDP's reducer, FSDP2, DTensor, pipelining
        |
        v
    hooks on operators              record the call, and pass it on (interception.py)
        |
        v
    ProcessGroupGloo / NCCL         unchanged
        |
        v
    Work                            is checked until a collective is complete (completion.py);
                                    the hook on Work.wait records when a thread is blocked

Each operation and each wait is announced to the supervisor before it starts (announcer.py).
`journal.py` stores the records; `operators.py` lists the operators.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dtlab import torch_internals
from dtlab.ranks.emulate.interconnect import Wire
from dtlab.ranks.protocol import Touch
from dtlab.ranks.record.buffers import Buffers
from dtlab.ranks.record.completion import Ends, Pending, is_completed
from dtlab.ranks.record.interception import BELOW, CallHooks, library, put
from dtlab.ranks.record.journal import Journal
from dtlab.ranks.watch.announcer import Announcer
from dtlab.ranks.watch.locate import asked_by_learner
from dtlab.trace import Records, set_span_sink

__all__ = ["RECORD_LIMIT", "Recorder", "rehearse"]

RECORD_LIMIT = 300_000  # operations, and also spans: about 150 MB at most
_now = time.perf_counter_ns


class Recorder:
    """Records the communication and the spans of this process between `start` and `stop`.

    It stores at most `limit` operations and `limit` spans; later ones are only counted. With an
    `announcer`, each operation is also published on the board; with a `wire`, it takes the time
    that emulated links need; with `watch_buffers`, tensors that the learner's code touches too
    early are noted (buffers.py). Only one recorder can run in a process. It can be started and
    stopped repeatedly; each start begins with no records.
    """

    def __init__(
        self,
        rank: int,
        *,
        limit: int = RECORD_LIMIT,
        announcer: Announcer | None = None,
        wire: Wire | None = None,
        watch_buffers: bool = False,
    ) -> None:
        self.rank = rank
        self.limit = limit
        self._watch_buffers = watch_buffers
        self.touches: list[Touch] = []  # found by the last `take` or `stop`
        self.announcer = announcer
        self._wire = wire
        self._journal = Journal()
        self._hooks: _Hooks | None = None
        self._still_leaving: list[Any] = []  # a send is lost if its Work is freed

    def start(self) -> None:
        """Start recording, after `init_process_group`. Raises RuntimeError if a recorder runs."""
        if getattr(dist.Work.wait, "__module__", None) == __name__:
            raise RuntimeError("A dtlab recorder is already running in this process.")
        self._journal = Journal(dist.get_world_size(), self.limit, self.announcer)
        self._journal.wire = self._wire
        buffers = Buffers(self._journal.line_of) if self._watch_buffers else None
        self._hooks = _Hooks(self._journal, self.announcer, self._wire, buffers)
        set_span_sink(self._journal)

    def take(self) -> Records:
        """Return the records so far and clear them; recording continues.

        Operations in flight end now in these records, and do not appear in the next ones.
        """
        self._find_touches(last=False)
        return self._journal.take(self.rank)

    def stop(self) -> Records:
        """Stop, remove all hooks, and return the records (empty if not started).

        Operations whose end is not known end now.
        """
        set_span_sink(None)
        if self._hooks:
            self._find_touches(last=True)
            self._hooks.remove()
            self._still_leaving = self._hooks.unfinished()
            self._hooks = None
        journal, self._journal = self._journal, Journal()
        return journal.records(self.rank)

    def _find_touches(self, last: bool) -> None:
        buffers = self._hooks.buffers if self._hooks else None
        self.touches = self._journal.as_rows(buffers.finish(last)) if buffers else []


def rehearse() -> None:
    """Install and remove the hooks once; done before a fork, this saves every rank 3 ms."""
    journal = Journal(1, 1)
    _Hooks(journal).remove()
    journal.records(0)


class _Hooks:
    """All hooks of the recorder, installed from construction until `remove`."""

    def __init__(
        self,
        journal: Journal,
        announcer: Announcer | None = None,
        wire: Wire | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        self.buffers = buffers
        self._journal = journal
        self._announcer = announcer
        self._wire = wire
        self._pending: dict[int, Pending] = {}  # by the id of its Work
        self._ends = Ends(journal, self._pending)
        journal.look = self._ends.look_now
        if wire is not None:
            wire.on_delivery = self._ends.note
        self._calls = CallHooks(journal, self._pending, self._ends, wire, buffers)
        if buffers is not None:
            buffers.hook()
        self._functional = library(torch_internals.FUNCTIONAL_OPERATORS)
        put(self._functional, "wait_tensor", self._wait_tensor_kernel())
        self._plain_wait, self._plain_poll = dist.Work.wait, dist.Work.is_completed
        dist.Work.wait = self._waiting()  # type: ignore[method-assign]
        if announcer is not None:
            dist.Work.is_completed = self._polling(announcer)  # type: ignore[method-assign]
        self._plain_functions: dict[str, Any] = {}
        if announcer is not None:
            self._replace(torch_internals.NEW_GROUP, self._making_group(announcer))
            self._replace(torch_internals.WARN_NOT_IN_GROUP, self._warning(announcer))

    def _replace(self, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function of torch.distributed by `make(function)`."""
        plain = self._plain_functions[name] = getattr(torch_internals.c10d(), name)
        setattr(torch_internals.c10d(), name, make(plain))

    def remove(self) -> None:
        """Remove all hooks."""
        dist.Work.is_completed = self._plain_poll  # type: ignore[method-assign]
        if self.buffers is not None:
            self.buffers.unhook()
        dist.Work.wait = self._plain_wait  # type: ignore[method-assign]
        for name, plain in self._plain_functions.items():
            setattr(torch_internals.c10d(), name, plain)
        self._calls.close()
        torch_internals.close_library(self._functional)
        self._ends.stop()
        self._journal.look = None  # a reference cycle would keep groups and connections alive

    def unfinished(self) -> list[Any]:
        """The Works of incomplete operations for which no thread has waited."""
        return [work for _, work, *_ in self._pending.values() if not is_completed(work)]

    def _waiting(self) -> Callable[..., Any]:
        """A replacement of `Work.wait` that announces the wait and records its duration."""
        pending, plain, waited = self._pending, self._plain_wait, self._waited
        announcer, line_of, buffers = self._announcer, self._journal.line_of, self.buffers
        uses = buffers.uses if buffers is not None else {}
        if self._wire is not None:
            plain = self._wire.waiter(plain)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            known = pending.get(id(work))
            use = uses.get(id(work)) if uses else None
            if use is not None:
                use.owner.look(use)
            if announcer is not None and known is not None and known[4]:
                announcer.wait(known[0], *line_of(sys._getframe().f_back))
            start = _now()
            try:
                return plain(work, *args, **kwargs)
            finally:
                if use is not None:
                    use.owner.end(use)
                if known is not None:
                    if uses and known[5] and buffers is not None:
                        buffers.end_until(known[0])
                    waited(known, start)

        return wait

    def _polling(self, announcer: Announcer) -> Callable[..., Any]:
        """A replacement of `Work.is_completed` that announces the first False of an operation."""
        pending, plain, line_of = self._pending, self._plain_poll, self._journal.line_of
        announced: set[int] = set()

        def _poll(work: Any) -> bool:  # the rank does not wait in it
            result = plain(work)
            known = pending.get(id(work))
            if not result and known is not None and known[4] and known[0] not in announced:
                announced.add(known[0])
                announcer.poll(known[0], *line_of(sys._getframe().f_back))
            return result

        return _poll

    def _wait_tensor_kernel(self) -> Callable[..., Any]:
        """The hook on `wait_tensor`, with which DTensor and functional collectives wait."""
        redispatch = torch_internals.redispatcher(torch_internals.wait_tensor())
        below, waited, line_of = BELOW, self._waited, self._journal.line_of

        def wait_tensor(keyset: Any, tensor: torch.Tensor) -> Any:
            known = self._operation_behind(tensor)
            if known is not None and self._announcer is not None and known[4]:
                self._announcer.wait(known[0], *line_of(sys._getframe().f_back))
            start = _now()
            try:
                return redispatch(keyset & below, tensor)
            finally:
                if known is not None:
                    waited(known, start)

        return wait_tensor

    def _operation_behind(self, tensor: torch.Tensor) -> Pending | None:
        """The pending operation whose result is in the storage of `tensor`."""
        for known in reversed(list(self._pending.values())):
            outputs = known[2]
            for output in (outputs,) if isinstance(outputs, torch.Tensor) else outputs:
                if isinstance(output, torch.Tensor) and _same_storage(output, tensor):
                    return known
        return None

    def _waited(self, known: Pending, start: int) -> None:
        """Record that this thread waited for an operation from `start` until now."""
        index, work, _, unknown_source, *_ = known
        self._journal.block(index, start)
        if unknown_source is not None:
            source = torch_internals.source_rank(work)
            self._journal.source(index, source)
            if self._announcer is not None:
                self._announcer.source(index, unknown_source[0], source, unknown_source[1])
        self._pending.pop(id(work), None)

    def _making_group(self, announcer: Announcer) -> Callable[[Any], Any]:
        def make(plain: Any) -> Any:
            def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
                if not kwargs.get("use_local_synchronization"):
                    announcer.new_group(ranks, *self._journal.line_of(sys._getframe().f_back))
                return plain(ranks, *args, **kwargs)

            return new_group

        return make

    def _warning(self, announcer: Announcer) -> Callable[[Any], Any]:
        def make(plain: Any) -> Any:
            def warn(name: str) -> None:
                if asked_by_learner(sys._getframe().f_back):  # the error says more than a warning
                    announcer.stranger(name, *self._journal.line_of(sys._getframe().f_back))
                else:
                    plain(name)

            return warn

        return make


def _same_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool(first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr())
