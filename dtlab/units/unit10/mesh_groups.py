"""10/mesh_groups: create a rank's process group on every axis of a mesh, from the sizes alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar
from unittest.mock import patch

from dtlab import torch_internals
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import ranks_in_words
from dtlab.parallel.mesh import group_of
from dtlab.predict.units import counted

_NAMES = ("data", "pipeline", "tensor", "context", "expert")


@dataclass(frozen=True)
class Grouping(Faulty):
    """A call of `fn(sizes)` on all ranks of a mesh.

    The topic "edges" is for meshes with one axis, or with an axis of size 1.
    """

    finished: ClassVar[tuple[str, ...]] = ("dtlab.parallel.mesh", "torch.distributed.device_mesh")
    guilty = "returns"

    axes: tuple[tuple[str, int], ...]
    topic: str = "members"

    def __str__(self) -> str:
        return " x ".join(f"{axis}={size}" for axis, size in self.axes)

    def shows(self, criterion: str) -> bool:
        return (criterion == "edges") == (self.topic == "edges") or criterion == "returns"

    def given(self, rank: int, world_size: int) -> dict[str, int]:
        return dict(self.axes)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, int]) -> dict[str, Any]:
        import torch.distributed as dist

        c10d, name = torch_internals.c10d(), torch_internals.NEW_GROUP
        spy = patch.object(c10d, name, wraps=getattr(c10d, name))
        with spy as calls, finished_calls(*Grouping.finished, refuse=True) as finished:
            returned = fn(dict(given))
        groups: Any = type(returned).__name__
        if isinstance(returned, dict):
            groups = {
                str(axis): (dist.get_process_group_ranks(group), group.group_name)
                if isinstance(group, dist.ProcessGroup)
                else type(group).__name__
                for axis, group in returned.items()
            }
        return {"groups": groups, "calls": calls.call_count, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        sizes = dict(self.axes)
        for rank, result in enumerate(results):
            wrong = _wrong_groups(rank, result["groups"], sizes)
            if wrong:
                yield self.topic, f"rank {rank} {wrong}"
                return
        for rank, axis in product(range(len(results)), sizes):
            first = group_of(rank, axis, sizes)[0]
            names = {results[member]["groups"][axis][1] for member in (first, rank)}
            if len(names) > 1:
                yield (
                    "same",
                    f"ranks {first} and {rank} hold two different process groups of the axis "
                    f"{axis}, with the same members. A collective would wait forever: each rank "
                    "calls it on its own group. Each call of new_group returns another group: "
                    "from which call does each rank keep the result?",
                )
                return
        enough = sum(prod(sizes.values()) // size for size in sizes.values())
        most = max(int(result["calls"]) for result in results)
        if most > enough:
            yield (
                "once",
                f"a rank calls new_group {counted(most, 'time')}, but this mesh has "
                f"{counted(enough, 'group')}. Create each group once, for all of its members.",
            )


def _wrong_groups(rank: int, groups: Any, sizes: Mapping[str, int]) -> str:
    """A message about the groups of a rank, by axis; empty if they are right."""
    if isinstance(groups, str):
        return f"returns {groups}. Return a dict: a process group for each axis."
    if set(groups) != set(sizes):
        return f"returns groups of the axes {', '.join(groups) or '(none)'}."
    for axis, group in groups.items():
        if group == "int":  # GroupMember.NON_GROUP_MEMBER
            return f"has a group of the axis {axis} that it is not a member of."
        if isinstance(group, str):
            return f"has {group} for the axis {axis}, not a process group."
        members, wanted = list(group[0]), group_of(rank, axis, sizes)
        if members != wanted:
            others = [name for name in sizes if members == group_of(rank, name, sizes)]
            why = "Which ranks have its coordinates on all other axes?"
            if others and len(members) > 1:
                why = f"That is its group on the axis {others[0]}. The last axis runs fastest."
            return (
                f"has {ranks_in_words(members)} in its group of the axis {axis}, not "
                f"{ranks_in_words(wanted)}. {why}"
            )
    return ""


def _trials(seed: int) -> list[Trial]:
    """Trials with two axes, three axes, an axis of one rank, a single axis, and a single rank."""
    draw = random.Random(seed)

    def trial(topic: str, *sizes: int) -> Trial:
        names = draw.sample(_NAMES, len(sizes))
        return Trial(prod(sizes), [Grouping(tuple(zip(names, sizes, strict=True)), topic)])

    edge = draw.choice([(3, 1), (1, 3)])
    shapes = [(2, 1, 2), edge, (draw.choice((2, 4)),), (1, 1)]
    return [
        trial("members", 2, 2),
        trial("members", 2, 2, 2),
        *(trial("edges", *sizes) for sizes in shapes),
    ]


PART = Part(
    name="10/mesh_groups",
    level=2,
    title="The process groups of a mesh",
    minutes=15,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("returns", 2, "all ranks create the same groups, and none hangs"),
            rule("members", 3, "a group has the ranks that differ on its axis only"),
            rule("same", 1, "its members hold the same process group", "members"),
            rule("once", 1, "each group is created once", "members", "same"),
            rule("edges", 1, "right with axes of one rank, one axis, one rank", "members"),
        ),
    ),
    reference="dtlab.parallel.mesh.group_of",
)
