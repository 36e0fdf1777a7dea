"""11/sharded: two parameter servers that look like one, and what a worker sends to them.

The servers are handles whose calls are recorded. As with Ray, `.remote()` starts a call and
returns a reference, `get` waits for values, and `put` stores a value once:

    make(shard) ──> handle          handle.pull.remote(...) ──> reference ──> get ──> value
    put(data) ──> reference         an argument that is a reference arrives as its value

All values are in the judge's process until they are fetched. The rank has only numbers (hosts.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.predict.units import counted
from dtlab.ranks.asking import Refused
from dtlab.ranks.plain import Opaque, is_modest
from dtlab.units.unit11.hosts import Actors, host_client

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.ranks.asking import Dialogue

__all__ = ["PART", "Divided", "Recorder"]

Named = dict[str, "Tensor"]
Size = tuple[str, tuple[int, ...], str]  # name, shape and dtype of a parameter

SAMPLES, WORKERS = 4096, 3  # numbers in the data set; workers that get it
NEAR = 1.05  # times the bytes of a good split that a server may keep
MOST_BYTES = 64 * 10**6  # that a `Recorder` moves; each value and message counts some besides
_VALUE, _MESSAGE = 500, 4000


@dataclass(frozen=True)
class Divided(Faulty):
    """Makes `fn(parameters, servers, make)`, then pulls, pushes, and starts workers with it."""

    alone: ClassVar[bool] = True
    finished: ClassVar[tuple[str, ...]] = ("dtlab.parallel.server.shards",)
    also_shows: ClassVar = {"shards": ("pull", "push", "together", "bytes", "once")}
    topic = "shards"

    seed: int
    sizes: tuple[Size, ...]
    servers: int

    def __str__(self) -> str:
        return f"{len(self.sizes)} parameters on {self.servers} servers"

    def drawn(self, which: int) -> Named:
        """Parameters (0), or the gradients of a step (1, 2, ...): whole numbers."""
        import torch

        draw = torch.Generator().manual_seed(self.seed * 101 + which)
        return {
            name: torch.randint(-99, 100, shape, generator=draw).to(getattr(torch, dtype))
            for name, shape, dtype in self.sizes
        }

    def bytes(self, names: Sequence[str]) -> int:
        """The bytes of these parameters."""
        widths = {"float32": 4, "bfloat16": 2}
        return sum(widths[dtype] * prod(shape) for n, shape, dtype in self.sizes if n in names)

    @cached_property
    def fair(self) -> int:
        """The most bytes on a server if the largest parameters are placed first."""
        return max(_loads([self.bytes([name]) for name, _, _ in self.sizes], self.servers))

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return self.drawn(0), self.servers

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> None:
        host_client(fn, given)

    def dialogue(self, rank: int, world_size: int) -> Dialogue:
        """Tells the rank how to use the client, one use at a time, and is Ray for its handles."""
        ray, reports = Recorder(), []
        message = yield
        for during, step, moved, arguments in self._uses():
            reports.append((yield from _until_next(ray, message)))
            ray.begin(during, step, moved)
            message = yield [during, *arguments]
        reports.append((yield from _until_next(ray, message)))
        _, *pulled_or_none, started = reports
        return {"events": ray.events, "pulled": pulled_or_none[::2], "started": started}

    def _uses(self) -> Iterator[tuple[str, int, int, list[Any]]]:
        """The uses of the client: what, in which step, how far parameters have moved, and with."""
        for step in range(2):
            worker = 2 - step
            yield "pull", step, self.moved(step), [worker, step]
            yield "push", step, self.moved(step), [worker, step, self.drawn(1 + step)]
        yield "start", 0, 0, [WORKERS, self.data]

    def moved(self, step: int) -> int:
        """What training has added to all parameters; only a pull can tell it to the client."""
        return random.Random(drawn_seed(self.seed, f"moved {step}")).randint(1, 99)

    @property
    def data(self) -> Tensor:
        """The data set that all workers share."""
        import torch

        return torch.arange(SAMPLES, dtype=torch.float32)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        events: list[dict[str, Any]] = results[0]["events"]
        shards = [event["names"] for event in events if event["what"] == "make"]
        if words := self._not_divided(shards):
            yield "divided", words
            return
        yield from self._out_of_balance(shards)
        for step, pulled in enumerate(results[0]["pulled"]):
            in_step = [event for event in events if event["step"] == step]
            pulls = [event for event in in_step if event["during"] == "pull"]
            pushes = [event for event in in_step if event["during"] == "push"]
            yield from self._wrong_pull(pulls, pulled, step)
            yield from self._wrong_push(pushes, shards, step)
            for name, during in (("pull", pulls), ("push", pushes)):
                yield from _in_turn(name, during)
        start = [event for event in events if event["during"] == "start"]
        yield from self._wrong_start(start, results[0]["started"])

    def _not_divided(self, shards: Sequence[Sequence[str]]) -> str:
        """A message unless each parameter is on one server."""
        if len(shards) != self.servers:
            times = counted(len(shards), "time")
            return f"make is called {times}. Call it once for each server."
        for name, _, _ in self.sizes:
            places = sum(name in names for names in shards)
            if places != 1:
                return f"{name} is on {counted(places, 'server')}. Each parameter belongs on one."
        return ""

    def _out_of_balance(self, shards: Sequence[Sequence[str]]) -> Iterator[Fault]:
        loads = [self.bytes(names) for names in shards]
        if max(loads) > NEAR * self.fair:
            yield (
                "shards",
                f"the servers keep {' and '.join(f'{load:,}' for load in loads)} bytes; at most "
                f"{self.fair:,} each are possible. Go through the parameters from the "
                "largest (in bytes) to the smallest: which server has the least so far?",
            )

    def _wrong_pull(
        self, during: Sequence[dict[str, Any]], pulled: Named, step: int
    ) -> Iterator[Fault]:
        calls = [event for event in during if event["what"] == "call"]
        if words := _wrong_calls(calls, "pull", self.servers, 2 - step, step):
            yield "pull", words
            return
        wanted = self.drawn(0)
        if set(pulled) != set(wanted):
            yield "pull", f"pull returns {sorted(pulled)}. All parameters in one dict are due."
        elif any(tensor is None for tensor in pulled.values()):
            yield "pull", "pull returns something other than tensors. Get what the calls return."
        elif not all(same(pulled[name], wanted[name] + self.moved(step)) for name in wanted):
            yield "pull", "pull returns other values than the servers sent."

    def _wrong_push(
        self, during: Sequence[dict[str, Any]], shards: Sequence[Sequence[str]], step: int
    ) -> Iterator[Fault]:
        calls = [event for event in during if event["what"] == "call"]
        if words := _wrong_calls(calls, "push", self.servers, 2 - step, step):
            yield "push", words
            return
        gradients, sent = self.drawn(1 + step), 0
        for call in calls:
            names = shards[call["of"]]
            if lacking := [n for n in names if n not in call["gradients"]]:
                yield "push", f"server {call['of']} does not get the gradient of {lacking[0]}."
                return
            got = call["gradients"]
            if wrong := [name for name in names if not same(got[name], gradients[name])]:
                yield "push", f"server {call['of']} gets a wrong gradient of {wrong[0]}."
                return
            sent += call["bytes"]
        fetched = {number for event in during if event["what"] == "get" for number in event["of"]}
        late = [call["of"] for call in calls if call["number"] not in fetched]
        if late:
            yield (
                "push",
                f"push returns before server {late[0]} has answered, so an error there is lost. "
                "Get all references that the calls return.",
            )
        due = self.bytes([name for name, _, _ in self.sizes])
        if sent > due:
            yield (
                "bytes",
                f"a push sends {amount(sent)}; all gradients together have {amount(due)}. Send "
                "each server the gradients of its own parameters.",
            )

    def _wrong_start(
        self, during: Sequence[dict[str, Any]], started: Sequence[int]
    ) -> Iterator[Fault]:
        calls = [event for event in during if event["what"] == "call"]
        if [call["worker"] for call in calls] != list(range(WORKERS)):
            yield "once", "start must call train.remote(number, data) once on every worker."
        elif list(started) != [call["number"] for call in calls]:
            yield "once", "start must return the references of its calls, in the workers' order."
        elif any(call["count"] != call["worker"] for call in calls):
            yield "once", "start gives a worker a wrong number. They count from 0."
        elif not all(self._is_data(call["data"]) for call in calls):
            yield (
                "once",
                "a worker does not get the data set. Ray replaces a reference by its value only "
                "where the reference itself is an argument, not inside a list or dict.",
            )
        stored = sum(event["bytes"] for event in during if event["what"] == "put")
        by_value = sum(call["bytes"] for call in calls)
        if stored + by_value > 4 * SAMPLES:
            yield (
                "once",
                f"the data set has {amount(4 * SAMPLES)}. The calls carry {amount(by_value)}, and "
                f"{amount(stored)} are put into the store. Put it once, and pass the reference.",
            )

    def _is_data(self, value: Any) -> bool:
        return same(value, self.data, dtype=True)


def _wrong_calls(
    calls: Sequence[dict[str, Any]], name: str, servers: int, worker: int, step: int
) -> str:
    """A message unless there is one call of this method to each server, for the right step."""
    if strange := {call["method"] for call in calls} - {name}:
        return f"{name} calls the method {min(strange)} of a server."
    for number in range(servers):
        times = sum(call["of"] == number for call in calls)
        if times != 1:
            calls_it = (
                f"calls server {number} {times} times" if times else f"leaves out server {number}"
            )
            return f"{name} {calls_it}. Call each server once."
    other = next((c for c in calls if (c["worker"], c["step_of"]) != (worker, step)), None)
    if other is not None:
        return f"server {other['of']} gets another worker or step than {name} does."
    return ""


def _in_turn(name: str, during: Sequence[dict[str, Any]]) -> Iterator[Fault]:
    """Yields a fault if a call begins after another one was waited for, or if there is none."""
    kinds = [event["what"] for event in during]
    if "call" not in kinds:
        yield "together", f"{name} calls no server. Start a call of each."
    elif "get" in kinds and "call" in kinds[kinds.index("get") :]:
        yield (
            "together",
            f"{name} waits for one server before it calls the next, so the servers work in turn. "
            "Start all calls, then get all of their references.",
        )


def _loads(sizes: Sequence[int], servers: int) -> list[int]:
    """The bytes on each server if the largest come first, each to the server with the least."""
    loads = [0] * servers
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return loads


# What stands for Ray -----------------------------------------------------------------------------


class Recorder(Actors):
    """Makes handles, and records what happens: calls, gets and puts, in order.

    It holds all values; those who use its handles have only references. In a check it is in the
    judge's process, and `Actors` on the rank sends each use as a message to `answer`.
    """

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.events: list[dict[str, Any]] = []
        self._during, self._step = "make", -1
        self._moved: int | None = None
        self._shards: list[dict[Any, Any]] = []
        self._names = set[Any]()  # of all parameters
        self._values: dict[int, Any] = {}  # by the number of a reference
        self._left = MOST_BYTES

    def begin(self, during: str, step: int, moved: int | None = None) -> None:
        """Says what is recorded from now on, and by how much pulled parameters have moved."""
        self._during, self._step, self._moved = during, step, moved

    def answer(self, message: Any) -> list[Any]:
        """Carries out a message of `Actors`: returns an error's type and text, or "" and a value.

        Raises `Refused` if it is too much to store, `ValueError` if it is no such message.
        """
        if not isinstance(message, list) or not is_modest(message):
            raise Refused("this is too large, or too deep, for an argument in this exercise.")
        what, *content = message
        if what not in ("make", "call", "get", "put"):
            raise ValueError("no such message")
        self._spend(content)
        try:
            return ["", getattr(self, f"_do_{what}")(*content)]
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001  it belongs to the line that sent the message
            return [type(error).__name__, str(error)[:500]]

    def _spend(self, value: Any) -> None:
        """Counts a value that is stored or sent, so that no answer can fill the memory."""
        self._left -= _bytes(value, each=_VALUE) + _MESSAGE
        if self._left < 0:
            raise Refused(f"your class has moved more than {amount(MOST_BYTES)} in one use of it.")

    def _note(self, what: str, **more: Any) -> None:
        self.events.append({"what": what, "during": self._during, "step": self._step, **more})

    def _do_make(self, shard: Any) -> int:
        self._shards.append(dict(shard))
        self._names |= self._shards[-1].keys()
        self._note("make", names=sorted(map(str, shard)))
        return len(self._shards) - 1

    def _do_get(self, numbers: list[int]) -> list[Any]:
        values = [self._values[number] for number in numbers]
        self._spend(values)
        self._note("get", of=list(numbers))
        return values

    def _do_put(self, value: Any) -> int:
        self._note("put", bytes=_bytes(value))
        return self._reference(value)

    def _do_call(self, of: int, method: str, arguments: list[Any], named: dict[str, Any]) -> int:
        """Records a call, with the bytes that it carries by value, and carries it out."""
        if method not in ("pull", "push", "train"):
            raise AttributeError(f"the actor has no method {method!r}")
        if type(of) is not int:
            raise TypeError("no such actor")
        carried = [each for each in (*arguments, *named.values()) if not _is_number(each)]
        sent = _bytes(carried, self._names)
        values = [self._value(each) for each in arguments]
        by_name = {name: self._value(each) for name, each in named.items()}
        value, notes = getattr(self, f"_{method}")(of, *values, **by_name)
        number = self._reference(value)
        self._note("call", of=of, method=method, number=number, bytes=sent, **notes)
        return number

    def _reference(self, value: Any) -> int:
        self._spend(value)
        number = len(self._values) + 1
        self._values[number] = value
        return number

    def _value(self, argument: Any) -> Any:
        """The value of a reference that is an argument itself."""
        if not isinstance(argument, Opaque) or not argument.type_name.startswith("reference "):
            return argument
        return self._values[int(argument.type_name.removeprefix("reference "))]

    def _pull(self, of: int, worker: int, step: int) -> tuple[Any, dict[str, Any]]:
        moved = step if self._moved is None else self._moved
        shard = {name: tensor + moved for name, tensor in self._shards[of].items()}
        return shard, {"worker": int(worker), "step_of": int(step)}

    def _push(self, of: int, worker: int, step: int, gradients: Any) -> tuple[Any, dict[str, Any]]:
        arrived = {str(name): tensor.detach() for name, tensor in gradients.items()}
        return None, {"worker": int(worker), "step_of": int(step), "gradients": arrived}

    def _train(self, of: int, number: int, data: Any) -> tuple[Any, dict[str, Any]]:
        return None, {"worker": of, "count": int(number), "data": data}


def _bytes(value: Any, names: Collection[Any] = (), each: int = 0) -> int:
    """The bytes that a value carries: those of all tensors, arrays, text and numbers in it.

    A reference carries none, and neither do keys among `names`, those of the parameters. Each
    value in it counts `each` more.
    """
    if isinstance(value, Mapping):
        keys = sum(_bytes(key, (), each) for key in value if key not in names)
        return keys + sum(_bytes(inner, names, each) for inner in value.values())
    if isinstance(value, (list, tuple, set)):
        return sum(_bytes(inner, names, each) for inner in value)
    if isinstance(value, (bytes, str)):
        return each + len(value)
    return each + (8 if _is_number(value) else int(getattr(value, "nbytes", 0)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _until_next(ray: Recorder, message: Any) -> Generator[Any, Any, Any]:
    """Answers what handles send, until the rank is ready for the next use; returns its report."""
    while message[0] != "next":
        message = yield ray.answer(message)
    report = message[1]
    if not is_modest(report):
        raise ValueError("not a report")
    return report


# The parameters ----------------------------------------------------------------------------------

# Rows of the parameters, f for float32 and b for bfloat16, and the number of servers. In their
# order, by their number or by their elements, they are divided badly.
_DTYPES = {"f": "float32", "b": "bfloat16"}
_ROWS = (
    ("3b 6b 4b 7f 1f 3f 3b", 2),
    ("6f 2b 2b 5f 6b 1b 5b", 2),
    ("4f 3f 2f 9f 8b 6f 7b 5b", 3),
)


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)

    def case(rows: str, servers: int) -> Divided:
        times, columns = draw.randint(1, 4), draw.randint(5, 40)
        sizes = tuple(
            (f"layer{number}", (times * int(row[0]), columns), _DTYPES[row[1]])
            for number, row in enumerate(rows.split())
        )
        return Divided(draw.randrange(2**48), sizes, servers)  # too many seeds to try them all

    return [Trial(1, [case(rows, servers) for rows, servers in _ROWS])]


PART = Part(
    "11/sharded", 2, "Two servers that look like one", 25, 2,
    Check(
        trials=_trials,
        rules=(
            rule("shards", 3, "each server keeps its share of the bytes",
                 lost_by=("divided", "shards")),
            rule("pull", 2, "a pull has the parameters of all servers", "divided"),
            rule("push", 2, "a push brings each server its gradients, and waits for all",
                 "divided"),
            rule("together", 2, "all calls are started before the first get", "divided"),
            rule("bytes", 1, "a push sends each gradient once", "divided", "push"),
            rule("once", 2, "what all workers share is put into the store once", "divided"),
        ),
    ),
    symbol="ShardedServer",
)  # fmt: skip
