"""Answers to 11/copies: an array that tasks get by value, or by reference."""

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    size, nodes, workers = given["size"], given["nodes"], given["workers"]
    return {
        "by_value": size * nodes * workers,
        "by_reference": size * nodes,
        "wire": [size * (nodes - 1) * workers, size * (nodes - 1)],
        "writing": size * (1 + workers),
        "bound": given["store"] * 1000 // size,
        "bounded": "wait",
    }


def by_counting(given):
    """Every object, node by node."""
    nodes, workers, size = given["nodes"], given["workers"], given["size"]
    tasks = [(node, worker) for node in range(nodes) for worker in range(workers)]
    objects = {task: number for number, task in enumerate(tasks)}
    fetched = {(node, objects[node, worker]) for node, worker in tasks if node}
    copies = {node for node, _ in tasks}
    bound = 0
    while (bound + 1) * size * 10**6 <= given["store"] * 10**9:
        bound += 1
    return {
        "by_value": f"{len(objects) * size / 1000} GB",
        "by_reference": f"{len(copies) * size} MB",
        "wire": (f"{len(fetched) * size} MB", f"{(len(copies) - 1) * size} MB"),
        "writing": size + sum(size for node, _ in tasks if node == 1),
        "bound": bound,
        "bounded": " WAIT ",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right[name])}

    return answer


def sizes(name, factor):
    """Instead of `name`, the size of the array times a function of nodes and workers."""
    return instead(
        name, lambda given, right: given["size"] * factor(given["nodes"], given["workers"])
    )


def pair(value, reference):
    """Two factors of the size, for the network."""
    return instead(
        "wire",
        lambda given, right: [
            given["size"] * factor(given["nodes"], given["workers"])
            for factor in (value, reference)
        ],
    )


RIGHT = [by_hand, by_counting]

WRONG = {
    sizes("by_value", lambda n, w: 1): {"by_value": "this is by reference"},
    sizes("by_value", lambda n, w: w): {"by_value": "the tasks of other nodes too"},
    sizes("by_value", lambda n, w: n): {"by_value": "count the calls"},
    sizes("by_value", lambda n, w: n * w * 1.1): {"by_value": "is not it. What happens"},
    sizes("by_reference", lambda n, w: 1): {"by_reference": "cannot read its memory"},
    sizes("by_reference", lambda n, w: n * w): {"by_reference": "read one copy"},
    sizes("by_reference", lambda n, w: n - 1): {"by_reference": "has a copy too"},
    sizes("by_reference", lambda n, w: n + 1): {"by_reference": "is not it. How many copies"},
    pair(lambda n, w: n * w, lambda n, w: n): {"wire": "need no network"},
    pair(lambda n, w: n - 1, lambda n, w: n - 1): {"wire": "are two objects"},
    pair(lambda n, w: (n - 1) * w, lambda n, w: (n - 1) * w): {"wire": "once for all of its"},
    pair(lambda n, w: (n - 1) * w, lambda n, w: n): {"wire": "is not it. Which tasks"},
    sizes("writing", lambda n, w: 1): {"writing": "read-only"},
    sizes("writing", lambda n, w: w): {"writing": "stays in the store"},
    sizes("writing", lambda n, w: 2): {"writing": "each its own changes"},
    sizes("writing", lambda n, w: n * w + n): {"writing": "is not it. May a task write"},
    instead("bound", lambda given, right: given["nodes"] * right): {"bound": "of its own node"},
    instead("bound", lambda given, right: int(1000 * given["store"] / given["size"])
            // given["workers"]): {"bound": "Count tasks"},
    instead("bound", lambda given, right: right + 1): {"bound": "does not fit"},
    instead("bound", lambda given, right: 1): {"bound": "is not it. Every one"},
    instead("bounded", lambda given, right: "get"): {"bounded": "one task runs at a time"},
    instead("bounded", lambda given, right: "cpus"): {"bounded": "as many are submitted"},
    instead("bounded", lambda given, right: "sleep"): {"bounded": "none of the options"},
}  # fmt: skip
