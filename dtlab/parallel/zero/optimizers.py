"""ZeRO stages 1 and 2: each rank has all parameters; its optimizer updates one of N shards.

In `dtlab/simple.py` each parameter has one owner. `Zero1` here cuts flat buckets of parameters
into N equal shards. So the division is even, and a bucket needs one reduce-scatter and one
all-gather, not a reduce and a broadcast for each parameter. `Zero2` also reduces gradients during
backward, and each rank keeps only the gradients of its shard. Their base class, in
`sharded_optimizer.py`, saves and loads the state; `buckets.py` has a bucket. At ZeRO stage 3 no
rank has all parameters: `Zero3`, in `fully_sharded.py`, wraps a module.

    each rank's gradients ──► reduced to each shard's owner ──► owner steps ──► all-gather

Bytes per rank for Psi parameters in fp32 with Adam on N ranks, and when gradients are reduced
(Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
section 5):

                 parameters  gradients  optimizer   gradients are reduced
    DataParallel 4 Psi       4 Psi      8 Psi         all-reduced in backward
    Zero1        4 Psi       4 Psi      8 Psi/N       in `step`
    Zero2        4 Psi       4 Psi/N    8 Psi/N       in backward, bucket by bucket

`Zero1` and `Zero2` send 2 Psi (N-1)/N elements per step from each rank, as an all-reduce does:
half to reduce gradients, half to gather parameters.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.parallel.zero.buckets import ShardedBucket
from dtlab.parallel.zero.sharded_optimizer import ShardedOptimizer, all_of
from dtlab.parallel.zero.shards import clip_sharded_grad_norm_
from dtlab.torch_internals import after_backward, backward_number, gradient_hooks
from dtlab.training.metrics import device_of

__all__ = ["Zero1", "Zero2"]


IN_FLIGHT = 2  # buckets reduced at the same time: more would use memory and not save time


class Zero1(ShardedOptimizer):
    """ZeRO stage 1: the state of an optimizer, divided among the ranks of a group.

    Use it like the optimizer itself, with a plain module: `loss.backward(); optimizer.step();
    optimizer.zero_grad()`. Gradients stay on their rank until `step` reduces them to the owners of
    the shards, so gradients of several backward passes are accumulated and reduced once. A step
    consumes the gradients: `.grad` is None after it. All ranks begin with the first rank's
    parameters.

    You may change `param_groups` between steps, as `torch.optim.lr_scheduler` does. Frozen
    parameters do not change. A parameter is not stepped if no rank has a gradient of it.

    Args:
        params: parameters, or groups of them. Their memory moves into flat tensors, so move the
            module to its device and dtype first.
        optimizer_class: must work element by element, as SGD and Adam do. The constructor tests
            this: see `defaults_of_elementwise`.
        group: the ranks that share the state; None: all.
        reduces: False if `DataParallel` or PyTorch's DDP averages the gradients already, and keeps
            them whole. Each rank then sends 3 Psi (N-1)/N elements per step, and parameters are
            not broadcast at the start.
        master_dtype: dtype in which narrower parameters, such as bfloat16, are stepped:
            torch.float32 for mixed precision. These master weights count as optimizer state.
        bucket_cap_mb: size of a bucket in MiB. None: a twentieth of all parameters, but between 1
            and 25. A rank needs memory for a few buckets besides that in the table above.
        all_gather, reduce_scatter: see `dtlab.parallel.zero.shards.Transport`.
        optimizer_arguments: arguments of `optimizer_class`.

    Raises:
        TypeError: the optimizer does not work element by element, or a gradient is sparse.
        ValueError: no parameter needs a gradient, two parameters share memory, or `bucket_cap_mb`
            is not above 0.
        RuntimeError: in `step`, if parameters were moved, a frozen parameter has a gradient, or
            gradients were computed after clipping.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        *,
        reduces: bool = True,
        **arguments: Any,
    ) -> None:
        self._queue: list[ShardedBucket] = []  # in the order in which all ranks reduce
        self._in_flight: deque[ShardedBucket] = deque()
        self._is_reduced = False  # whether all gradients since the last step have been reduced
        self._usage: tuple[Tensor, Any] | None = None  # flags of used parameters, their all-reduce
        super().__init__(params, optimizer_class, group, reduces, **arguments)

    def _make_buckets(self, param_group: dict[str, Any]) -> list[ShardedBucket]:
        buckets = super()._make_buckets(param_group)
        self._queue += buckets
        return buckets

    # ------------------------------------------------------------------ gradients

    def _ensure_reduced(self) -> None:
        """Ensure that the gradients are reduced to their owners."""
        if not self._is_reduced:
            self._reduce()
        elif any(p.grad is not None for bucket in self._buckets for p in bucket.parameters):
            raise RuntimeError(
                "gradients were computed after clip_grad_norm_ had reduced earlier gradients. "
                "Clip once, after the last backward pass of a step."
            )

    def _reduce(self) -> None:
        """Reduce all gradients that are not in flight, and wait for all."""
        for bucket in self._queue:
            if not bucket.reduce_started:
                self._start_reduce(bucket)
        self._start_usage_all_reduce()
        while self._in_flight:
            self._in_flight.popleft().finish_reduce()
        for bucket in self._queue:
            bucket.reduce_started = False
        self._is_reduced = True

    def _start_reduce(self, bucket: ShardedBucket) -> None:
        if len(self._in_flight) == IN_FLIGHT:
            self._in_flight.popleft().finish_reduce()
        bucket.start_reduce()
        self._in_flight.append(bucket)

    def _start_usage_all_reduce(self) -> None:
        """Start an all-reduce of one flag per parameter: whether any rank has a gradient of it.

        Only parameters with this flag are stepped. `Zero2` calls this after each backward pass.
        """
        if self._usage is not None:
            self._usage[1].wait()
        used = [n in each.used for each in self._buckets for n in range(len(each.parameters))]
        flags = torch.tensor(used, dtype=torch.uint8, device=device_of(self._group))
        work = dist.all_reduce(flags, dist.ReduceOp.MAX, self._group, async_op=True)
        self._usage = flags, work

    @property
    def gradients(self) -> list[Tensor]:
        """This rank's shards of the reduced gradients, one per bucket."""
        return [bucket.gradient for bucket in self._buckets if bucket.gradient is not None]

    def reduced_gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield views of this rank's elements of the mean gradients, each with its parameter.

        Gradients are reduced first, so call this on all ranks, after the last backward pass.
        """
        self._ensure_reduced()
        for bucket in self._buckets:
            if bucket.gradient is not None:
                parts = bucket.parts(bucket.gradient)
                for piece, part in zip(bucket.pieces, parts, strict=True):
                    yield bucket.parameters[piece.index], part

    def whole_gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return the whole mean gradient of each parameter. Call this on all ranks."""
        self._ensure_reduced()
        found: dict[nn.Parameter, Tensor] = {}
        for bucket in self._buckets:
            if bucket.gradient is not None:
                wholes = bucket.transport.whole(bucket.layout, bucket.gradient)
                found |= dict(zip(bucket.parameters, wholes, strict=True))
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard all gradients: those not yet reduced, and this rank's shards."""
        super().zero_grad(set_to_none)
        self._in_flight.clear()
        for bucket in self._buckets:
            bucket.drop()
        self._is_reduced = False

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients so that their total norm is at most `max_norm`.

        Call this on all ranks, after the last backward pass and before `step`. Gradients are
        reduced first. The norm is that of the mean gradients of all parameters, not of a shard or
        of one rank's gradients. Returns the norm before scaling.
        """
        if not self._reduces:  # gradients are whole, and equal on all ranks
            parameters = all_of(self.param_groups)
            return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        self._ensure_reduced()
        parts = [part for bucket in self._buckets if bucket.gradient is not None
                 for part in bucket.parts(bucket.gradient)]  # fmt: skip
        return clip_sharded_grad_norm_(parts, max_norm, norm_type, self._group)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do nothing: at ZeRO stage 1, `step` reduces the gradients of all backward passes."""
        yield

    # ------------------------------------------------------------------ the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce remaining gradients, step this rank's shard, and gather all parameters.

        Call this on all ranks. A closure runs once, before the step; its result is returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        if self._reduces:
            self._ensure_reduced()
        self._set_segment_gradients()
        self._step_segments()
        self._gather()
        return loss

    def _set_segment_gradients(self) -> None:
        """Set `.grad` of the segments (this rank's parts of buckets); free reduced gradients."""
        assert self._inner is not None
        if not self._reduces:
            for bucket in self._buckets:
                bucket.set_averaged_gradients(self._inner)
            return
        assert self._usage is not None
        flags, work = self._usage
        work.wait()
        used = flags.tolist()
        for bucket in self._buckets:
            count = len(bucket.parameters)
            bucket.set_reduced_gradients(used[:count], self._inner)
            bucket.drop()
            used = used[count:]
        self._usage, self._is_reduced = None, False


class Zero2(Zero1):
    """ZeRO stage 2: like `Zero1`, but each rank keeps only the gradients of its shard.

    As soon as a bucket is full, its gradients are reduced to the owners and freed, while backward
    continues; after backward every `.grad` is None. Each backward pass reduces, so k passes and a
    step send (k + 1) Psi (N-1)/N elements. Inside `no_sync` whole gradients stay on the rank, and
    the next pass outside reduces them. That sends 2 Psi (N-1)/N elements, but needs the memory of
    ZeRO stage 1.

    The arguments are those of `Zero1` except `reduces`. Raises what `Zero1` raises, and ValueError
    if `DataParallel` or another `Zero2` already reduces gradients of these parameters.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        **arguments: Any,
    ) -> None:
        if "reduces" in arguments:
            raise TypeError("Zero2 reduces gradients itself: omit reduces=, or use Zero1.")
        self._sync_enabled = True  # False inside `no_sync`
        self._backward_id = -1  # autograd's number of the running backward pass; -1: none
        self._fill_order: list[int] | None = []  # of buckets in the first step; then None
        super().__init__(params, optimizer_class, group, **arguments)

    def _make_buckets(self, param_group: dict[str, Any]) -> list[ShardedBucket]:
        _check_no_other_hooks([param for param in param_group["params"] if param.requires_grad])
        buckets = super()._make_buckets(param_group)
        for bucket in buckets:
            for index, parameter in enumerate(bucket.parameters):
                hook = self._hook(bucket, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return buckets

    def _hook(self, bucket: ShardedBucket, index: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            self._is_reduced = False
            if not self._sync_enabled:
                return
            if bucket.reduce_started:  # in a reentrant checkpoint's pass inside this pass
                self._reduce()
            backward_id = backward_number()
            if backward_id != self._backward_id:
                self._backward_id = backward_id
                after_backward(self._finish)
            bucket.mark_arrived(index)
            if self._fill_order is not None and bucket.full:
                self._fill_order.append(self._queue.index(bucket))
            self._reduce_full_buckets()

        return arrived

    def _reduce_full_buckets(self) -> None:
        """Reduce the buckets that are full, in the order that is the same on all ranks."""
        for bucket in self._queue:
            if not (bucket.reduce_started or bucket.full):
                return
            if not bucket.reduce_started:
                self._start_reduce(bucket)

    def _finish(self) -> None:
        """Reduce remaining gradients at the end of a backward pass, including a reentrant one."""
        if self._backward_id != -1:
            self._reduce()

    def _set_segment_gradients(self) -> None:
        """Set the gradients as `Zero1` does; in the first step, agree on an order of buckets."""
        super()._set_segment_gradients()
        if self._fill_order is not None:
            self._agree_on_order(self._fill_order)

    def _agree_on_order(self, order: list[int]) -> None:
        """Reduce buckets from now on in the order in which the first rank filled its buckets.

        The order of construction is only a guess: the parameters of two groups may alternate in a
        model.
        """
        rest = [n for n in range(len(self._queue)) if n not in order]
        agreed = torch.tensor([*dict.fromkeys(order), *rest], device=device_of(self._group))
        dist.broadcast(agreed, group=self._group, group_src=0)
        self._queue = [self._queue[n] for n in agreed.tolist()]
        self._fill_order = None

    def _reduce(self) -> None:
        super()._reduce()
        self._backward_id = -1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard all gradients, including those of an interrupted backward pass."""
        super().zero_grad(set_to_none)
        self._backward_id = -1

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate whole gradients on this rank without reducing them.

        The first backward pass after the block reduces them, or `step` if there is no such pass.
        """
        before, self._sync_enabled = self._sync_enabled, False
        try:
            yield
        finally:
            self._sync_enabled = before


def _check_no_other_hooks(parameters: Sequence[Tensor]) -> None:
    """Raise ValueError if DataParallel or another Zero2 already has hooks on the gradients."""
    ours = ("dtlab.parallel.data.data_parallel", __name__)
    for parameter in parameters:
        if any(hook.__module__ in ours for hook in gradient_hooks(parameter)):
            raise ValueError(
                f"the gradient of a parameter of shape {tuple(parameter.shape)} is already "
                "reduced by DataParallel or another Zero2. Give Zero2 the parameters of a plain "
                "module."
            )
