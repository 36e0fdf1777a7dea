"""02/samples_of_epoch: compute the samples of a rank in an epoch, without communication."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import count_ranks, ranks_in_words
from dtlab.predict.units import counted

__all__ = ["PART", "Epochs"]


@dataclass(frozen=True)
class Epochs(Faulty):
    """Calls `fn(num_samples, batch_size, epoch, seed)` for some epochs, in each rank's own order.

    The global random state differs between ranks. At the end the first epoch is requested again,
    and then with another seed.
    """

    num_samples: int
    batch_size: int
    seed: int
    epochs: tuple[int, ...]
    topic: str = "covering"

    def __str__(self) -> str:
        return f"{counted(self.num_samples, 'sample')} in batches of {self.batch_size}"

    def order(self, rank: int) -> tuple[int, ...]:
        """The epochs, in the order in which this rank requests them."""
        shift = rank % len(self.epochs)
        return self.epochs[shift:] + self.epochs[:shift]

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return self.num_samples, self.batch_size, self.seed, self.order(rank), 1000 + rank

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        import torch

        num_samples, batch_size, seed, epochs, state = given
        torch.manual_seed(state)
        random.seed(state)
        before = torch.get_rng_state().tolist(), random.getstate()

        def batches_of(epoch: int, seed: int) -> list[list[int]]:
            batches = fn(num_samples, batch_size, epoch, seed)
            if any(isinstance(batch, int) for batch in batches):
                raise TypeError("return a list of batches, each of which is a list of samples")
            return [[int(sample) for sample in batch] for batch in batches]

        return {
            "batches": [batches_of(epoch, seed) for epoch in epochs],
            "again": batches_of(epochs[0], seed),
            "reseeded": batches_of(epochs[0], seed + 1),
            "untouched": before == (torch.get_rng_state().tolist(), random.getstate()),
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        batches = [
            dict(zip(self.order(rank), result["batches"], strict=True))
            for rank, result in enumerate(results)
        ]
        samples = [{epoch: [*chain(*each[epoch])] for epoch in self.epochs} for each in batches]
        for epoch in self.epochs:
            uncovered = self._uncovered(epoch, [by_epoch[epoch] for by_epoch in samples])
            if uncovered:
                yield "covering", uncovered
                return
            uneven = self._uneven([by_epoch[epoch] for by_epoch in batches])
            if uneven:
                yield "steps", f"in epoch {epoch} {uneven}"
        for rank, result in enumerate(results):
            yield from self._fixed_order(rank, result, samples[rank])
            if (
                len({frozenset(epoch_samples) for epoch_samples in samples[rank].values()})
                == 1
                < len(results)
            ):
                yield (
                    "mixing",
                    f"in {counted(len(self.epochs), 'epoch')} rank {rank} sees the same "
                    f"{counted(len(samples[rank][self.epochs[0]]), 'sample')}, and never a "
                    f"sample of another "
                    "rank. Shuffle all samples first, and then take the rank's part.",
                )
            if result["untouched"] is not True:
                yield (
                    "quiet",
                    f"your function changes the global random state of rank {rank}, from which "
                    "dropout and new layers draw. Use a separate torch.Generator.",
                )
        # A few samples may be in sequence by chance, but not in every epoch.
        if all(_in_a_row(epoch_samples) for each in samples for epoch_samples in each.values()):
            yield "epochs", "the samples are not shuffled, in any epoch."

    def _uncovered(self, epoch: int, samples: Sequence[Sequence[int]]) -> str:
        """Names samples of an epoch that no rank or several ranks see; empty if there are none."""
        times = Counter(chain(*samples))
        unknown = sorted(set(times) - set(range(self.num_samples)))
        if unknown:
            return f"epoch {epoch} has sample {unknown[0]}, which is not in the data set."
        twice = sorted(sample for sample, count in times.items() if count > 1)
        missing = self.num_samples - len(times)
        if twice:
            owners = [rank for rank, share in enumerate(samples) if twice[0] in share]
            padded = not missing and times.total() - len(times) < len(samples)
            advice = (
                "Do not repeat samples to make shares equal: some ranks have one sample fewer "
                "than others, in the same number of batches."
                if padded
                else "All ranks must draw the same order, from `seed` and `epoch` alone, and each "
                "takes its own part of it."
            )
            return (
                f"in epoch {epoch} {len(twice)} of the samples are used more than once, sample "
                f"{twice[0]} on {ranks_in_words(owners)}.\n{advice}"
            )
        if missing:
            advice = (
                "Do not leave samples out to make shares equal: some ranks have one sample more "
                "than others, in the same number of batches."
                if missing == self.num_samples % len(samples)
                else "Each sample must be in one rank's part. Where does the part of rank 0 "
                "begin, where does each part end, and is a batch lost?"
            )
            return (
                f"in epoch {epoch} {missing} sample{' is' if missing == 1 else 's are'} on no "
                f"rank.\n{advice}"
            )
        return ""

    def _uneven(self, batches: Sequence[Sequence[Sequence[int]]]) -> str:
        """A message if batches are empty, too large, too many or not equally many; or empty."""
        goal = -(-self.num_samples // (len(batches) * self.batch_size))
        counts = [len(rank_batches) for rank_batches in batches]
        sizes = [len(batch) for batch in chain(*batches)]
        odd = [size for size in (min(sizes), max(sizes)) if not 0 < size <= self.batch_size]
        if len(set(counts)) > 1:
            return (
                f"ranks 0 to {len(counts) - 1} have {', '.join(map(str, counts))} batches. Ranks "
                "with more would wait in backward forever: cut every share into the same number "
                "of batches."
            )
        if odd:
            samples = counted(odd[0], "sample")
            return f"a batch has {samples}. Every batch must have 1 to {self.batch_size}."
        if counts[0] > goal:
            return (
                f"each rank has {counted(counts[0], 'batch', 'batches')}, but {goal} can hold "
                f"all samples. Distribute "
                "samples evenly, and fill batches as far as all ranks can."
            )
        return ""

    def _fixed_order(
        self, rank: int, result: Noted, samples: Mapping[int, Sequence[int]]
    ) -> Iterator[Fault]:
        """Yields faults if the order depends on anything but the seed and the epoch."""
        first = self.order(rank)[0]
        if result["again"] != result["batches"][0]:
            yield (
                "epochs",
                f"on rank {rank}, a second call for epoch {first} returns other batches, and a "
                "run that resumes needs the same. Create the generator in each call.",
            )
        for epoch, other in combinations(sorted(self.epochs), 2):
            if samples[epoch] == samples[other]:
                yield (
                    "epochs",
                    f"on rank {rank}, with seed={self.seed}, epochs {epoch} and {other} have the "
                    "same samples in the same order. The order must depend on `epoch` too, "
                    "whatever the seed is.",
                )
        if result["reseeded"] == result["batches"][0]:
            yield (
                "epochs",
                f"on rank {rank}, epoch {first} has the same order with seed={self.seed} and "
                f"seed={self.seed + 1}. The order must depend on `seed` too, in every epoch.",
            )


def _in_a_row(samples: Sequence[int]) -> bool:
    """Whether most samples follow the previous sample at the same distance."""
    distances = Counter(after - before for before, after in pairwise(samples))
    return max(distances.values(), default=0) > len(samples) / 2


def _calls(seen: Seen) -> str:
    """A message if ranks communicate to agree on samples; empty if they do not."""
    for run in seen:
        if run.trace is not None and (called := sorted(run.trace.ops())):
            return (
                f"{count_ranks(run.trial.world_size)}: you call dist.{called[0]}. All ranks have "
                "seed and epoch, so each can draw the same order without communication."
            )
    return ""


def _advise_on_calls(seen: Seen, words: str) -> str:
    """Advice if ranks communicate, which mixes up epochs that they request in other orders."""
    calls = _calls(seen)
    mixed = "The ranks request epochs in different orders here, so this call mixes up epochs."
    return f"{calls} {mixed}" if calls else ""


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks, with numbers of samples that divide evenly and that do not."""
    draw = random.Random(seed)
    trials = []
    for ranks in (4, 1, 2, 3):
        even = ranks * draw.randint(8, 12)
        sizes = (even, even + draw.randint(1, max(1, ranks - 1)))
        # Include epoch 0 and seed 0: with other values, a product of the two would pass as well.
        epochs = tuple(draw.sample((0, *draw.sample(range(1, 20), 2)), 3))
        batch = draw.randint(2, 4)
        seeds = (0, draw.randint(1, 99))
        pairs = zip(sizes, seeds, strict=True)
        cases = [Epochs(size, batch, case_seed, epochs) for size, case_seed in pairs]
        # Here one sample more than the ranks' first three batches hold requires a fourth batch.
        cases.append(Epochs(ranks * 3 * batch + 1, batch, draw.randrange(100), epochs))
        trials.append(Trial(ranks, cases))
    return trials


PART = Part(
    name="02/samples_of_epoch",
    level=2,
    title="Samples of an epoch",
    minutes=20,
    difficulty=2,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "covering",
                2,
                "in every epoch each sample is on one rank, once",
                advice=_advise_on_calls,
            ),
            rule(
                "steps",
                1,
                "all ranks have equally many batches, and as few as possible",
                "covering",
            ),
            rule(
                "epochs",
                1,
                "each epoch has another order, and every call for it returns the same order",
                "covering",
            ),
            rule("mixing", 1, "a rank sees different samples in different epochs", "covering"),
            rule(
                "quiet",
                1,
                "no messages, and the global random state is unchanged",
                "covering",
                also=_calls,
            ),
        ),
    ),
)
