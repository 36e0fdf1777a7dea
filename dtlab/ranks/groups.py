"""What is kept for each process group, until the group is destroyed.

A group's connections last as long as a reference to it, and so do three threads of gloo, each of
which wakes up a hundred times a second. A session may make and destroy many groups.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any, TypeVar

import torch.distributed as dist

__all__ = ["ByGroup", "forget_destroyed", "members_of"]

Value = TypeVar("Value")

_tables: list[weakref.ref[ByGroup[Any]]] = []


class ByGroup(dict[Any, Value]):
    """A dictionary whose keys are groups, or tuples that begin with one."""

    def __init__(self) -> None:
        super().__init__()
        _tables.append(weakref.ref(self, _tables.remove))


def forget_destroyed() -> None:
    """Delete the entries of destroyed groups from every `ByGroup` of this process."""
    tables = [table for reference in _tables if (table := reference()) is not None]
    keys = {id(table): list(table) for table in tables}
    groups = {key[0] if isinstance(key, tuple) else key for each in keys.values() for key in each}
    destroyed = {group for group in groups if _ranks_of(group) is None}
    for table in tables:
        for key in keys[id(table)]:
            if (key[0] if isinstance(key, tuple) else key) in destroyed:
                table.pop(key, None)


def members_of(group: Any) -> tuple[int, ...]:
    """The ranks of a group, in its order; their numbers in the group if torch does not know it."""
    ranks = _ranks_of(group)
    return tuple(range(group.size())) if ranks is None else tuple(ranks)


def _ranks_of(group: Any) -> list[int] | None:
    """The ranks of a group, None if it was destroyed, or created without torch's functions."""
    with suppress(KeyError, ValueError):
        return dist.get_process_group_ranks(group)
    return None
