"""Subgroups of ranks on which a function is called at the same time."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["Groups", "draw_groups", "group_argument", "groups_in_words", "members_of",
           "process_group"]  # fmt: skip

Groups = tuple[tuple[int, ...], ...]  # global ranks, in disjoint groups


def draw_groups(draw: random.Random, world_size: int, size: int) -> Groups:
    """Draws a group of `size` ranks and a group of the other ranks.

    Neither group consists of the first ranks, as (0, 1) does.
    """
    ranks = range(world_size)
    while True:
        chosen = tuple(sorted(draw.sample(ranks, size)))
        groups = (chosen, tuple(rank for rank in ranks if rank not in chosen))
        if all(group != tuple(range(len(group))) for group in groups):
            return groups


def members_of(groups: Groups, rank: int, world_size: int) -> tuple[int, ...]:
    """Returns the global ranks in the group of `rank`, or all ranks if it is in no group."""
    return next((group for group in groups if rank in group), tuple(range(world_size)))


def groups_in_words(groups: Groups) -> str:
    """Returns the groups in words: "groups (0, 2) and (1, 3)"."""
    return "groups " + " and ".join(f"({', '.join(map(str, group))})" for group in groups)


def process_group(groups: Groups) -> Any:
    """Runs on ranks: makes a process group of each group; returns this rank's own, or None."""
    import torch.distributed as dist

    made = {group: dist.new_group(list(group)) for group in groups}
    return next((made[group] for group in groups if dist.get_rank() in group), None)


def group_argument(groups: Groups) -> dict[str, Any]:
    """Runs on ranks: the keyword `group` for a learner's function; none if there are no groups."""
    return {"group": process_group(groups)} if groups else {}
