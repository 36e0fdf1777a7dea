"""11/who_does_it: Slurm, Kubernetes or Ray; and from which size on a task is worth its cost."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from random import Random
from typing import Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import asked, choice, number

__all__ = ["PART", "TASKS"]

TASKS: Final = {  # each task, and the system that does it
    "let a job of 64 nodes wait until it can have all of them at once, in an order of priority "
    "and of node hours used": "Slurm",
    "let small jobs run first on nodes that a large job will need tonight, if they end in time "
    "(backfill)": "Slurm",
    "start a program on all nodes of a reservation, with the rank of each process, and end it "
    "when the reserved time is over": "Slurm",
    "restart the container of a web service that died, on another machine if necessary, and send "
    "requests only to healthy ones": "Kubernetes",
    "replace all containers of a service by a new version, a few at a time, without an outage":
    "Kubernetes",
    "keep 20 containers of different teams, images and secrets apart on the same machines":
    "Kubernetes",
    "run a Python function in another process within milliseconds, and pass its result by "
    "reference to the next function": "Ray",
    "keep an array in the shared memory of a node for all workers that read it": "Ray",
    "keep a model in a process, and call its methods from other processes of the program": "Ray",
    "add up the gradients of all replicas after each backward pass": "none",
    "place the layers of a model on four GPUs, and send activations between them": "none",
}  # fmt: skip
_OPTIONS: Final = {
    "Slurm": "",
    "Kubernetes": "",
    "Ray": "",
    "none": "the training library does it: DDP, FSDP or another one",
}
_MADE_FOR: Final = {  # why a system is not the answer to another one's question
    "Slurm": "Slurm gives jobs whole nodes for a time. It does not see what happens in a job.",
    "Kubernetes": "Kubernetes keeps containers alive. By itself it has no queue of jobs that wait "
    "for whole nodes, and it does not see the functions of a program.",
    "Ray": "Ray runs the functions and objects of one program, on nodes that it has been given. "
    "It computes no gradients.",
}


def _draw(draw: Random) -> Values:
    owners = draw.sample(list(_OPTIONS), 3)
    texts = [draw.choice([text for text, who in TASKS.items() if who == own]) for own in owners]
    values = dict(zip(("first", "second", "third"), texts, strict=True))
    while True:
        start, item, percent = (
            draw.choice(options) for options in ((200, 300, 400, 500), (20, 30, 50, 80), (80, 90))
        )
        if percent * start % ((100 - percent) * item):  # else rounding decides what ceil gives
            break
    return values | {
        "submit": draw.choice((50, 80, 100, 200)),
        "start": start,
        "workers": draw.choice((16, 32, 64)),
        "items": draw.choice((200_000, 500_000, 1_000_000)),
        "item": item,
        "percent": percent,
    }


def _who(name: str, prompt: str) -> Question:
    """A question for the system that does what the value of this name says."""

    def right(given: Values) -> str:
        return TASKS[given[name]]

    def mistaken(system: str) -> Callable[[Values], str]:
        return lambda given: "" if right(given) == system else system

    return choice(
        name, prompt, _OPTIONS, right,
        "Is it about nodes and queues, about containers that stay alive, about functions of one "
        "program, or about what a training step computes?",
        {mistaken(system): why for system, why in _MADE_FOR.items()},
    )  # fmt: skip


_QUESTIONS = asked(
    _draw,
    [
        ("your work", "{items:,} items, {item} µs of computing each, in any order"),
        ("your workers", "{workers}, and one driver that submits all tasks"),
        ("a task", "takes {submit} µs of the driver's time, one after the other, and {start} µs "
         "of a worker's time besides its computing"),
    ],
    _who("first", "which system does this: {first}?"),
    _who("second", "and this: {second}?"),
    _who("third", "and this: {third}?"),
    number(
        "each",
        "the seconds that it takes with one task for each item. Leave out what comes before the "
        "first and after the last task",
        "items * max(submit, (start + item) / workers) / 1e6",
        "How long does the driver need for all tasks, and how long the workers? Both work at the "
        "same time.",
        {
            "items * (start + item) / workers / 1e6": "this is the workers' time. Can the driver "
            "submit that many tasks in it?",
            "items * item / workers / 1e6": "this is the computing alone.",
            "items * (submit + (start + item) / workers) / 1e6": "the driver submits while the "
            "workers work.",
        },
        unit="s",
    ),
    number(
        "batch",
        "the fewest items in a task with which the driver keeps all workers busy",
        "ceil((submit * workers - start) / item)",
        "While a worker is busy with one task, the driver must submit one for every worker.",
        {
            "ceil(submit * workers / item)": "the worker's own cost of a task gives the driver "
            "time too.",
            "ceil(submit / item)": "the driver has to submit to all workers in that time.",
            "ceil((submit * workers - start) / item) - 1": "with these, the driver does not quite "
            "keep up.",
        },
        unit="items",
        exact=True,
    ),
    number(
        "worth",
        "the fewest items in a task with which a worker computes at least {percent} % of the "
        "time, if the driver keeps up",
        "ceil(percent * start / ((100 - percent) * item))",
        "A worker computes, and spends its own cost of each task. Which share is which?",
        {
            "ceil(start / item)": "with these it computes half of the time.",
            "ceil(percent * (start + submit) / ((100 - percent) * item))": "the driver's time is "
            "not the worker's.",
            "ceil(100 * start / ((100 - percent) * item))": "the cost is that share of the whole "
            "task, and not of its computing.",
        },
        unit="items",
        exact=True,
    ),
    where={"ceil": ceil},
)  # fmt: skip

PART = Part("11/who_does_it", 1, "Who does it, and at what cost", 7, 2, _QUESTIONS)
