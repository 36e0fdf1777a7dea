"""A bucket of ZeRO stages 1 and 2: all values of some parameters, a shard of everything else.

    values         [ a a a | a b b | b c . ]    every rank has all: a, b and c are views
    the shard              | a b b |            stepped by its owner, who keeps optimizer state
    stepped as             [ a b b ]            one tensor, while its parameters are used alike;
                           [ a ][b b]           else one for each that has a part in it

Gradients have the same places, for as long as it takes to bring them to the owners.
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

    Once all gradients are there they go to the owners in a flat tensor, and are freed. `gradient`
    is what arrives here: the mean over ranks, added up over backward passes.

    Args:
        numbers: of the parameters, counted through all groups.
        master_dtype: in which the shard is stepped, if it is wider than that of the parameters.
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
        self._pointers = [one.data_ptr() for one in self.parameters]
        self.shard = self.layout.shard(self.flat, transport.rank)
        wider = master_dtype is not None and master_dtype.itemsize > self.flat.itemsize
        self.master = self.shard.to(master_dtype) if wider else self.shard
        self.pieces = self.layout.pieces(transport.rank)
        self.runs = [self.pieces] if self.pieces else []  # the pieces of each segment
        self.segments = self._made_segments()
        self.gradient: Tensor | None = None
        self.used: set[int] = set()  # places of parameters that have had a gradient
        self.is_sent = False  # in the pass that is going on
        self._arrived: set[int] = set()  # places of those in this pass
        self._arriving: tuple[Tensor, Wait, Tensor] | None = None  # what is sent stays until then

    def parts(self, shard: Tensor) -> list[Tensor]:
        """The parameters' elements in a shard, as views; without padding."""
        return [shard.narrow(0, one.offset, one.stop - one.start) for one in self.pieces]

    # ------------------------------------------------------------------ segments

    def _made_segments(self) -> list[nn.Parameter]:
        parts = iter(self.parts(self.master))
        ends = [[next(parts) for _ in run] for run in self.runs]
        lengths = [sum(map(len, each)) for each in ends]
        begins = [run[0].offset for run in self.runs]
        return [
            nn.Parameter(self.master.narrow(0, begin, length))
            for begin, length in zip(begins, lengths, strict=True)
        ]

    def states(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """An optimizer's state of each piece: its elements as views, and the rest as it is."""
        found = []
        for run, segment in zip(self.runs, self.segments, strict=True):
            state = optimizer.state.get(segment, {})
            for piece in run:
                begin = piece.offset - run[0].offset
                cut = slice(begin, begin + piece.stop - piece.start)
                found.append({
                    key: value[cut]
                    if isinstance(value, Tensor) and value.shape == segment.shape
                    else value
                    for key, value in state.items()
                })  # fmt: skip
        return found

    def split(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on step each parameter by itself: some are used where others are not."""
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
            places = [n for n, one in enumerate(group["params"]) if one is old]
            for place in places:
                group["params"][place : place + 1] = self.segments

    # ------------------------------------------------------------------ gradients to their owners

    @property
    def full(self) -> bool:
        """Whether the gradients of all parameters are waiting to be sent."""
        return len(self._arrived) == len(self.parameters) and not self.is_sent

    def arrives(self, place: int) -> None:
        """A gradient is in `.grad`, and waits there for those of the other parameters."""
        self._arrived.add(place)

    def send(self) -> None:
        """Start to reduce the gradients to their owners, and free them; what is missing is 0."""
        flat = self.layout.empty()
        parts = [self._taken(place) for place in range(len(self.parameters))]
        torch.cat(parts, out=flat[: self.layout.num_elements])
        del parts
        flat *= 1 / self.transport.world_size
        arriving = flat.new_empty(self.layout.shard_size)
        self.is_sent = True
        self._arriving = arriving, self.transport.reduce_scatter(flat, arriving), flat

    def _taken(self, place: int) -> Tensor:
        parameter = self.parameters[place]
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return self.flat.new_zeros(parameter.numel())
        if gradient.is_sparse:
            raise TypeError(
                f"a gradient of shape {tuple(gradient.shape)} is sparse, and shards are not. "
                "Make the embedding with sparse=False, or leave it to a parameter server."
            )
        self.used.add(place)
        return in_memory_order(gradient, parameter)

    def receive(self) -> None:
        """Wait for what was sent, add this rank's share of it to `gradient`, and free the rest."""
        if self._arriving is None:
            return
        arriving, wait, _ = self._arriving
        wait()
        self.gradient = arriving if self.gradient is None else self.gradient.add_(arriving)
        self._forget_sent()

    def drop(self) -> None:
        """Forget all gradients."""
        if self._arriving is not None:
            self._arriving[1]()
        self._forget_sent()
        self.gradient, self.is_sent = None, False
        self.used.clear()

    def _forget_sent(self) -> None:
        self._arriving = None
        self._arrived.clear()

    # ------------------------------------------------------------------ the step

    def hand_reduced(self, used: Sequence[int], optimizer: torch.optim.Optimizer) -> None:
        """Give the segments the reduced gradient; none where no rank has used the parameter."""
        assert self.gradient is not None
        if len({bool(used[piece.index]) for piece in self.pieces}) > 1:
            self.split(optimizer)
        for run, segment in zip(self.runs, self.segments, strict=True):
            part = self.gradient.narrow(0, run[0].offset, len(segment))
            segment.grad = part.to(segment.dtype) if used[run[0].index] else None

    def hand_averaged(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the segments their parts of gradients that are whole and averaged already."""
        gradients = [self.parameters[piece.index].grad for piece in self.pieces]
        if len({one is None for one in gradients}) > 1:
            self.split(optimizer)
        left = iter(gradients)
        for run, segment in zip(self.runs, self.segments, strict=True):
            parts = [
                in_memory_order(one, self.parameters[piece.index])[piece.start : piece.stop]
                for piece, one in [(piece, next(left)) for piece in run]
                if one is not None
            ]
            whole = torch.cat(parts) if len(parts) > 1 else parts[0] if parts else None
            segment.grad = None if whole is None else whole.to(segment.dtype)

    def check_place(self) -> None:
        """Raises RuntimeError where a parameter's memory is not the flat tensor's any more."""
        for parameter, pointer in zip(self.parameters, self._pointers, strict=True):
            if parameter.data_ptr() != pointer:
                raise RuntimeError(
                    f"a parameter of shape {tuple(parameter.shape)} has moved to other memory "
                    "since the optimizer was made, as model.to(...) or model.double() do. Move "
                    "the model first, then make the optimizer."
                )

    def refresh_master(self) -> None:
        """Take over parameters that someone has changed, as `model.load_state_dict` does."""
        if self.master is not self.shard:
            same = self.master.to(self.shard.dtype) == self.shard
            self.master.copy_(torch.where(same, self.master, self.shard.to(self.master.dtype)))

    def take_stepped(self) -> None:
        """After the step: its results become this rank's shard of the values."""
        for segment in self.segments:
            segment.grad = None
        if self.master is not self.shard:
            self.shard.copy_(self.master)
