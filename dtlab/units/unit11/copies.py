"""11/copies: how often an array is copied if tasks get it by value, and if by reference."""

from __future__ import annotations

from math import floor

from dtlab.checks.parts import Part
from dtlab.checks.questions.declared import asked, choice, number

_QUESTIONS = asked(
    {
        "size": (12, 16, 24, 32, 40, 48),
        "nodes": (3, 4, 5, 6),
        "workers": (4, 6, 8, 12),
        "store": (4, 5, 7, 9),
    },
    [
        ("your cluster", "{nodes} nodes with {workers} workers each; the driver is on one"),
        ("the object store", "{store} GB of shared memory on each node"),
        ("the array", "{size} MB; the driver has it"),
        ("the tasks", "one on every worker of every node, all at the same time; each reads the "
         "array"),
    ],
    number(
        "by_value",
        "the driver passes the array itself to every task: f.remote(array). MB that it copies "
        "into its node's store",
        "size * tasks",
        "What happens in each call to an argument that is not a reference?",
        {
            "size": "this is by reference. By value, each call copies its argument.",
            "size * workers": "the driver copies an argument for the tasks of other nodes too.",
            "size * nodes": "count the calls, and not the nodes.",
        },
        unit="MB",
    ),
    number(
        "by_reference",
        "the driver calls ray.put once, and passes the reference. MB of this array in the stores "
        "of all nodes, added up, while the tasks run",
        "size * nodes",
        "How many copies does a node need, however many of its workers read?",
        {
            "size": "this is the driver's node. Workers of another node cannot read its memory.",
            "size * tasks": "the workers of a node read one copy in shared memory.",
            "size * (nodes - 1)": "the driver's node has a copy too.",
        },
        unit="MB",
    ),
    number(
        "wire",
        "MB that cross the network in all: [by value, by reference]",
        "[size * workers * (nodes - 1), size * (nodes - 1)]",
        "Which tasks find their argument in the store of their own node?",
        {
            "[size * tasks, size * nodes]": "tasks on the driver's node need no network.",
            "[size * (nodes - 1), size * (nodes - 1)]": "by value, the arguments of two tasks are "
            "two objects, also on the same node.",
            "[size * workers * (nodes - 1), size * workers * (nodes - 1)]": "by reference, a node "
            "fetches an object once for all of its workers.",
        },
        unit="MB",
    ),
    number(
        "writing",
        "by reference, but every task changes some elements. MB of memory that one node uses for "
        "the object and for what its tasks need for this, all at the same time",
        "size * (workers + 1)",
        "May a task write into an object of the store, which other tasks read?",
        {
            "size": "objects of the store are read-only.",
            "size * workers": "the object itself stays in the store.",
            "2 * size": "how many tasks of a node write, each its own changes?",
        },
        unit="MB",
    ),
    number(
        "bound",
        "by value again, and now with very many tasks. The most of them that may be submitted and "
        "not finished, so that their arguments fit in the store of the driver's node",
        "floor(1000 * store / size)",
        "Every one of them has its argument in that store, from its submission to its end.",
        {
            "nodes * floor(1000 * store / size)": "the driver copies all arguments into the store "
            "of its own node.",
            "floor(1000 * store / size / workers)": "a task that waits has its argument in the "
            "store too. Count tasks, and not groups of them.",
            "1 + floor(1000 * store / size)": "the last one does not fit.",
        },
        unit="tasks",
        exact=True,
    ),
    choice(
        "bounded",
        "how does the driver keep to this bound?",
        {
            "wait": "it calls ray.wait on the references of the submitted tasks, and submits "
            "another for each that has ended",
            "get": "it calls ray.get on each task before it submits the next",
            "cpus": "it asks for more CPUs for each task, so that fewer run at the same time",
        },
        "wait",
        "It must notice that any one of the submitted tasks has ended, while others still run.",
        {
            "get": "then one task runs at a time, and the other workers are idle.",
            "cpus": "then fewer run, but as many are submitted and have their arguments in the "
            "store.",
        },
    ),
    where={"floor": floor, "tasks": "nodes * workers"},
)  # fmt: skip

PART = Part("11/copies", 1, "Copies and bytes", 7, 2, _QUESTIONS)
