"""Hooks on c10d operators and on `ProcessGroup` that record every communication call.

    from Python                                  from C++ (DDP's reducer, DTensor's collectives)
        |                                            |
        v                                            |
    ProcessGroup.allreduce      hook on the method   |
        |       |                                    |
        |       +---- unusual calls ---------------->|
        |                                            v
        |                           torch.ops.c10d.allreduce_    hook at key BackendSelect
        |                                            |
        v                                            v
    ProcessGroupGloo, NCCL  <---------------- dispatch keys CPU, CUDA: unchanged

Every communication call goes through an operator. The dispatch key BackendSelect comes before
every device's kernel, also under `inference_mode` and for tensors that need no gradient, and the
hook does not affect autograd. (Autograd keys would miss inference tensors; a TorchDispatchMode
works in one thread only.) But converting all arguments to Python objects and back takes 6
microseconds, longer than recording the call.

The hooks on methods are a fast path for frequent calls. If the dispatcher would only call the
backend, the hook calls the backend itself, so that the operation does not reach the operator's
hook and is recorded once. All other calls go to the original method.
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
from dtlab.ranks.groups import ByGroup
from dtlab.ranks.record.buffers import Buffers
from dtlab.ranks.record.completion import Ends, Pending
from dtlab.ranks.record.journal import Journal
from dtlab.ranks.record.layouts import inspector
from dtlab.ranks.record.operators import OPERATORS, Operator

__all__ = ["BELOW", "CallHooks", "library", "put"]

BELOW = torch_internals.keys_after_backend_select()
_CPU = torch.device("cpu")
_now = time.perf_counter_ns


class CallHooks:
    """The hooks on operators and methods, installed from construction until `close`.

    Operations whose end must still be noted are put into `pending`. With a `wire`, which wraps the
    operators, only the operators are hooked, so that all calls pass it.
    """

    def __init__(
        self, journal: Journal, pending: dict[int, Pending], ends: Ends, wire: Wire | None,
        buffers: Buffers | None = None,
    ) -> None:  # fmt: skip
        self._journal, self._pending, self._ends, self._wire = journal, pending, ends, wire
        self._buffers = buffers
        self._uses = buffers.uses if buffers is not None else {}
        self._c10d = library("c10d")
        self._plain_methods: dict[str, Any] = {}
        self._is_ordinary = _ordinary()
        for number, operator in enumerate(OPERATORS):
            if not hasattr(torch.ops.c10d, operator.c10d):  # versions of torch differ
                continue
            issue = journal.issuer(number, operator)
            put(self._c10d, operator.c10d, self._kernel(operator, issue))
            for name in operator.methods if wire is None else ():
                if name in vars(dist.ProcessGroup):
                    plain = self._plain_methods[name] = vars(dist.ProcessGroup)[name]
                    setattr(dist.ProcessGroup, name, self._method(operator, issue, plain))

    def close(self) -> None:
        """Remove all hooks."""
        for name, plain in self._plain_methods.items():
            setattr(dist.ProcessGroup, name, plain)
        torch_internals.close_library(self._c10d)

    def _kernel(self, operator: Operator, issue: Callable[..., Any]) -> Callable[..., Any]:
        """The hook of one operator: records the call, passes it on, and follows its Work."""
        # It releases the GIL. Otherwise DDP's reducer, which holds a lock while it communicates,
        # could deadlock.
        overload = getattr(torch.ops.c10d, operator.c10d).default
        redispatch = torch_internals.redispatcher(overload)
        if self._wire is not None:
            redispatch = self._wire.carrier(operator, redispatch)
        journal, ends, below = self._journal, self._ends, BELOW
        group_of, unbox = dist.ProcessGroup.unbox, dist.Work.unbox
        follow = self._follower(operator)
        payload_at, group_at, async_at = operator.payload, operator.group, operator.async_op
        peer_at, tag_at, root_at = operator.peer, operator.tag, operator.root
        reduction_at, work_at = operator.reduction, operator.work
        blocks = operator.c10d == "monitored_barrier_"
        buffers, uses = self._buffers, self._uses
        inspect = inspector(operator.c10d)

        def kernel(keyset: Any, *args: Any) -> Any:
            if ends.open:
                ends.look()
            if uses and buffers is not None:
                buffers.clash(operator, args)
            group = group_of(args[group_at])
            tag = 0 if tag_at is None else args[tag_at]
            is_async = async_at is None or len(args) <= async_at or bool(args[async_at])
            reduction = None if reduction_at is None else args[reduction_at].op()
            root = None if root_at is None else args[root_at]
            extra = None if inspect is None else inspect(args, group)
            index, announced = issue(
                group,
                None if payload_at is None else args[payload_at],
                -1 if peer_at is None else args[peer_at],
                tag,
                reduction,
                root,
                is_async and not blocks,
                extra,
            )
            start = _now()
            try:
                result = redispatch(keyset & below, *args)
            except BaseException:
                journal.end(index, _now())
                raise
            boxed = result if work_at is None else result[work_at]
            work = None if boxed is None else unbox(boxed)
            if work is None:  # complete; on NCCL, the current stream waits for the operation
                journal.block(index, start)
            else:
                more = is_async, announced, reduction, root
                follow(index, work, args[0], group, tag, *more)
            return result

        return kernel

    def _method(
        self, operator: Operator, issue: Callable[..., Any], plain: Any
    ) -> Callable[..., Any]:
        """The hook of one method of ProcessGroup: records the call and calls the backend."""
        journal, ends, follow = self._journal, self._ends, self._follower(operator)
        payload_at, two_tensors = operator.payload or 0, operator.group == 2
        is_message, reduces = operator.is_message, operator.reduction is not None
        has_peer, has_root = operator.peer is not None, operator.root is not None
        number_of_arguments = operator.group + 1 + has_peer
        calls = ByGroup[Any]()  # function to call
        keeps = journal.limit > 0
        is_ordinary = self._is_ordinary
        buffers, uses = self._buffers, self._uses

        def method(group: Any, *args: Any, **named: Any) -> Any:
            is_async = True if is_message else getattr(args[-1], "asyncOp", None) if args else None
            if (
                is_async is None  # an unusual signature
                or named
                or len(args) != number_of_arguments
                or not is_ordinary(args[0])
                or (two_tensors and not is_ordinary(args[1]))
            ):
                return plain(group, *args, **named)
            call = calls.get(group)
            if call is None:
                call = calls[group] = _backends_own(group, operator) or plain
            if call is plain:
                return plain(group, *args)
            if ends.open:
                ends.look()
            if uses and buffers is not None:
                buffers.clash(operator, args)
            options = args[-1]
            tag = options if is_message else 0
            reduction = hash(options.reduceOp) if reduces else None  # the number of its kind
            root = options.rootRank if has_root else None
            index, announced = issue(
                group,
                args[payload_at],
                args[1] if has_peer else -1,
                tag,
                reduction,
                root,
                is_async,
            )
            try:
                work = call(*args)
            except BaseException:
                journal.end(index, _now())
                raise
            if keeps or is_async:  # else the caller waits at once, which has been announced
                follow(index, work, args[0], group, tag, is_async, announced, reduction, root)
            return work

        return method

    def _follower(self, operator: Operator) -> Callable[..., None]:
        """A function that registers an operation so that its end will be noted."""
        pending, ends = self._pending, self._ends
        from_any_source = operator.c10d == "recv_any_source_"
        is_collective = operator.async_op is not None  # a message ends when the rank waits for it
        writes_at_root = operator.name in ("reduce", "gather")  # and nowhere else
        buffers = self._buffers

        def follow(
            index: int, work: Any, outputs: Any, group: Any, tag: int,
            is_async: bool, announced: bool, reduction: Any, root: int | None,
        ) -> None:  # fmt: skip
            unknown_source = (group, tag) if from_any_source else None
            pending[id(work)] = (index, work, outputs, unknown_source, announced, is_collective)
            if buffers is None or not is_async:
                pass
            elif root is None or (group.rank() == root) == writes_at_root:
                caller = sys._getframe(1).f_back  # none in a C++ thread
                buffers.begin(operator, index, work, outputs, reduction, caller)
            if is_collective and is_async:  # else the caller waits at once, which notes the end
                ends.follow(index, work)

        return follow


def _ordinary() -> Callable[[Any], bool]:
    """A function that returns whether the dispatcher would pass a tensor only to the CPU backend.

    An ordinary dense CPU tensor has one of two known sets of dispatch keys; the second is that of
    tensors created in inference mode. Other tensors are lazily conjugated or negated, sparse,
    wrapped, of a subclass, or not contiguous (layouts.py).
    """
    keys_of = torch_internals.keys_function()
    ordinary = set()
    for without in (False, True):
        with torch.inference_mode(without):
            ordinary.add(keys_of(torch.empty(0, device=_CPU)).raw_repr())
    modes, is_profiling = torch_internals.modes_function(), torch_internals.profiling_function()
    transforms = torch_internals.transforms_function()
    is_registering = torch_internals.registering_function()
    Tensor = torch.Tensor  # a local name is faster

    def is_ordinary(tensor: Any) -> bool:
        if type(tensor) is list and len(tensor) == 1:
            tensor = tensor[0]
        return (
            isinstance(tensor, Tensor)
            and keys_of(tensor).raw_repr() in ordinary
            and tensor.is_contiguous()
            and not (tensor.requires_grad or modes() or is_profiling() or is_registering())
            and transforms() is None
        )

    return is_ordinary


def _backends_own(group: Any, operator: Operator) -> Any:
    """The CPU backend's method that the operator would call, or None."""
    try:
        return getattr(torch_internals.backend_of(group, _CPU), operator.methods[-1], None)
    except RuntimeError:
        return None


def library(namespace: str) -> Any:
    """A `torch.library.Library` in which kernels for a namespace can be registered."""
    return torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]


def put(opened: Any, name: str, kernel: Callable[..., Any]) -> None:
    """Register a kernel that runs first for an operator; it redispatches with `BELOW`."""
    opened.impl(name, kernel, "BackendSelect", with_keyset=True)
