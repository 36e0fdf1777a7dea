"""09/overlap: send buckets of gradients while the next ones are computed; step bucket by bucket.

The check judges the order of events on each rank, not their durations:

    backward     layer │ layer │ layer │ layer │ end
    bucket 0               └ sent before the next layer begins
    waiting                                    │ wait 0 │ step 0, 1 │ wait 1 │ step 2, 3
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, prod
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import NEAR, difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import inside_marks, marked_waits, unseen_collectives
from dtlab.checks.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["PART", "Arriving"]

Named = dict[str, list["Event"]]  # events of one rank in one case, in order, by name


@dataclass(frozen=True)
class Arriving(Faulty):
    """A call of `fn(gradients, bucket_bytes, step)`; `gradients` computes each when it is read.

    Gradients are whole numbers, so their sums and, on 1, 2 and 4 ranks, their means are exact.
    """

    finished: ClassVar[tuple[str, ...]] = (
        "dtlab.simple",
        "dtlab.collectives",
        "dtlab.parallel.data.buckets",
        "dtlab.parallel.data.data_parallel",
    )
    topic = "gradients"

    seed: int
    shapes: tuple[tuple[int, ...], ...]
    bucket_bytes: int

    def __str__(self) -> str:
        return f"{len(self.shapes)} gradients, buckets of {self.bucket_bytes} bytes"

    @property
    def sizes(self) -> list[int]:
        """Bytes of each gradient."""
        return [4 * prod(shape) for shape in self.shapes]

    @property
    def buckets(self) -> list[int]:
        """How many gradients each bucket has."""
        counts, filled, count = list[int](), 0, 0
        for size in self.sizes:
            filled, count = filled + size, count + 1
            if filled >= self.bucket_bytes:
                counts.append(count)
                filled = count = 0
        return [*counts, count] if count else counts

    def gradients(self, rank: int) -> list[Tensor]:
        """The gradients of a rank, in the order in which backward computes them."""
        import torch

        draw = torch.Generator().manual_seed(self.seed * 101 + rank)
        return [torch.randint(-99, 100, shape, generator=draw).float() for shape in self.shapes]

    def given(self, rank: int, world_size: int) -> tuple[list[Tensor], int]:
        return self.gradients(rank), self.bucket_bytes

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[list[Tensor], int]) -> dict[str, Any]:
        from dtlab.trace import span

        gradients, bucket_bytes = given
        stepped: list[tuple[int, Tensor]] = []

        def backward() -> Iterator[Tensor]:
            for gradient in gradients:
                with span("layer"):
                    fresh = gradient.clone()
                yield fresh
            with span("end"):
                pass

        def step(place: int, mean: Tensor) -> None:
            with span("step", place=int(place)):
                stepped.append((int(place), mean.detach().clone()))

        refused = finished_calls(*Arriving.finished, refuse=True)
        with refused as finished, marked_waits(), span("case"):
            fn(backward(), bucket_bytes, step)
        return {"stepped": stepped, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        own = [self.gradients(rank) for rank in range(len(results))]
        for rank, result in enumerate(results):
            words = self._wrong_steps(result["stepped"], own, rank)
            if words:
                yield "gradients", f"rank {rank}: " + words

    def _wrong_steps(self, stepped: Any, own: list[list[Tensor]], rank: int) -> str:
        places = [place for place, _ in stepped]
        if sorted(places) != list(range(len(self.shapes))):
            return (
                f"step is called for the gradients {places}. Call it once for each of the "
                f"{len(self.shapes)} gradients, with its number from 0 on and its mean."
            )
        for place, got in stepped:
            parts = [gradients[place] for gradients in own]
            total, count = sum(parts[1:], parts[0]), len(parts)
            known = {
                "is the sum over the ranks, not the mean": (total, ""),
                "is the rank's own, not the mean": (parts[rank], ""),
                "is the rank's own, divided by the number of ranks": (parts[rank] / count, ""),
            }
            hint = "Does anything read a bucket before its wait, or mix up its gradients?"
            wrong = difference(
                got, total / count, known if count > 1 else {}, hint=hint, form="",
                near=NEAR if count == 3 else 0.0,
            )  # fmt: skip
            if wrong:
                return f"gradient {place} " + wrong
        return ""

    # What the trace shows ------------------------------------------------------------------------

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        if words := unseen_collectives(observation):
            yield "gradients", words
        cases = [case for case in observation.trial.cases if isinstance(case, Arriving)]
        for rank in range(observation.trial.world_size):
            marked = inside_marks(observation.trace, rank, "case")
            for number, (case, events) in enumerate(zip(cases, marked, strict=False)):
                where = f"{observation.trial.words(number)}, rank {rank}"
                named: Named = {}
                waited = set[int]()  # only the first wait for a handle may take time
                for event in sorted(events, key=lambda event: event.start):
                    if event.name == "wait":
                        if event.extra["handle"] in waited:
                            continue
                        waited.add(event.extra["handle"])
                    named.setdefault(event.name, []).append(event)
                others = {event.name for event in events if event.kind == "comm"} - {"all_reduce"}
                faults = (*case.wrong_buckets(named, others), *case.too_late(named),
                          *wrong_waits(named), *case.late_steps(named))  # fmt: skip
                yield from ((name, f"{where}: {text}") for name, text in faults)

    @property
    def firsts(self) -> list[int]:
        """The number of the first gradient of each bucket, and that of all gradients."""
        return [0, *accumulate(self.buckets)]

    def wrong_buckets(self, named: Named, others: set[str]) -> Iterator[Fault]:
        """Yields a fault unless there is one all-reduce for each bucket, and nothing else."""
        sizes = [sum(self.sizes[a:b]) for a, b in pairwise(self.firsts)]
        found = [event.bytes for event in named.get("all_reduce", [])]
        if others:
            yield "all_reduces", f"the rank calls {min(others)}. A bucket takes one all_reduce."
        elif found != sizes:
            yield (
                "all_reduces",
                f"all-reduces of {', '.join(map(str, found)) or 'no'} bytes, for buckets of "
                f"{', '.join(map(str, sizes))}. The gradient with which a bucket reaches "
                "bucket_bytes closes it, and what is left at the end is a bucket too.",
            )

    def too_late(self, named: Named) -> Iterator[Fault]:
        """Yields a fault if a full bucket, or the last one, is sent too late."""
        sent, end = named.get("all_reduce", []), named["end"][0].start
        nexts = [*(layer.start for layer in named["layer"][1:]), end]
        for last in self.firsts[1:-1]:  # with all gradients before this one, a bucket is full
            before = sum(event.bytes for event in sent if event.start < nexts[last - 1])
            if before < sum(self.sizes[:last]):
                yield (
                    "at_once",
                    f"gradient {last - 1} fills a bucket, and the next gradient is computed "
                    "before its all-reduce begins. Start it first, with async_op=True.",
                )
                return
        waits = [wait.start for wait in named.get("wait", []) if wait.start > end]
        if waits and any(event.start > waits[0] for event in sent):
            yield (
                "at_once",
                "the rank waits for a bucket before it has sent the last one. Send what is left "
                "first, and then wait.",
            )

    def late_steps(self, named: Named) -> Iterator[Fault]:
        """Yields a fault if the rank waits for a bucket before the steps of the one before."""
        begun = {event.extra["place"]: event.start for event in named.get("step", [])}
        for bucket, (one, other) in enumerate(pairwise(self.firsts[:-1])):
            between = begun.get(one, inf), begun.get(other, -inf)
            waits = (between[0] < wait.start < between[1] for wait in named.get("wait", []))
            if {one, other} <= {*begun} and not any(waits):
                yield (
                    "steps",
                    f"the rank waits for bucket {bucket + 1} before it calls step for the "
                    f"gradients of bucket {bucket}, which are there. Wait for one bucket, step, "
                    "and then wait for the next one.",
                )
                return


def wrong_waits(named: Named) -> Iterator[Fault]:
    """Yields a fault if the rank waits during backward, or does not wait for a bucket."""
    waits, sent = named.get("wait", []), named.get("all_reduce", [])
    if any(wait.start < named["end"][0].start for wait in waits):
        yield (
            "waits",
            "the rank waits while there are still gradients to compute, so nothing overlaps. Keep "
            "what all_reduce(async_op=True) returns, and wait at the end.",
        )
    elif len(waits) < len(sent):
        yield (
            "unwaited",
            f"{len(sent)} all-reduces begin, and the rank waits for {len(waits) or 'none'} of "
            "them. Call wait() for each before you read its result: is_completed() does not wait.",
        )


def _trials(seed: int) -> list[Trial]:
    """Several limits on 1 to 4 ranks: with and without a rest, and a bucket for each gradient."""
    draw = random.Random(seed)

    def case(limit: int = 0, exact: bool = False) -> Arriving:
        shapes = [
            (draw.randint(3, 9), draw.randint(3, 9)) if number % 2 else (draw.randint(3, 9),)
            for number in range(draw.randint(7, 9))
        ]
        sizes = [4 * prod(shape) for shape in shapes]
        limit = limit or (sum(sizes[:2]) if exact else max(sizes) + 4 * draw.randint(1, 9))
        return Arriving(draw.randrange(10**6), tuple(shapes), limit)

    return [
        Trial(4, [case(), case(exact=True), case(4), case(1 << 20)]),
        *(Trial(ranks, [case(), case(exact=True)]) for ranks in (2, 1, 3)),
    ]


PART = Part(
    "09/overlap", 2, "Overlap, bucket by bucket", 45, 3,
    Check(
        trials=_trials,
        rules=(
            rule("gradients", 4, "step gets the mean of each gradient, on 1 to 4 ranks",
                 lost_by=("unwaited", "gradients")),
            rule("all_reduces", 2, "one all-reduce for each bucket, and nothing else"),
            rule("at_once", 3, "a bucket is sent before the next gradient is computed",
                 "all_reduces"),
            rule("waits", 3, "no rank waits while gradients are computed"),
            rule("steps", 2, "the step of a bucket does not wait for the next bucket",
                 "gradients", "unwaited", "all_reduces", "waits"),
        ),
    ),
    stretch=True,
)  # fmt: skip
