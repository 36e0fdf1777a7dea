"""Hooks on c10d operators and on `ProcessGroup` that record every communication call.

    from Python                                  from C++ (DDP's reducer, DTensor's collectives)
        |                                            |
        v                                            |
    ProcessGroup.allreduce      a method: ours       |
        |       |                                    |
        |       +---- out of the ordinary ---------->|
        |                                            v
        |                           torch.ops.c10d.allreduce_    dispatch key BackendSelect: ours
        |                                            |
        v                                            v
    ProcessGroupGloo, NCCL  <---------------- dispatch keys CPU, CUDA: as ever

The operators are the door that nobody gets around. BackendSelect comes before every device's
kernel, also under `inference_mode` and for tensors that need no gradient, and no autograd
machinery is touched. (Keys of autograd would miss inference tensors; a TorchDispatchMode is blind
to other threads.) But turning all arguments into Python objects and back takes 6 microseconds,
more than noting them.

The methods are a short cut for what is frequent. Where the dispatcher would find nothing to do but
call the backend, ours calls it itself, so that the operation does not come to the other door as
well. It leaves all others alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dtlab.ranks.emulate.interconnect import Wire
from dtlab.ranks.record.completion import Ends, Pending
from dtlab.ranks.record.journal import Journal
from dtlab.ranks.record.operators import OPERATORS, Operator

__all__ = ["BELOW", "Doors", "library", "put"]

BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_CPU = torch.device("cpu")
_now = time.perf_counter_ns


class Doors:
    """Our kernels and methods, from construction until `close`.

    Operations whose end somebody has to see are put into `pending`. With a `wire`, which stands
    behind the operators, all come by that door.
    """

    def __init__(
        self, journal: Journal, pending: dict[int, Pending], ends: Ends, wire: Wire | None
    ) -> None:
        self._journal, self._pending, self._ends, self._wire = journal, pending, ends, wire
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
        """Everything as it was before."""
        for name, plain in self._plain_methods.items():
            setattr(dist.ProcessGroup, name, plain)
        self._c10d._destroy()

    def _kernel(self, operator: Operator, issue: Callable[..., Any]) -> Callable[..., Any]:
        """What runs in place of one operator: note it, pass it on, follow its Work."""
        # `redispatch_boxed` lets go of the GIL. `call_boxed` does not, and DDP's reducer, which
        # holds a lock of its own while it communicates, can then deadlock.
        redispatch = getattr(torch.ops.c10d, operator.c10d).default._handle.redispatch_boxed
        if self._wire is not None:
            redispatch = self._wire.carrier(operator, redispatch)
        journal, ends, below = self._journal, self._ends, BELOW
        group_of, unbox = dist.ProcessGroup.unbox, dist.Work.unbox
        follow = self._follower(operator)
        payload_at, group_at, async_at = operator.payload, operator.group, operator.async_op
        peer_at, tag_at, root_at = operator.peer, operator.tag, operator.root
        reduction_at, work_at = operator.reduction, operator.work
        blocks = operator.c10d == "monitored_barrier_"

        def kernel(keyset: Any, *args: Any) -> Any:
            if ends.open:
                ends.look()
            group = group_of(args[group_at])
            tag = 0 if tag_at is None else args[tag_at]
            is_async = async_at is None or len(args) <= async_at or bool(args[async_at])
            index, announced = issue(
                group,
                None if payload_at is None else args[payload_at],
                -1 if peer_at is None else args[peer_at],
                tag,
                None if reduction_at is None else args[reduction_at].op(),
                None if root_at is None else args[root_at],
                is_async and not blocks,
            )
            start = _now()
            try:
                result = redispatch(keyset & below, *args)
            except BaseException:
                journal.end(index, _now())
                raise
            boxed = result if work_at is None else result[work_at]
            if boxed is None:  # no Work, so it has happened already
                journal.block(index, start)
            else:
                follow(index, unbox(boxed), args[0], group, tag, is_async, announced)
            return result

        return kernel

    def _method(
        self, operator: Operator, issue: Callable[..., Any], plain: Any
    ) -> Callable[..., Any]:
        """What stands in place of a method of ProcessGroup's: the same, without the dispatcher."""
        journal, ends, follow = self._journal, self._ends, self._follower(operator)
        payload_at, two_tensors = operator.payload or 0, operator.group == 2
        is_message, reduces = operator.is_message, operator.reduction is not None
        has_peer, has_root = operator.peer is not None, operator.root is not None
        number_of_arguments = operator.group + 1 + has_peer
        calls: dict[Any, Any] = {}  # what it does, by group
        keeps = journal.limit > 0
        is_ordinary = self._is_ordinary

        def method(group: Any, *args: Any, **named: Any) -> Any:
            is_async = True if is_message else getattr(args[-1], "asyncOp", None) if args else None
            if (
                is_async is None  # called in another way
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
            options = args[-1]
            tag = options if is_message else 0
            index, announced = issue(
                group,
                args[payload_at],
                args[1] if has_peer else -1,
                tag,
                hash(options.reduceOp) if reduces else None,  # the number of its kind
                options.rootRank if has_root else None,
                is_async,
            )
            try:
                work = call(*args)
            except BaseException:
                journal.end(index, _now())
                raise
            if keeps or is_async:  # else the caller waits at once, as has been announced
                follow(index, work, args[0], group, tag, is_async, announced)
            return work

        return method

    def _follower(self, operator: Operator) -> Callable[..., None]:
        """A function that sees to it that the end of an operation is noted."""
        pending, ends = self._pending, self._ends
        from_anybody = operator.c10d == "recv_any_source_"
        is_collective = operator.async_op is not None  # a message is known by its wait alone

        def follow(
            index: int, work: Any, outputs: Any, group: Any, tag: int,
            is_async: bool, announced: bool,
        ) -> None:  # fmt: skip
            anybody = (group, tag) if from_anybody else None
            pending[id(work)] = (index, work, outputs, anybody, announced)
            if is_collective and is_async:  # else the caller waits at once, and that ends it
                ends.follow(index, work)

        return follow


def _ordinary() -> Callable[[Any], bool]:
    """A function that says whether the dispatcher would go straight to the CPU backend with this.

    Dense tensors on the CPU have dispatch keys of their own, and fewer if they were made without
    autograd. Others are lazily conjugated or negated, sparse, wrapped, or of somebody's own class.
    """
    keys_of = torch._C._dispatch_keys
    ordinary = set()
    for without in (False, True):
        with torch.inference_mode(without):
            ordinary.add(keys_of(torch.empty(0, device=_CPU)).raw_repr())
    modes, is_profiling = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled
    transforms = torch._C._functorch.peek_interpreter_stack
    c10d: Any = torch._C._distributed_c10d  # not all of it is declared
    is_registering = c10d._allow_inflight_collective_as_graph_input  # Works, for compiled graphs

    def is_ordinary(tensor: Any) -> bool:
        if type(tensor) is list and len(tensor) == 1:
            tensor = tensor[0]
        return (
            isinstance(tensor, torch.Tensor)
            and keys_of(tensor).raw_repr() in ordinary
            and not (tensor.requires_grad or modes() or is_profiling() or is_registering())
            and transforms() is None
        )

    return is_ordinary


def _backends_own(group: Any, operator: Operator) -> Any:
    """The method of the backend for CPU tensors that the operator would call; None without one."""
    try:
        return getattr(group._get_backend(_CPU), operator.methods[-1], None)
    except RuntimeError:
        return None


def library(namespace: str) -> Any:
    """A place to put kernels of ours."""
    return torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]


def put(opened: Any, name: str, kernel: Callable[..., Any]) -> None:
    """Let a kernel run in place of an operator; it calls the rest with `BELOW`."""
    opened.impl(name, kernel, "BackendSelect", with_keyset=True)
