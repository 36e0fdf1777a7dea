"""ZeRO stage 3: each rank keeps 1/N of the parameters, gradients and optimizer state.

The module is cut into blocks. A block's parameters are gathered just before it computes, in
forward and again in backward, and freed after it; its gradients go to their owners by a
reduce-scatter. Of P parameters each rank sends 3P (N-1)/N elements in a step, where data
parallelism sends 2P (N-1)/N (Rajbhandari et al. 2020, "ZeRO", section 7.2.2).

`SimpleShardedLinear` shows this for one layer. `NaiveZero3` does it for any module, and waits for
each collective. `Zero3` lets them travel while blocks compute (Zhao et al.
2023, "PyTorch FSDP", section 3.3):

    forward     compute   root  block 0       block 1       block 2
                gather       └─ 1 ─┘     └─ 2 ─┘

    backward    compute                 block 2       block 1       block 0
                gather                     └─ 1 ─┘       └─ 0 ─┘
                reduce-scatter                           └─ 2 ─┘       └─ 1 ─┘

    model = Zero3(GPT())
    optimizer = torch.optim.Adam(model.parameters())      # over this rank's pieces
    loss = loss_of(model(tokens))
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_map

from dtlab.parallel.zero.sharded_block import FlatShard, ShardedBlock
from dtlab.parallel.zero.sharded_module import ShardedModule
from dtlab.parallel.zero.shards import Collective
from dtlab.parallel.zero.wrap_policy import Blocks

__all__ = [
    "CallOrder",
    "NaiveZero3",
    "SimpleShardedLinear",
    "Zero3",
    "cast",
    "in_backward",
    "is_recomputing",
    "on_gradient",
    "tensors_in",
]


class SimpleShardedLinear(torch.autograd.Function):
    """Stage 3 in its simplest form: y = x @ weight.T, where each rank keeps 1/N of the rows.

        y = SimpleShardedLinear.apply(x, shard)      # shard: this rank's rows, a parameter

    The weight is gathered, used and freed: once in forward, and once more in backward. The
    gradient of the weight goes to the owners of its rows by a reduce-scatter, as the mean of all
    ranks'.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Tensor) -> Tensor:
        """x [rows, in] and this rank's shard [out / N, in] to y [rows, out]."""
        ctx.save_for_backward(x, shard)
        weight = _gather_rows(shard)
        return x @ weight.T  # on return, nobody holds `weight` any more

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of x and of the shard."""
        x, shard = ctx.saved_tensors
        (dy,) = gradients
        of_weight, of_shard = dy.T @ x, torch.empty_like(shard)
        dist.reduce_scatter_tensor(of_shard, of_weight)
        return dy @ _gather_rows(shard), of_shard / dist.get_world_size()


def _gather_rows(shard: Tensor) -> Tensor:
    rows, columns = shard.shape
    weight = shard.new_empty(rows * dist.get_world_size(), columns)
    dist.all_gather_into_tensor(weight, shard)
    return weight


# Any module, block by block ----------------------------------------------------------------------


class NaiveZero3(ShardedModule):
    """Stage 3 of a module, block by block: gather, use, free; reduce once a block is through.

    For modules in which every parameter is trained, and used by one call of its block in each
    forward pass. Arguments as of `Zero3`.
    """

    def __init__(
        self, module: nn.Module, group: ProcessGroup | None = None, *, blocks: Blocks = None
    ) -> None:
        super().__init__(module, group, blocks)
        for block in self.blocks:
            block.module.register_forward_pre_hook(partial(self._before_forward, block))
            block.module.register_forward_hook(partial(self._after_forward, block))
            for shard, index, whole in block.trained_parameters():
                on_gradient(whole, partial(self._arrived, block, shard, index))

    def _before_forward(self, block: ShardedBlock, *_: Any) -> None:
        block.gather()

    def _after_forward(self, block: ShardedBlock, module: nn.Module, _: Any, output: Any) -> None:
        block.free()
        for tensor in tensors_in(output):
            if tensor.requires_grad:  # the gradient of its output is what backward begins with
                tensor.register_hook(lambda _: block.gather())  # type: ignore[no-untyped-call]

    def _arrived(self, block: ShardedBlock, shard: FlatShard, index: int, _: Tensor) -> None:
        shard.take(index)
        if all(one.all_arrived for one in block.trained):
            block.free()  # whose gradient is complete is not needed any more
            block.start_reduce()
            block.finish_reduce()


class Zero3(ShardedModule):
    """Fully sharded data parallelism: gathers ahead, and reduces beside backward.

    Used as the module itself, in the plain loop, as PyTorch's `fully_shard` is. `parameters()` are
    this rank's pieces, one for each parameter of the module, under its name: flat, and empty where
    another rank has all of it. They are the parameter objects that the module had, so groups
    made before wrapping, by shape for example, and groups made after, by name, both hold. After
    `backward` each has the mean gradient over all ranks of `group`.

    Every rank has to call the same blocks in the same order. A parameter that some ranks do not
    use counts as zero there; one that nobody uses gets no gradient. Buffers are each rank's own.

    Args:
        module: its parameters and buffers become those of the group's first rank. What is frozen
            now (`requires_grad_(False)`) stays so.
        group: the ranks that share parameters and batch; None: all.
        blocks: a class of modules, a function that says whether a module is a block, or a list of
            submodules. None: the siblings that leave the least to gather at once, as the elements
            of a `ModuleList` of layers. The module itself takes the rest. []: all at once.
        dtype: of parameters while they compute, and of floating-point inputs of the module; None:
            their own. Shards keep theirs, usually fp32.
        reduce_dtype: of gradients on their way; None: as they were computed.
        reshard_after_forward: whether blocks are freed between forward and backward, and travel
            three times. False: they stay, and travel twice. None: only the root stays.
        prefetch: blocks that are gathered ahead of the one that computes.
        all_gather, reduce_scatter: see `Transport`; `dtlab.collectives` has rings.

    Raises:
        ValueError: no parameter needs a gradient, parameters without memory (device meta), or
            blocks that are no submodules.
        RuntimeError: where the module is moved or frozen once it is wrapped.
        TypeError: in backward, for a sparse gradient; in `step` of an optimizer that does not work
            element by element.
    """

    def __init__(
        self,
        module: nn.Module,
        group: ProcessGroup | None = None,
        *,
        blocks: Blocks = None,
        dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        reshard_after_forward: bool | None = True,
        prefetch: int = 1,
        all_gather: Collective | None = None,
        reduce_scatter: Collective | None = None,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch={prefetch}: give the number of blocks ahead, 0 or more.")
        super().__init__(module, group, blocks, dtype, reduce_dtype, all_gather, reduce_scatter)
        self.reshard_after_forward, self.prefetch, self._dtype = (
            reshard_after_forward, prefetch, dtype,
        )  # fmt: skip
        self._averages = True  # not inside `no_sync`
        self._in_forward = False  # of the root
        self._task = -1  # the backward pass that is going on, as autograd numbers them
        self._order = CallOrder([one for one in self.blocks if one.is_leaf])
        self._calls: dict[ShardedBlock, _Use] = {}  # forward passes that are going on
        self._uses: dict[ShardedBlock, WeakSet[_Use]] = {one: WeakSet() for one in self.blocks}
        self._open: dict[ShardedBlock, set[_Use]] = {}  # whose backward is going on
        self._owing: dict[ShardedBlock, None] = {}  # whose gradients have not been sent yet
        self._sending: list[ShardedBlock] = []
        for block in self.blocks:
            self._register(block)

    def _register(self, block: ShardedBlock) -> None:
        before, after = partial(self._before_forward, block), partial(self._after_forward, block)
        block.module.register_forward_pre_hook(before, with_kwargs=True)
        block.module.register_forward_hook(after, always_call=True)  # after an exception too
        for shard, index, whole in block.trained_parameters():
            on_gradient(whole, partial(_take, shard, index))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside it leave their gradients on this rank, whole, where they add up.

        The first backward after it reduces the sum. That saves reduce-scatters, and no gather:
        k microbatches send (2k + 1)P (N-1)/N elements instead of 3kP (N-1)/N, and each rank keeps
        the gradients of all P parameters meanwhile.
        """
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before

    # ------------------------------------------------------------------ forward

    def _before_forward(
        self, block: ShardedBlock, module: nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        first_time = not in_backward()  # and not a checkpointed part that is computed once more
        if block is self.root and first_time:
            self._begin_forward()
        if block is self.root and self._dtype is not None:
            args, kwargs = tree_map(partial(cast, self._dtype), (args, kwargs))
        block.start_gather()
        if self._in_forward and first_time:
            self._order.called(block)
            self._gather_ahead(self.prefetch)
        block.gather()
        if torch.is_grad_enabled() and not is_recomputing():
            use = self._calls[block] = _Use()
            self._uses[block].add(use)
            inputs = [one for one in tensors_in((args, kwargs)) if one.requires_grad]
            if inputs:
                through = partial(self._after_backward, block, use)
                use.handle = register_multi_grad_hook(inputs, through)
        return args, kwargs

    def _after_forward(self, block: ShardedBlock, module: nn.Module, _: Any, output: Any) -> None:
        if is_recomputing():
            return  # its backward comes next
        block.hide()
        if not in_backward():
            if self._is_freed_after_forward(block):
                block.free()
            if block is self.root:
                self._end_forward()
        use = self._calls.pop(block, None)
        outputs = [one for one in tensors_in(output) if one.requires_grad]
        if use and outputs:
            before = partial(self._before_backward, block, use)
            register_multi_grad_hook(outputs, before, mode="any")

    def _begin_forward(self) -> None:
        """Free what is left of a pass that was broken off: it may be older than the last step."""
        for block in self.blocks:
            block.check_frozen()
            if self._task != -1:  # in backward
                block.drop_gradients()
                self._uses[block].clear()
        self._reset()
        self._in_forward = True
        self._order.begin()

    def _end_forward(self) -> None:
        for block in self.blocks:  # gathered ahead, and not called
            if self._is_freed_after_forward(block) or not self._order.was_called(block):
                block.free()
        self._in_forward = False
        self._order.learn()

    def _is_freed_after_forward(self, block: ShardedBlock) -> bool:
        stays = self.reshard_after_forward is False
        stays |= self.reshard_after_forward is None and block is self.root
        return not (stays and torch.is_grad_enabled())

    def _gather_ahead(self, count: int) -> None:
        for block in self._order.next(count):
            block.start_gather()

    # ------------------------------------------------------------------ backward

    def _before_backward(self, block: ShardedBlock, use: _Use, _: Any) -> None:
        """The gradient of one of its outputs is there."""
        if self._task == -1:
            self._task = torch._C._current_graph_task_id()
            Variable._execution_engine.queue_callback(self._end_backward)
            self._order.turn_round()
        block.start_gather()
        self._open.setdefault(block, set()).add(use)
        self._owing[block] = None
        self._order.called(block)
        self._gather_ahead_in_backward()
        block.gather()

    def _after_backward(self, block: ShardedBlock, use: _Use, _: Any) -> None:
        """The gradients of all its inputs are there."""
        use.handle.remove()
        self._uses[block].discard(use)
        if block not in self._open:
            return  # its outputs were not a part of the loss
        self._open[block].discard(use)
        if not self._open[block]:
            del self._open[block]
            block.free()
        if not self._uses[block]:
            self._send(block)
        self._gather_ahead_in_backward()

    def _gather_ahead_in_backward(self) -> None:
        """Not while the one before is still there: that would be one block too many."""
        leaves = sum(block.is_leaf for block in self._open)
        self._gather_ahead(self.prefetch + 1 - max(1, leaves))

    def _send(self, block: ShardedBlock) -> None:
        """One at a time is on its way: each needs memory."""
        del self._owing[block]
        if self._averages:
            while self._sending:
                self._sending.pop().finish_reduce()
            block.start_reduce()
            self._sending.append(block)

    def _end_backward(self) -> None:
        for block in reversed(self.blocks):  # all ranks in this order
            self._uses[block] -= self._open.get(block, set())
            if block.has_arrived:  # late, or in `no_sync`
                self._owing[block] = None
            if block in self._owing:
                self._send(block)
        for block in self._sending:
            block.finish_reduce()
        self._reset()

    def _reset(self) -> None:
        for block in self.blocks:
            block.free()
        self._open.clear()
        self._owing.clear()
        self._sending.clear()
        self._calls.clear()
        self._task = -1


class _Use:
    """One call of a block in a forward pass; it lives as long as the graph that it is part of."""

    handle: Any = None


def _take(shard: FlatShard, index: int, _: Tensor) -> None:
    shard.take(index)


# The order in which blocks are called: what to gather next is learned from the pass before -------


class CallOrder:
    """Blocks in the order of their calls, read forwards and then backwards.

    Until a first pass has shown the order, it is that of registration. A wrong guess costs a
    gather that nobody needed. All ranks call the same blocks, so all guess the same.
    """

    def __init__(self, blocks: Sequence[ShardedBlock]) -> None:
        self._order = list(blocks)
        self._seen: list[ShardedBlock] = []
        self._at, self._step = -1, 1  # place of the last call, and where the next one is

    def begin(self) -> None:
        """A forward pass begins."""
        self._seen, self._at, self._step = [], -1, 1

    def learn(self) -> None:
        """It is over."""
        self._order = self._seen or self._order

    def turn_round(self) -> None:
        """A backward pass begins."""
        self._at, self._step = len(self._order), -1

    def called(self, block: ShardedBlock) -> None:
        """Move on to the next call of this block, wherever that is."""
        if not block.is_leaf:
            return
        if self._step > 0:
            self._seen.append(block)
        places = range(self._at + 1, len(self._order)) if self._step > 0 else range(self._at)[::-1]
        self._at = next((n for n in places if self._order[n] is block), self._at)

    def was_called(self, block: ShardedBlock) -> bool:
        """In this forward pass; blocks with others inside always count as called."""
        return not block.is_leaf or block in self._seen

    def next(self, count: int) -> list[ShardedBlock]:
        """The blocks that should come next."""
        places = [self._at + self._step * (1 + n) for n in range(count)]
        return [self._order[n] for n in places if 0 <= n < len(self._order)]


# Small questions that hooks of modules and of autograd ask ---------------------------------------


def in_backward() -> bool:
    """Whether autograd is at work on this thread."""
    return torch._C._current_graph_task_id() != -1


def is_recomputing() -> bool:
    """Whether a checkpoint computes its part again, for tensors that it has not saved.

    One with use_reentrant=True does not count: to autograd that is a forward pass like any other.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return in_backward() and hooks is not None


def cast(dtype: torch.dtype, one: Any) -> Any:
    """Floating-point tensors in this dtype; anything else as it is."""
    is_float = isinstance(one, Tensor) and one.is_floating_point()
    return one.to(dtype) if is_float else one


def on_gradient(parameter: Tensor, do: Callable[[Tensor], None]) -> None:
    """Once the gradient of a parameter is in `.grad`, all uses of it added up."""
    parameter.register_post_accumulate_grad_hook(do)  # type: ignore[no-untyped-call]


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """All tensors in what a module takes or returns; containers and dataclasses are opened."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        yield from tensors_in(list(thing.values()))
    elif isinstance(thing, (list, tuple, set)):
        for one in thing:
            yield from tensors_in(one)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        yield from tensors_in([getattr(thing, one.name) for one in dataclasses.fields(thing)])
