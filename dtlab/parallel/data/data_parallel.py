"""Data parallelism: each rank has the whole model and its own part of the batch.

    same parameters ──► each rank's gradients ──► their average over the ranks ──► same step

`average_by_hooks` and `average_in_buckets` in `dtlab/simple.py` are the idea. The classes here
wrap a module as PyTorch's DDP does, with buffers, `no_sync`, and parameters that a rank does not
use. `NaiveDataParallel` all-reduces each gradient separately, and waits for each all-reduce.
`DataParallel` packs gradients into buckets; the all-reduce of a bucket overlaps with the backward
computation of the next bucket (S. Li et al. 2020, "PyTorch Distributed", section 3.2):

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
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from dtlab.parallel.data.buckets import Bucket, in_buckets
from dtlab.parallel.data.replicas import assert_replicas_equal, broadcast
from dtlab.torch_internals import after_backward, backward_number, is_joining, own_buffers
from dtlab.training.compression import Compressor

__all__ = ["DataParallel", "NaiveDataParallel", "assert_replicas_equal"]


AllReduce = Callable[..., Any]
MIB = 2**20
FIRST_BUCKET, BUCKET = 1 * MIB, 25 * MIB  # bytes, as in PyTorch: a small first bucket fills early


class _Replica(nn.Module):
    """A wrapper that gives all ranks the same parameters, and is called like the module itself."""

    broadcast_buffers = True  # the first rank's count, as in DDP; `Checkpoints` reads this

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.module, self.group = module, group
        self.world_size = dist.get_world_size(group)
        self._sync_enabled = True  # False inside `no_sync`
        self._sync_next_backward = False  # set by forward and by `average_next`
        self._with_buffers = [each for each in module.modules() if own_buffers(each)]
        self._parameters_to_average()  # raises ValueError if there are none
        broadcast(module.parameters(), group)
        self._broadcast_buffers_from(0)

    def _parameters_to_average(self) -> list[nn.Parameter]:
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError(
                "no parameter of this module needs a gradient, so there is nothing to average."
            )
        return trained

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module. If gradients will be averaged, first broadcast the buffers."""
        if torch.is_grad_enabled():
            self._sync_next_backward = self._sync_enabled
            if self._sync_enabled:
                self._sync_buffers()
        return self.module(*args, **kwargs)

    def _sync_buffers(self) -> None:
        self._broadcast_buffers_from(0)

    def _broadcast_buffers_from(self, source: int) -> None:
        # `module.buffers()` visits all modules, which takes 1 % of the step of a small model.
        buffers = [buffer for each in self._with_buffers for buffer in own_buffers(each).values()]
        broadcast((buffer for buffer in buffers if buffer is not None), self.group, source)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank without averaging them.

        The first backward pass after the block averages the sum. Both the forward and the
        backward pass must be inside, as with PyTorch's DDP.
        """
        before, self._sync_enabled = self._sync_enabled, False
        try:
            yield
        finally:
            self._sync_enabled = before

    def average_next(self, averages: bool) -> None:
        """Set whether the next backward averages. Inside `no_sync` no backward averages.

        The pipeline executor calls this, because it runs other forward passes between the forward
        and the backward pass of a microbatch.
        """
        self._sync_next_backward = averages and self._sync_enabled

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the wrapped module's state, which can be loaded without this wrapper."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load the state into the wrapped module, as `nn.Module.load_state_dict` does."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)


class NaiveDataParallel(_Replica):
    """Averages each gradient with a separate all-reduce, and waits for each all-reduce.

    After `loss.backward()` each rank of `group` has the mean of all ranks' gradients. Every rank
    must use every trained parameter: otherwise the other ranks wait in an all-reduce that this
    rank never calls. Raises: ValueError if no parameter needs a gradient.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, group)
        for parameter in self._parameters_to_average():
            _on_gradient(parameter, self._average)

    def _average(self, parameter: Tensor) -> None:
        if self._sync_next_backward and parameter.grad is not None:
            parameter.grad /= self.world_size  # before the sum: in fp16 the sum could overflow
            dist.all_reduce(parameter.grad, group=self.group)


class DataParallel(_Replica, Joinable):
    """Averages gradients in buckets, and starts the all-reduce of a bucket as soon as it is full.

    Call it like the module itself, in the plain training loop: `backward` returns once every rank
    of `group` has the mean of all gradients. A rank that does not use a parameter adds zeros to
    the mean. A parameter that no rank uses gets no gradient. `.grad` is a view of a bucket, so
    gradients take memory only once. Checkpoint layers with `use_reentrant=False`: a reentrant
    checkpoint runs a separate backward pass, and all buckets are reduced at the end of each pass.

    Args:
        module: its parameters and buffers become those of the group's first rank. If a parameter
            requires a gradient only later, its gradient is not averaged.
        bucket_cap_mb: size of a bucket in MiB. None: 25, and 1 for the first bucket to fill.
        group: the ranks that share a batch; None: all.
        all_reduce: `dist.all_reduce`, or a function of `dtlab.collectives`. A function without
            the argument `async_op` runs in a separate thread, concurrently with backward.
        compression: replaces the all-reduce of a bucket; see `dtlab.training.compression`.

    Raises:
        ValueError: no parameter needs a gradient, or `bucket_cap_mb` is not above 0.
        TypeError: in backward, for a sparse gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        all_reduce: AllReduce = dist.all_reduce,
        compression: Compressor | None = None,
    ) -> None:
        super().__init__(module, group)
        Joinable.__init__(self)  # the constructor of nn.Module does not call this one
        first, rest = FIRST_BUCKET, BUCKET
        if bucket_cap_mb is not None:
            if not bucket_cap_mb > 0:
                raise ValueError(
                    f"bucket_cap_mb={bucket_cap_mb!r} is not above 0. Pass a size in MiB, or None."
                )
            first = rest = int(bucket_cap_mb * MIB)
        in_backward_order = self._parameters_to_average()[::-1]  # roughly, as gradients arrive
        self._buckets = in_buckets(in_backward_order, first, rest, self.world_size)
        self._start_reduce = _asynchronous(all_reduce, group)
        if compression is not None:
            self._start_reduce = _compressed(compression, group)
        self._backward_id = -1  # autograd's number of the running backward pass; -1: none
        self._next = 0  # the bucket to reduce next: the order is the same on all ranks
        self._divides_by_all = True  # False: by the number of ranks that still have batches
        for bucket in self._buckets:
            for index, parameter in enumerate(bucket.parameters):
                _on_gradient(parameter, self._hook(bucket, index))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module as `_Replica` does, and notify joined ranks that a step begins."""
        if torch.is_grad_enabled() and self._sync_enabled:
            Join.notify_join_context(self)
        return super().forward(*args, **kwargs)

    # ------------------------------------------------------------------ one backward pass

    def _hook(self, bucket: Bucket, index: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            if not self._sync_next_backward:
                return
            backward_id = backward_number()
            if backward_id != self._backward_id:
                self._begin(backward_id)
            bucket.mark_arrived(index)
            if bucket.full:
                self._reduce_full_buckets()

        return arrived

    def _begin(self, backward_id: int) -> None:
        """Begin a backward pass; first wait for the all-reduces of a pass that did not finish."""
        for bucket in self._buckets[: self._next]:
            bucket.wait()
        self._backward_id, self._next = backward_id, 0
        for bucket in self._buckets:
            bucket.reset()
        after_backward(lambda: self._finish(backward_id))

    def _reduce_full_buckets(self) -> None:
        while self._next < len(self._buckets) and self._buckets[self._next].full:
            self._reduce_next()

    def _reduce_next(self) -> None:
        bucket = self._buckets[self._next]
        bucket.pack()
        bucket.wait = self._start_reduce(bucket)
        self._next += 1

    def _finish(self, backward_id: int) -> None:
        """At the end of backward, reduce the remaining buckets, and wait for all buckets."""
        if backward_id != self._backward_id:  # already finished, with a reentrant pass
            return
        while self._next < len(self._buckets):
            self._reduce_next()
        for bucket in self._buckets:
            bucket.wait()
            bucket.set_gradients(self._divides_by_all)
        self._backward_id, self._next = -1, 0

    # ------------------------------------------------------------------ uneven numbers of batches

    def _sync_buffers(self, out_of_batches: bool = False) -> None:
        """Broadcast the first rank's buffers; in `join`, those of the last rank with batches."""
        source = self._last_rank_where(not out_of_batches) if is_joining(self) else 0
        self._broadcast_buffers_from(source)

    def _last_rank_where(self, condition: bool) -> int:
        """Return the last rank on which `condition` is true. Call this on all ranks."""
        candidate = dist.get_rank(self.group) if condition else -1
        last = torch.tensor([candidate], device=self.join_device)
        dist.all_reduce(last, dist.ReduceOp.MAX, self.group)
        return int(last)

    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True) -> Join:
        """Allow ranks with different numbers of batches: `with model.join():` around the loop.

        A rank that has finished its batches contributes zeros until all ranks have finished. The
        mean is over all ranks or, without `divide_by_initial_world_size`, over those that still
        have batches. At the end all ranks get the parameters of a rank that finished last.
        """
        return Join([self], enable, divide_by_initial_world_size=divide_by_initial_world_size)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Return the hooks of a rank that has finished; `Join` calls this."""
        self._divides_by_all = bool(kwargs.get("divide_by_initial_world_size", True))
        return _JoinedRank(self)

    @property
    def join_device(self) -> torch.device:
        """The device on which `Join` counts the ranks that have finished."""
        return self._buckets[0].flat.device

    @property
    def join_process_group(self) -> Any:
        """The group in which `Join` counts the ranks that have finished."""
        return self.group or dist.group.WORLD


class _JoinedRank(JoinHook):
    """Calls the collectives of a training step on a rank that has no batches left."""

    def __init__(self, model: DataParallel) -> None:
        self._model = model

    def main_hook(self) -> None:
        """Take part, with zeros, in one step of the ranks that still have batches."""
        model = self._model
        model._sync_buffers(out_of_batches=True)
        for bucket in model._buckets:
            bucket.fill_with_zeros()
            wait = model._start_reduce(bucket)
            wait()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Broadcast the parameters of a rank that finished last: that rank has made every step."""
        model, last = self._model, self._model._last_rank_where(is_last_joiner)
        broadcast(model.module.parameters(), model.group, last)
        model._broadcast_buffers_from(last)


def _asynchronous(
    all_reduce: AllReduce, group: dist.ProcessGroup | None
) -> Callable[[Bucket], Callable[[], Any]]:
    """Return a function that starts a bucket's all-reduce and returns one that waits for it."""
    if "async_op" in inspect.signature(all_reduce).parameters:
        return lambda bucket: all_reduce(bucket.flat, group=group, async_op=True).wait
    thread = ThreadPoolExecutor(1, thread_name_prefix="all-reduce")
    return lambda bucket: thread.submit(all_reduce, bucket.flat, group=group).result


def _compressed(
    compression: Compressor, group: dist.ProcessGroup | None
) -> Callable[[Bucket], Callable[[], Any]]:
    """As `_asynchronous`, for the gradients of a bucket in compressed form."""

    def start(bucket: Bucket) -> Callable[[], Any]:
        keys = [*map(id, bucket.parameters), id(bucket)]
        result = compression.start(lambda: compression.sum(bucket.tensors, keys, group))
        return lambda: result.result()

    return start


def _on_gradient(parameter: Tensor, do: Callable[[Tensor], None]) -> None:
    """Call `do` when `.grad` of a parameter is complete, that is, summed over all its uses."""
    parameter.register_post_accumulate_grad_hook(do)  # type: ignore[no-untyped-call]
