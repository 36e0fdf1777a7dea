"""11/server: a parameter server as an async actor, synchronous or with bounded staleness.

An actor whose methods are coroutines is an object on an event loop. So the check calls the methods
in a fixed order on a loop of one rank, and notes in its own process which calls wait after each:

    push(0, 0)      done
    pull(0, 1)      waits          until workers 1 and 2 have pushed step 0 too
    push(1, 0)      done    waits
    push(2, 0)      done    returns

The loop has a simulated clock (hosts.py): nothing depends on the speed of the machine. The rank
gets a call only after its report on the one before, so it does not know what comes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import close
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.ranks.plain import is_modest
from dtlab.units.unit11.hosts import host_server, running

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.ranks.asking import Dialogue

__all__ = ["PART", "Served", "running"]

Call = tuple[str, int, int]  # "push" or "pull", worker, step
Named = dict[str, "Tensor"]

RATE = 0.5
_MOST_NAMES = 1000  # in a dict of parameters
_NAME = re.compile(r"[\w.<>]{1,80}")  # of a coroutine that was not awaited


@dataclass(frozen=True)
class Served(Faulty):
    """Makes `fn(parameters, workers, learning_rate, staleness)` and calls its methods in order.

    Gradients are whole numbers. `shapes` are those of the parameters, `calls` the script.
    """

    alone: ClassVar[bool] = True
    finished: ClassVar[tuple[str, ...]] = ("dtlab.parallel.server.server",)
    also_shows: ClassVar = {"updates": ("snapshot",), "waits": ("version",)}
    advices: ClassVar = {
        "did not finish": "A call of your server keeps the event loop to itself, so no other call "
        "of the actor can run. Wait with await: `await condition.wait_for(...)`."
    }

    seed: int
    topic: str
    workers: int
    staleness: int | None
    calls: tuple[Call, ...]
    shapes: tuple[tuple[int, ...], ...] = ((2, 3), (4,))

    def __str__(self) -> str:
        how = "synchronous" if self.staleness is None else f"staleness {self.staleness}"
        return f"{self.workers} worker{'s' * (self.workers > 1)}, {how}"

    def drawn(self, worker: int, step: int) -> Named:
        """The gradients of a worker in a step; of worker -1, the parameters."""
        import torch

        draw = torch.Generator().manual_seed(self.seed * 10_007 + worker * 101 + step)
        tensors = (torch.randint(-99, 100, shape, generator=draw).float() for shape in self.shapes)
        return {f"layer{number}": tensor for number, tensor in enumerate(tensors)}

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return self.drawn(-1, 0), self.workers, RATE, self.staleness

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> None:
        host_server(fn, given)

    def dialogue(self, rank: int, world_size: int) -> Dialogue:
        """Sends each call after the report on the one before, and notes when each has ended."""
        notes: list[dict[str, Any]] = []
        yield  # the learner's object has been made
        for number, (kind, worker, step) in enumerate(self.calls):
            notes.append({"ended": None, "value": None})
            gradients = [self.drawn(worker, step)] if kind == "push" else []
            report = yield [kind, worker, step, *gradients]
            for place, value in _entries(report, 2):
                if notes[place]["ended"] is not None:
                    raise ValueError("a call ends once")
                notes[place] |= {"ended": number, "value": _named(value)}
        for place, later, tensors in _entries((yield ["later"]), 3):
            notes[place] |= {"later": _named(later), "tensors": _named(tensors)}
        forgotten = yield []
        if not isinstance(forgotten, list) or not is_modest(forgotten):
            raise ValueError("not a list of names")
        return {"calls": notes, "forgotten": [each for each in forgotten if _NAME.fullmatch(each)]}

    @cached_property
    def right(self) -> list[tuple[int | None, Named]]:
        """For each call, the number of the call after which it has returned, and its value."""
        parameters, held = self.drawn(-1, 0), list[Named]()
        pushed = [0] * self.workers
        ends: list[tuple[int | None, Named]] = [(None, {}) for _ in self.calls]
        for number, (kind, worker, step) in enumerate(self.calls):
            if kind == "push":
                ends[number] = number, {}
                pushed[worker] += 1
                held.append(self.drawn(worker, step))
                if self.staleness is not None or len(held) == self.workers:
                    total = {name: sum(each[name] for each in held) for name in parameters}
                    parameters = {
                        name: parameters[name] - RATE * total[name] / self.workers
                        for name in total
                    }
                    held = []
            for earlier, (kind_then, _, step_then) in enumerate(self.calls[: number + 1]):
                ahead = step_then - min(pushed)
                if kind_then == "pull" and ends[earlier][0] is None and ahead <= self.bound:
                    ends[earlier] = number, parameters
        return ends

    @property
    def bound(self) -> int:
        """How many steps a worker may be ahead of the slowest."""
        return self.staleness or 0

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        calls, note = results[0]["calls"], ""
        for name in results[0]["forgotten"][:1]:
            note = f"\nYour code calls {name} without await. Such a call does nothing."
        for topic, words in (*self._by_time(calls), *self._by_value(calls)):
            yield topic, words + note

    def _by_time(self, calls: Sequence[dict[str, Any]]) -> Iterator[Fault]:
        """Yields a push that waits, or a pull that returned too early or too late."""
        ends = [call["ended"] for call in calls]
        numbers = range(len(self.calls))
        for number in sorted(numbers, key=lambda n: self.calls[n][0] == "pull"):
            (kind, worker, step), ended = self.calls[number], ends[number]
            due, words = self.right[number][0], f"{kind}(worker={worker}, step={step})"
            if ended == due:
                continue
            topic = self.topic if self.topic != "pushes" else "waits"
            if kind == "push":
                pulls = (n for n in numbers[:number] if self.calls[n][0] == "pull")
                waits = any(ends[n] is None or ends[n] >= number for n in pulls)
                cause = (
                    "A pull that waits must not hold what a push needs: a lock, or the event loop."
                    if waits else "No pull is waiting, so what does it wait for?"
                )  # fmt: skip
                topic = "pushes" if waits else topic
                yield topic, f"{words} does not return. {cause}{self._so_far(ends, number)}"
            elif ended is not None and (due is None or ended < due):
                slow = min(range(self.workers), key=lambda w: self._pushes(w, ended))
                yield (
                    topic,
                    f"{words} returns, although worker {slow} has made only "
                    f"{counted(self._pushes(slow, ended), 'push', 'pushes')}. It needs "
                    f"{step - self.bound} of every worker.{self._so_far(ends, ended)}",
                )
            else:
                assert due is not None
                needs = counted(step - self.bound, "push", "pushes")
                has = f"has {needs} of every worker" if step > self.bound else "needs no push"
                yield (
                    topic,
                    f"{words} still waits, although it {has}. Does each push wake all pulls that "
                    f"wait, and do they look at the right number?{self._so_far(ends, due)}",
                )
            return

    def _pushes(self, worker: int, until: int) -> int:
        return sum(call[:2] == ("push", worker) for call in self.calls[: until + 1])

    def _so_far(self, ends: Sequence[int | None], last: int) -> str:
        """The latest calls, and which of them wait after the call `last`."""
        lines = []
        for number, (kind, worker, step) in enumerate(self.calls[: last + 1]):
            ended = ends[number]
            waits = "waits" if ended is None or ended > last else "returned"
            if waits == "waits" or number > last - 5:
                lines.append(f"\n  {kind}(worker={worker}, step={step})   {waits}")
        return "\nThe calls so far:" + "".join(lines)

    def _by_value(self, calls: Sequence[dict[str, Any]]) -> Iterator[Fault]:
        """Yields a pull with wrong parameters, or with parameters that change after it."""
        for number, call in enumerate(calls):
            (kind, worker, step), (ended, wanted) = self.calls[number], self.right[number]
            if kind == "push" or ended is None or call["ended"] != ended:
                continue
            words = f"pull(worker={worker}, step={step})"
            got = call["value"]
            topic = self.topic if self.topic not in ("pushes", "waits") else "version"
            if got is None or set(got) != set(wanted):
                keys = "no dict of tensors" if got is None else sorted(got)
                yield topic, f"{words} returns {keys}, not the parameters {sorted(wanted)}."
                return
            if not all(_equal(got[name], wanted[name]) for name in wanted):
                yield topic, f"{words}: {self._how_wrong(got, ended)}"
                return
            if not all(_equal(call["later"][name], got[name]) for name in got):
                in_place = not all(_equal(call["tensors"][name], got[name]) for name in got)
                cause = (
                    "The push changes the tensors in place, as `-=` does: make new ones."
                    if in_place else "The push changes the dict that pull returned: return a new "
                    "dict each time."
                )  # fmt: skip
                yield (
                    "snapshot",
                    f"what {words} returned has changed with a later push. {cause} Ray copies a "
                    "result in another thread, after the method has returned.",
                )

    def _how_wrong(self, got: Named, ended: int) -> str:
        """Says which gradients the parameters contain instead."""
        pushes = [(w, step) for kind, w, step in self.calls[: ended + 1] if kind == "push"]
        done = min(self._pushes(worker, ended) for worker in range(self.workers))
        complete = [(w, step) for w, step in pushes if step < done]
        due = complete if self.staleness is None else pushes
        last = pushes[self.workers - 1 :: self.workers]
        known = {
            "with a staleness, each push counts at once, and this lacks gradients that have "
            "arrived.": (complete, 1.0),
            "this is the learning rate times the sum of the gradients. Divide by the number of "
            "workers.": (due, 1.0 * self.workers),
            "they contain gradients of a step that not all workers have pushed yet. Keep these "
            "until the last one arrives.": (pushes, 1.0),
            "no gradient is applied.": ([], 1.0),
            "they have moved up the gradient. Subtract.": (due, -1.0),
            "of each step, only the gradients of the last push are applied.": (last, 1.0),
        }  # fmt: skip
        for words, (chosen, times) in known.items():
            if all(_equal(got[name], value) for name, value in self._after(chosen, times).items()):
                return words
        return (
            "the parameters are wrong. From each of them subtract learning_rate / workers times "
            "each gradient of it."
        )

    def _after(self, pushes: Sequence[tuple[int, int]], times: float) -> Named:
        parameters = self.drawn(-1, 0)
        for worker, step in pushes:
            for name, gradient in self.drawn(worker, step).items():
                parameters[name] = parameters[name] - times * RATE * gradient / self.workers
        return parameters


def _equal(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and got.dtype == wanted.dtype and close(got, wanted)


# What the rank reports ---------------------------------------------------------------------------


def _entries(report: Any, size: int) -> list[Any]:
    """The entries of a report, each with `size` fields of which the first is a call's number.

    Raises `ValueError` if it is something else, since a rank may have sent anything.
    """
    if not isinstance(report, list) or not is_modest(report):
        raise ValueError("not a report")
    if not all(isinstance(each, list) and len(each) == size for each in report):
        raise ValueError("not the entries of a report")
    if not all(type(each[0]) is int and each[0] >= 0 for each in report):
        raise ValueError("not the number of a call")
    return report


def _named(value: Any) -> Named | None:
    """A dict of tensors, or None. Raises `ValueError` if it is something else."""
    import torch

    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MOST_NAMES:
        raise ValueError("not a dict, or too large")
    if not all(isinstance(name, str) and len(name) < 100 for name in value):
        raise ValueError("not a dict by names")
    if not all(isinstance(tensor, torch.Tensor) for tensor in value.values()):
        raise ValueError("not a dict of tensors")
    return value


# The scripts -------------------------------------------------------------------------------------


def _round(workers: Sequence[int], step: int, then: Sequence[int] = ()) -> list[Call]:
    """Pushes of one step by these workers, then pulls of the next step."""
    pushes = [("push", worker, step) for worker in workers]
    return [*pushes, *(("pull", worker, step + 1) for worker in then)]


def _trials(seed: int) -> list[Trial]:
    """Without waits; then pulls that wait, versions, and bounds."""
    draw = random.Random(seed)

    def case(topic: str, workers: int, staleness: int | None, *calls: Call) -> Served:
        shapes = (draw.randint(2, 4), draw.randint(2, 5)), (draw.randint(3, 7),)
        return Served(draw.randrange(2**48), topic, workers, staleness, calls, shapes)

    def order(workers: int) -> list[int]:
        return draw.sample(range(workers), workers)

    def in_step(workers: int, steps: int) -> list[Call]:
        first: list[Call] = [("pull", worker, 0) for worker in order(workers)]
        return first + [
            call for step in range(steps) for call in _round(order(workers), step, order(workers))
        ]

    a, b, c = order(3)
    waiting = [*_round([a], 0, [a]), *_round([b], 0, [b]), *_round([c], 0, [c])]
    ahead = draw.randint(2, 3)
    alone = [call for step in range(ahead) for call in _round([a], step, [a])]
    return [
        Trial(1, [case("updates", workers, None, *in_step(workers, 3)) for workers in (3, 1, 4)]),
        Trial(1, [case("pushes", 3, None, *waiting)]),
        Trial(1, [
            case("waits", 3, None, *waiting, *_round([b], 1, [b]), *_round([c, a], 1, [c, a])),
            case("waits", 4, None, *_round([a, b, c], 0, [c, a]), *_round([3], 0, [3, b])),
            case("waits", 2, None, ("pull", 1, 0), *_round([1], 0, [1]), ("pull", 0, 0),
                 *_round([0], 0, [0])),
            case("waits", 3, None, *_round([c, a, b], 0, [b]), *_round([b], 1), ("pull", a, 1),
                 *_round([a], 1), ("pull", c, 1), *_round([c], 1, [a, b, c])),
        ]),
        Trial(1, [
            case("at_once", 2, 3, *_round([1], 0, [1]), ("pull", 0, 0), *_round([1], 1, [1]),
                 *_round([0], 0, [0])),
            case("at_once", 3, 1, *in_step(3, 2)),
            case("at_once", 2, 0, *_round([1], 0), ("pull", 0, 0)),
        ]),
        Trial(1, [
            case("bounded", 3, ahead - 1, *alone, *_round([b], 0, [b]), *_round([c], 0, [c]),
                 *_round([a], ahead, [a]), *_round([b], 1), *_round([c], 1)),
            case("bounded", 2, 1, *_round([0], 0, [0]), *_round([0], 1, [0]), *_round([1], 0, [1]),
                 *_round([1], 1, [1]), *_round([1], 2, [1]), *_round([1], 3, [1]),
                 *_round([0], 2, [0])),
            case("bounded", 2, 0, *_round([1], 0, [1]), *_round([0], 0, [0])),
        ]),
    ]  # fmt: skip


PART = Part(
    "11/server", 2, "A parameter server", 40, 3,
    Check(
        trials=_trials,
        rules=(
            rule("updates", 3, "the mean gradient of each step, for 1 to 4 workers"),
            rule("snapshot", 1, "later pushes do not change what a pull returned", "updates"),
            rule("pushes", 2, "a pull that waits does not block pushes", "updates"),
            rule("waits", 2, "synchronous: a pull waits for all pushes of the step before",
                 "updates", "pushes"),
            rule("version", 2, "synchronous: no gradient of a step counts before all are there",
                 "updates", "pushes"),
            rule("at_once", 2, "with a staleness, each push counts at once", "updates", "pushes"),
            rule("bounded", 3, "a worker gets at most `staleness` steps ahead", "updates",
                 "pushes", "at_once"),
        ),
    ),
    symbol="ParameterServer",
)  # fmt: skip
