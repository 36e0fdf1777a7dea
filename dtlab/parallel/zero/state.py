"""The format of saved ZeRO state, of all stages: saved by N ranks, loaded by M ranks.

    saved by 2 ranks      exp_avg[0:6]            exp_avg[6:12]
    loaded by 3 ranks     exp_avg[0:4]    exp_avg[4:8]    exp_avg[8:12]

A rank saves the elements of parameters that it has, and of optimizer state with one value per
element. Each tensor is `Held`: it knows the place of its elements in the whole tensor, counted in
memory order, and torch.distributed.checkpoint can write and read it (see `Checkpoints`). Other
state, such as a step count, is the same for all parts of a parameter, and is saved as it is. So
the format does not depend on blocks, buckets, padding or ranks.

`Division` says which elements this rank has, and converts between its own values, the saved form
and whole tensors. `Filling` copies what this rank needs from the states of any number of ranks.
`optimizer_state.py` uses both for ZeRO stages 1 and 2, `module_state.py` for stage 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.parallel.zero.shards import FlatLayout, Transport, in_memory_order
from dtlab.training.held import Held, Share

__all__ = ["Division", "Filling", "Key", "Span", "States", "span_of"]

Key = int | str  # a parameter, by its number in the optimizer or its name in the module
Span = tuple[int, int]  # start and stop of elements of a parameter, in memory order
States = dict[Key, dict[str, Any]]  # of parameters; the inner keys are those of an optimizer


class Division:
    """Which elements of which parameters this rank has.

    Attributes:
        layouts: flat tensors that the ranks share, each with the keys of its parameters.
        likes: for each parameter, a tensor on the meta device with its shape and memory layout.
        spans: this rank's elements of each parameter of which it has any.
    """

    def __init__(
        self, transport: Transport, layouts: Iterable[tuple[FlatLayout, Sequence[Key]]]
    ) -> None:
        self.transport, self.layouts = transport, list(layouts)
        self.likes: dict[Key, Tensor] = {}
        self.spans: dict[Key, Span] = {}
        self.devices: dict[Key, torch.device] = {}
        for layout, keys in self.layouts:
            self.likes |= zip(keys, layout.templates, strict=True)
            self.devices |= dict.fromkeys(keys, layout.device)
            for piece in layout.pieces(transport.rank):
                self.spans[keys[piece.index]] = piece.start, piece.stop

    @property
    def shapes(self) -> dict[Key, tuple[int, ...]]:
        """The shapes of the whole parameters."""
        return {key: tuple(like.shape) for key, like in self.likes.items()}

    # ------------------------------------------------------------------ this rank's part

    def held(self, key: Key, value: Any) -> Any:
        """Return a value of this rank's elements as `Held`, and any other value as it is."""
        if not self.covers(key, value):
            return value
        return Held(value, Share(0, self.likes[key].numel(), (self.spans[key],)))

    def held_states(self, states: Mapping[Key, Mapping[str, Any]]) -> States:
        """Return the saved form of this rank's states, without empty ones."""
        return {
            key: {name: self.held(key, value) for name, value in values.items()}
            for key, values in states.items()
            if values
        }

    def covers(self, key: Key, value: Any) -> bool:
        """Return whether a value has one number for each of this rank's elements."""
        start, stop = self.spans[key]
        return isinstance(value, Tensor) and value.shape == (stop - start,)

    # ------------------------------------------------------------------ whole tensors

    def cut(self, key: Key, name: str, whole: Any) -> Any:
        """Return this rank's elements of a whole tensor, and any other value as it is."""
        like = self.likes[key]
        by_element = isinstance(whole, Tensor) and whole.shape == like.shape
        if not by_element or (not like.ndim and name == "step"):
            return whole
        start, stop = self.spans[key]
        return in_memory_order(whole, like)[start:stop]

    def cut_states(self, wholes: Mapping[Any, Mapping[str, Any]]) -> States:
        """Return this rank's part of the states of whole parameters."""
        return {
            key: {name: self.cut(key, name, value) for name, value in wholes[key].items()}
            for key in self.spans
            if key in wholes
        }

    def gathered(
        self,
        layout: FlatLayout,
        keys: Sequence[Key],
        parts: Mapping[Key, Tensor],
        dtype: torch.dtype | None = None,
    ) -> Iterator[tuple[Key, Tensor]]:
        """Gather the parameters of one layout from the ranks' parts; a part that lacks is 0."""
        shard = torch.zeros(layout.shard_size, dtype=dtype or layout.dtype, device=layout.device)
        for piece in layout.pieces(self.transport.rank):
            if (part := parts.get(keys[piece.index])) is not None:
                shard[piece.offset : piece.offset + piece.stop - piece.start] = part
        for key, whole in zip(keys, self.transport.whole(layout, shard), strict=True):
            yield key, whole.clone()

    def whole_states(self, states: Mapping[Key, Mapping[str, Any]]) -> States:
        """Gather the states of whole parameters, on all ranks, from those of all ranks' parts."""
        described = self._described(states)
        wholes = {
            key: {name: v for name, v in values.items() if not isinstance(v, torch.dtype)}
            for key, values in described.items()
        }
        for layout, keys in self.layouts:
            for name, dtype in _to_gather(keys, described).items():
                parts = {key: states[key][name] for key in keys if name in states.get(key, {})}
                for key, whole in self.gathered(layout, keys, parts, dtype):
                    if isinstance(described.get(key, {}).get(name), torch.dtype):
                        wholes[key][name] = whole
        return wholes

    def _described(self, states: Mapping[Key, Mapping[str, Any]]) -> States:
        """Return the states of all ranks, with a dtype for each tensor that must be gathered.

        A rank has state only for parameters of which it has elements, so the ranks exchange these
        descriptions.
        """
        mine = {
            key: {n: v.dtype if self.covers(key, v) else v for n, v in values.items()}
            for key, values in states.items()
            if values
        }
        every: list[States] = [{} for _ in range(self.transport.world_size)]
        dist.all_gather_object(every, mine, group=self.transport.group)
        merged: Any = {}
        for each in every:
            for key, values in each.items():
                merged.setdefault(key, {}).update(values)
        return dict(sorted(merged.items()))  # in an order that does not depend on the layouts


def _to_gather(keys: Sequence[Key], described: States) -> dict[str, torch.dtype]:
    """Return what to gather, in the same order on all ranks because gathers are collective."""
    return {
        name: value
        for key in keys
        for name, value in sorted(described.get(key, {}).items())
        if isinstance(value, torch.dtype)
    }


# Loading the states of other ranks ---------------------------------------------------------------


class Filling:
    """This rank's part of a state, copied from the saved parts of any number of ranks.

    `states` is the result, complete once `refuse_gaps` has returned. Tensors that are in it at the
    start are filled in place.
    """

    def __init__(self, division: Division, states: States | None = None) -> None:
        self.division, self.states = division, states or {}
        self._found: dict[Key, list[Span]] = {}

    def check(self, saved: Mapping[Key, Sequence[int]]) -> None:
        """Raise ValueError unless this model has all saved parameters, with the saved shapes."""
        shapes = self.division.shapes
        for key, shape in saved.items():
            if key not in shapes:
                raise ValueError(f"the saved state has {_named(key)}, which is not in this model.")
            if tuple(shape) != shapes[key]:
                raise ValueError(
                    f"{_named(key)} has the shape {shapes[key]} in this model, but {tuple(shape)} "
                    "in the saved state."
                )

    def take(self, spans: Mapping[Key, Span], states: Mapping[Key, Mapping[str, Any]]) -> None:
        """Copy what this rank needs from a part that has these elements of parameters."""
        for key in spans.keys() & self.division.spans.keys():
            self._found.setdefault(key, []).append(spans[key])
        for key in states.keys() & self.division.spans.keys():
            start, stop = self.division.spans[key]
            state = self.states.setdefault(key, {})
            for name, value in states[key].items():
                if not isinstance(value, Held):
                    state.setdefault(name, value)
                    continue
                if name not in state:
                    place = torch.zeros(stop - start, dtype=value.dtype)
                    state[name] = place.to(self.division.devices[key])
                _copy_overlap(value, state[name], (start, stop))

    def refuse_gaps(self) -> None:
        """Raise ValueError if no part had some of the elements that this rank needs."""
        missing = {
            key: count
            for key, span in self.division.spans.items()
            if (count := _uncovered(span, self._found.get(key, [])))
        }
        if missing:
            key, count = next(iter(missing.items()))
            others = len(missing) - 1
            more = f", and elements of other parameters ({others})" if others else ""
            raise ValueError(
                f"the saved state lacks {count} elements of {_named(key)} that this rank "
                f"needs{more}. Pass the states of all ranks."
            )


def span_of(held: Held) -> Span:
    """Return the place of a part's elements in the whole parameter."""
    ((offset, chunk),) = held.chunks.items()
    return offset[0], offset[0] + len(chunk)


def _named(key: Key) -> str:
    return key if isinstance(key, str) else f"parameter {key}"


def _copy_overlap(held: Held, into: Tensor, span: Span) -> None:
    """Copy the elements that a part and `into`, which has those of `span`, have in common."""
    start, stop = span_of(held)
    first, last = max(start, span[0]), min(stop, span[1])
    if first < last:
        into[first - span[0] : last - span[0]].copy_(held.local[first - start : last - start])


def _uncovered(span: Span, found: Iterable[Span]) -> int:
    """Return how many elements of a span are in none of the spans that were found."""
    (at, stop), count = span, 0
    for begin, end in sorted(found):
        count += max(0, min(begin, stop) - at)
        at = max(at, end)
    return count + max(0, stop - at)
