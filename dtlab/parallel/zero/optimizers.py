"""ZeRO stages 1 and 2: each rank has all parameters and steps one of N shards of them.

`SimpleZero1` is stage 1 in a few lines: each parameter has one owner. `Zero1` and `Zero2` divide
parameters evenly, send them in buckets, and save and load their state. Stage 3, in which no rank
has all parameters, wraps a module: `Zero3`, in `fully_sharded.py`.

    gradients of one's own ──► reduced to the owner of each shard ──► owner steps ──► gathered

What a rank keeps of Psi parameters in fp32 with Adam, and when its gradients travel (Rajbhandari
et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5):

                 parameters  gradients  optimizer
    replicas     4 Psi       4 Psi      8 Psi         all-reduced in backward
    Zero1        4 Psi       4 Psi      8 Psi/N       in `step`
    Zero2        4 Psi       4 Psi/N    8 Psi/N       in backward, bucket by bucket

Both send 2 Psi (N-1)/N elements a step from each rank, as an all-reduce does: half to reduce
gradients, half to gather parameters.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from dtlab.parallel.zero.buckets import ShardedBucket
from dtlab.parallel.zero.sharded_optimizer import ShardedOptimizer, all_of
from dtlab.parallel.zero.shards import clip_sharded_grad_norm_
from dtlab.training.metrics import device_of

__all__ = ["SimpleZero1", "Zero1", "Zero2"]


class SimpleZero1:
    """ZeRO stage 1 in its simplest form: each parameter has one owner, which alone steps it.

    An optimizer keeps state for the parameters that it is given. Each rank gives its own optimizer
    1/N of them, so it keeps 1/N of the state. Every parameter has to have a gradient.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], optimizer_class: Any, **arguments: Any
    ) -> None:
        self.params: list[Any] = list(params)
        self.size = dist.get_world_size()
        own = self.params[dist.get_rank() :: self.size]
        self.optimizer = optimizer_class(own, **arguments) if own else None

    def step(self) -> None:
        """Gradients to the owners, who step; the new parameters from the owners to all."""
        for number, parameter in enumerate(self.params):
            dist.reduce(parameter.grad, dst=number % self.size)  # only the owner has the sum
            parameter.grad /= self.size
        if self.optimizer:
            self.optimizer.step()
        for number, parameter in enumerate(self.params):
            dist.broadcast(parameter.data, src=number % self.size)
            parameter.grad = None


# Evenly divided, and in buckets ------------------------------------------------------------------

IN_FLIGHT = 2  # buckets of gradients on their way at a time: more would hold memory, not speed up


class Zero1(ShardedOptimizer):
    """ZeRO stage 1: the state of an optimizer, divided among the ranks of a group.

    Used as the optimizer itself, with a plain module: `loss.backward(); optimizer.step();
    optimizer.zero_grad()`. Gradients stay on their rank until `step` reduces them to the owners of
    the shards, so several backward passes before it add up and travel once. A step uses the
    gradients up: `.grad` is None after it. All parameters begin as the first rank's.

    `param_groups` are live, as a scheduler of `torch.optim.lr_scheduler` needs them. Parameters
    that are frozen are left alone, and those without a gradient on any rank are not stepped.

    Args:
        params: parameters, or groups of them. Their memory becomes that of flat tensors, so a
            module is moved to its device and dtype before.
        optimizer_class: works element by element, as SGD and Adam do; tried, see `elementwise`.
        group: the ranks that share; None: all.
        reduces: False: beside `DataParallel` or PyTorch's DDP, which have averaged the gradients
            and keep them. Traffic is then 3 Psi, and parameters are not made the same at first.
        master_dtype: parameters in fewer bits, as bfloat16, are stepped in this one: torch.float32
            for mixed precision. These master weights count as optimizer state.
        bucket_cap_mb: MiB of parameters that travel together. None: a twentieth of all, but not
            below 1 nor above 25; some buckets are what a rank needs beside the table above.
        all_gather, reduce_scatter: see `dtlab.parallel.zero.shards.Transport`.
        optimizer_arguments: those of `optimizer_class`.

    Raises:
        TypeError: the optimizer does not work element by element, or a gradient is sparse.
        ValueError: no parameter needs a gradient, two share memory, or a bucket has no size.
        RuntimeError: in `step`: parameters have moved, or gradients came after clipping.
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
        self._queue: list[ShardedBucket] = []  # in the order in which all ranks send gradients
        self._on_their_way: deque[ShardedBucket] = deque()
        self._is_reduced = False  # all gradients since the last step have gone to their owners
        self._asked: tuple[Tensor, Any] | None = None  # which parameters any rank has used
        super().__init__(params, optimizer_class, group, reduces, **arguments)

    def _divide(self, group: dict[str, Any]) -> list[ShardedBucket]:
        made = super()._divide(group)
        self._queue += made
        return made

    # ------------------------------------------------------------------ gradients

    def _collect(self) -> None:
        """See to it that the gradients are with their owners."""
        if not self._is_reduced:
            self._reduce()
        elif any(one.grad is not None for bucket in self._buckets for one in bucket.parameters):
            raise RuntimeError(
                "gradients have arrived since clip_grad_norm_ reduced the others. Clip once, "
                "after the last backward pass of a step."
            )

    def _reduce(self) -> None:
        """Send all gradients that are not on their way to their owners, and wait for all."""
        for bucket in self._queue:
            if not bucket.is_sent:
                self._send(bucket)
        self._ask_who_uses()
        while self._on_their_way:
            self._on_their_way.popleft().receive()
        for bucket in self._queue:
            bucket.is_sent = False
        self._is_reduced = True

    def _send(self, bucket: ShardedBucket) -> None:
        if len(self._on_their_way) == IN_FLIGHT:
            self._on_their_way.popleft().receive()
        bucket.send()
        self._on_their_way.append(bucket)

    def _ask_who_uses(self) -> None:
        """Start to find out which parameters have had a gradient on any rank: the others rest."""
        if self._asked is not None:
            self._asked[1].wait()
        places = [(bucket, n) for bucket in self._buckets for n in range(len(bucket.parameters))]
        own = [n in bucket.used for bucket, n in places]
        flags = torch.tensor(own, dtype=torch.uint8, device=device_of(self._group))
        work = dist.all_reduce(flags, dist.ReduceOp.MAX, self._group, async_op=True)
        self._asked = flags, work

    @property
    def gradients(self) -> list[Tensor]:
        """What this rank keeps of the reduced gradients, one shard for each bucket."""
        return [bucket.gradient for bucket in self._buckets if bucket.gradient is not None]

    def reduced_gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """This rank's elements of the mean gradients, each with its parameter; views.

        Gradients are reduced first, so call it on all ranks, after the last backward pass.
        """
        self._collect()
        for bucket in self._buckets:
            if bucket.gradient is not None:
                parts = bucket.parts(bucket.gradient)
                for piece, part in zip(bucket.pieces, parts, strict=True):
                    yield bucket.parameters[piece.index], part

    def whole_gradients(self) -> dict[nn.Parameter, Tensor]:
        """The whole mean gradient of each parameter, gathered: call it on all ranks."""
        self._collect()
        found: dict[nn.Parameter, Tensor] = {}
        for bucket in self._buckets:
            if bucket.gradient is not None:
                wholes = bucket.transport.whole(bucket.layout, bucket.gradient)
                found |= dict(zip(bucket.parameters, wholes, strict=True))
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, those that wait to be reduced as well as this rank's shards."""
        super().zero_grad(set_to_none)
        self._on_their_way.clear()
        for bucket in self._buckets:
            bucket.drop()
        self._is_reduced = False

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients so that the norm of all of them is at most `max_norm`.

        Call it on all ranks, after the last backward pass and before `step`. Gradients are
        reduced first, and the norm is that of their mean over the ranks: not of a shard, nor of
        one rank's own. Returns the norm before.
        """
        if not self._reduces:  # whole, and the same everywhere
            everything = all_of(self.param_groups)
            return nn.utils.clip_grad_norm_(everything, max_norm, norm_type)
        self._collect()
        parts = [part for one in self._buckets if one.gradient is not None
                 for part in one.parts(one.gradient)]  # fmt: skip
        return clip_sharded_grad_norm_(parts, max_norm, norm_type, self._group)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """For accumulation, as `DataParallel.no_sync`. Stage 1 sends nothing in backward."""
        yield

    # ------------------------------------------------------------------ the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce what is not reduced yet, step this rank's shard, and gather all parameters.

        Call it on all ranks. A closure is run once, before. Returns what it returns, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        if self._reduces:
            self._collect()
        self._hand_gradients()
        self._step_own()
        self._gather()
        return loss

    def _hand_gradients(self) -> None:
        """To the segments. What is reduced is not needed after it."""
        assert self._inner is not None
        if not self._reduces:
            for bucket in self._buckets:
                bucket.hand_averaged(self._inner)
            return
        assert self._asked is not None
        flags, work = self._asked
        work.wait()
        used = flags.tolist()
        for bucket in self._buckets:
            count = len(bucket.parameters)
            bucket.hand_reduced(used[:count], self._inner)
            bucket.drop()
            used = used[count:]
        self._asked, self._is_reduced = None, False


class Zero2(Zero1):
    """ZeRO stage 2: as `Zero1`, and each rank keeps the gradients of its own shard only.

    A bucket of gradients goes to its owners as soon as it is full, beside backward, and its memory
    is freed; after backward every `.grad` is None. Each backward pass reduces: k of them before a
    step send k + 1 times Psi (N-1)/N elements. Inside `no_sync` gradients stay, whole, and the
    next pass outside reduces them: 2 Psi (N-1)/N again, and stage 1's memory.

    Takes what `Zero1` takes, but no `reduces`: it goes over a plain module, as it reduces itself.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        **arguments: Any,
    ) -> None:
        if "reduces" in arguments:
            raise TypeError("Zero2 reduces gradients itself: leave reduces= out, or take Zero1.")
        self._reduces_now = True  # not inside `no_sync`
        self._task = -1  # the backward pass that is going on, as autograd numbers them
        self._order: list[int] | None = []  # in which buckets become full, until the first step
        super().__init__(params, optimizer_class, group, **arguments)

    def _divide(self, group: dict[str, Any]) -> list[ShardedBucket]:
        _refuse_others([one for one in group["params"] if one.requires_grad])
        made = super()._divide(group)
        for bucket in made:
            for place, parameter in enumerate(bucket.parameters):
                hook = self._hook(bucket, place)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return made

    def _hook(self, bucket: ShardedBucket, place: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            self._is_reduced = False
            if not self._reduces_now:
                return
            if bucket.is_sent:  # reentrant checkpoints: a pass within the pass was here before
                self._reduce()
            task = torch._C._current_graph_task_id()
            if task != self._task:
                self._task = task
                Variable._execution_engine.queue_callback(self._finish)
            bucket.arrives(place)
            if self._order is not None and bucket.full:
                self._order.append(self._queue.index(bucket))
            self._send_full_ones()

        return arrived

    def _send_full_ones(self) -> None:
        """Those whose turn it is: all ranks send them in the same order."""
        for bucket in self._queue:
            if not (bucket.is_sent or bucket.full):
                return
            if not bucket.is_sent:
                self._send(bucket)

    def _finish(self) -> None:
        """At the end of a backward pass; once, though passes within it may have had their own."""
        if self._task != -1:
            self._reduce()

    def _hand_gradients(self) -> None:
        """See `Zero1._hand_gradients`; in the first step all ranks agree on an order."""
        super()._hand_gradients()
        if self._order is not None:
            self._queue_as_they_come(self._order)

    def _queue_as_they_come(self, order: list[int]) -> None:
        """From now on as the first rank's buckets became full: groups may lie side by side."""
        rest = [n for n in range(len(self._queue)) if n not in order]
        agreed = torch.tensor([*dict.fromkeys(order), *rest], device=device_of(self._group))
        dist.broadcast(agreed, group=self._group, group_src=0)
        self._queue = [self._queue[n] for n in agreed.tolist()]
        self._order = None

    def _reduce(self) -> None:
        super()._reduce()
        self._task = -1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See `Zero1.zero_grad`; also what is left of a pass that was broken off."""
        super().zero_grad(set_to_none)
        self._task = -1

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside it leave whole gradients on this rank, where they add up.

        The first pass outside, or else `step`, reduces them.
        """
        before, self._reduces_now = self._reduces_now, False
        try:
            yield
        finally:
            self._reduces_now = before


def _refuse_others(parameters: Sequence[Tensor]) -> None:
    """Gradients that another one of this package takes as they arrive are not there for us."""
    ours = ("dtlab.parallel.data.data_parallel", __name__)
    for one in parameters:
        hooks = getattr(one, "_post_accumulate_grad_hooks", None) or {}
        if any(hook.__module__ in ours for hook in hooks.values()):
            raise ValueError(
                f"the gradient of a parameter of shape {tuple(one.shape)} is already taken by "
                "DataParallel or another Zero2. Give Zero2 the parameters of a plain module."
            )
