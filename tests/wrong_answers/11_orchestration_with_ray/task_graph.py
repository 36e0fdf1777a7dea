"""Answers to 11/task_graph: how soon a graph of tasks ends, and what can run at the same time."""

from itertools import combinations, pairwise

from dtlab.predict import critical_path, scheduled

# Right ----------------------------------------------------------------------------------------


def needed(tasks, name):
    return {name}.union(*(needed(tasks, need) for need in tasks[name][1]))


def longer(tasks, name, more):
    return {**tasks, name: (tasks[name][0] + more, tasks[name][1])}


def by_the_library(given):
    tasks, more = given["tasks"], given["more"]
    shortest, two = critical_path(tasks)[0], scheduled(tasks, 2).duration
    work = scheduled(tasks, 1).duration
    ends = [critical_path(longer(tasks, given[who], more))[0] for who in ("late", "spare")]
    one = given["one"]
    return {
        "shortest": shortest,
        "two": two,
        "idle": 2 * two - work,
        "beside": {
            name
            for name in tasks
            if one not in needed(tasks, name) and name not in needed(tasks, one)
        },
        "later": [end - shortest for end in ends],
        "one_by_one": work,
    }


def by_all_chains(given):
    """Every set of tasks that is a chain, and a clock of two lanes, second by second."""
    tasks, one = given["tasks"], given["one"]
    edges = [(need, name) for name, (_, needs) in tasks.items() for need in needs]

    def longest(times):
        chains = [
            chain
            for size in range(1, len(tasks) + 1)
            for chain in combinations(tasks, size)
            if all(pair in edges for pair in pairwise(chain))
        ]
        return max(sum(times[name] for name in chain) for chain in chains)

    times = {name: seconds for name, (seconds, _) in tasks.items()}
    left, running, clock, idle = dict(times), [], 0, 0
    while left:
        ready = [n for n in sorted(left) if n not in running and not set(tasks[n][1]) & set(left)]
        running += ready[: 2 - len(running)]
        idle += 2 - len(running)
        clock += 1
        for name in running:
            left[name] -= 1
        left = {name: seconds for name, seconds in left.items() if seconds}
        running = [name for name in running if name in left]
    before, after = {one}, {one}
    for _ in tasks:
        before |= {need for need, name in edges if name in before}
        after |= {name for need, name in edges if need in after}
    later = [
        longest({**times, given[who]: times[given[who]] + given["more"]}) - longest(times)
        for who in ("late", "spare")
    ]
    return {
        "shortest": f"{longest(times)} s",
        "two": f"{clock} s",
        "idle": idle,
        "beside": ", ".join(sorted(set(tasks) - before - after)),
        "later": tuple(later),
        "one_by_one": sum(times.values()),
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answers."""

    def answer(given):
        right = by_the_library(given)
        return right | {name: wrong(given, right)}

    return answer


def columns(tasks):
    depth = {}
    for name, (_, needs) in tasks.items():
        depth[name] = 1 + max((depth[need] for need in needs), default=0)
    return depth


def waves(given, right):
    tasks, depth = given["tasks"], columns(given["tasks"])
    return sum(
        max(tasks[name][0] for name in tasks if depth[name] == column)
        for column in set(depth.values())
    )


def same_column(given, right):
    depth = columns(given["tasks"])
    return {n for n in depth if depth[n] == depth[given["one"]] and n != given["one"]}


def not_before(given, right):
    return set(given["tasks"]) - needed(given["tasks"], given["one"])


RIGHT = [by_the_library, by_all_chains]

WRONG = {
    instead("shortest", lambda given, right: right["one_by_one"]): {
        "shortest": "one after the other"
    },
    instead("shortest", waves): {"shortest": "It does not wait for other tasks of the column"},
    instead("shortest", lambda given, right: right["shortest"] + 1): {
        "shortest": "is not it. Which chain of tasks"
    },
    instead("two", lambda given, right: right["one_by_one"] / 2): {"two": "half of the work"},
    instead("two", lambda given, right: right["shortest"]): {"two": "as many workers as you like"},
    instead("two", lambda given, right: right["one_by_one"]): {"two": "this is on one worker"},
    instead("two", lambda given, right: 0): {"two": "is not it. Draw two lanes"},
    instead("idle", lambda given, right: right["idle"] / 2): {"idle": "the mean of a worker"},
    instead("idle", lambda given, right: 2 * (right["two"] - right["shortest"])): {
        "idle": "compare with the work"
    },
    instead("idle", lambda given, right: right["idle"] + 100): {
        "idle": "is not it. Two workers have two seconds"
    },
    instead("beside", same_column): {"beside": "tasks of other columns"},
    instead("beside", not_before): {"beside": "must wait for it"},
    instead("beside", lambda given, right: {given["one"]}): {"beside": "is not it. Which"},
    instead("later", lambda given, right: [given["more"]] * 2): {
        "later": "may end a little later without harm"
    },
    instead("later", lambda given, right: [given["more"], 0]): {"later": "now another chain"},
    instead("later", lambda given, right: [0, 0]): {"later": "is not it. Which chain"},
    instead("one_by_one", lambda given, right: right["shortest"]): {
        "one_by_one": "whether it needs it or not"
    },
    instead("one_by_one", lambda given, right: right["two"]): {
        "one_by_one": "if the driver waits for each"
    },
    instead("one_by_one", lambda given, right: 1): {"one_by_one": "is not it. How many tasks"},
}
