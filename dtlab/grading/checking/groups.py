"""Subgroups of ranks on which a function is called at the same time."""

from __future__ import annotations

import random

__all__ = ["Groups", "draw_groups", "groups_in_words", "members_of"]

Groups = tuple[tuple[int, ...], ...]  # global ranks, in disjoint groups


def draw_groups(draw: random.Random, world_size: int, size: int) -> Groups:
    """`size` ranks and the others: two groups, neither of which is the first ranks there are."""
    ranks = range(world_size)
    while True:
        one = tuple(sorted(draw.sample(ranks, size)))
        groups = (one, tuple(rank for rank in ranks if rank not in one))
        if all(group != tuple(range(len(group))) for group in groups):
            return groups


def members_of(groups: Groups, rank: int, world_size: int) -> tuple[int, ...]:
    """The global ranks in the group of `rank`: all of them where there are no groups."""
    return next((group for group in groups if rank in group), tuple(range(world_size)))


def groups_in_words(groups: Groups) -> str:
    """As in "groups (0, 2) and (1, 3)"."""
    return "groups " + " and ".join(f"({', '.join(map(str, group))})" for group in groups)
