"""10/mesh_groups: this rank's process group on every axis of a mesh, made from the sizes alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import ranks_in_words

_NAMES = ("data", "pipeline", "tensor", "context", "expert")


@dataclass(frozen=True)
class Grouping(Faulty):
    """A call of `fn(sizes)` on all ranks of a mesh; topic "edges": some axis has a single rank."""

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
        from torch.distributed import distributed_c10d as c10d

        made: list[int] = []
        make: Any = c10d._new_group_with_tag

        def counted(*args: Any, **kwargs: Any) -> Any:
            made.append(1)
            return make(*args, **kwargs)

        c10d._new_group_with_tag = counted
        try:
            with finished_calls(*Grouping.finished, refuse=True) as finished:
                found = fn(dict(given))
        finally:
            c10d._new_group_with_tag = make
        if not isinstance(found, dict):
            return {"groups": None, "text": type(found).__name__, "finished": sorted(finished)}
        groups = {
            str(axis): (dist.get_process_group_ranks(group), group.group_name)
            if isinstance(group, dist.ProcessGroup)
            else type(group).__name__
            for axis, group in found.items()
        }
        return {"groups": groups, "made": len(made), "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        from dtlab.parallel.mesh import group_of

        sizes = dict(self.axes)
        for rank, result in enumerate(results):
            wrong = self._wrong_dict(result) or next(
                filter(None, (self._wrong_group(rank, axis, result) for axis in sizes)), ""
            )
            if wrong:
                yield self.topic, f"rank {rank} {wrong}"
                return
        for rank, result in enumerate(results):
            for axis in sizes:
                first = group_of(rank, axis, sizes)[0]
                if result["groups"][axis][1] != results[first]["groups"][axis][1]:
                    yield (
                        "same",
                        f"ranks {first} and {rank} hold two different process groups of the axis "
                        f"{axis}, with the same members. A collective would wait forever: each "
                        "rank calls it on its own group. Which call of new_group does each keep?",
                    )
                    return
        enough = sum(prod(sizes.values()) // size for size in sizes.values())
        most = max(int(result["made"]) for result in results)
        if most > enough:
            yield (
                "once",
                f"a rank calls new_group {most} times, and this mesh has {enough} groups. Each "
                "group is made once, for all of its members.",
            )

    def _wrong_dict(self, result: Noted) -> str:
        groups = result["groups"]
        if groups is None:
            return f"returns {result['text']}. Return a dict: a process group for each axis."
        if set(groups) != {axis for axis, _ in self.axes}:
            return f"returns groups of the axes {', '.join(groups) or '(none)'}."
        return ""

    def _wrong_group(self, rank: int, axis: str, result: Noted) -> str:
        """What is wrong with this rank's group on one axis; empty if nothing is."""
        from dtlab.parallel.mesh import group_of

        found, sizes = result["groups"][axis], dict(self.axes)
        if found == "int":  # GroupMember.NON_GROUP_MEMBER
            return f"has a group of the axis {axis} that it is not a member of."
        if isinstance(found, str):
            return f"has {found} for the axis {axis}, not a process group."
        members, wanted = list(found[0]), group_of(rank, axis, sizes)
        if members == wanted:
            return ""
        others = [one for one in sizes if members == group_of(rank, one, sizes)]
        why = "Which ranks have its place on all other axes?"
        if others and len(members) > 1:
            why = f"That is its group on the axis {others[0]}. The last axis runs fastest."
        return (
            f"has {ranks_in_words(members)} in its group of the axis {axis}, not "
            f"{ranks_in_words(wanted)}. {why}"
        )


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
    title="Process groups of a mesh",
    minutes=15,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("returns", 2, "all ranks make the same groups, and none hangs"),
            rule("members", 3, "a group has the ranks that differ on its axis only"),
            rule("same", 1, "its members hold the same process group", "members"),
            rule("once", 1, "each group is made once", "members", "same"),
            rule("edges", 1, "also axes of one rank, one axis, one rank", "members"),
        ),
    ),
    reference="dtlab.parallel.mesh.group_of",
)
