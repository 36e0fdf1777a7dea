"""02/samples_of_epoch: which samples a rank sees in an epoch, agreed on without a word."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import count_ranks, ranks_in_words

__all__ = ["PART", "Epochs"]

Seen = Sequence[Observation]

_ALIKE = (
    "All ranks have to draw the same order, from `seed` and `epoch` alone, and each takes its own "
    "part of it."
)
_FILLED_UP = (
    "Nothing may be repeated to fill shares up: some ranks have one sample fewer than others, in "
    "as many batches."
)
_LEFT_OUT = (
    "Nothing may be left out to make shares equal: some ranks have one sample more than others, "
    "in as many batches."
)


@dataclass(frozen=True)
class Shares:
    """What one rank got: the batches of each epoch, those of its first epoch once more and with
    another seed, and whether random states stayed the same."""

    batches: dict[int, list[list[int]]]
    again: list[list[int]]
    reseeded: list[list[int]]
    untouched: bool

    def samples(self, epoch: int) -> list[int]:
        """All samples of an epoch, in order."""
        return [sample for batch in self.batches[epoch] for sample in batch]


@dataclass(frozen=True)
class Epochs(Case):
    """`fn(num_samples, batch_size, epoch, seed)` for some epochs, in another order on each rank.

    Each rank's global random state is another one. At the end the first epoch is asked for again,
    and with another seed.
    """

    num_samples: int
    batch_size: int
    seed: int
    epochs: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.num_samples} samples in batches of {self.batch_size}"

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        shift = rank % len(self.epochs)
        order = self.epochs[shift:] + self.epochs[:shift]
        own = {"samples": self.num_samples, "batch": self.batch_size, "seed": self.seed}
        return own | {"epochs": order, "state": rank}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        torch.manual_seed(1000 + given["state"])
        random.seed(1000 + given["state"])
        before = torch.get_rng_state().tolist(), random.getstate()

        def ask(epoch: int, shift: int = 0) -> list[list[int]]:
            batches = fn(given["samples"], given["batch"], epoch, given["seed"] + shift)
            return [[int(one) for one in batch] for batch in batches]

        batches = [ask(epoch) for epoch in given["epochs"]]
        again, reseeded = ask(given["epochs"][0]), ask(given["epochs"][0], shift=1)
        untouched = before == (torch.get_rng_state().tolist(), random.getstate())
        epochs = list(given["epochs"])
        found = {"epochs": epochs, "batches": batches, "again": again, "reseeded": reseeded}
        return found | {"untouched": untouched}

    def opened(self, result: Any) -> Shares:
        batches = dict(zip(map(int, result["epochs"]), result["batches"], strict=True))
        if set(batches) != set(self.epochs):
            raise ValueError("other epochs than were asked for")
        again, reseeded = list(result["again"]), list(result["reseeded"])
        return Shares(batches, again, reseeded, result["untouched"] is True)

    def mistake(self, results: Sequence[Shares]) -> str:
        """Samples that nobody sees, or that are seen twice: see `Case`."""
        for epoch in self.epochs:
            times = Counter(one for share in results for one in share.samples(epoch))
            strange = sorted(set(times) - set(range(self.num_samples)))
            if strange:
                return f"epoch {epoch}: there is no sample {strange[0]}."
            twice = sorted(one for one, count in times.items() if count > 1)
            missing = self.num_samples - len(times)
            if twice:
                owners = [r for r, share in enumerate(results) if twice[0] in share.samples(epoch)]
                padded = not missing and times.total() - len(times) < len(results)
                return (
                    f"epoch {epoch}: {len(twice)} of the samples are seen more than once, sample "
                    f"{twice[0]} on {ranks_in_words(owners)}.\n{_FILLED_UP if padded else _ALIKE}"
                )
            if missing:
                noun = "1 sample is" if missing == 1 else f"{missing} samples are"
                return f"epoch {epoch}: {noun} on no rank.\n{_LEFT_OUT}"
        return ""


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, with numbers of samples that divide, and that do not."""
    draw = random.Random(seed)
    trials = []
    for ranks in (4, 1, 2, 3):
        even = ranks * draw.randint(8, 12)
        sizes = (even, even + draw.randint(1, max(1, ranks - 1)))
        # Epoch 0 and seed 0 are there, since a product of the two is as good as any elsewhere.
        epochs = tuple(draw.sample((0, *draw.sample(range(1, 20), 2)), 3))
        batch = draw.randint(2, 4)
        seeds = (0, draw.randint(1, 99))
        pairs = zip(sizes, seeds, strict=True)
        cases = [Epochs(size, batch, own, epochs) for size, own in pairs]
        # Here the largest share fills its batches and one sample is over, on some ranks only.
        cases.append(Epochs(ranks * 3 * batch + 1, batch, draw.randrange(100), epochs))
        trials.append(Trial(ranks, cases))
    return trials


def _shares(seen: Seen) -> Iterator[tuple[str, Epochs, list[Shares]]]:
    """What each case gave, in words and by rank."""
    for one in seen:
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Epochs):
                yield one.trial.words(number), case, results


def _judge_covering(seen: Seen) -> Verdict:
    """Each sample on one rank, once."""
    wrong = [sentence for one in seen for sentence in one.mistakes]
    return lost(wrong[0]) if wrong else ok("in every epoch each sample is on one rank, once")


def _waits(seen: Seen) -> Verdict | None:
    if any(one.mistakes for one in seen):
        return blocked("judged once each sample is on one rank, once")
    return None


def _judge_steps(seen: Seen) -> Verdict:
    """As many batches on all ranks, as few as can be, and none empty."""
    waiting = _waits(seen)
    if waiting:
        return waiting
    for words, case, results in _shares(seen):
        largest = -(-case.num_samples // len(results))
        goal = -(-largest // case.batch_size)
        for epoch in case.epochs:
            counts = [len(share.batches[epoch]) for share in results]
            sizes = [len(batch) for share in results for batch in share.batches[epoch]]
            if len(set(counts)) > 1:
                return lost(
                    f"{words}, epoch {epoch}: {', '.join(map(str, counts))} batches on ranks 0 to "
                    f"{len(counts) - 1}. The ranks with more would wait in backward for ever: cut "
                    "every share into as many batches."
                )
            if min(sizes) == 0 or max(sizes) > case.batch_size:
                wrong = max(sizes) if min(sizes) else 0
                return lost(
                    f"{words}, epoch {epoch}: a batch of {wrong} samples. It may have 1 to "
                    f"{case.batch_size}."
                )
            if counts[0] > goal:
                return lost(
                    f"{words}, epoch {epoch}: {counts[0]} batches where {goal} hold all samples. "
                    "Deal samples out evenly, and fill batches as far as all ranks can."
                )
    return ok("all ranks have as many batches, and as few as can be")


def _judge_epochs(seen: Seen) -> Verdict:
    """A shuffled order that depends on the seed and the epoch alone."""
    waiting = _waits(seen)
    if waiting:
        return waiting
    for words, case, results in _shares(seen):
        for rank, share in enumerate(results):
            first = (case.epochs[rank % len(case.epochs):] + case.epochs)[0]
            if share.again != share.batches[first]:
                return lost(
                    f"{words}, rank {rank}: epoch {first} is not the same when it is asked for "
                    "again, and a run that resumes needs that. Make a generator in each call."
                )
            for epoch, other in product(case.epochs, repeat=2):
                if epoch < other and share.samples(epoch) == share.samples(other):
                    return lost(
                        f"{words}, rank {rank}: with seed={case.seed}, epochs {epoch} and {other} "
                        "have the same samples in the same order. The order has to depend on "
                        "`epoch` too, whatever the seed is."
                    )
            if share.reseeded == share.batches[first]:
                return lost(
                    f"{words}, rank {rank}: epoch {first} has the same order with seed="
                    f"{case.seed} and seed={case.seed + 1}. The order has to depend on `seed` "
                    "too, in every epoch."
                )
        # A few samples may come out in a row by chance, but not time after time.
        if all(_in_a_row(share.samples(epoch)) for share in results for epoch in case.epochs):
            return lost(f"{words}: the samples are not shuffled, in any epoch.")
    return ok("each epoch has an order of its own, the same whenever it is asked for")


def _in_a_row(samples: Sequence[int]) -> bool:
    """Whether most samples follow the one before at the same distance."""
    distances = Counter(after - before for before, after in pairwise(samples))
    return max(distances.values(), default=0) > len(samples) / 2


def _judge_mixing(seen: Seen) -> Verdict:
    """A rank sees other samples in another epoch, not its own ones in another order."""
    waiting = _waits(seen)
    if waiting:
        return waiting
    for words, case, results in _shares(seen):
        if len(results) == 1:
            continue
        for rank, share in enumerate(results):
            if len({frozenset(share.samples(epoch)) for epoch in case.epochs}) == 1:
                return lost(
                    f"{words}, rank {rank}: in {len(case.epochs)} epochs it sees the same "
                    f"{len(share.samples(case.epochs[0]))} samples, and never one of another "
                    "rank's. Shuffle all samples first, and take the rank's part then."
                )
    return ok("a rank sees other samples in another epoch")


def _judge_quiet(seen: Seen) -> Verdict:
    """No communication, and nobody else's random numbers."""
    waiting = _waits(seen)
    if waiting:
        return waiting
    for one in seen:
        called = sorted(one.trace.ops()) if one.trace is not None else []
        if called:
            return lost(
                f"{count_ranks(one.trial.world_size)}: dist.{called[0]} took part. All ranks know "
                "seed and epoch, so they can draw the same order without a message."
            )
    for words, _, results in _shares(seen):
        for rank, share in enumerate(results):
            if not share.untouched:
                return lost(
                    f"{words}, rank {rank}: the global random state is another one afterwards, "
                    "and dropout or a new layer draws from it. Use a torch.Generator of your own."
                )
    return ok("no messages, and the global random state is as it was")


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
            Rule("covering", 2, _judge_covering),
            Rule("steps", 1, _judge_steps),
            Rule("epochs", 1, _judge_epochs),
            Rule("mixing", 1, _judge_mixing),
            Rule("quiet", 1, _judge_quiet),
        ),
    ),
)
