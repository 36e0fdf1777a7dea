"""11/resumable: train, save, and go on from the newest checkpoint as if nothing had happened.

The check kills runs: in a training step, or in any operation on files during a save. It starts
the same script again, and compares the second run with one that was never killed, bit for bit:

    0 ── 1 ── 2 ── save ── 3 ── 4 ── killed
                     └──── 3 ── 4 ── 5 ── save ── ...
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial
from dtlab.grading.judging.turns import own_turn
from dtlab.grading.parts import Part
from dtlab.predict.units import counted

__all__ = ["PART", "Killed", "Resumed", "Training", "differences", "start", "uninterrupted"]

FINISHED, ALLOWED = ("dtlab.training.checkpoint", "dtlab.simple"), ("Samples",)
SAMPLES, BATCH, FEATURES, CLASSES = 22, 4, 6, 3
LIMIT = 15.0  # seconds for a trial: a run trains for a while, also on a busy machine
MOST_OPERATIONS = 40  # on files, in one of which a run is killed


class Killed(BaseException):
    """Ends a run where a kill would."""


class Training:
    """What a training script makes at its start: a model, all that trains it, and the samples."""

    def __init__(self, seed: int) -> None:
        import torch
        from torch import nn

        from dtlab.training.checkpoint import Samples

        random.seed(seed)
        torch.manual_seed(seed)
        self.images = torch.randn(SAMPLES, FEATURES)
        self.labels = torch.randint(CLASSES, (SAMPLES,))
        self.model = nn.Sequential(
            nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, CLASSES)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.8)
        self.samples = Samples(SAMPLES, BATCH, seed=seed)

    def train(self, batch: Any) -> None:
        """One step: a random brightness, forward with dropout, backward, optimizer, schedule."""
        from torch import nn

        images = self.images[batch] * random.uniform(0.5, 1.5)
        loss = nn.functional.cross_entropy(self.model(images), self.labels[batch])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.schedule.step()

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, in a form that can be compared."""
        import torch

        momenta = [self.optimizer.state[p].get("momentum_buffer") for p in self.model.parameters()]
        return {
            "parameters": torch.cat([p.detach().flatten() for p in self.model.parameters()]),
            "momentum": torch.cat([torch.zeros(0) if m is None else m.flatten() for m in momenta]),
            "rate": float(self.optimizer.param_groups[0]["lr"]),
            "schedule": int(self.schedule.last_epoch),
            "drawn": int(self.samples.drawn),
            "torch": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
            "python": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
        }


def uninterrupted(seed: int, steps: int) -> list[dict[str, Any]]:
    """The state before each step of a run without checkpoints, and after the last one."""
    with own_turn():
        run, states = Training(seed), []
        for _ in range(steps):
            states.append(run.state())
            run.train(next(run.samples))
        return [*states, run.state()]


@dataclass(frozen=True)
class Resumed(Faulty):
    """Calls `fn(run, folder, steps, every)`, kills it, and calls it again on a new run.

    `kills` are the steps in which a run is killed, one run after another. Without them, runs are
    killed in every operation on files, each in a new folder.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = ALLOWED
    alone: ClassVar[bool] = True
    also_shows: ClassVar = {"goes_on": ("parameters", "schedule", "data", "random")}

    seed: int
    topic: str
    steps: int
    every: int
    kills: tuple[int, ...] = ()

    def __str__(self) -> str:
        killed = f"killed in step {' and step '.join(map(str, self.kills))}"
        if self.kills in ((), (self.steps,)):
            killed = "started again at the end" if self.kills else "killed during a save"
        return f"{self.steps} steps, a save after every {self.every}, {killed}"

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        begins = [0, *(kill // self.every * self.every for kill in self.kills)]
        calls = [kill - begin for kill, begin in zip(self.kills, begins, strict=False)]
        run = {"seed": self.seed, "steps": self.steps, "every": self.every}
        return {"run": run, "calls": calls}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        run, calls = given["run"], given["calls"]
        refused = finished_calls(*FINISHED, refuse=True, allowed=ALLOWED)
        with refused as finished, tempfile.TemporaryDirectory() as folder:
            if calls:
                runs = [[start(fn, folder, **run, calls=count) for count in (*calls, None)]]
            else:
                runs = list(_in_every_operation(fn, folder, run))
        return {"runs": runs, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        right = uninterrupted(self.seed, self.steps)
        if not results[0]["runs"]:
            yield self.topic, "your function writes no file into the folder."
        for runs in results[0]["runs"]:
            yield from self._of(runs, right) if self.kills else self._of_save(runs, right)

    def _of(self, runs: Sequence[dict[str, Any]], right: Sequence[Any]) -> Iterator[Fault]:
        begin = 0
        for number, (run, kill) in enumerate(zip(runs, (*self.kills, self.steps), strict=True)):
            end, trained = min(kill, self.steps), len(run["steps"])
            if begin + trained != end:
                yield "goes_on", self._other_steps(number, begin, trained, end)
                return
            states = [*run["steps"], run["after"]] if end == self.steps else run["steps"]
            for step, state in enumerate(states, begin):
                if found := differences(state, right[step], step, step == begin > 0):
                    yield from found
                    return
            begin = end // self.every * self.every

    def _other_steps(self, number: int, begin: int, trained: int, end: int) -> str:
        which = "the second run" if number else "the first run"
        if not number or trained > end:
            return f"{which} trains {counted(trained, 'step')}, not {end - begin}."
        return (
            f"{which} trains {counted(trained, 'step')}, as if it began with {end - trained}. "
            f"After step {begin} a checkpoint was due, and none later. Is the newest one loaded, "
            f"and does the loop begin with its step?"
        )

    def _of_save(self, runs: Sequence[Any], right: Sequence[Any]) -> Iterator[Fault]:
        """Yields a fault of the run that starts after one that was killed during a save."""
        first, second = runs
        done = len(first["steps"])
        begin, saved = self.steps - len(second["steps"]), done // self.every * self.every
        last = second["error"] or begin not in (saved, max(0, saved - self.every))
        wrong = f"begins with step {begin}"
        if second["error"]:
            wrong = f"fails with {second['error']}"
        elif not last:
            states = enumerate([*second["steps"], second["after"]], begin)
            last = any(differences(state, right[step], step) for step, state in states)
            wrong = "has other values than a run that is not killed"
        if last:
            yield (
                "atomic",
                f"a run was killed in the save after step {done}, {first['killed']}. The next run "
                f"{wrong}. Until the new checkpoint is complete, the old one must stay. Write to "
                "another name, then let os.replace give the complete file its name.",
            )


def differences(state: Any, right: Any, step: int, is_loaded: bool = False) -> list[Fault]:
    """What is not right in a state, each with its criterion."""
    found: dict[str, str] = {}
    when = f"before step {step}" + " (the first after loading)" * is_loaded
    for criterion, name, words in _STATE:
        got, wanted = state[name], right[name]
        if not (got.equal(wanted) if hasattr(wanted, "equal") else got == wanted):
            shown = f" ({got:g}, not {wanted:g})" if isinstance(wanted, int | float) else ""
            text = f"{when}, {words} not that of the run without a kill{shown}."
            found.setdefault(criterion, text)
    return list(found.items())


_STATE = (
    ("parameters", "parameters", "the model's parameters are"),
    ("parameters", "momentum", "the optimizer's momentum is"),
    ("schedule", "schedule", "the number of steps of the schedule is"),
    ("schedule", "rate", "the learning rate is"),
    ("data", "drawn", "the number of samples drawn is"),
    ("random", "torch", "the state of torch's random numbers is"),
    ("random", "python", "the state of Python's random numbers is"),
)


# On the rank -------------------------------------------------------------------------------------


def _in_every_operation(
    fn: Callable[..., Any], folder: str, run: dict[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    """Pairs of runs: one that is killed in an operation on files, and the one after it."""
    for operation in range(1, MOST_OPERATIONS):
        new = os.path.join(folder, str(operation))
        os.mkdir(new)
        first = start(fn, new, **run, operation=operation)
        if not first["killed"]:
            return
        try:
            second = start(fn, new, **run)
        except Exception as error:  # noqa: BLE001  the answer may raise anything
            message = f"{type(error).__name__}: {error}".splitlines()[0][:150]
            second = {"steps": [], "error": message}
        yield [first, second]


def start(
    fn: Callable[..., Any], folder: str, seed: int, steps: int, every: int,
    calls: int | None = None, operation: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Starts the script; kills it after some calls of `train`, or in an operation on files."""
    run, states, killed = Training(seed), list[dict[str, Any]](), ""
    train = run.train

    def noted(batch: Any) -> None:
        if len(states) == calls:
            raise Killed("in a step")
        states.append(run.state() | {"drawn": run.samples.drawn - BATCH})  # before this batch
        train(batch)

    run.train = noted  # type: ignore[method-assign]
    try:
        with _disk().killing(folder, operation):
            fn(run, Path(folder), steps, every)
    except Killed as kill:
        killed = str(kill)
    return {"steps": states, "after": run.state(), "killed": killed, "error": ""}


@functools.cache
def _disk() -> _Disk:
    return _Disk()


class _Disk:
    """Kills a run in the n-th operation on files of a folder, and in all operations after it.

    A file that is opened for writing is left empty, and one that torch.save writes is left half
    written. Python's audit events show the operations.
    """

    EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
              "os.truncate", "shutil.rmtree")  # fmt: skip

    def __init__(self) -> None:
        self._folder, self._left = "", 0  # operations until the kill; 0: no kill
        sys.addaudithook(self._on_event)

    @contextmanager
    def killing(self, folder: str, operation: int) -> Iterator[None]:
        """Kills the block in this operation; in none if it is 0."""
        import torch

        save = torch.save

        def half(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            # Pickling tensors calls torch.save too, in memory.
            if self._inside(f) or self._inside(getattr(f, "name", None)):
                self._operation("in torch.save", lambda: _write_half(save, obj, f))
            save(obj, f, *args, **kwargs)

        self._folder, self._left = folder, operation
        torch.save = half
        try:
            yield
        finally:
            torch.save, self._left = save, 0

    def _inside(self, path: Any) -> bool:
        """Whether this names something in the folder."""
        named = isinstance(path, str | bytes | os.PathLike)
        return named and os.fsdecode(path).startswith(self._folder)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._left or event not in self.EVENTS:
            return
        if not any(map(self._inside, arguments)):
            return
        writes = os.O_WRONLY | os.O_RDWR
        if event != "open":
            self._operation(f"just before {event}", lambda: None)
        elif arguments[2] & writes:
            path = os.fsdecode(arguments[0])
            name = os.path.basename(path)
            self._operation(f"just after opening {name}", lambda: _truncate(path, arguments[2]))

    def _operation(self, words: str, half: Callable[[], None]) -> None:
        if self._left == 1:  # a dead process does nothing more
            self._left = -1
            folder, self._folder = self._folder, "\0"
            half()
            self._folder = folder
            raise Killed(words)
        if self._left < 0:
            raise Killed(words)
        self._left -= self._left > 0


def _write_half(save: Callable[..., None], obj: Any, f: Any) -> None:
    """Writes the first half of what torch.save would write."""
    whole = io.BytesIO()
    save(obj, whole)
    part = whole.getvalue()[: whole.tell() // 2]
    if hasattr(f, "write"):
        f.write(part)
    else:
        Path(f).write_bytes(part)


def _truncate(path: str, flags: int) -> None:
    if flags & os.O_TRUNC:
        Path(path).write_bytes(b"")


# The cases ---------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)

    def case(topic: str, steps: int, every: int, *kills: int) -> Resumed:
        return Resumed(draw.randrange(10**6), topic, steps, every, kills)

    return [
        Trial(1, [
            case("goes_on", 15, 3, 12 + draw.randint(1, 2)),
            case("goes_on", 9, 2, draw.choice((5, 7))),
            case("goes_on", 6, 3, 2),
            case("goes_on", 12, 4, 7, 9),
            case("goes_on", 6, 2, 6),
        ], limit=LIMIT),
        Trial(1, [case("atomic", 5, 2)], limit=LIMIT),
    ]  # fmt: skip


PART = Part(
    "11/resumable", 2, "A run that resumes", 25, 2,
    Check(
        trials=_trials,
        rules=(
            rule("goes_on", 2, "goes on with the step of the newest checkpoint"),
            rule("parameters", 2, "the parameters and the optimizer are those of that step",
                 "goes_on"),
            rule("schedule", 2, "the learning rate goes on", "goes_on", "parameters"),
            rule("data", 1, "no sample is repeated or left out", "goes_on", "parameters"),
            rule("random", 2, "random numbers go on, torch's and Python's", "goes_on"),
            rule("atomic", 3, "a kill during a save costs one save at most", "goes_on",
                 "parameters", "schedule", "data", "random"),
        ),
        compiles=True,
    ),
    reference="dtlab.simple.save",
)  # fmt: skip
