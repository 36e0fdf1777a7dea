"""01/choose: an all-reduce algorithm for every size, on networks of two levels.

`choose(nbytes, cluster) -> name` is asked on a rank; what it answers is judged by `dtlab.predict`,
and by real ranks that run it on the emulated wire.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.parts import Part
from dtlab.grading.trials import Observation, Trial
from dtlab.grading.unit01.choose_times import ALGORITHMS, best_seconds, seconds_of
from dtlab.grading.unit01.judges import Seen
from dtlab.grading.words import amount
from dtlab.predict import Cluster, Link

__all__ = ["BUDGET", "CHOOSE", "NETWORK", "TABLE"]

# The network, the all-reduces of one step (bytes, how often) and the seconds for them, as
# level-3.ipynb gives them.
NETWORK = Cluster(nodes=2, gpus_per_node=4, intra=Link(2e-6, 300e9), inter=Link(5e-6, 25e9))
TABLE = ((1e3, 1000), (64e3, 400), (1e6, 100), (16e6, 20), (256e6, 1))
BUDGET = 30e-3

_NVLINK, _PCIE = (Link(2e-6, 300e9), Link(2e-6, 450e9)), Link(3e-6, 63e9)
_INFINIBAND = (Link(5e-6, 25e9), Link(5e-6, 50e9))
_SIZES = 16  # that are drawn for each network
_ENOUGH = 1.02  # times as long as the best choice, on average over them

# On the wire: four ranks, a small tensor and a large one. The best algorithm takes 0.16 s and
# 0.2 s, the second best nearly twice as long.
_WIRE = {
    16_000: Cluster(2, 2, Link(2e-6, 300e9), Link(30e-6, 12.5e9), slowdown=4800),
    2_000_000: Cluster(2, 2, Link(2e-6, 300e9), Link(30e-6, 1.25e9), slowdown=230),
}
_TIMES, _TOO_SLOW = 2, 1.5  # the better of two runs counts; in times of the best algorithm's


# What is run ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Questions:
    """`choose` is asked for several sizes on one network."""

    cluster: Cluster
    sizes: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.cluster}"

    def on_rank(self, fn: Callable[..., Any]) -> Any:
        """See `Case`."""
        return [_name(fn(nbytes, self.cluster)) for nbytes in self.sizes]

    def ratio(self, nbytes: float, name: str) -> float:
        """How many times as long as the best one an algorithm takes."""
        return seconds_of(name, nbytes, self.cluster) / best_seconds(nbytes, self.cluster)

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
        (names,) = results
        for nbytes, name in zip(self.sizes, names, strict=True):
            if name not in ALGORITHMS:
                return (
                    f"choose returns {name!r} for {amount(nbytes)}. Return one of: "
                    f"{', '.join(ALGORITHMS)}."
                )
        return ""


@dataclass(frozen=True)
class OnTheWire:
    """What `choose` answers is run for real: when each run began and ended on a rank."""

    cluster: Cluster
    nbytes: int

    def __str__(self) -> str:
        return f"{amount(self.nbytes)} on {self.cluster}"

    def on_rank(self, fn: Callable[..., Any]) -> Any:
        """See `Case`. Raises: ValueError for an algorithm that is not known."""
        import torch
        import torch.distributed as dist

        name = _name(fn(float(self.nbytes), self.cluster))
        if name not in ALGORITHMS:
            raise ValueError(f"choose returns {name!r}.")
        all_reduce = getattr(importlib.import_module("dtlab.collectives"), f"{name}_all_reduce")
        nodes = {"ranks_per_node": self.cluster.gpus_per_node} if name == "hierarchical" else {}
        tensor, times = torch.ones(self.nbytes // 4), []
        for _ in range(_TIMES):
            dist.barrier()
            begun = time.perf_counter()
            all_reduce(tensor, **nodes)
            times.append((begun, time.perf_counter()))
        return name, times

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
        return ""

    def measured(self, results: Sequence[Any]) -> float:
        """Seconds of the faster run, from when all have begun until all have ended."""
        runs = zip(*(times for _, times in results), strict=True)
        lasted = [max(end for _, end in run) - max(begun for begun, _ in run) for run in runs]
        return float(min(lasted))


def _name(answer: Any) -> str:
    return answer if isinstance(answer, str) else repr(answer)


def _trials(seed: int) -> list[Trial]:
    """The table and networks drawn; then both sizes on the wire."""
    draw = random.Random(seed)
    networks = [
        Cluster(8, 8, _NVLINK[1], _INFINIBAND[1]),
        Cluster(draw.choice((4, 8)), 4, _NVLINK[0], _INFINIBAND[0]),
        Cluster(2, 8, _PCIE, _INFINIBAND[1]),
        Cluster(1, draw.choice((4, 8)), _NVLINK[1]),
        Cluster(draw.choice((8, 16)), 1, _NVLINK[0], _INFINIBAND[1]),
        Cluster(32, 4, _PCIE, _INFINIBAND[1]),
    ]
    asked = [Questions(cluster, _drawn_sizes(draw)) for cluster in networks]
    table = Questions(NETWORK, tuple(nbytes for nbytes, _ in TABLE))
    wire = [
        Trial(cluster.size, [OnTheWire(cluster, nbytes)], cluster)
        for nbytes, cluster in _WIRE.items()
    ]
    return [Trial(1, [table, *asked]), *wire]


def _drawn_sizes(draw: random.Random) -> tuple[float, ...]:
    """Bytes from 1 kB to 250 MB, one from each of so many equal steps on a logarithmic scale."""
    steps = ((number + draw.random()) / _SIZES for number in range(_SIZES))
    return tuple(float(round(10 ** (3 + 5.4 * step))) for step in steps)


# How it is judged -------------------------------------------------------------------------------


def _judge_budget(seen: Seen) -> Verdict:
    """The table, on the network of the notebook."""
    if seen[0].mistakes:
        return lost(seen[0].mistakes[0])
    (names,) = seen[0].results[0]
    rows = [
        (count * seconds_of(name, nbytes, NETWORK), count, nbytes, name)
        for (nbytes, count), name in zip(TABLE, names, strict=True)
    ]
    total = sum(row[0] for row in rows)
    if total <= BUDGET:
        return ok(f"{total * 1e3:.1f} ms for the step; the budget is {BUDGET * 1e3:g} ms")
    most = max(rows, key=lambda row: row[0] - row[1] * best_seconds(row[2], NETWORK))
    return lost(
        f"{total * 1e3:.1f} ms for the step; the budget is {BUDGET * 1e3:g} ms. Most is lost at "
        f"{amount(most[2])}: {most[1]} x {most[3]} take {most[0] * 1e3:.1f} ms."
    )


def _judge_elsewhere(seen: Seen) -> Verdict:
    """Other sizes on other networks: within a few per cent of the best, on each."""
    if seen[0].mistakes:
        return blocked("judged once choose answers everywhere")
    for case, results in list(zip(seen[0].trial.cases, seen[0].results, strict=True))[1:]:
        assert isinstance(case, Questions)
        ratios = [
            (case.ratio(nbytes, name), nbytes, name)
            for nbytes, name in zip(case.sizes, results[0], strict=True)
        ]
        mean, worst = sum(ratio for ratio, _, _ in ratios) / len(ratios), max(ratios)
        if mean > _ENOUGH:
            return lost(
                f"{case.cluster}: over {len(ratios)} sizes, what you choose takes "
                f"{mean:.3f} times as long as the best, on average; {_ENOUGH:g} is allowed. Most "
                f"is lost at {amount(worst[1])}, where you choose {worst[2]}."
            )
    networks = len(seen[0].results) - 1
    return ok(f"at most {_ENOUGH:g} times as long as the best choice, on {networks} networks")


def _judge_wire(seen: Seen) -> Verdict:
    """Real ranks on the emulated wire, a small tensor and a large one."""
    runs = [one for one in seen if isinstance(one.trial.cases[0], OnTheWire)]
    if seen[0].mistakes or len(runs) < len(_WIRE):
        return blocked("judged once choose answers everywhere")
    return next(filter(None, map(_too_slow, runs)), ok("as fast as predicted on the wire too"))


def _too_slow(one: Observation) -> Verdict | None:
    (case,) = one.trial.cases
    assert isinstance(case, OnTheWire)
    if one.error is not None:
        return lost(one.trouble)
    name, seconds = one.results[0][0][0], case.measured(one.results[0])
    best = case.cluster.slowdown * best_seconds(case.nbytes, case.cluster)
    if seconds <= _TOO_SLOW * best:
        return None
    return lost(
        f"{case}: {name} took {seconds:.2f} s on the emulated wire; the best needs {best:.2f} s."
    )


CHOOSE = Part(
    name="01/choose",
    level=3,
    title="The algorithm that suits",
    symbol="choose",
    grade_id="choose-check",
    minutes=25,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            Rule("budget", 4, _judge_budget),
            Rule("elsewhere", 4, _judge_elsewhere),
            Rule("wire", 2, _judge_wire),
        ),
    ),
)
