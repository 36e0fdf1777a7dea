"""Data parallelism: each rank has the whole model and its own part of the batch.

    the same parameters ──► gradients of one's own ──► averaged over the ranks ──► the same step

`average_by_hooks` is all of it in ten lines. `NaiveDataParallel` wraps a module as PyTorch's DDP
does, averages each gradient by itself, and waits for it. `DataParallel` packs
gradients into buckets, and a bucket travels while backward computes the gradients of the next
(S. Li et al. 2020, "PyTorch Distributed", section 3.2):

    backward       layer 3     layer 2     layer 1
    bucket 0                       └─ all-reduce ─┐
    bucket 1                                 └────│─ all-reduce ─┐
                                                                 └► backward returns
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from dtlab.parallel.data.buckets import Bucket, in_buckets
from dtlab.parallel.data.replicas import assert_replicas_equal, broadcast

__all__ = ["DataParallel", "NaiveDataParallel", "assert_replicas_equal", "average_by_hooks"]


def average_by_hooks(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Data parallelism in its simplest form: after this, `loss.backward()` averages gradients.

    All ranks begin with the parameters of the group's first rank. Backward calls the hook of a
    parameter as soon as its `.grad` is complete; the hook puts the mean of all ranks in its place.
    """
    size = dist.get_world_size(group)

    def average(parameter: Any) -> None:
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= size

    parameter: Any
    for parameter in module.parameters():
        dist.broadcast(parameter.data, group_src=0, group=group)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)


# The same as a module around the model, and faster -----------------------------------------------

AllReduce = Callable[..., Any]
MIB = 2**20
FIRST_BUCKET, BUCKET = 1 * MIB, 25 * MIB  # bytes, as in PyTorch: a small one starts early


class _Replica(nn.Module):
    """A module that begins the same on all ranks, and is used as the module itself."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.module, self.group = module, group
        self.world_size = dist.get_world_size(group)
        self._averages = True  # not inside `no_sync`
        self._expects = False  # whether the backward pass that comes next averages
        self._with_buffers = [one for one in module.modules() if one._buffers]
        self._parameters_to_average()
        broadcast(module.parameters(), group)
        self._broadcast_buffers()

    def _parameters_to_average(self) -> list[nn.Parameter]:
        trained = [one for one in self.module.parameters() if one.requires_grad]
        if not trained:
            raise ValueError("no parameter of this module needs a gradient: nothing to average.")
        return trained

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own. Buffers become the first rank's where gradients will be averaged."""
        if torch.is_grad_enabled():
            self._expects = self._averages
            if self._averages:
                self._share_buffers()
        return self.module(*args, **kwargs)

    def _share_buffers(self) -> None:
        self._broadcast_buffers()

    def _broadcast_buffers(self, source: int = 0) -> None:
        # not `module.buffers()`, which goes through all modules: 1 % of the step of a small model
        buffers = [one for module in self._with_buffers for one in module._buffers.values()]
        broadcast((one for one in buffers if one is not None), self.group, source)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes inside it leave their gradients on this rank, where they add up.

        The first backward after it averages the sum. Forward and backward belong inside, as with
        PyTorch's DDP.
        """
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before

    def average_next(self, averages: bool) -> None:
        """Whether the next backward averages: for pipelines, which go forward in between.

        Inside `no_sync` it never does.
        """
        self._expects = averages and self._averages

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped module's own: what is saved can be loaded without this wrapper."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.load_state_dict`, of the wrapped module."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)


class NaiveDataParallel(_Replica):
    """Averages every gradient by an all-reduce of its own, and waits for it.

    After `loss.backward()` each rank of `group` has the mean of all ranks' gradients. Every rank
    has to use the same parameters. Raises ValueError where no parameter needs a gradient.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, group)
        for parameter in self._parameters_to_average():
            _on_gradient(parameter, self._average)

    def _average(self, parameter: Tensor) -> None:
        if self._expects and parameter.grad is not None:
            parameter.grad /= self.world_size
            dist.all_reduce(parameter.grad, group=self.group)


class DataParallel(_Replica, Joinable):
    """Averages gradients in buckets, each on its way as soon as it is full.

    Used as the module itself, in the plain training loop: `backward` returns when every rank of
    `group` has the mean of all gradients. Parameters that a rank does not use count as zero there,
    and those that no rank uses keep no gradient. `.grad` is a view of a bucket, so gradients take
    memory once. Checkpoint layers with `use_reentrant=False`: a reentrant checkpoint is a backward
    pass of its own, and all buckets travel at the end of each.

    Args:
        module: its parameters and buffers become those of the group's first rank. Parameters that
            need a gradient only later are not averaged.
        bucket_cap_mb: MiB of a bucket. None: 25, and 1 for the first that fills.
        group: the ranks that share a batch; None: all.
        all_reduce: `dist.all_reduce`, or a function of `dtlab.collectives`. One that does not take
            `async_op` runs in a thread of its own, beside backward.

    Raises:
        ValueError: no parameter needs a gradient, or a bucket has no size.
        TypeError: in backward, for a sparse gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        all_reduce: AllReduce = dist.all_reduce,
    ) -> None:
        super().__init__(module, group)
        Joinable.__init__(self)  # nn.Module hands it nothing on
        first, others = FIRST_BUCKET, BUCKET
        if bucket_cap_mb is not None:
            if not bucket_cap_mb > 0:
                raise ValueError(f"bucket_cap_mb={bucket_cap_mb!r}: give MiB above 0, or None.")
            first = others = int(bucket_cap_mb * MIB)
        backwards = self._parameters_to_average()[::-1]  # about the order of their gradients
        self._buckets = in_buckets(backwards, first, others, self.world_size)
        self._start = _asynchronous(all_reduce, group)
        self._task = -1  # the backward pass that is going on, as autograd numbers them
        self._next = 0  # the bucket to send next: all ranks send them in the same order
        self._divides_by_all = True  # or only by those that still have batches, within `join`
        for bucket in self._buckets:
            for place, parameter in enumerate(bucket.parameters):
                _on_gradient(parameter, self._hook(bucket, place))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See `_Replica.forward`; tells ranks that have joined that a step begins."""
        if torch.is_grad_enabled() and self._averages:
            Join.notify_join_context(self)
        return super().forward(*args, **kwargs)

    # ------------------------------------------------------------------ one backward pass

    def _hook(self, bucket: Bucket, place: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            if not self._expects:
                return
            task = torch._C._current_graph_task_id()
            if task != self._task:
                self._begin(task)
            bucket.arrive(place)
            if bucket.full:
                self._send_full_ones()

        return arrived

    def _begin(self, task: int) -> None:
        """A pass begins; one that was broken off is waited for, and then nothing of it is left."""
        for bucket in self._buckets[: self._next]:
            bucket.wait()
        self._task, self._next = task, 0
        for bucket in self._buckets:
            bucket.empty()
        Variable._execution_engine.queue_callback(lambda: self._finish(task))

    def _send_full_ones(self) -> None:
        while self._next < len(self._buckets) and self._buckets[self._next].full:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[self._next]
        bucket.pack()
        bucket.wait = self._start(bucket.flat)
        self._next += 1

    def _finish(self, task: int) -> None:
        """At the end of backward: send what is left, and wait for all."""
        if task != self._task:
            return
        while self._next < len(self._buckets):
            self._send_next()
        for bucket in self._buckets:
            bucket.wait()
            bucket.hand_out(self._divides_by_all)
        self._task, self._next = -1, 0

    # ------------------------------------------------------------------ batches that run out

    def _share_buffers(self, through: bool = False) -> None:
        """The first rank's; in `join` those of the last one that still has batches."""
        source = self._last_with(not through) if self._join_config.enable else 0
        self._broadcast_buffers(source)

    def _last_with(self, sign: bool) -> int:
        """The last rank of the group on which this is true."""
        own = dist.get_rank(self.group) if sign else -1
        last = torch.tensor([own], device=self.join_device)
        dist.all_reduce(last, dist.ReduceOp.MAX, self.group)
        return int(last)

    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True) -> Join:
        """`with model.join():` around a loop in which ranks have different numbers of batches.

        A rank that is through goes on taking part, with zeros, until all are. The mean is over all
        ranks or, without `divide_by_initial_world_size`, over those that still have batches. At
        the end all ranks have the parameters of one that was the last.
        """
        return Join([self], enable, divide_by_initial_world_size=divide_by_initial_world_size)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank does that is through: `torch.distributed.algorithms.Join` asks for it."""
        self._divides_by_all = bool(kwargs.get("divide_by_initial_world_size", True))
        return _Shadow(self)

    @property
    def join_device(self) -> torch.device:
        """Where `Join` counts who is through."""
        return self._buckets[0].flat.device

    @property
    def join_process_group(self) -> Any:
        """The ranks that wait for each other."""
        return self.group or dist.group.WORLD


class _Shadow(JoinHook):
    """Answers the others' collectives, in the order of their steps."""

    def __init__(self, model: DataParallel) -> None:
        self._model = model

    def main_hook(self) -> None:
        """One step of theirs."""
        model = self._model
        model._share_buffers(through=True)
        for bucket in model._buckets:
            bucket.nothing()
            model._start(bucket.flat)()

    def post_hook(self, is_last_joiner: bool) -> None:
        """All are through: the last ones' parameters are those that saw every step."""
        model, last = self._model, self._model._last_with(is_last_joiner)
        broadcast(model.module.parameters(), model.group, last)
        model._broadcast_buffers(last)


def _asynchronous(
    all_reduce: AllReduce, group: dist.ProcessGroup | None
) -> Callable[[Tensor], Callable[[], Any]]:
    """Starts an all-reduce, and gives what waits for it."""
    if "async_op" in inspect.signature(all_reduce).parameters:
        return lambda flat: all_reduce(flat, group=group, async_op=True).wait
    thread = ThreadPoolExecutor(1, thread_name_prefix="all-reduce")
    return lambda flat: thread.submit(all_reduce, flat, group=group).result


def _on_gradient(parameter: Tensor, do: Callable[[Tensor], None]) -> None:
    """Once the gradient of a parameter is in `.grad`, all uses of it added up."""
    parameter.register_post_accumulate_grad_hook(do)  # type: ignore[no-untyped-call]
