"""Answers to 04/fit: which layers to checkpoint, so that a model fits at the least recomputation.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

import itertools

import torch


def peak(layers, plan):
    """The most bytes, over the layers at which backward may be."""
    kept = most = 0
    for number, layer in enumerate(layers):
        most = max(most, kept + layer["peak"])
        kept += layer["input"] if number in plan else layer["kept"]
    return most


def work(layers, plan):
    return sum(layers[number]["work"] for number in plan)


def saved(layer):
    return layer["kept"] - layer["input"]


def plans(layers):
    every = range(len(layers))
    return itertools.chain.from_iterable(
        itertools.combinations(every, n) for n in (*every, len(layers))
    )


def cheapest(layers, allowed):
    return min(filter(allowed, plans(layers)), key=lambda plan: work(layers, plan), default=None)


def in_order(layers, limit, key):
    """One layer after another until it fits."""
    plan = []
    for number in sorted(range(len(layers)), key=key):
        if peak(layers, plan) <= limit:
            break
        plan.append(number)
    return plan if peak(layers, plan) <= limit else None


def thinned(layers, limit, plan):
    for number in sorted(plan or (), key=lambda n: -layers[n]["work"]):
        fewer = [n for n in plan if n != number]
        if peak(layers, fewer) <= limit:
            plan = fewer
    return plan


# Right, written differently ---------------------------------------------------------


def all_plans(layers, limit):
    return cheapest(layers, lambda plan: peak(layers, plan) <= limit)


def layer_after_layer(layers, limit):
    """For what is kept so far the least work; of two states one may be no better in either."""
    states = {0: (0, ())}  # bytes kept: work, plan
    for number, layer in enumerate(layers):
        following = {}
        for kept, (done, plan) in states.items():
            if kept + layer["peak"] > limit:
                continue
            ways = (kept + layer["kept"], done, plan), (
                kept + layer["input"], done + layer["work"], (*plan, number),
            )  # fmt: skip
            for bytes_kept, total, chosen in ways:
                before = following.get(bytes_kept)
                if before is None or total < before[0]:
                    following[bytes_kept] = total, chosen
        states = following
    return list(min(states.values())[1]) if states else None


def by_branches(layers, limit):
    best = [float("inf"), None]

    def go_on(number, kept, done, plan):
        if done >= best[0]:
            return
        if number == len(layers):
            best[:] = done, plan
            return
        layer = layers[number]
        if kept + layer["peak"] > limit:
            return
        go_on(number + 1, kept + layer["kept"], done, plan)
        go_on(number + 1, kept + layer["input"], done + layer["work"], [*plan, number])

    go_on(0, 0, 0, [])
    return best[1]


def as_a_tensor(layers, limit):
    plan = all_plans(layers, limit)
    return None if plan is None else torch.tensor(plan, dtype=torch.int64)


# Wrong ------------------------------------------------------------------------------


def nothing(layers, limit):
    return [] if peak(layers, []) <= limit else [0]


def everything(layers, limit):
    every = list(range(len(layers)))
    if peak(layers, every) > limit:
        return None
    return [] if peak(layers, []) <= limit else every


def everything_always(layers, limit):
    return list(range(len(layers)))


def from_the_front(layers, limit):
    return in_order(layers, limit, lambda n: n)


def the_largest_first(layers, limit):
    return in_order(layers, limit, lambda n: -saved(layers[n]))


def least_work_for_a_byte_first(layers, limit):
    return in_order(layers, limit, lambda n: layers[n]["work"] / saved(layers[n]))


def thinned_least_work_for_a_byte(layers, limit):
    return thinned(layers, limit, least_work_for_a_byte_first(layers, limit))


def thinned_largest_first(layers, limit):
    return thinned(layers, limit, the_largest_first(layers, limit))


def the_best_of_the_orders(layers, limit):
    rules = thinned_least_work_for_a_byte, thinned_largest_first
    found = [rule(layers, limit) for rule in rules]
    return min(
        (one for one in found if one is not None), key=lambda p: work(layers, p), default=None
    )


def what_is_kept_has_to_fit(layers, limit):
    """Not what backward brings back."""

    def allowed(plan):
        kept = [one["input"] if n in plan else one["kept"] for n, one in enumerate(layers)]
        return sum(kept) <= limit

    plan = cheapest(layers, allowed)
    return plan if peak(layers, range(len(layers))) <= limit else None


def without_what_gradients_take(layers, limit):
    own = [{**one, "peak": one["kept"]} for one in layers]
    plan = cheapest(own, lambda plan: peak(own, plan) <= limit)
    return plan if peak(layers, range(len(layers))) <= limit else None


def checkpointed_layers_never_whole(layers, limit):
    """A layer under a checkpoint counts with its input alone, also while backward is at it."""

    def allowed(plan):
        kept = 0
        for number, layer in enumerate(layers):
            if kept + (layer["input"] if number in plan else layer["peak"]) > limit:
                return False
            kept += layer["input"] if number in plan else layer["kept"]
        return True

    plan = cheapest(layers, allowed)
    return plan if peak(layers, range(len(layers))) <= limit else None


def as_if_all_peaked_at_once(layers, limit):
    largest = max(one["peak"] for one in layers)

    def allowed(plan):
        kept = [one["input"] if n in plan else one["kept"] for n, one in enumerate(layers)]
        return sum(kept) + largest <= limit

    if peak(layers, ()) <= limit:
        return []
    every = list(range(len(layers)))
    return None if peak(layers, every) > limit else cheapest(layers, allowed) or every


def fewest_checkpoints(layers, limit):
    return next((plan for plan in plans(layers) if peak(layers, plan) <= limit), None)


def least_bytes(layers, limit):
    fitting = [plan for plan in plans(layers) if peak(layers, plan) <= limit]
    if not fitting or () in fitting:
        return fitting[0] if fitting else None
    return min(fitting, key=lambda plan: (peak(layers, plan), work(layers, plan)))


def below_the_limit(layers, limit):
    """And not at it."""
    return cheapest(layers, lambda plan: peak(layers, plan) < limit)


def all_where_nothing_fits(layers, limit):
    plan = all_plans(layers, limit)
    return list(range(len(layers))) if plan is None else plan


def an_empty_plan_where_nothing_fits(layers, limit):
    return all_plans(layers, limit) or []


def one_checkpoint_at_least(layers, limit):
    return cheapest(layers, lambda plan: plan and peak(layers, plan) <= limit)


def none_for_an_empty_plan(layers, limit):
    return all_plans(layers, limit) or None


def counted_from_1(layers, limit):
    plan = all_plans(layers, limit)
    return None if plan is None else [number + 1 for number in plan]


def yes_and_no(layers, limit):
    plan = all_plans(layers, limit)
    return None if plan is None else [number in plan for number in range(len(layers))]


def in_words(layers, limit):
    return "all of them"


def the_same_twice(layers, limit):
    plan = all_plans(layers, limit)
    return None if plan is None else [*plan, *plan]


def not_written(layers, limit):
    raise NotImplementedError()


RIGHT = [all_plans, layer_after_layer, by_branches, as_a_tensor]

FITS, NEAR, LEAST = (
    "too many. Backward is at layer",
    "times the least that fits. Which",
    "How many",
)
WRONG = {
    nothing: {"fits": FITS, "edges": "not None"},
    everything: {"near": NEAR},
    everything_always: {"near": NEAR, "edges": "not []"},
    from_the_front: {"near": NEAR},
    the_largest_first: {"near": NEAR},
    least_work_for_a_byte_first: {"near": NEAR},
    thinned_least_work_for_a_byte: {"least": LEAST},
    thinned_largest_first: {"near": NEAR},
    the_best_of_the_orders: {"least": LEAST},
    what_is_kept_has_to_fit: {"fits": FITS},
    without_what_gradients_take: {"fits": FITS},
    checkpointed_layers_never_whole: {"fits": FITS},
    as_if_all_peaked_at_once: {"near": NEAR},
    fewest_checkpoints: {"near": NEAR},
    least_bytes: {"near": NEAR},
    below_the_limit: {"least": LEAST, "edges": "the model fits exactly without a checkpoint"},
    all_where_nothing_fits: {"edges": "it needs one byte too many"},
    an_empty_plan_where_nothing_fits: {"edges": "it needs one byte too many"},
    one_checkpoint_at_least: {"edges": "the model fits exactly without a checkpoint"},
    none_for_an_empty_plan: {"edges": "the model fits exactly without a checkpoint"},
    counted_from_1: {"fits": ""},
    yes_and_no: {"fits": "layers are numbered 0 to"},
    in_words: {"fits": "returns str"},
    the_same_twice: {"fits": "twice"},
    not_written: {"fits": "fit is not written yet"},
}

_OFFSET = "work that all plans share changes none of the comparisons"
_ORDER = "of plans that keep the same bytes the cheapest is found in any order"
_TWICE = "what is there already is not cheaper than itself"

EQUIVALENT = {
    "best = {0: (0, [])} -> best = {0: (1, [])}": _OFFSET,
    "best = {0: (0, [])} -> best = {0: (-1, [])}": _OFFSET,
    "for kept, (work, plan) in best.items(): -> "
    "for kept, (work, plan) in reversed(best.items()):": _ORDER,
    "for bytes_kept, *state in (plain, again): -> "
    "for bytes_kept, *state in reversed((plain, again)):": _ORDER,
    "if kept + layer['peak'] > limit:; continue; plain = (kept + layer['kept'], work, plan) -> "
    "plain = (kept + layer['kept'], work, plan); if kept + layer['peak'] > limit:; continue": (
        "a state that is left out may be worked out before"
    ),
    "following[bytes_kept] = state -> following[bytes_kept] = state; "
    "for bytes_kept, *state in (plain, again):; ...": _TWICE,
    "following[bytes_kept] = state -> following[bytes_kept] = state; "
    "for kept, (work, plan) in best.items():; ...": _TWICE,
    "... not in following or state[0] < following[bytes_kept][0]: -> "
    "... not in following or state[0] <= following[bytes_kept][0]:": (
        "of two plans of the same bytes and work either will do"
    ),
}
