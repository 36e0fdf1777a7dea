"""A bucket of ZeRO stages 1 and 2: full parameters on every rank, sharded optimizer state.

    parameters     [ a a a | a b b | b c . ]    on every rank; a, b and c are views
    shard                  | a b b |            this rank's elements
    segments               [ a b b ]            what this rank's optimizer steps: one segment if
                                                all parameters in the shard are used together;
                           [ a ][b b]           otherwise one segment for each of them

Full gradients have the same layout, and are freed when they have been reduced. Each rank keeps the
reduced gradient of its shard.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.parallel.zero.shards import FlatLayout, Transport, Wait, in_memory_order

__all__ = ["ShardedBucket"]


class ShardedBucket:
    """Parameters of one dtype, device and parameter group, of which this rank steps a shard.

    `start_reduce` reduces all gradients, in a flat tensor, to the owners of the shards, and frees
    them. `gradient` is this rank's result: the mean over ranks, accumulated over backward passes.

    Args:
        numbers: the number of each parameter, counted over all parameter groups.
        master_dtype: dtype in which the shard is stepped, if wider than that of the parameters.
        same_start: whether all ranks begin with the first rank's parameters.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        numbers: Sequence[int],
        transport: Transport,
        master_dtype: torch.dtype | None,
        same_start: bool,
    ) -> None:
        self.parameters, self.numbers, self.transport = list(parameters), list(numbers), transport
        self.layout = FlatLayout(self.parameters, transport.world_size)
        self.flat = self.layout.pack(self.parameters)
        if same_start:
            dist.broadcast(self.flat, group=transport.group, group_src=0)
        for parameter, view in zip(self.parameters, self.layout.views(self.flat), strict=True):
            parameter.data = view
        self._pointers = [parameter.data_ptr() for parameter in self.parameters]
        self.shard = self.layout.shard(self.flat, transport.rank)
        wider = master_dtype is not None and master_dtype.itemsize > self.flat.itemsize
        self.master = self.shard.to(master_dtype) if wider else self.shard
        self.pieces = self.layout.pieces(transport.rank)  # parts of parameters in the shard
        self.runs = [self.pieces] if self.pieces else []  # the pieces of each segment
        self.segments = self._made_segments()
        self.gradient: Tensor | None = None
        self.used: set[int] = set()  # indices of parameters that have had a gradient
        self.reduce_started = False  # in the current backward pass; still True when it is complete
        self._arrived: set[int] = set()  # indices of gradients that arrived in this pass
        self._arriving: tuple[Tensor, Wait, Tensor] | None = None  # buffer, wait, sent tensor

    def parts(self, shard: Tensor) -> list[Tensor]:
        """Return each parameter's elements in a shard, as views, without padding."""
        return [shard.narrow(0, piece.offset, piece.stop - piece.start) for piece in self.pieces]

    # ------------------------------------------------------------------ segments

    def _made_segments(self) -> list[nn.Parameter]:
        parts = iter(self.parts(self.master))
        run_parts = [[next(parts) for _ in run] for run in self.runs]
        lengths = [sum(map(len, each)) for each in run_parts]
        begins = [run[0].offset for run in self.runs]
        return [
            nn.Parameter(self.master.narrow(0, begin, length))
            for begin, length in zip(begins, lengths, strict=True)
        ]

    def states(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """Return the optimizer state of each piece: its elements as views, other state as is."""
        states = []
        for run, segment in zip(self.runs, self.segments, strict=True):
            state = optimizer.state.get(segment, {})
            for piece in run:
                begin = piece.offset - run[0].offset
                cut = slice(begin, begin + piece.stop - piece.start)
                states.append({
                    key: value[cut]
                    if isinstance(value, Tensor) and value.shape == segment.shape
                    else value
                    for key, value in state.items()
                })  # fmt: skip
        return states

    def split(self, optimizer: torch.optim.Optimizer) -> None:
        """Step each parameter separately from now on: some are used without the others."""
        if len(self.runs) == len(self.pieces):
            return
        (old,), states = self.segments, self.states(optimizer)
        self.runs = [[piece] for piece in self.pieces]
        self.segments = self._made_segments()
        optimizer.state.pop(old, None)
        for segment, state in zip(self.segments, states, strict=True):
            if state:
                optimizer.state[segment] = copy.deepcopy(state)
        for group in optimizer.param_groups:
            places = [n for n, tensor in enumerate(group["params"]) if tensor is old]
            for place in places:
                group["params"][place : place + 1] = self.segments

    # ------------------------------------------------------------------ reducing gradients

    @property
    def full(self) -> bool:
        """Whether all gradients have arrived, and their reduction has not started."""
        return len(self._arrived) == len(self.parameters) and not self.reduce_started

    def mark_arrived(self, index: int) -> None:
        """Record that the gradient of the parameter at `index` is in `.grad`."""
        self._arrived.add(index)

    def start_reduce(self) -> None:
        """Start to reduce the gradients, and free them; a missing gradient counts as 0."""
        flat = self.layout.empty()
        parts = [self._take_gradient(index) for index in range(len(self.parameters))]
        torch.cat(parts, out=flat[: self.layout.num_elements])
        del parts
        flat *= 1 / self.transport.world_size
        arriving = flat.new_empty(self.layout.shard_size)
        self.reduce_started = True
        self._arriving = arriving, self.transport.reduce_scatter(flat, arriving), flat

    def _take_gradient(self, index: int) -> Tensor:
        parameter = self.parameters[index]
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return self.flat.new_zeros(parameter.numel())
        if gradient.is_sparse:
            raise TypeError(
                f"a gradient of shape {tuple(gradient.shape)} is sparse, but shards are dense. "
                "Make the embedding with sparse=False, or put it on a parameter server."
            )
        self.used.add(index)
        return in_memory_order(gradient, parameter)

    def finish_reduce(self) -> None:
        """Wait for the reduce-scatter, add its result to `gradient`, and free the buffers."""
        if self._arriving is None:
            return
        arriving, wait, _ = self._arriving
        wait()
        self.gradient = arriving if self.gradient is None else self.gradient.add_(arriving)
        self._clear_arrivals()

    def drop(self) -> None:
        """Discard all gradients."""
        if self._arriving is not None:
            self._arriving[1]()
        self._clear_arrivals()
        self.gradient, self.reduce_started = None, False
        self.used.clear()

    def _clear_arrivals(self) -> None:
        self._arriving = None
        self._arrived.clear()

    # ------------------------------------------------------------------ the step

    def set_reduced_gradients(self, used: Sequence[int], optimizer: torch.optim.Optimizer) -> None:
        """Set the segments' `.grad` to the reduced gradient; to None if no rank has one."""
        assert self.gradient is not None
        if len({bool(used[piece.index]) for piece in self.pieces}) > 1:
            self.split(optimizer)
        for run, segment in zip(self.runs, self.segments, strict=True):
            part = self.gradient.narrow(0, run[0].offset, len(segment))
            segment.grad = part.to(segment.dtype) if used[run[0].index] else None

    def set_averaged_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the segments' `.grad` to their parts of gradients that are already averaged."""
        gradients = [self.parameters[piece.index].grad for piece in self.pieces]
        if len({gradient is None for gradient in gradients}) > 1:
            self.split(optimizer)
        remaining = iter(gradients)
        for run, segment in zip(self.runs, self.segments, strict=True):
            parts = [
                in_memory_order(gradient, self.parameters[piece.index])[piece.start : piece.stop]
                for piece, gradient in [(piece, next(remaining)) for piece in run]
                if gradient is not None
            ]
            whole = torch.cat(parts) if len(parts) > 1 else parts[0] if parts else None
            segment.grad = None if whole is None else whole.to(segment.dtype)

    def check_not_moved(self) -> None:
        """Raise RuntimeError if a parameter is no longer a view of the flat tensor."""
        for parameter, pointer in zip(self.parameters, self._pointers, strict=True):
            if parameter.data_ptr() != pointer:
                raise RuntimeError(
                    f"a parameter of shape {tuple(parameter.shape)} has moved to other memory "
                    "since the optimizer was made, for example by model.to(...) or "
                    "model.double(). Call these before you make the optimizer."
                )

    def refresh_master(self) -> None:
        """Update master weights of parameters that `load_state_dict` or user code has changed."""
        if self.master is not self.shard:
            same = self.master.to(self.shard.dtype) == self.shard
            self.master.copy_(torch.where(same, self.master, self.shard.to(self.master.dtype)))

    def copy_segments_back(self) -> None:
        """Copy the stepped segments into this rank's shard of the parameters."""
        for segment in self.segments:
            segment.grad = None
        if self.master is not self.shard:
            self.shard.copy_(self.master)
