"""The programs of Level III that hang, as a check runs them: inputs, and what must come of them.

Each is a `Case`, for the broken program and for the mended one alike. Those that give a wrong sum
are in `diagnose_sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.sums import labelled, wrong_sum
from dtlab.grading.checking.trials import Case

if TYPE_CHECKING:
    import torch

__all__ = ["Batches", "Blocks", "Grid", "Program", "are_tensors", "plain", "same", "whose"]

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
        """See `Case`."""
        return labelled(self.seed, self.size, rank)

    @staticmethod
    def on_rank(fn: Program, given: torch.Tensor) -> Any:
        """See `Case`."""
        return plain(fn(given))

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
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
        """See `Case`."""
        return self.inputs(rank)

    @staticmethod
    def on_rank(fn: Program, given: torch.Tensor) -> Any:
        """See `Case`."""
        return plain(fn(given))

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
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
        """See `Case`."""
        return *self.inputs(rank), self.per_row

    @staticmethod
    def on_rank(fn: Program, given: tuple[torch.Tensor, torch.Tensor, int]) -> Any:
        """See `Case`."""
        outputs, gradients, per_row = given
        fn(outputs, gradients, per_row)
        return [outputs, gradients]

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
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
