"""State dicts and gradient norms of modules with both divided and replicated parameters.

                      rank 0    rank 1     dense state        squared norm of the gradients
divided: weights      w w . .   . . w w    w w w w  gathered  summed over ranks
replicated: biases    b b       b b        b b      copied    counted once
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.parallel.tensor.linear import ShardedLayer, Split
from dtlab.parallel.tensor.regions import start_gather
from dtlab.training.metrics import device_of

__all__ = ["clip_grad_norm_", "full_state_dict", "gathered", "load_full_state_dict", "take_shards"]

AnyModule = TypeVar("AnyModule", bound=nn.Module)
State = dict[str, Any]


# Dense states --------------------------------------------------------------------------------


def full_state_dict(module: nn.Module) -> State:
    """Return a copy of the dense module's `state_dict`, on every rank.

    Call this on all ranks of the group; divided tensors are gathered one by one. A tensor with two
    names, such as a tied embedding, is also one tensor with two names in the result.
    """
    shards, state, done = _shards(module), module.state_dict(), dict[int, Tensor]()
    for name, tensor in state.items():
        if isinstance(tensor, Tensor):
            key = _key(tensor)
            if key not in done:
                shard = shards.get(key)
                done[key] = gathered(tensor, *shard) if shard else tensor.detach().clone()
            state[name] = done[key]
    return state


def load_full_state_dict(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state that `full_state_dict` returned, or the `state_dict` of the dense module.

    The number of ranks may differ from the number that saved the state. Each rank takes its part
    of the dense tensors, without communication.
    Raises: ValueError if the divided dim of a tensor has the wrong size; RuntimeError for missing
    or unknown names, and for any other wrong shape.
    """
    shards, current = _shards(module), module.state_dict()
    parts = dict(state)
    for name, tensor in current.items():
        shard = shards.get(_key(tensor)) if isinstance(tensor, Tensor) else None
        if shard and name in state:
            layer, split = shard
            try:
                parts[name] = split.part(state[name], layer.rank, layer.ranks)
            except ValueError as error:
                raise ValueError(f"{name}: {error} Pass the state of the dense module.") from None
    module.load_state_dict(parts)


def take_shards(module: AnyModule, dense: nn.Module) -> AnyModule:
    """Copy this rank's part of each parameter of a dense module with the same names.

    `requires_grad` is copied too. Returns the module. Raises: ValueError if the names of
    parameters differ.
    """
    present, expected = (
        {name for name, _ in each.named_parameters(remove_duplicate=False)}
        for each in (module, dense)
    )
    if present != expected:
        raise ValueError(
            f"{type(module).__name__} has the parameters {sorted(present)}, but the dense "
            f"{type(dense).__name__} has {sorted(expected)}. Pass a dense module with the same "
            "parameters."
        )
    for prefix in {name.rpartition(".")[0] for name in present}:
        part, whole = module.get_submodule(prefix), dense.get_submodule(prefix)
        if isinstance(part, ShardedLayer):
            part.load_part_of(whole)
            continue
        for name, parameter in whole.named_parameters(recurse=False):
            copy = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            part.register_parameter(name, copy)
    return module.train(dense.training)


def _shards(module: nn.Module) -> dict[int, tuple[ShardedLayer, Split]]:
    """Return the layer and the split of each divided parameter, by the address of its data.

    Names cannot be keys, because wrappers change them.
    """
    shards = {}
    for layer in module.modules():
        if isinstance(layer, ShardedLayer):
            for name, split in layer.splits.items():
                shards[_key(layer.get_parameter(name))] = layer, split
    return shards


def _key(tensor: Tensor) -> int:
    return tensor.data_ptr()


def gathered(shard: Tensor, layer: ShardedLayer, split: Split) -> Tensor:
    """Gather a dense tensor from the shards of all ranks in the layer's group."""
    lengths = [split.length(rank, layer.ranks) for rank in range(layer.ranks)]
    ends = start_gather(shard.detach(), split.dim, layer.group, split.size)()
    return split.whole(torch.split(ends, lengths, split.dim))


# The norm ------------------------------------------------------------------------------------


@torch.no_grad()
def clip_grad_norm_(module: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale gradients so that the norm of the dense module's gradients is at most `max_norm`.

    `torch.nn.utils.clip_grad_norm_` would compute the norm of one rank's shards, so ranks would
    scale by different factors. Returns the norm before scaling, on every rank. Communication is
    one all-reduce of one number. Raises: ValueError if no layer of the module is divided among
    ranks, or layers have different groups.
    """
    layers = [each for each in module.modules() if isinstance(each, ShardedLayer)]
    if len({id(layer.group) for layer in layers}) != 1:
        problem = "layers have different groups" if layers else "no layer is divided among ranks"
        raise ValueError(
            f"clip_grad_norm_: {problem}. Pass a module whose parallel layers have one group."
        )
    first, shards = layers[0], _shards(module)
    gradients = {_key(p): p.grad for p in module.parameters() if p.grad is not None}
    # Rank 0 alone counts replicated tensors, so all ranks get the same sum, to the last bit.
    counted = [g for key, g in gradients.items() if key in shards or first.rank == 0]
    total = _norm_over_ranks(counted, norm_type, first)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients.values():
        gradient.mul_(scale.to(gradient.device))
    return total.float()


def _norm_over_ranks(tensors: list[Tensor], norm_type: float, layer: ShardedLayer) -> Tensor:
    device = tensors[0].device if tensors else device_of(layer.group)
    norms = torch.zeros(len(tensors) + 1, dtype=torch.float64, device=device)
    for place, tensor in enumerate(tensors):
        wide = torch.promote_types(tensor.dtype, torch.float32)
        norms[place] = torch.linalg.vector_norm(tensor, norm_type, dtype=wide)
    if norm_type == float("inf"):
        total = norms.max()
        dist.all_reduce(total, dist.ReduceOp.MAX, layer.group)
        return total
    total = (norms**norm_type).sum()
    dist.all_reduce(total, group=layer.group)
    return total ** (1 / norm_type)
