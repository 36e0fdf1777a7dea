"""Test cases for the collectives of Level II: seeded inputs, and the expected results.

A `Call` is a `Case`: it makes each rank's input, calls the learner's function with it on the rank,
and writes a message about a rank whose `Answer` is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import same
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import Groups, draw_groups, group_argument
from dtlab.checks.functions.trials import Case
from dtlab.checks.functions.values import beside, labelled, total, wrong_sum
from dtlab.checks.words import ranks_in_words
from dtlab.predict.units import counted

if TYPE_CHECKING:
    import torch

__all__ = ["AllReduce", "Answer", "Broadcast", "Call", "HierarchicalAllReduce", "ReduceScatter",
           "draw_groups"]  # fmt: skip

Tensors = Mapping[int, "torch.Tensor"]  # by rank
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # the tensor of the result first; keywords


@dataclass(frozen=True)
class Answer:
    """The state of one rank after the call.

    `result` is the tensor that the function must write in place, `returned` its return value.
    `input` is the tensor that the function must only read, if it has one. `finished` names the
    ready-made collectives of dtlab that were called.
    """

    result: torch.Tensor
    returned: torch.Tensor | None = None
    input: torch.Tensor | None = None
    finished: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Call(Case):
    """One call on every rank: over all ranks, or over each of disjoint `groups` at the same time.

    `size` is the number of elements of a rank's input. The input is random unless `is_labelled`:
    see `labelled`. `place` names the argument that receives the result, and `noun` names the
    result. `note` is further advice on subgroups.
    """

    finished: ClassVar[tuple[str, ...]] = ("dtlab.collectives", "dtlab.simple")

    seed: int
    size: int
    groups: Groups = ()
    is_labelled: bool = field(default=False, kw_only=True)

    place = "tensor"
    noun = "sum"
    note = ""
    legend = (
        "the last digit of a sum comes from rank 0, the one before it from rank 1. So in 303 the "
        "values of rank 1 are missing, 363 has them twice, and in 353 they belong to another "
        "element."
    )
    unchanged = (
        "`tensor` is unchanged: write the sums into it, with += or copy_(). chunks[i] = ... "
        "changes only your list of chunks."
    )

    def __str__(self) -> str:
        groups = " and ".join(f"({', '.join(map(str, group))})" for group in self.groups)
        return counted(self.size, "element") + (f", groups {groups}" if groups else "")

    def members(self, rank: int, world_size: int) -> Sequence[int]:
        """The global ranks that take part together with `rank`."""
        return next((group for group in self.groups if rank in group), range(world_size))

    def wanted(self, members: Sequence[int]) -> Sequence[int]:
        """The ranks whose inputs the result sums."""
        return members

    def part(self, tensor: torch.Tensor, members: Sequence[int], rank: int) -> torch.Tensor:
        """The part of an input `tensor` that goes into the result of `rank`."""
        return tensor

    def inputs(self, world_size: int) -> Tensors:
        """The input of every rank."""
        return {rank: self.input(rank) for rank in range(world_size)}

    def input(self, rank: int) -> torch.Tensor:
        """The input of one rank."""
        import torch

        if not self.is_labelled:
            return labelled(self.seed, self.size, rank)
        first = torch.arange(self.size) % 7 + 1  # no chunk begins as the one before it
        return first.float().mul_(10**rank)

    def labelled(self) -> tuple[Call, str]:
        """The call with whole numbers as inputs, so that a sum shows which ranks it contains."""
        rank = "global rank r" if self.groups else "rank r"
        return replace(self, is_labelled=True), (
            f"Here {rank} holds 10^r times 1, 2, ... 7, 1, 2, ...: {self.legend}"
        )

    def needs(self, rank: int, world_size: int) -> int:
        """Bytes of float32 that `rank` must receive with any algorithm to get a right result."""
        wanted = self.wanted(self.members(rank, world_size))
        return 0 if list(wanted) == [rank] else 4 * self.size

    def arguments(self, tensor: torch.Tensor, members: Sequence[int]) -> Arguments:
        """The arguments of the learner's function for a rank's input, without the group."""
        return (tensor,), {}

    def given(self, rank: int, world_size: int) -> Any:
        members, tensor = self.members(rank, world_size), self.input(rank)
        return *self.arguments(tensor, members), self.groups

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        import torch

        arguments, keywords, groups = given
        group = group_argument(groups)
        result, *rest = arguments
        with finished_calls(*Call.finished) as finished:
            returned = fn(*arguments, **keywords, **group)
        is_new = isinstance(returned, torch.Tensor) and returned is not result
        return {
            "result": result,
            "returned": returned if is_new else None,
            "input": next((value for value in rest if isinstance(value, torch.Tensor)), None),
            "finished": sorted(finished),
        }

    def opened(self, result: Any) -> Answer:
        import torch

        answer = Answer(**{**result, "finished": frozenset(map(str, result["finished"]))})
        rest = [tensor for tensor in (answer.returned, answer.input) if tensor is not None]
        if not all(isinstance(tensor, torch.Tensor) for tensor in (answer.result, *rest)):
            raise TypeError("a rank sent back values that are not tensors")
        return answer

    def beside(self, results: Sequence[Answer]) -> list[str]:
        inputs = self.inputs(len(results))
        words = []
        for rank, answer in enumerate(results):
            members = self.members(rank, len(results))
            parts = {other: self.part(tensor, members, rank) for other, tensor in inputs.items()}
            words.append(beside(answer.result, total(parts, self.wanted(members)), self.place))
        return words

    def mistake(self, results: Sequence[Answer]) -> str:
        """A message about the lowest rank with a wrong result; empty if all are right."""
        inputs = self.inputs(len(results))
        messages = ((rank, self.wrong(got, rank, inputs)) for rank, got in enumerate(results))
        wrong = ((rank, message) for rank, message in messages if message)
        return next((self._with_advice(rank, message) for rank, message in wrong), "")

    def _with_advice(self, rank: int, message: str) -> str:
        """The message with the rank, its group rank if it is in a group, and advice."""
        group = next((group for group in self.groups if rank in group), ())
        place = f" (group rank {group.index(rank)})" if group else ""
        return f"rank {rank}{place}: {message}\n{self.advice(message)}".rstrip()

    def advice(self, trouble: str) -> str:
        """Advice on process groups, or on the lengths of chunks if they differ."""
        if self.groups and "'group'" in trouble:
            return "Your function takes no `group`: write group=None as its last argument."
        if self.groups:
            return " ".join(filter(None, (_on_groups(trouble), self.note, _global(self.groups))))
        if known := next((text for words, text in _KNOWN.items() if words in trouble), ""):
            return known
        ranks = int(match[1]) if (match := _OTHER_SIZES.match(trouble)) else 1
        return _lengths(self.size, ranks) if self.size % ranks else ""

    def wrong(self, answer: Answer, rank: int, inputs: Tensors) -> str:
        """A message about the answer of one rank; empty if it is right."""
        members = self.members(rank, len(inputs))
        parts = {other: self.part(tensor, members, rank) for other, tensor in inputs.items()}
        sentence = wrong_sum(answer.result, parts, self.wanted(members))
        if sentence and answer.returned is None and same(answer.result, inputs[rank]):
            return f"{sentence}\n{self.unchanged}"
        is_right = same(answer.returned, total(parts, self.wanted(members)))
        if not sentence or not is_right:
            return sentence
        return (
            f"you return the right {self.noun} but leave `{self.place}` unchanged. Write it in "
            f"place: {self.place}.copy_(...)."
        )


_NO_PLACE = (
    "The last place is N - 1: in the last round some ranks have no rank left to send to. With "
    "% N, a place that does not exist becomes a rank that has the tensor already."
)
_NOT_YET = (
    "Place {place} does not have the tensor yet and must receive it in this round. If the places "
    "below `have` have the tensor, the places from `have` to 2 * have - 1 receive it: also place "
    "`have` itself. A place is a rank minus the source, modulo N."
)
_NEVER_RECEIVES = re.compile(
    r"(\d+) ranks,.*Rank (\d+) is done and never receives what rank (\d+) sends", re.DOTALL
)
_ROUNDS = (
    "Write down which places send and which receive in each round: a place receives only in the "
    "round in which the tensor reaches it. And turn places into ranks, (place + root) % N, both "
    "where you send and where you receive."
)
_KNOWN = {
    "Group None is not registered": "`group` is None here: this is the default group, in which "
    "global ranks are group ranks. Call dist.get_group_rank only if `group` is not None.",
    "is not in list": "A rank looks for its place in a list of ranks that does not contain it: "
    "print the rank and the list.",
}
_OTHER_SIZES = re.compile(
    r"(\d+) ranks,.*(receives it into \w+\[\d+\]|must match the size|invalid for input of)",
    re.DOTALL,
)


def _on_groups(trouble: str) -> str:
    """Advice on how to write a function that works on a group of some ranks."""
    give = "Pass `group` to every call of torch.distributed; without it, all ranks take part."
    count = (
        "Use ranks of the group: dist.get_rank(group), group_dst=..., group_src=...; dst= and "
        "src= take global ranks, which are other numbers."
    )
    if "not those of" in trouble:
        return give
    return count if "not part of the group" in trouble else f"{give} {count}"


def _global(groups: Groups) -> str:
    """A sentence on global ranks, with the last rank of the first group as an example."""
    *others, last = groups[0]
    return (
        f"The ranks named above are global ranks: in the group of {ranks_in_words(groups[0])}, "
        f"rank {last} is group rank {len(others)}."
    )


def _lengths(size: int, ranks: int) -> str:
    """Advice that names the lengths of `ranks` chunks that do not divide `size` evenly."""
    least, longer = divmod(size, ranks)
    first, rest = (
        ranks_in_words(numbers).replace("rank", "chunk")
        for numbers in (range(longer), range(longer, ranks))
    )
    return (
        f"{counted(size, 'element')} cannot be divided by {ranks}: with tensor_split, {first} "
        f"{'has' if longer == 1 else 'have'} {least + 1} element{'s' * (least > 0)}, and {rest} "
        f"{'has' if ranks - longer == 1 else 'have'} {least or 'none'}. Give each receive buffer "
        "the length of the chunk that arrives, which may differ from the chunk that you send: "
        "torch.empty_like(chunks[number])."
    )


class AllReduce(Call):
    """A call of `fn(tensor)`, which sums over all ranks in place."""


@dataclass(frozen=True)
class HierarchicalAllReduce(Call):
    """A call of `fn(tensor, ranks_per_node=G)`, which sums over all ranks in place."""

    ranks_per_node: int = 1

    def __str__(self) -> str:
        return f"{super().__str__()}, ranks_per_node={self.ranks_per_node}"

    def arguments(self, tensor: torch.Tensor, members: Sequence[int]) -> Arguments:
        return (tensor,), {"ranks_per_node": self.ranks_per_node}


@dataclass(frozen=True)
class Broadcast(Call):
    """A call of `fn(tensor, src)`, which copies rank `src`'s tensor; `src` is `members[seat]`."""

    seat: int = 0

    noun = "values"
    legend = "the zeros at the end of a value count the rank that it comes from."
    unchanged = "`tensor` is unchanged: receive into it, or copy the received values into it."
    note = "`src` is a global rank; dist.get_group_rank(group, src) is its number in the group."

    def advice(self, trouble: str) -> str:
        """Advice that also explains hangs: a place that does not exist, or a wrong round."""
        if self.groups or "itself. With one rank" in trouble:
            return super().advice(trouble)
        if match := _NEVER_RECEIVES.match(trouble):
            ranks, *ends = map(int, match.groups())
            target, source = ((rank - self.seat) % ranks for rank in ends)
            return _NOT_YET.format(place=target) if target > source else _NO_PLACE
        is_late = "did not finish" in trouble and "Every rank receives before" not in trouble
        return _ROUNDS if is_late or "itself." in trouble else super().advice(trouble)

    def __str__(self) -> str:
        sources = " and ".join(str(self.wanted(group)[0]) for group in self.groups)
        return f"{super().__str__()}, src={sources or self.seat}"

    def wanted(self, members: Sequence[int]) -> Sequence[int]:
        """The source alone."""
        return [members[self.seat]]

    def arguments(self, tensor: torch.Tensor, members: Sequence[int]) -> Arguments:
        return (tensor, members[self.seat]), {}


class ReduceScatter(Call):
    """A call of `fn(output, input)`, which writes chunk r of the sum to `output` of rank r."""

    place = "output"
    before = 0.5  # initial value of all elements of `output`; no sum of whole numbers equals it

    def needs(self, rank: int, world_size: int) -> int:
        """One chunk."""
        return super().needs(rank, world_size) // len(self.members(rank, world_size))

    def part(self, tensor: torch.Tensor, members: Sequence[int], rank: int) -> torch.Tensor:
        """The chunk whose number is the rank's number in its group."""
        return tensor.chunk(len(members))[members.index(rank)]

    def arguments(self, tensor: torch.Tensor, members: Sequence[int]) -> Arguments:
        return (tensor.new_full((self.size // len(members),), self.before), tensor), {}

    def wrong(self, answer: Answer, rank: int, inputs: Tensors) -> str:
        """A message that also recognises a wrong chunk and the old content of `output`."""
        sentence = super().wrong(answer, rank, inputs)
        members, result = self.members(rank, len(inputs)), answer.result
        chunks, index = total(inputs, members).chunk(len(members)), members.index(rank)
        if not sentence or answer.returned is not None or result.shape != chunks[0].shape:
            return sentence
        here = f"group rank {index}" if self.groups else f"rank {index}"
        if (result == self.before).all():
            return "`output` is unchanged: write the sum into it."
        if same(result - self.before, chunks[index]):
            return "this is the sum plus the old content of `output`: overwrite `output`."
        for number, chunk in enumerate(chunks):
            if same(result, chunk):
                return (
                    f"this is chunk {number} of the sum, and {here} must have chunk {index}. "
                    "A chunk makes N-1 hops and must end on the rank with its number: chunk c "
                    "starts on rank c + 1 if you send to rank + 1, on rank c - 1 if you send to "
                    "rank - 1."
                )
            for each in members if number != index else ():
                if same(result, chunk + inputs[each].chunk(len(members))[number]):
                    return (
                        f"this is chunk {number} of the sum, with the chunk of rank {each} twice, "
                        f"and {here} must have chunk {index}. After N-1 rounds a chunk contains "
                        "the values of every rank: a further round adds some of them again."
                    )
        terms = _summands(result, {each: inputs[each].chunk(len(members)) for each in members})
        if not terms or set(terms.values()) == {index}:
            own = "Its own values are missing: add your own chunk to what arrives."
            return f"{sentence} {own}" if terms and members[index] not in terms else sentence
        values = " and ".join(f"chunk {chunk} of rank {each}" for each, chunk in terms.items())
        advice = "Add to each arriving chunk your own chunk with the same number."
        if len(terms) < len(members):
            advice = "A chunk passes every rank in N-1 rounds, and each rank adds its own to it."
        return (
            f"this is {values}; {here} must have the sum of chunk {index} of all {len(members)} "
            f"ranks. {advice}"
        )

    def rank_of_changed_input(self, results: Sequence[Answer]) -> int | None:
        """The first rank on which the call has changed `input`, which it must only read."""
        for rank, before in self.inputs(len(results)).items():
            after = results[rank].input
            if after is not None and not same(after, before):
                return rank
        return None


def _summands(
    result: torch.Tensor, chunks: Mapping[int, Sequence[torch.Tensor]]
) -> dict[int, int]:
    """By rank, the number of its chunk in the sum `result`; empty unless one choice fits."""
    import torch

    if len(result) < 2:  # a single element may fit by chance
        return {}
    choices = list(product(range(-1, len(chunks)), repeat=len(chunks)))  # -1: no chunk of the rank
    nothing = torch.zeros_like(result[:8])
    terms = [torch.stack([*(chunk[:8] for chunk in row), nothing]) for row in chunks.values()]
    picked = torch.tensor(choices)
    sums = torch.stack([row[picked[:, at]] for at, row in enumerate(terms)]).sum(dim=0)
    fits = (sums == result[:8]).all(dim=1).nonzero().flatten().tolist()
    if len(fits) != 1:
        return {}
    pairs = zip(chunks, choices[fits[0]], strict=True)
    return {rank: chunk for rank, chunk in pairs if chunk >= 0}
