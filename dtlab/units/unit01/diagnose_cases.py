"""The programs of Level III, as a check runs them: inputs, and what must come of them.

Each is a `Case`, for the broken program and for the mended one alike. Those that hang come first,
and then those that give a wrong sum.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Case, Observation
from dtlab.grading.checking.values import labelled, total, wrong_sum
from dtlab.grading.questions.quantities import short, whole
from dtlab.grading.words import amount

if TYPE_CHECKING:
    import torch

__all__ = ["Batches", "Blocks", "Columns", "Grid", "Rows", "judge_columns", "judge_rows"]

Program = Callable[..., Any]


def plain(value: Any) -> Any:
    """What a program returned, as tensors or lists of them; the name of its type otherwise."""
    import torch

    if isinstance(value, torch.Tensor | float):
        return torch.as_tensor(value).detach().clone()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return type(value).__name__


def are_tensors(value: Any, count: int) -> bool:
    """Whether it is a list of so many tensors."""
    return isinstance(value, list) and len(value) == count and not any(
        isinstance(one, str | list) for one in value
    )


@dataclass(frozen=True)
class Blocks(Case):
    """`gather_blocks(block)`: the blocks of all ranks, in order."""

    seed: int
    size: int

    def __str__(self) -> str:
        return f"blocks of {self.size}"

    def given(self, rank: int, world_size: int) -> torch.Tensor:
        return labelled(self.seed, self.size, rank)

    @staticmethod
    def on_rank(fn: Program, given: torch.Tensor) -> Any:
        return plain(fn(given))

    def mistake(self, results: Sequence[Any]) -> str:
        blocks = [labelled(self.seed, self.size, rank) for rank in range(len(results))]
        for rank, got in enumerate(results):
            if not are_tensors(got, len(blocks)):
                return f"rank {rank}: a list of {len(blocks)} blocks is asked for, one per rank."
            for place, block in enumerate(blocks):
                if not same(got[place], block):
                    return f"rank {rank}: place {place} holds {whose(got[place], blocks)}."
        return ""


@dataclass(frozen=True)
class Batches(Case):
    """`train(batches)`; the batches in `bad`, each a (rank, step), are not finite."""

    seed: int
    size: int
    steps: int
    bad: frozenset[tuple[int, int]] = frozenset()

    def __str__(self) -> str:
        places = ", ".join(f"rank {rank}'s of step {step}" for rank, step in sorted(self.bad))
        return f"{self.steps} batches" + (f", bad: {places}" if places else ", all good")

    def inputs(self, rank: int) -> torch.Tensor:
        """The batches of a rank, one below the other."""
        batches = labelled(self.seed, self.size * self.steps, rank).view(self.steps, self.size)
        for step in (step for who, step in self.bad if who == rank):
            batches[step, (step + rank) % self.size] = float("nan" if step % 2 else "inf")
        return batches

    def given(self, rank: int, world_size: int) -> torch.Tensor:
        return self.inputs(rank)

    @staticmethod
    def on_rank(fn: Program, given: torch.Tensor) -> Any:
        return plain(fn(given))

    def mistake(self, results: Sequence[Any]) -> str:
        right = self._weights(len(results), _mean)
        for rank, got in enumerate(results):
            if isinstance(got, str | list) or not _alike(got, self.inputs(rank)[0]):
                return f"rank {rank}: a tensor like a batch is asked for, of its shape and dtype."
            if not got.isfinite().all():
                return (
                    f"rank {rank}: the weights are not finite. A bad batch got into a sum; times "
                    "zero it stays bad, so put zeros in its place."
                )
            if not _near(got, right):
                return f"rank {rank}: the weights are not right. {self._reason(got, len(results))}"
        return ""

    def _reason(self, got: torch.Tensor, world_size: int) -> str:
        """Why the weights are as they are, where a rule that people follow gives the same."""
        for rule, words in _RULES:
            if _near(got, self._weights(world_size, rule)):
                return words
        return "Go through the steps: whose gradients are in the sum, and by what is it divided?"

    def _weights(self, world_size: int, mean: Callable[..., torch.Tensor | float]) -> torch.Tensor:
        """The weights in the end; `mean(good, world_size)` gives the gradient of a step."""
        import torch

        weights = torch.zeros(self.size, dtype=torch.float64)
        inputs = [self.inputs(rank) for rank in range(world_size)]
        for batches in zip(*inputs, strict=True):
            good = [weights - batch for batch in batches if batch.isfinite().all()]
            weights = weights - 0.5 * mean(good, world_size)
        return weights


def _mean(good: Sequence[torch.Tensor], world_size: int) -> torch.Tensor | float:
    return sum(good) / max(1, len(good))


_RULES: tuple[tuple[Callable[..., Any], str], ...] = (
    (
        lambda good, n: sum(good) / n,
        "You divide by the number of ranks; divide by the number of good batches of the step.",
    ),
    (
        lambda good, n: _mean(good, n) if len(good) == n else 0.0,
        "You leave out a step for all ranks where one has a bad batch: the good ones still count.",
    ),
    (lambda good, n: sum(good), "This steps with the sum of the gradients; take their mean."),
)


@dataclass(frozen=True)
class Grid(Case):
    """`sum_grid(outputs, gradients, per_row)`, in place; `size` elements, and twice as many."""

    seed: int
    size: int
    per_row: int

    def __str__(self) -> str:
        return f"{self.per_row} in a row"

    def inputs(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and gradients of a rank."""
        return labelled(self.seed, self.size, rank), labelled(self.seed + 1, 2 * self.size, rank)

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return *self.inputs(rank), self.per_row

    @staticmethod
    def on_rank(fn: Program, given: tuple[torch.Tensor, torch.Tensor, int]) -> Any:
        outputs, gradients, per_row = given
        fn(outputs, gradients, per_row)
        return [outputs, gradients]

    def mistake(self, results: Sequence[Any]) -> str:
        ranks = range(len(results))
        inputs = [self.inputs(rank) for rank in ranks]
        for rank, got in enumerate(results):
            row = [other for other in ranks if other // self.per_row == rank // self.per_row]
            column = [other for other in ranks if other % self.per_row == rank % self.per_row]
            for which, members in enumerate((row, column)):
                parts = {other: inputs[other][which] for other in ranks}
                sentence = wrong_sum(got[which], parts, members)
                if sentence:
                    return f"rank {rank}, {('outputs', 'gradients')[which]}: {sentence}"
        return ""


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether shape, dtype and all elements are equal."""
    return got.shape == wanted.shape and got.dtype == wanted.dtype and got.equal(wanted)


def _alike(got: torch.Tensor, other: torch.Tensor) -> bool:
    return got.shape == other.shape and got.dtype == other.dtype


def _near(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((got.double() - wanted).abs().max() <= 0.1)  # of numbers in the thousands


def whose(
    got: torch.Tensor, blocks: Sequence[torch.Tensor], name: str = "that of rank {}"
) -> str:
    """Which of the blocks it is, in words."""
    number = next((one for one, block in enumerate(blocks) if same(got, block)), None)
    return "none of those there are" if number is None else name.format(number)


# Programs that give a wrong sum: as a check runs them, and where it comes from -----------------
#
# What a learner says of that is compared with what the ranks of the broken program hold.

_ROWS_FORM = 'Write {"operation": "...", "rows": {rank: row of images, ...}}.'
_COLUMNS_FORM = 'Write {"bytes": number, "summed": {(row, column), ...}}.'
_INNOCENT = {
    "recv": "A recv hands over what came: look at what was sent.",
    "broadcast": "The scale arrives as it should.",
    "all_reduce": "The all-reduce adds up what the ranks have, and does that right.",
}


@dataclass(frozen=True)
class Rows(Case):
    """`share_out(images, scale)`, which only rank 0 knows: (row times scale, sum of them)."""

    seed: int
    size: int

    def __str__(self) -> str:
        return f"{self.size} numbers in a row"

    def inputs(self, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images as whole numbers of 16 bits, a row for each rank, and one factor."""
        import torch

        images = torch.zeros(world_size, self.size, dtype=torch.int16)
        if rank > 0:
            return images, torch.zeros(1)
        for row in range(world_size):
            images[row] = labelled(self.seed, self.size, row)
        return images, torch.tensor([float(random.Random(self.seed).randint(2, 9))])

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs(rank, world_size)

    @staticmethod
    def on_rank(fn: Program, given: tuple[torch.Tensor, torch.Tensor]) -> Any:
        return plain(fn(*given))

    def mistake(self, results: Sequence[Any]) -> str:
        rows = self.scaled(len(results))
        for rank, got in enumerate(results):
            if not are_tensors(got, 2):
                return f"rank {rank}: the scaled row and the sum are asked for, as mine, total."
            if not same(got[0], rows[rank]):
                return f"rank {rank}: its row is {whose(got[0], rows, 'row {}')}."
        for rank, got in enumerate(results):
            sentence = wrong_sum(got[1], dict(enumerate(rows)), range(len(rows)))
            if sentence:
                return f"rank {rank}, total: {sentence}"
        return ""

    def scaled(self, world_size: int) -> list[torch.Tensor]:
        """What each rank should have."""
        images, scale = self.inputs(0, world_size)
        return [row.float() * scale for row in images]

    def came(self, results: Sequence[Any]) -> dict[int, int]:
        """The row of rank 0's images that each other rank has got."""
        rows = self.scaled(len(results))
        found = ((rank, got[0]) for rank, got in enumerate(results) if rank > 0)
        return {
            rank: next((number for number, row in enumerate(rows) if same(got, row)), -1)
            for rank, got in found
        }


@dataclass(frozen=True)
class Columns(Case):
    """`sum_columns(table)`, in place, of a table with so many classes and three columns."""

    seed: int
    classes: int

    def __str__(self) -> str:
        return f"{self.classes} classes"

    def inputs(self, rank: int) -> torch.Tensor:
        """The table of a rank."""
        return labelled(self.seed, 3 * self.classes, rank).abs().view(self.classes, 3)

    def given(self, rank: int, world_size: int) -> torch.Tensor:
        return self.inputs(rank)

    @staticmethod
    def on_rank(fn: Program, given: torch.Tensor) -> Any:
        samples = fn(given)
        return [given, plain(samples)]

    def mistake(self, results: Sequence[Any]) -> str:
        own = {rank: self.inputs(rank) for rank in range(len(results))}
        for rank, (table, samples) in enumerate(results):
            for column in (0, 1):
                parts = {other: each[:, column] for other, each in own.items()}
                sentence = wrong_sum(table[:, column], parts, range(len(results)))
                if sentence:
                    return f"rank {rank}, column {column}: {sentence}"
            if not same(table[:, 2], own[rank][:, 2]):
                return f"rank {rank}: column 2 has changed. It is this rank's own, and stays."
            wanted = total(own, list(own))[:, 1].sum()
            if not are_tensors([samples], 1) or not same(samples.view(-1), wanted.view(-1)):
                return f"rank {rank}: the samples of all ranks are to be returned, as before."
        return ""

    def summed(self, results: Sequence[Any]) -> set[tuple[int, int]]:
        """The (row, column) of all elements that hold the sum over the ranks."""
        own = {rank: self.inputs(rank) for rank in range(len(results))}
        summed = results[0][0] == total(own, list(own))
        return {(row, column) for row, column in summed.nonzero().tolist()}


def judge_rows(one: Observation, diagnosis: Any) -> Verdict:
    """Judges {"operation": name, "rows": {rank: row}}: which row each rank really got."""
    trouble = _unfit(one, diagnosis, ("operation", "rows"), _ROWS_FORM)
    if trouble is not None:
        return trouble
    (case,) = one.trial.cases
    assert isinstance(case, Rows)
    assert one.trace is not None
    operation = str(diagnosis["operation"]).strip().casefold().rpartition(".")[2]
    operation = {"isend": "send", "irecv": "recv"}.get(operation, operation)
    if operation not in one.trace.ops():
        names = ", ".join(sorted(one.trace.ops()))
        return lost(f"the trace has no operation {diagnosis['operation']!r}. It has: {names}.")
    if operation != "send":
        return lost(f"{operation} is not it. {_INNOCENT[operation]}")
    if not isinstance(diagnosis["rows"], Mapping):
        return lost(f"the rows are {diagnosis['rows']!r}. {_ROWS_FORM}")
    for rank, row in case.came(one.results[0]).items():
        said = diagnosis["rows"].get(rank)
        if said is None:
            return lost(f"{one.trial.words()}: what does rank {rank} get? {_ROWS_FORM}")
        number = whole(said)
        if number is None:
            return lost(f"{short(said)} is no row, for rank {rank}. {_ROWS_FORM}")
        if number != row:
            return lost(
                f"{one.trial.words()}: rank {rank} does not get row {number}. What is in the "
                "buffer when its message leaves?"
            )
    return ok(f"{one.trial.words()}: these are the rows that come")


def judge_columns(one: Observation, diagnosis: Any) -> Verdict:
    """Judges {"bytes": of the all-reduce at fault, "summed": {(row, column)}}."""
    trouble = _unfit(one, diagnosis, ("bytes", "summed"), _COLUMNS_FORM)
    if trouble is not None:
        return trouble
    (case,) = one.trial.cases
    assert isinstance(case, Columns)
    assert one.trace is not None
    sizes = sorted({event.bytes for event in one.trace.events if event.name == "all_reduce"})
    size = whole(diagnosis["bytes"])
    if size is None:
        return lost(f"{short(diagnosis['bytes'])} is no number of bytes. {_COLUMNS_FORM}")
    if size not in sizes:
        return lost(
            f"{one.trial.words()}: the trace has no all_reduce of {size} bytes. How many "
            "elements does each of them have, and how many bytes has one?"
        )
    if size != sizes[-1]:
        return lost(f"the all_reduce of {amount(sizes[0])} sums the samples, and does that right.")
    try:
        said = {(int(row), int(column)) for row, column in diagnosis["summed"]}
    except (TypeError, ValueError):
        return lost(f"the elements are {diagnosis['summed']!r}. {_COLUMNS_FORM}")
    return _compare(one, said, case.summed(one.results[0]))


def _compare(one: Observation, said: set[tuple[int, int]], found: set[tuple[int, int]]) -> Verdict:
    if said == found:
        return ok(f"{one.trial.words()}: these elements hold the sum")
    words = f"{one.trial.words()}: you name {len(said)} elements, and {len(found)} hold the sum."
    if len(said) == len(found):
        words = f"{one.trial.words()}: it is so many elements, but others."
    return lost(
        f"{words} The all-reduce begins where the slice begins, and goes on through memory, where "
        "a row follows the other."
    )


def _unfit(
    one: Observation, diagnosis: Any, entries: tuple[str, str], form: str
) -> Verdict | None:
    """Why there is nothing to compare, None where there is."""
    if diagnosis is None:
        return blocked("not answered yet")
    if not isinstance(diagnosis, Mapping) or set(diagnosis) != set(entries):
        return lost(f"the diagnosis is {diagnosis!r}. {form}")
    if all(_empty(diagnosis[name]) for name in entries):
        return blocked("not answered yet")
    if any(diagnosis[name] is None for name in entries):
        missing = next(name for name in entries if diagnosis[name] is None)
        return lost(f"{missing!r} is not filled in. {form}")
    return blocked(f"the broken program did not come back: {one.trouble}") if one.error else None


def _empty(value: Any) -> bool:
    """Whether it is as handed out."""
    if isinstance(value, Mapping):
        return all(one is None for one in value.values())
    return value is None or value == set()
