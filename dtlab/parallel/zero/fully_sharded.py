"""ZeRO stage 3: each of N ranks keeps 1/N of the parameters, gradients and optimizer state.

The module is cut into blocks. The parameters of a block are gathered just before it computes, in
forward and again in backward, and freed after that. A reduce-scatter sends its gradients to their
owners. For Psi parameters each rank sends 3 Psi (N-1)/N elements per step, while data parallelism
sends 2 Psi (N-1)/N (Rajbhandari et al. 2020, "ZeRO", section 7.2.2).

`ShardedLinear` in `dtlab/simple.py` is one layer. `NaiveZero3` does it for any module with hooks,
and waits for each collective. `Zero3` overlaps: while a block computes, the next block is gathered
and the gradients of the previous block are reduced (Zhao et al. 2023, "PyTorch FSDP", section
3.3). `sharded_block.py` gathers and frees a block; `sharded_module.py` cuts a module into blocks.
Each number is the block that a collective gathers or reduces; the first gathers of a pass are left
out:

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
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed import ProcessGroup

from dtlab.parallel.zero.sharded_block import FlatShard, ShardedBlock
from dtlab.parallel.zero.sharded_module import ShardedModule
from dtlab.parallel.zero.shards import Collective
from dtlab.parallel.zero.wrap_policy import Blocks
from dtlab.torch_internals import (
    after_backward,
    backward_number,
    has_saved_tensors_hooks,
    tree_map,
)

__all__ = [
    "CallOrder",
    "NaiveZero3",
    "Zero3",
    "cast",
    "in_backward",
    "is_recomputing",
    "on_gradient",
    "tensors_in",
]


class NaiveZero3(ShardedModule):
    """ZeRO stage 3 of a module: gathers a block, computes, and frees it; reduces its gradients.

    Every parameter must be trained, and its block must be called exactly once in each forward
    pass. For the arguments see `Zero3`.
    """

    def __init__(
        self, module: nn.Module, group: ProcessGroup | None = None, *, blocks: Blocks = None
    ) -> None:
        super().__init__(module, group, blocks)
        for block in self.blocks:
            block.module.register_forward_pre_hook(partial(self._before_forward, block))
            block.module.register_forward_hook(partial(self._after_forward, block))
            for shard, index, whole in block.trained_parameters():
                on_gradient(whole, partial(self._after_gradient, block, shard, index))

    def _before_forward(self, block: ShardedBlock, *_: Any) -> None:
        block.gather()

    def _after_forward(self, block: ShardedBlock, module: nn.Module, _: Any, output: Any) -> None:
        block.free()  # the views that autograd saved are valid again after the next gather
        for tensor in tensors_in(output):
            if tensor.requires_grad:  # its gradient is ready just before the block's backward
                tensor.register_hook(lambda _: block.gather())  # type: ignore[no-untyped-call]

    def _after_gradient(self, block: ShardedBlock, shard: FlatShard, index: int, _: Any) -> None:
        shard.take_gradient(index)
        if all(each.all_arrived for each in block.trained):
            block.free()  # all gradients are computed, so backward does not need the block now
            block.start_reduce()
            block.finish_reduce()


class Zero3(ShardedModule):
    """Fully sharded data parallelism that gathers ahead and overlaps reduce-scatter with backward.

    Call it like the module itself, in the plain training loop, as with PyTorch's `fully_shard`.
    `parameters()` are this rank's pieces, one for each parameter of the module, under its name.
    A piece is one-dimensional, and empty if other ranks have the whole parameter. The pieces are
    the parameter objects of the original module, so parameter groups remain valid whether they
    were made before wrapping (for example by shape) or after it (by name). After `backward` each
    piece has the mean gradient over all ranks of `group`.

    Every rank must call the same blocks in the same order. A rank that does not use a parameter
    adds zeros to the mean. A parameter that no rank uses gets no gradient. Buffers are not
    synchronized.

    Args:
        module: its parameters and buffers become those of the group's first rank. A parameter
            that is frozen now (`requires_grad_(False)`) must stay frozen.
        group: the ranks that share parameters and batch; None: all.
        blocks: a class of modules, a predicate on modules, or a list of submodules. None: the
            siblings that minimize the memory gathered at once, such as the elements of a
            `ModuleList` of layers. The root block, which is the module itself, has the remaining
            parameters. []: only the root block.
        dtype: of parameters during computation, and of floating-point inputs of the module; None:
            their original dtype. Shards keep the original dtype, usually fp32.
        reduce_dtype: of gradients during reduce-scatter; None: the dtype they were computed in.
        reshard_after_forward: True: blocks are freed between forward and backward, so that a step
            has 3 collectives per block. False: blocks stay gathered, so that a step has 2. None:
            only the root block stays gathered.
        prefetch: number of blocks that are gathered ahead of the current block.
        all_gather, reduce_scatter: see `Transport` in shards.py; `dtlab.collectives` has rings.

    Raises:
        ValueError: no parameter needs a gradient, parameters are on the meta device, this rank is
            not in `group`, `prefetch` is below 0, or `blocks` matches no submodule, or contains a
            module that is not a submodule or is never called.
        RuntimeError: the module is moved, frozen or unfrozen after it was wrapped.
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
            raise ValueError(f"prefetch={prefetch} is below 0. Pass a number of blocks, or 0.")
        super().__init__(module, group, blocks, dtype, reduce_dtype, all_gather, reduce_scatter)
        self.reshard_after_forward, self.prefetch, self._dtype = (
            reshard_after_forward, prefetch, dtype,
        )  # fmt: skip
        self._sync_enabled = True  # False inside `no_sync`
        self._in_forward = False  # whether the root's forward is running
        self._backward_id = -1  # autograd's number of the running backward pass; -1: none
        self._call_order = CallOrder([block for block in self.blocks if block.is_leaf])
        # Each block's calls: in forward; whose backward has not ended; in backward.
        self._in_forward_call: dict[ShardedBlock, _Call] = {}
        self._awaiting_backward = {block: WeakSet[_Call]() for block in self.blocks}
        self._in_backward_call: dict[ShardedBlock, set[_Call]] = {}
        # Blocks in backward: first their gradients are unsent, then a reduce-scatter is running.
        self._unsent: dict[ShardedBlock, None] = {}  # used as an ordered set
        self._sending: list[ShardedBlock] = []
        for block in self.blocks:
            self._register(block)

    def _register(self, block: ShardedBlock) -> None:
        before, after = partial(self._before_forward, block), partial(self._after_forward, block)
        block.module.register_forward_pre_hook(before, with_kwargs=True)
        block.module.register_forward_hook(after, always_call=True)  # also after an exception
        for shard, index, whole in block.trained_parameters():
            on_gradient(whole, partial(_take_gradient, shard, index))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate whole gradients on this rank without reducing them.

        The first backward pass after the block reduces the sum. That saves reduce-scatters, but no
        gathers: k microbatches send (2k + 1) Psi (N-1)/N elements instead of 3k Psi (N-1)/N, and
        until that pass each rank keeps the gradients of all parameters.
        """
        before, self._sync_enabled = self._sync_enabled, False
        try:
            yield
        finally:
            self._sync_enabled = before

    # ------------------------------------------------------------------ forward

    def _before_forward(
        self, block: ShardedBlock, module: nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        first_time = not in_backward()  # False if a checkpoint recomputes the block
        if block is self.root and first_time:
            self._begin_forward()
        if block is self.root and self._dtype is not None:
            args, kwargs = tree_map(partial(cast, self._dtype), (args, kwargs))
        block.start_gather()
        if self._in_forward and first_time:
            self._call_order.called(block)
            self._gather_ahead(self.prefetch)
        block.gather()
        if torch.is_grad_enabled() and not is_recomputing():
            call = self._in_forward_call[block] = _Call()
            self._awaiting_backward[block].add(call)
            inputs = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad]
            if inputs:
                after = partial(self._after_backward, block, call)
                call.handle = register_multi_grad_hook(inputs, after)
        return args, kwargs

    def _after_forward(self, block: ShardedBlock, module: nn.Module, _: Any, output: Any) -> None:
        if is_recomputing():
            return  # keep the block: its backward follows immediately
        block.show_pieces()
        if not in_backward():
            if self._is_freed_after_forward(block):
                block.free()
            if block is self.root:
                self._end_forward()
        call = self._in_forward_call.pop(block, None)
        outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        if call and outputs:
            before = partial(self._before_backward, block, call)
            register_multi_grad_hook(outputs, before, mode="any")

    def _begin_forward(self) -> None:
        """Begin a forward pass; discard the state of an interrupted pass."""
        for block in self.blocks:
            block.check_frozen()
            if self._backward_id != -1:  # an exception interrupted the last backward pass
                block.drop_gradients()
                self._awaiting_backward[block].clear()
        self._reset()
        self._in_forward = True
        self._call_order.begin()

    def _end_forward(self) -> None:
        for block in self.blocks:  # also those that were gathered ahead but not called
            if self._is_freed_after_forward(block) or not self._call_order.was_called(block):
                block.free()
        self._in_forward = False
        self._call_order.end()

    def _is_freed_after_forward(self, block: ShardedBlock) -> bool:
        stays = self.reshard_after_forward is False
        stays |= self.reshard_after_forward is None and block is self.root
        return not (stays and torch.is_grad_enabled())

    def _gather_ahead(self, count: int) -> None:
        for block in self._call_order.next(count):
            block.start_gather()

    # ------------------------------------------------------------------ backward

    def _before_backward(self, block: ShardedBlock, call: _Call, _: Any) -> None:
        """Hook: the gradient of an output is ready, so this block's backward is next."""
        if self._backward_id == -1:
            self._backward_id = backward_number()
            after_backward(self._end_backward)
            self._call_order.reverse()
        block.start_gather()
        self._in_backward_call.setdefault(block, set()).add(call)
        self._unsent[block] = None
        self._call_order.called(block)
        self._gather_ahead_in_backward()
        block.gather()

    def _after_backward(self, block: ShardedBlock, call: _Call, _: Any) -> None:
        """Hook: the gradients of all inputs are ready, so this block's backward is done."""
        call.handle.remove()
        self._awaiting_backward[block].discard(call)
        if block not in self._in_backward_call:
            return  # its outputs were not a part of the loss
        self._in_backward_call[block].discard(call)
        if not self._in_backward_call[block]:
            del self._in_backward_call[block]
            block.free()
        if not self._awaiting_backward[block]:
            self._send(block)
        self._gather_ahead_in_backward()

    def _gather_ahead_in_backward(self) -> None:
        """Gather the next blocks, so that at most `prefetch` + 1 leaf blocks are in memory."""
        leaves = sum(block.is_leaf for block in self._in_backward_call)
        self._gather_ahead(self.prefetch + 1 - max(1, leaves))  # 0 leaves: between two blocks

    def _send(self, block: ShardedBlock) -> None:
        """Start to reduce the block's gradients after the previous reduce, to limit memory."""
        del self._unsent[block]
        if self._sync_enabled:
            while self._sending:
                self._sending.pop().finish_reduce()
            block.start_reduce()
            self._sending.append(block)

    def _end_backward(self) -> None:  # blocks whose inputs need no gradient end here
        for block in reversed(self.blocks):  # in the same order on all ranks
            self._awaiting_backward[block] -= self._in_backward_call.get(block, set())
            if block.has_arrived:  # since its reduce-scatter began, or in an earlier `no_sync`
                self._unsent[block] = None
            if block in self._unsent:
                self._send(block)
        for block in self._sending:
            block.finish_reduce()
        self._reset()

    def _reset(self) -> None:
        for block in self.blocks:
            block.free()
        self._in_backward_call.clear()
        self._unsent.clear()
        self._sending.clear()
        self._in_forward_call.clear()
        self._backward_id = -1


class _Call:
    """One call of a block; after forward, only hooks in its autograd graph keep it in memory."""

    handle: Any = None


def _take_gradient(shard: FlatShard, index: int, _: Tensor) -> None:
    shard.take_gradient(index)


# The order in which blocks are called, learned from the previous pass, to choose what to gather --


class CallOrder:
    """The order in which blocks are called, read forwards in forward and backwards in backward.

    Until the first pass is complete, the order of registration is used. A wrong guess costs one
    useless gather. All ranks call the same blocks, so all ranks make the same guesses.
    """

    def __init__(self, blocks: Sequence[ShardedBlock]) -> None:
        self._order = list(blocks)
        self._called: list[ShardedBlock] = []
        self._position, self._direction = -1, 1  # of the last call; 1 in forward, -1 in backward

    def begin(self) -> None:
        """Begin a forward pass."""
        self._called, self._position, self._direction = [], -1, 1

    def end(self) -> None:
        """End the forward pass; its order is the guess for the next one."""
        self._order = self._called or self._order

    def reverse(self) -> None:
        """Begin a backward pass: go through the order from its end."""
        self._position, self._direction = len(self._order), -1

    def called(self, block: ShardedBlock) -> None:
        """Advance to the next call of this block in the order."""
        if not block.is_leaf:
            return
        if self._direction > 0:
            self._called.append(block)
            places = range(self._position + 1, len(self._order))
        else:
            places = range(self._position)[::-1]
        self._position = next((n for n in places if self._order[n] is block), self._position)

    def was_called(self, block: ShardedBlock) -> bool:
        """Return whether the block was called in this pass; always True for non-leaf blocks."""
        return not block.is_leaf or block in self._called

    def next(self, count: int) -> list[ShardedBlock]:
        """Return the blocks that are expected next, up to `count`."""
        places = [self._position + self._direction * (1 + n) for n in range(count)]
        return [self._order[n] for n in places if 0 <= n < len(self._order)]


# Helpers for hooks of modules and of autograd ----------------------------------------------------


def in_backward() -> bool:
    """Return whether autograd is running a backward pass on this thread."""
    return backward_number() != -1


def is_recomputing() -> bool:
    """Return whether a checkpoint is recomputing tensors that it did not save.

    A checkpoint with use_reentrant=True does not count: autograd sees an ordinary forward pass.
    """
    # A checkpoint sets hooks on saved tensors while it recomputes.
    return in_backward() and has_saved_tensors_hooks()


def cast(dtype: torch.dtype, value: Any) -> Any:
    """Return a floating-point tensor in this dtype, and any other object unchanged."""
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def on_gradient(parameter: Tensor, do: Callable[[Tensor], None]) -> None:
    """Call `do` when `.grad` of a parameter is complete, that is, summed over all its uses."""
    parameter.register_post_accumulate_grad_hook(do)  # type: ignore[no-untyped-call]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in a module's arguments or output, inside containers and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple, set)):
        for element in value:
            yield from tensors_in(element)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in([getattr(value, field.name) for field in dataclasses.fields(value)])
