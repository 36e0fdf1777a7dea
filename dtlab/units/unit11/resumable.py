"""11/resumable: train, save, and continue from the newest checkpoint as if never killed.

The check kills runs: in a training step, or in any operation on files during a save. It starts
the same script again, and compares the second run with one that was never killed, bit for bit:

    0 ── 1 ── 2 ── save ── 3 ── 4 ── killed
                     └──── 3 ── 4 ── 5 ── save ── ...

Each run is a separate process, and SIGKILL ends it, so that only files survive. The images,
the labels and the random numbers of a step are in the check's process: a run sends its state and
gets gradients. So it cannot make a step again without being noticed.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.checks.turns import own_turn
from dtlab.predict.units import counted
from dtlab.ranks.asking import ask
from dtlab.units.unit11.disk import Disk

if TYPE_CHECKING:
    from dtlab.ranks.asking import Dialogue

__all__ = ["PART", "Resumed", "Training", "differences", "uninterrupted"]

FINISHED, ALLOWED = ("dtlab.training.checkpoint", "dtlab.simple"), ("Samples",)
SAMPLES, BATCH, FEATURES, CLASSES = 22, 4, 6, 3
LIMIT = 40.0  # seconds for a trial: dozens of processes train, also on a busy machine
MOST_OPERATIONS = 40  # on files, in one of which a run is killed


class Training:
    """What a training script makes at its start: a model, all that trains it, and the samples.

    `order` is the seed of the samples' order, `seed` that of all else. None means the same.
    """

    def __init__(self, seed: int, order: int | None = None) -> None:
        import torch

        random.seed(seed)
        torch.manual_seed(seed)
        self.images = torch.randn(SAMPLES, FEATURES)
        self.labels = torch.randint(CLASSES, (SAMPLES,))
        self.model, self.optimizer, self.schedule = _trained()
        self.samples = _samples(seed if order is None else order)

    def train(self, batch: Any) -> None:
        """One step: a random brightness, forward with dropout, backward, optimizer, schedule."""
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()
        self.schedule.step()

    def loss(self, batch: Any) -> Any:
        """The loss of a batch, for which random numbers are drawn."""
        from torch import nn

        images = self.images[batch] * random.uniform(0.5, 1.5)
        return nn.functional.cross_entropy(self.model(images), self.labels[batch])

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, in a form that can be compared."""
        return _state(self.model, self.optimizer, self.schedule, self.samples)


def _trained() -> tuple[Any, Any, Any]:
    """A model, its optimizer and its schedule."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, CLASSES)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)


def _samples(order: int) -> Any:
    from dtlab.training.checkpoint import Samples

    return Samples(SAMPLES, BATCH, seed=order)


def _state(model: Any, optimizer: Any, schedule: Any, samples: Any) -> dict[str, Any]:
    import torch

    momenta = [optimizer.state[p].get("momentum_buffer") for p in model.parameters()]
    return {
        "parameters": torch.cat([p.detach().flatten() for p in model.parameters()]),
        "momentum": torch.cat([torch.zeros(0) if m is None else m.flatten() for m in momenta]),
        "rate": float(optimizer.param_groups[0]["lr"]),
        "schedule": int(schedule.last_epoch),
        "drawn": int(samples.drawn),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
    }


def _order(seed: int) -> int:
    """The seed of the samples' order, which a run is given; `seed` cannot be computed from it."""
    return drawn_seed(seed, "order") % 2**31


def uninterrupted(seed: int, steps: int) -> list[dict[str, Any]]:
    """The state before each step of a run without checkpoints, and after the last one."""
    with own_turn():
        run, states = Training(seed, _order(seed)), []
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

    def given(self, rank: int, world_size: int) -> None:
        return None

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: None) -> None:
        from dtlab.ranks.apart import apart

        _trained()  # imports what an optimizer needs, once for all forks
        refused = finished_calls(*FINISHED, refuse=True, allowed=ALLOWED)
        with refused as finished, tempfile.TemporaryDirectory() as folder:
            while (begin := ask(None)) is not None:
                apart(functools.partial(_start, fn, folder, begin, finished))

    def dialogue(self, rank: int, world_size: int) -> Dialogue:
        """Starts the runs one after another, trains for them, and kills them."""
        finished = set[str]()
        yield  # the rank is ready
        if self.kills:
            begins = [0, *(kill // self.every * self.every for kill in self.kills)]
            calls = [kill - begin for kill, begin in zip(self.kills, begins, strict=False)]
            runs = []
            for count in (*calls, None):
                runs.append((yield from self._run(finished, "0", calls=count)))
            return {"runs": [runs], "finished": sorted(finished)}
        pairs = []
        for operation in range(1, MOST_OPERATIONS):
            first = yield from self._run(finished, str(operation), operation=operation)
            if not first["killed"]:
                break
            second = yield from self._run(finished, str(operation), may_raise=True)
            pairs.append([first, second])
        return {"runs": pairs, "finished": sorted(finished), "whole": first}

    def _run(
        self, finished: set[str], folder: str, calls: int | None = None, operation: int = 0,
        may_raise: bool = False,
    ) -> Generator[Any, Any, dict[str, Any]]:  # fmt: skip
        """Starts a run; kills it after some calls of `train`, or in an operation on files."""
        states, touched = list[dict[str, Any]](), set[int]()  # steps done at operations on files
        ended: dict[str, Any] = {"after": None, "killed": "", "error": ""}
        order = _order(self.seed)
        with own_turn():
            job = Training(self.seed, order)
            first = job.state()
        message = yield {
            "folder": folder, "steps": self.steps, "every": self.every, "order": order,
            "may_raise": may_raise, "first": first,
        }  # fmt: skip
        while message is not None:  # else the rank is ready for the next run
            finished |= {str(name)[:100] for name in message["finished"]}
            state, words = message.get("state"), message.get("operation")
            reply: dict[str, Any] | None = {}
            if ended["killed"]:
                reply = None
            elif words is not None:
                touched.add(len(states))
                operation -= 1
                if operation == 0:
                    ended["killed"], reply = str(words)[:100], None
            elif "batch" in message:
                if len(states) == calls:
                    ended |= {"killed": "in a step", "after": state}
                    reply = None
                else:
                    states.append(state | {"drawn": state["drawn"] - BATCH})  # before this batch
                    reply = _gradients(job, message["batch"], state)
            else:
                ended |= {"after": state, "error": str(message.get("error", ""))[:150]}
            message = yield reply
        return {"steps": states, "touched": touched, **ended}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        right = uninterrupted(self.seed, self.steps)
        if not results[0]["runs"]:
            yield self.topic, "your function writes no file into the folder."
        for runs in results[0]["runs"]:
            yield from self._of(runs, right) if self.kills else self._of_save(runs, right)
        whole = results[0].get("whole")
        if whole and not whole["killed"]:
            yield from self._unseen(whole)

    def _unseen(self, whole: dict[str, Any]) -> Iterator[Fault]:
        """Yields a fault if a save does nothing that could be interrupted by a kill."""
        due = range(self.every, len(whole["steps"]) + 1, self.every)
        if missing := [step for step in due if step not in whole["touched"]]:
            yield (
                "atomic",
                f"the save after step {missing[0]} opens, renames and removes no file in the "
                "folder. Write with open or torch.save, and rename with os.replace.",
            )

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
        if not same(got, wanted):
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


def _gradients(job: Training, batch: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The gradients of a step from this state, and the states of the generators after it."""
    import torch

    with own_turn():
        parameters = list(job.model.parameters())
        torch.nn.utils.vector_to_parameters(state["parameters"], parameters)
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
        gradients = torch.autograd.grad(job.loss(torch.as_tensor(batch)), parameters)
        return {
            "gradients": list(gradients),
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
        }


# On the rank -------------------------------------------------------------------------------------


class _Started:
    """What the learner's function gets: a run whose steps the check computes.

    The images and the labels are in the check's process, so a step can be made only with `train`.
    """

    def __init__(self, begin: dict[str, Any], tell: Callable[..., Any]) -> None:
        import torch

        self.model, self.optimizer, self.schedule = _trained()
        torch.nn.utils.vector_to_parameters(begin["first"]["parameters"], self.model.parameters())
        self.samples = _samples(begin["order"])
        _set_generators(begin["first"])
        self._tell = tell

    def train(self, batch: Any) -> None:
        """One step: forward and backward in the check's process, optimizer and schedule here."""
        import torch

        step = self._tell(batch=torch.as_tensor(batch), state=self._state())
        for parameter, gradient in zip(self.model.parameters(), step["gradients"], strict=True):
            parameter.grad = gradient
        _set_generators(step)
        self.optimizer.step()
        self.schedule.step()

    def _state(self) -> dict[str, Any]:
        return _state(self.model, self.optimizer, self.schedule, self.samples)


def _set_generators(states: dict[str, Any]) -> None:
    import torch

    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])


def _start(fn: Callable[..., Any], folder: str, begin: dict[str, Any], finished: set[str]) -> None:
    """Runs `fn` in this process, which kills itself when the check answers None."""
    from dtlab.ranks.apart import die

    def tell(**message: Any) -> Any:
        reply = ask(message | {"finished": sorted(finished)})
        return reply if reply is not None else die()

    path = Path(folder, begin["folder"])
    path.mkdir(exist_ok=True)
    run = _Started(begin, tell)
    try:
        with Disk(str(path), lambda words: ask({"operation": words, "finished": []}), die):
            fn(run, path, begin["steps"], begin["every"])
    except Exception as error:
        if not begin["may_raise"]:
            raise
        tell(error=f"{type(error).__name__}: {error}".splitlines()[0])
    else:
        tell(state=run._state())


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
