"""Wrap policies: which submodules become blocks, and to which block a parameter belongs.

A block is a submodule whose parameters are gathered together when it is called. The module itself
is the outermost one, the root, and takes what no other block has:

    GPT                      root      embeddings, the last norm, the head tied to the embedding
      blocks.0               block 0   all of it
      blocks.1               block 1   all of it

A tied parameter belongs to the innermost block that contains all of its uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

__all__ = ["Blocks", "Owned", "ownership"]

Blocks = type[nn.Module] | Callable[[nn.Module], bool] | Sequence[nn.Module] | None
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass
class Owned:
    """A parameter, and every module and attribute it is found at."""

    parameter: nn.Parameter
    places: list[tuple[nn.Module, str]] = field(default_factory=list)


def ownership(module: nn.Module, blocks: Blocks) -> dict[nn.Module, list[Owned]]:
    """The blocks of a module, the root first, and the parameters of each; some may have none.

    Raises: ValueError where `blocks` names what is no submodule, is never called, or is nothing.
    """
    chosen = dict.fromkeys([module, *_chosen(module, blocks)])
    owned: dict[nn.Parameter, Owned] = {}
    around: dict[nn.Parameter, list[nn.Module]] = {}
    for chain, owner in _walk(module, [module], chosen):
        for name, parameter in owner._parameters.items():
            if parameter is None:
                continue
            entry = owned.setdefault(parameter, Owned(parameter))
            if (owner, name) not in entry.places:
                entry.places.append((owner, name))
            before = around.setdefault(parameter, chain)
            shared = [a for a, b in zip(before, chain, strict=False) if a is b]
            around[parameter] = shared
    found: dict[nn.Module, list[Owned]] = {block: [] for block in chosen}
    for parameter, entry in owned.items():
        found[around[parameter][-1]].append(entry)
    return found


def _walk(
    module: nn.Module, chain: list[nn.Module], chosen: Iterable[nn.Module]
) -> Iterator[tuple[list[nn.Module], nn.Module]]:
    """Every module below, by every path that leads to it, with the blocks around it."""
    yield chain, module
    for child in module.children():
        yield from _walk(child, [*chain, child] if child in chosen else chain, chosen)


def _chosen(module: nn.Module, blocks: Blocks) -> list[nn.Module]:
    """The submodules that are to be blocks of their own, in the order of registration."""
    if blocks is None:
        return _smallest_peak(module)
    below = [one for one in module.modules() if one is not module]
    if isinstance(blocks, type):
        found = [one for one in below if isinstance(one, blocks)]
    elif isinstance(blocks, Sequence):
        strangers = [one for one in blocks if one not in below]
        if strangers:
            raise ValueError(
                f"blocks= has {len(strangers)} modules that are no submodules of the one to be "
                f"sharded; the first is {type(strangers[0]).__name__}. Take them from the module."
            )
        return _callable([one for one in below if one in blocks])
    else:
        found = [one for one in below if blocks(one)]
    if not found:
        what = blocks.__name__ if isinstance(blocks, type) else "what blocks= asks for"
        raise ValueError(
            f"no submodule is {what}: the whole module would be gathered at once. Name its "
            "layers, or pass blocks=[] if that is what you want."
        )
    return _callable(found)


def _callable(found: list[nn.Module]) -> list[nn.Module]:
    for one in found:
        if isinstance(one, _NEVER_CALLED):
            raise ValueError(
                f"a {type(one).__name__} cannot be a block: nobody calls it, so it would never be "
                "gathered. Make its elements blocks: blocks=list(it)."
            )
    return found


def _smallest_peak(module: nn.Module) -> list[nn.Module]:
    """The siblings that leave the least to hold at once: the root's share and the largest block.

    Asked are the elements of each container, nn.Sequential or nn.ModuleList, and the children of
    the module itself.
    """
    total = _elements(module)
    best, least = list[nn.Module](), total
    for parent in module.modules():
        if parent is not module and not isinstance(parent, (nn.Sequential, nn.ModuleList)):
            continue
        siblings = [one for one in dict.fromkeys(parent.children()) if _elements(one)]
        if any(isinstance(one, _NEVER_CALLED) for one in siblings):
            continue
        sizes = [_elements(one) for one in siblings]
        peak = max(0, total - sum(sizes)) + max(sizes, default=total)
        if peak < least:
            best, least = siblings, peak
    return best


def _elements(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())
