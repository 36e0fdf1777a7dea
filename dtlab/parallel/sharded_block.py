"""A block of a module: what is gathered before it computes, and freed after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from dtlab.parallel.flat_shard import FlatShard
from dtlab.parallel.shards import Transport
from dtlab.parallel.wrap_policy import Owned

__all__ = ["ShardedBlock"]


class ShardedBlock:
    """A module that gathers and frees together; its parameters sorted by kind.

    Attributes:
        module: the one whose call needs the parameters.
        shards: one `FlatShard` for each dtype and device, trained and frozen apart.
        index: its number; the root has 0.
        is_leaf: whether it has no other block inside; set by the module that has all blocks.
    """

    def __init__(
        self,
        index: int,
        module: nn.Module,
        owned: Sequence[Owned],
        transport: Transport,
        dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
    ) -> None:
        self.index, self.module = index, module
        self.is_leaf = index > 0
        kinds: dict[object, list[Owned]] = {}
        for one in owned:
            key = one.parameter.dtype, one.parameter.device, one.parameter.requires_grad
            kinds.setdefault(key, []).append(one)
        self.shards: list[FlatShard] = []
        self._places: list[tuple[nn.Module, str, nn.Parameter, nn.Parameter]] = []
        for same in kinds.values():
            parameters = [one.parameter for one in same]
            shard = FlatShard(parameters, transport, dtype, reduce_dtype)
            self.shards.append(shard)
            for one, whole in zip(same, shard.whole, strict=True):
                self._places += [(at, name, one.parameter, whole) for at, name in one.places]

    @property
    def trained(self) -> list[FlatShard]:
        """Those whose parameters need gradients."""
        return [one for one in self.shards if one.requires_grad]

    @property
    def is_gathered(self) -> bool:
        """Whether any of it has its storage, filled or being filled."""
        return any(one.is_gathered for one in self.shards)

    @property
    def has_arrived(self) -> bool:
        """Whether there are gradients that have not been sent."""
        return any(one.has_arrived for one in self.trained)

    def check_frozen(self) -> None:
        """Raise RuntimeError where somebody has frozen or thawed a piece since it was made."""
        for shard in self.shards:
            for one in shard.parameters:
                if one.requires_grad != shard.requires_grad:
                    raise RuntimeError(
                        f"requires_grad of a parameter in {type(self.module).__name__} has become "
                        f"{one.requires_grad}. Freeze parameters before the module is wrapped: "
                        "what is trained is gathered and reduced apart from what is not."
                    )

    def trained_parameters(self) -> Iterator[tuple[FlatShard, int, nn.Parameter]]:
        """Whole parameters that need gradients, each with its shard and its index there."""
        for shard in self.trained:
            for index, whole in enumerate(shard.whole):
                yield shard, index, whole

    def start_gather(self) -> None:
        """Without waiting."""
        for one in self.shards:
            one.start_gather()

    def gather(self) -> None:
        """Wait until all is there, and let the module see the whole parameters."""
        self.start_gather()
        for one in self.shards:
            one.finish_gather()
        for module, name, _, whole in self._places:
            _set(module, name, whole)

    def hide(self) -> None:
        """Let the module, and whoever asks it for its parameters, see the pieces."""
        for module, name, piece, _ in self._places:
            _set(module, name, piece)

    def free(self) -> None:
        """Hide, and give the storage back."""
        self.hide()
        for one in self.shards:
            one.free()

    def start_reduce(self) -> None:
        """Send gradients, without waiting."""
        for one in self.trained:
            one.start_reduce()

    def finish_reduce(self) -> None:
        """Wait until the pieces have their gradients."""
        for one in self.trained:
            one.finish_reduce()

    def drop_gradients(self) -> None:
        """Forget gradients that have not become those of pieces."""
        for one in self.trained:
            one.drop_gradients()


def _set(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    if type(module).__setattr__ is nn.Module.__setattr__:
        module._parameters[name] = parameter  # without its checks: this happens at every call
    else:
        setattr(module, name, parameter)
