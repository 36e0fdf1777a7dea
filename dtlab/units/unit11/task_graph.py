"""11/task_graph: read a graph of tasks: how soon it ends, and what can run at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, number
from dtlab.predict import critical_path, scheduled
from dtlab.predict.tasks import TaskGraph

__all__ = ["PART"]

_NAMES: Final = "abcdefg"
_SHAPES: Final[Sequence[Mapping[str, str]]] = (  # what each task needs
    {"a": "", "b": "", "c": "a", "d": "ab", "e": "b", "f": "cd", "g": "ef"},
    {"a": "", "b": "a", "c": "a", "d": "a", "e": "bc", "f": "d", "g": "ef"},
    {"a": "", "b": "", "c": "a", "d": "b", "e": "b", "f": "cd", "g": "ef"},
    {"a": "", "b": "", "c": "", "d": "ab", "e": "c", "f": "d", "g": "ef"},
)


def _draw(draw: Random) -> Values:
    while True:
        shape = draw.choice(_SHAPES)
        tasks = {name: (draw.randint(1, 9), list(shape[name])) for name in _NAMES}
        _, chain = critical_path(tasks)
        late = draw.choice(chain[:-1])
        spare = draw.choice([name for name in _NAMES if name not in chain])
        more = draw.randint(3, 6)
        if 0 < _delay(tasks, spare, more) < more == _delay(tasks, late, more):
            one = draw.choice([name for name in _NAMES if len(_beside(tasks, name)) > 1])
            return {"tasks": tasks, "late": late, "spare": spare, "more": more, "one": one}


def _delay(tasks: TaskGraph, name: str, more: int) -> float:
    """How much later the whole ends if a task takes `more` seconds longer."""
    seconds, needs = tasks[name]
    longer = {**tasks, name: (seconds + more, needs)}
    return critical_path(longer)[0] - critical_path(tasks)[0]


def _needed(tasks: TaskGraph, name: str) -> set[str]:
    """All tasks that must end before a task begins."""
    needs = tasks[name][1]
    return set(needs).union(*(_needed(tasks, need) for need in needs))


def _beside(tasks: TaskGraph, name: str) -> frozenset[str]:
    """The tasks that do not need this one, and that it does not need."""
    return frozenset(
        other
        for other in tasks
        if other != name
        and other not in _needed(tasks, name)
        and name not in _needed(tasks, other)
    )


def _columns(tasks: TaskGraph) -> dict[str, int]:
    columns: dict[str, int] = {}
    for name, (_, needs) in tasks.items():
        columns[name] = 1 + max((columns[need] for need in needs), default=0)
    return columns


def _waves(tasks: TaskGraph) -> float:
    """The seconds if each column of the drawing waits for the whole column before it."""
    columns = _columns(tasks)
    return sum(
        max(tasks[name][0] for name in tasks if columns[name] == column)
        for column in set(columns.values())
    )


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        (f"task {name}", f"{seconds} s" + (f", needs {' and '.join(needs)}" if needs else ""))
        for name, (seconds, needs) in given["tasks"].items()
    ]


def _in_column(given: Values) -> frozenset[str]:
    columns = _columns(given["tasks"])
    return frozenset(columns) - {given["one"]} - {
        name for name, column in columns.items() if column != columns[given["one"]]
    }  # fmt: skip


def _not_needed(given: Values) -> frozenset[str]:
    return frozenset(given["tasks"]) - {given["one"]} - _needed(given["tasks"], given["one"])


_QUESTIONS = asked(
    _draw,
    _rows,
    number(
        "shortest",
        "how many seconds the whole takes with as many workers as you like",
        "shortest",
        "Which chain of tasks, each of which needs the one before, takes longest?",
        {
            "work": "this is all tasks, one after the other.",
            "waves": "a task starts when those that it needs have ended. It does not wait for "
            "other tasks of the column before.",
        },
        unit="s",
        exact=True,
    ),
    number(
        "two",
        "how many seconds it takes on two workers. A free worker takes the first task in the "
        "alphabet that has all it needs",
        "two",
        "Draw two lanes. Each time that a task ends, look for tasks that have all they need.",
        {
            "work / 2": "this is half of the work. Sometimes a worker has nothing that it could "
            "start.",
            "shortest": "this is with as many workers as you like.",
            "work": "this is on one worker.",
        },
        unit="s",
        exact=True,
    ),
    number(
        "idle",
        "how many seconds the two workers are idle until the whole has ended, added up",
        "2 * two - work",
        "Two workers have two seconds in each second. What do they do with them?",
        {
            "two - work / 2": "this is the mean of a worker. Add up both.",
            "2 * (two - shortest)": "compare with the work, and not with the longest chain.",
        },
        unit="s",
        exact=True,
    ),
    choices(
        "beside",
        "which tasks could run at the same time as task {one} if there were enough workers, and "
        "if each task could take any number of seconds",
        list(_NAMES),
        lambda given: _beside(given["tasks"], given["one"]),
        "Which tasks does it not need, directly or through others, and which do not need it?",
        {
            _in_column: "tasks of other columns can run at that time too.",
            _not_needed: "a task that needs it, directly or through others, must wait for it.",
        },
    ),
    number(
        "later",
        "by how many seconds the whole ends later, with as many workers as you like, if one task "
        "takes {more} s longer: [if it is task {late}, if it is task {spare}]",
        "[more, delay]",
        "Which chain is the longest then?",
        {
            "[more, more]": "one of the two is not in the longest chain, so it may end a little "
            "later without harm.",
            "[more, 0]": "one of the two is not in the longest chain, but now another chain is "
            "the longest.",
        },
        unit="s",
        exact=True,
    ),
    number(
        "one_by_one",
        "how many seconds it takes with many workers if the driver calls ray.get on each task "
        "before it submits the next",
        "work",
        "How many tasks are then running at the same time?",
        {
            "shortest": "the driver submits a task only after it has the result of the one "
            "before, whether it needs it or not.",
            "two": "how many tasks run at the same time if the driver waits for each?",
        },
        unit="s",
        exact=True,
    ),
    where={
        "path": critical_path,
        "run": scheduled,
        "in_waves": _waves,
        "delayed": _delay,
        "work": "sum(seconds for seconds, _ in tasks.values())",
        "shortest": "path(tasks)[0]",
        "two": "run(tasks, 2).duration",
        "waves": "in_waves(tasks)",
        "delay": "delayed(tasks, spare, more)",
    },
)

PART = Part("11/task_graph", 1, "Read a graph of tasks", 7, 2, _QUESTIONS)
