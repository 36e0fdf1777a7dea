"""Wrap policies: which submodules become blocks, and to which block a parameter belongs.

A block is a submodule whose parameters are gathered together when it is called. The module itself
is the outermost block, the root, and has the parameters that no other block has:

    GPT                      root      embeddings, last norm, output layer tied to the embedding
      blocks.0               block 0   all its parameters
      blocks.1               block 1   all its parameters

A tied parameter belongs to the innermost block that contains all of its uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from dtlab.torch_internals import own_parameters

__all__ = ["Blocks", "Owned", "ownership"]

Blocks = type[nn.Module] | Callable[[nn.Module], bool] | Sequence[nn.Module] | None
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass
class Owned:
    """A parameter, and every module and attribute name that refers to it."""

    parameter: nn.Parameter
    places: list[tuple[nn.Module, str]] = field(default_factory=list)


def ownership(module: nn.Module, blocks: Blocks) -> dict[nn.Module, list[Owned]]:
    """Return the blocks of a module, the root first, with their parameters; some have none.

    Raises: ValueError if `blocks` contains a module that is not a submodule or is never called, or
    matches no submodule.
    """
    chosen = dict.fromkeys([module, *_chosen(module, blocks)])
    owned: dict[nn.Parameter, Owned] = {}
    around: dict[nn.Parameter, list[nn.Module]] = {}
    for chain, owner in _walk(module, [module], chosen):
        for name, parameter in own_parameters(owner).items():
            if parameter is None:
                continue
            entry = owned.setdefault(parameter, Owned(parameter))
            if (owner, name) not in entry.places:
                entry.places.append((owner, name))
            before = around.setdefault(parameter, chain)
            shared = [a for a, b in zip(before, chain, strict=False) if a is b]
            around[parameter] = shared
    blocks_owned: dict[nn.Module, list[Owned]] = {block: [] for block in chosen}
    for parameter, entry in owned.items():
        blocks_owned[around[parameter][-1]].append(entry)
    return blocks_owned


def _walk(
    module: nn.Module, chain: list[nn.Module], chosen: Iterable[nn.Module]
) -> Iterator[tuple[list[nn.Module], nn.Module]]:
    """Yield `module` and, on every path, each module below it, with the blocks that contain it."""
    yield chain, module
    for child in module.children():
        yield from _walk(child, [*chain, child] if child in chosen else chain, chosen)


def _chosen(module: nn.Module, blocks: Blocks) -> list[nn.Module]:
    """Return the submodules that become blocks, in the order of registration."""
    if blocks is None:
        return _smallest_peak(module)
    below = [child for child in module.modules() if child is not module]
    if isinstance(blocks, type):
        matching = [child for child in below if isinstance(child, blocks)]
    elif isinstance(blocks, Sequence):
        strangers = [block for block in blocks if block not in below]
        if strangers:
            raise ValueError(
                f"blocks= has {len(strangers)} modules that are not submodules of the sharded "
                f"module; the first is a {type(strangers[0]).__name__}. Pass only submodules."
            )
        return _callable([child for child in below if child in blocks])
    else:
        matching = [child for child in below if blocks(child)]
    if not matching:
        wanted = f"a {blocks.__name__}" if isinstance(blocks, type) else "accepted by blocks="
        raise ValueError(
            f"no submodule is {wanted}, so the whole module would be gathered at once. Pass the "
            "class of its layers, or pass blocks=[] if that is what you want."
        )
    return _callable(matching)


def _callable(blocks: list[nn.Module]) -> list[nn.Module]:
    for block in blocks:
        if isinstance(block, _NEVER_CALLED):
            raise ValueError(
                f"a {type(block).__name__} cannot be a block: it is never called, so it would not "
                "be gathered. Pass a list of its elements as blocks."
            )
    return blocks


def _smallest_peak(module: nn.Module) -> list[nn.Module]:
    """Return the siblings that minimize the peak memory: the root's share plus the largest block.

    Candidates are the elements of each nn.Sequential or nn.ModuleList, and the children of the
    module itself.
    """
    total = _elements(module)
    best, least = list[nn.Module](), total
    for parent in module.modules():
        if parent is not module and not isinstance(parent, (nn.Sequential, nn.ModuleList)):
            continue
        siblings = [child for child in dict.fromkeys(parent.children()) if _elements(child)]
        if any(isinstance(child, _NEVER_CALLED) for child in siblings):
            continue
        sizes = [_elements(child) for child in siblings]
        peak = max(0, total - sum(sizes)) + max(sizes, default=total)
        if peak < least:
            best, least = siblings, peak
    return best


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
