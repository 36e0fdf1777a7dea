"""The collectives of Level II as a check calls them: inputs from a seed, and what must come of it.

A `Call` is a `Case`: it makes each rank's input, has the rank call the learner's function with it,
and says what is wrong with the ranks' `Answer`s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import Groups, draw_groups
from dtlab.grading.checking.trials import Case
from dtlab.grading.checking.values import labelled, total, wrong_sum

if TYPE_CHECKING:
    import torch

__all__ = ["AllReduce", "Answer", "Broadcast", "Call", "HierarchicalAllReduce", "ReduceScatter",
           "draw_groups"]  # fmt: skip

Tensors = Mapping[int, "torch.Tensor"]  # by rank
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # the tensor of the result first; keywords


@dataclass(frozen=True)
class Answer:
    """What one rank has after the call: the result where it belongs, and what was returned.

    `input` is the tensor that was only to be read, where there is one beside the result's;
    `finished` names the ready-made collectives of dtlab that were called.
    """

    result: torch.Tensor
    returned: torch.Tensor | None = None
    input: torch.Tensor | None = None
    finished: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Call(Case):
    """One call on every rank: over all ranks, or over each of disjoint `groups` at the same time.

    `size` is the number of elements that a rank passes in. `place` names the argument in which the
    result belongs, `noun` the result; `note` says what else there is to know on subgroups.
    """

    finished: ClassVar[tuple[str, ...]] = ("dtlab.collectives",)

    seed: int
    size: int
    groups: Groups = ()

    place = "tensor"
    noun = "sum"
    note = ""

    def __str__(self) -> str:
        groups = " and ".join(f"({', '.join(map(str, group))})" for group in self.groups)
        return f"{self.size} elements" + (f", groups {groups}" if groups else "")

    def members(self, rank: int, world_size: int) -> Sequence[int]:
        """The global ranks that take part together with `rank`."""
        return next((group for group in self.groups if rank in group), range(world_size))

    def wanted(self, members: Sequence[int]) -> Sequence[int]:
        """The ranks whose values the result is the sum of."""
        return members

    def part(self, tensor: torch.Tensor, members: Sequence[int], rank: int) -> torch.Tensor:
        """The part of a rank's input that goes into the result of `rank`."""
        return tensor

    def inputs(self, world_size: int) -> Tensors:
        """What every rank passes in."""
        return {rank: labelled(self.seed, self.size, rank) for rank in range(world_size)}

    def needs(self, rank: int, world_size: int) -> int:
        """Bytes of float32 that must reach `rank`, however it is done, for a right result."""
        wanted = self.wanted(self.members(rank, world_size))
        return 0 if list(wanted) == [rank] else 4 * self.size

    def arguments(self, own: torch.Tensor, members: Sequence[int]) -> Arguments:
        """What the learner's function is called with, without the group."""
        return (own,), {}

    def given(self, rank: int, world_size: int) -> Any:
        members, own = self.members(rank, world_size), labelled(self.seed, self.size, rank)
        return *self.arguments(own, members), self.groups, tuple(members)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        arguments, keywords, groups, members = given
        made = {group: dist.new_group(list(group)) for group in groups}
        group = {"group": made[members]} if made else {}
        result, *others = arguments
        with finished_calls("dtlab.collectives") as finished:
            returned = fn(*arguments, **keywords, **group)
        another = isinstance(returned, torch.Tensor) and returned is not result
        return {
            "result": result,
            "returned": returned if another else None,
            "input": next((one for one in others if isinstance(one, torch.Tensor)), None),
            "finished": sorted(finished),
        }

    def opened(self, result: Any) -> Answer:
        import torch

        answer = Answer(**{**result, "finished": frozenset(map(str, result["finished"]))})
        others = [one for one in (answer.returned, answer.input) if one is not None]
        if not all(isinstance(one, torch.Tensor) for one in (answer.result, *others)):
            raise TypeError("a rank sent back something else than tensors")
        return answer

    def mistake(self, results: Sequence[Answer]) -> str:
        """What is wrong, seen from the lowest rank that is wrong: see `Case`."""
        inputs = self.inputs(len(results))
        sentences = ((rank, self.wrong(one, rank, inputs)) for rank, one in enumerate(results))
        return next((f"rank {rank}: {words}" for rank, words in sentences if words), "")

    def wrong(self, answer: Answer, rank: int, inputs: Tensors) -> str:
        """What is wrong with the answer of one rank; empty if nothing."""
        members = self.members(rank, len(inputs))
        parts = {each: self.part(tensor, members, rank) for each, tensor in inputs.items()}
        sentence = wrong_sum(answer.result, parts, self.wanted(members))
        is_right = answer.returned is not None and answer.returned.equal(
            total(parts, self.wanted(members))
        )
        if not sentence or not is_right:
            return sentence
        return (
            f"you return the right {self.noun} but leave `{self.place}` as it was. Work in "
            f"place: {self.place}.copy_(...)."
        )


class AllReduce(Call):
    """`fn(tensor)`: the sum over all ranks, in place."""


@dataclass(frozen=True)
class HierarchicalAllReduce(Call):
    """`fn(tensor, ranks_per_node=G)`: the sum over all ranks, in place."""

    ranks_per_node: int = 1

    def __str__(self) -> str:
        return f"{super().__str__()}, ranks_per_node={self.ranks_per_node}"

    def arguments(self, own: torch.Tensor, members: Sequence[int]) -> Arguments:
        return (own,), {"ranks_per_node": self.ranks_per_node}


@dataclass(frozen=True)
class Broadcast(Call):
    """`fn(tensor, src)`: what rank `src` has, in place: the one at `seat` of the members."""

    seat: int = 0

    noun = "values"
    note = "`src` is a global rank; dist.get_group_rank(group, src) is its number in the group."

    def __str__(self) -> str:
        sources = " and ".join(str(self.wanted(group)[0]) for group in self.groups)
        return f"{super().__str__()}, src={sources or self.seat}"

    def wanted(self, members: Sequence[int]) -> Sequence[int]:
        """The source alone."""
        return [members[self.seat]]

    def arguments(self, own: torch.Tensor, members: Sequence[int]) -> Arguments:
        return (own, members[self.seat]), {}


class ReduceScatter(Call):
    """`fn(output, input)`: chunk r of the sum, in `output` of the r-th rank."""

    place = "output"
    before = 0.5  # what `output` is full of: no sum of whole numbers

    def needs(self, rank: int, world_size: int) -> int:
        """One chunk."""
        return super().needs(rank, world_size) // len(self.members(rank, world_size))

    def part(self, tensor: torch.Tensor, members: Sequence[int], rank: int) -> torch.Tensor:
        """The chunk of the rank's number in its group."""
        return tensor.chunk(len(members))[members.index(rank)]

    def arguments(self, own: torch.Tensor, members: Sequence[int]) -> Arguments:
        return (own.new_full((self.size // len(members),), self.before), own), {}

    def wrong(self, answer: Answer, rank: int, inputs: Tensors) -> str:
        """Another chunk, or what was in `output` before, has a sentence of its own."""
        sentence = super().wrong(answer, rank, inputs)
        members, result = self.members(rank, len(inputs)), answer.result
        chunks, own = total(inputs, members).chunk(len(members)), members.index(rank)
        if not sentence or answer.returned is not None or result.shape != chunks[0].shape:
            return sentence
        if (result == self.before).all():
            return "`output` is as it was: write the sum into it."
        if (result - self.before).equal(chunks[own]):
            return "this is the sum and what was in `output` before: overwrite it."
        for number, chunk in enumerate(chunks):
            if result.equal(chunk):
                start = "earlier" if number == (own + 1) % len(members) else "elsewhere"
                return (
                    f"this is chunk {number} of the sum, and rank {own} is to have chunk {own}: "
                    f"start one chunk {start}."
                )
        return sentence

    def rank_of_changed_input(self, results: Sequence[Answer]) -> int | None:
        """The first rank on which `input`, which is only to be read, has changed."""
        for rank, own in self.inputs(len(results)).items():
            kept = results[rank].input
            if kept is not None and not kept.equal(own):
                return rank
        return None
