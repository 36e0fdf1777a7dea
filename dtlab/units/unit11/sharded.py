"""11/sharded: two parameter servers that look like one, and what a worker sends to them.

The servers are handles whose calls are recorded. As with Ray, `.remote()` starts a call and
returns a reference, `get` waits for values, and `put` stores a value once:

    make(shard) ──> handle          handle.pull.remote(...) ──> reference ──> get ──> value
    put(data) ──> reference         an argument that is a reference arrives as its value
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Divided", "Recorder"]

Named = dict[str, "Tensor"]
Size = tuple[str, tuple[int, ...], str]  # name, shape and dtype of a parameter

SAMPLES, WORKERS = 4096, 3  # numbers in the data set; workers that get it
NEAR = 1.05  # times the bytes of a good split that a server may keep


@dataclass(frozen=True)
class Divided(Faulty):
    """Makes `fn(parameters, servers, make)`, then pulls, pushes, and starts workers with it."""

    alone: ClassVar[bool] = True
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

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        import torch

        return {
            "parameters": self.drawn(0),
            "servers": self.servers,
            "gradients": [self.drawn(1), self.drawn(2)],
            "data": torch.arange(SAMPLES, dtype=torch.float32),
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        ray = Recorder()
        client = fn(dict(given["parameters"]), given["servers"], ray.make)
        pulled = []
        for step, gradients in enumerate(given["gradients"]):
            worker = 2 - step
            ray.begin("pull", step)
            pulled.append(_plain(client.pull(worker, step, ray.get)))
            ray.begin("push", step)
            client.push(worker, step, dict(gradients), ray.get)
        ray.begin("start", 0)
        workers = [ray.worker(number) for number in range(WORKERS)]
        started = client.start(workers, given["data"], ray.put) or ()
        references = [each.number if isinstance(each, Reference) else -1 for each in started]
        return {"events": ray.events, "pulled": pulled, "started": references}

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
        elif not all(pulled[name].equal(wanted[name] + step) for name in wanted):
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
            if wrong := [name for name in names if not got[name].equal(gradients[name])]:
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
        elif not all(call["complete"] for call in calls):
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
    """Yields a fault if a call begins after another one was waited for."""
    kinds = [event["what"] for event in during]
    if "get" in kinds and "call" in kinds[kinds.index("get") :]:
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


# On the rank -------------------------------------------------------------------------------------


class Reference:
    """What a call returns at once; `get` gives the value."""

    def __init__(self, number: int, value: Any) -> None:
        self.number, self._value = number, value


class Recorder:
    """Makes handles, and records what happens: calls, gets and puts, in order."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._during, self._step, self._numbers = "make", -1, 0
        self._shards: list[Named] = []

    def begin(self, during: str, step: int) -> None:
        """Says what is recorded from now on."""
        self._during, self._step = during, step

    def note(self, what: str, **more: Any) -> None:
        self.events.append({"what": what, "during": self._during, "step": self._step, **more})

    def make(self, shard: Mapping[str, Tensor]) -> Any:
        """Starts a server with these parameters."""
        number = len(self._shards)
        self._shards.append(dict(shard))
        self.note("make", names=sorted(map(str, shard)))
        return Handle(self, number)

    def worker(self, number: int) -> Any:
        return Handle(self, number)

    def get(self, references: Any) -> Any:
        many = isinstance(references, (list, tuple))
        chosen = list(references) if many else [references]
        if not all(isinstance(each, Reference) for each in chosen):
            raise TypeError(f"get takes a reference or a list of them, not {references!r}"[:200])
        self.note("get", of=[each.number for each in chosen])
        return [each._value for each in chosen] if many else chosen[0]._value

    def put(self, value: Any) -> Reference:
        self.note("put", bytes=_bytes(value))
        return self._reference(value)

    def _reference(self, value: Any) -> Reference:
        self._numbers += 1
        return Reference(self._numbers, value)

    def called(self, of: int, method: str, arguments: Sequence[Any], named: Any) -> Reference:
        """Records a call, with the bytes that it carries by value, and carries it out."""
        sent = _bytes([*arguments, *named.values()])
        arguments, named = [_value(each) for each in arguments], {
            name: _value(each) for name, each in named.items()
        }  # fmt: skip
        value, notes = getattr(self, f"_{method}")(of, *arguments, **named)
        reference = self._reference(value)
        self.note("call", of=of, method=method, number=reference.number, bytes=sent, **notes)
        return reference

    def _pull(self, of: int, worker: int, step: int) -> tuple[Any, dict[str, Any]]:
        shard = {name: tensor + step for name, tensor in self._shards[of].items()}
        return shard, {"worker": int(worker), "step_of": int(step)}

    def _push(self, of: int, worker: int, step: int, gradients: Any) -> tuple[Any, dict[str, Any]]:
        copies = {str(name): tensor.detach().clone() for name, tensor in gradients.items()}
        return None, {"worker": int(worker), "step_of": int(step), "gradients": copies}

    def _train(self, of: int, number: int, data: Any) -> tuple[Any, dict[str, Any]]:
        complete = getattr(data, "shape", ()) == (SAMPLES,)
        return None, {"worker": of, "count": int(number), "complete": complete}


class Handle:
    """The handle of an actor: `handle.pull.remote(...)` starts a call."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder, self._number = recorder, number

    def __getattr__(self, method: str) -> Any:
        if method not in ("pull", "push", "train"):
            raise AttributeError(f"the actor has no method {method!r}")
        return _Method(self._recorder, self._number, method)


class _Method:
    def __init__(self, recorder: Recorder, number: int, name: str) -> None:
        self._recorder, self._number, self._name = recorder, number, name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"an actor's method is called with .{self._name}.remote(...)")

    def remote(self, *arguments: Any, **named: Any) -> Reference:
        return self._recorder.called(self._number, self._name, arguments, named)


def _value(argument: Any) -> Any:
    return argument._value if isinstance(argument, Reference) else argument


def _plain(tensors: Any) -> dict[str, Any]:
    """A dict of tensors as plain data; anything else in it becomes None."""
    return {
        str(name): tensor.detach().clone() if hasattr(tensor, "detach") else None
        for name, tensor in dict(tensors).items()
    }


def _bytes(value: Any) -> int:
    """The bytes of all tensors in a value; a reference has none."""
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    return int(getattr(value, "nbytes", 0))


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
        return Divided(draw.randrange(10**6), sizes, servers)

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
