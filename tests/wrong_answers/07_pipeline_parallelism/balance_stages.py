"""Answers to 07/balance_stages: mistakes people make, and right answers written differently."""

from functools import lru_cache
from itertools import accumulate, combinations, pairwise

from dtlab import predict


def cut_at(ends, count):
    bounds = [0, *ends, count]
    return [list(range(a, b)) for a, b in pairwise(bounds)]


def right(costs, num_stages):
    """By dynamic programming over the stages."""
    count = len(costs)
    until = [0, *accumulate(costs)]
    best = [(until[end], [end]) for end in range(count + 1)]
    for stage in range(2, num_stages + 1):
        best = [
            min(
                (
                    (max(best[start][0], until[end] - until[start]), [*best[start][1], end])
                    for start in range(stage - 1, end)
                ),
                default=(float("inf"), []),
            )
            for end in range(count + 1)
        ]
    return cut_at(best[count][1][:-1], count)


# Wrong ------------------------------------------------------------------------------------------


def untouched(costs, num_stages):
    raise NotImplementedError()


def nothing(costs, num_stages):
    right(costs, num_stages)


def numbers_of_layers(costs, num_stages):
    return [len(stage) for stage in right(costs, num_stages)]


def costs_in_place_of_layers(costs, num_stages):
    return [[costs[layer] for layer in stage] for stage in right(costs, num_stages)]


def by_the_library(costs, num_stages):
    return predict.balance_stages(costs, num_stages)


def dealt_out(costs, num_stages):
    return [list(range(stage, len(costs), num_stages)) for stage in range(num_stages)]


def heaviest_first(costs, num_stages):
    """As for jobs that have no order: each layer goes to the stage that has least."""
    stages, loads = [[] for _ in range(num_stages)], [0.0] * num_stages
    for layer in sorted(range(len(costs)), key=lambda layer: -costs[layer]):
        stage = loads.index(min(loads))
        stages[stage].append(layer)
        loads[stage] += costs[layer]
    return [sorted(stage) for stage in stages]


def one_layer_twice(costs, num_stages):
    stages = right(costs, num_stages)
    return [stages[0] + stages[1][:1], *stages[1:]] if num_stages > 1 else stages


def one_stage_too_many(costs, num_stages):
    return [*right(costs, num_stages), []]


def equal_numbers(costs, num_stages):
    ends = [len(costs) * stage // num_stages for stage in range(1, num_stages)]
    return cut_at(ends, len(costs))


def filled_up_to_the_mean(costs, num_stages):
    mean, ends, load = sum(costs) / num_stages, [], 0.0
    for layer, cost in enumerate(costs):
        left, needed = len(costs) - layer, num_stages - 1 - len(ends)
        if layer and needed and (load + cost > mean or left == needed):
            ends.append(layer)
            load = 0.0
        load += cost
    return cut_at(ends, len(costs))


def filled_over_the_mean(costs, num_stages):
    mean, ends, load = sum(costs) / num_stages, [], 0.0
    for layer, cost in enumerate(costs):
        left, needed = len(costs) - layer, num_stages - 1 - len(ends)
        if layer and needed and (load >= mean or left == needed):
            ends.append(layer)
            load = 0.0
        load += cost
    return cut_at(ends, len(costs))


def where_the_sum_comes_nearest(costs, num_stages):
    """Each end where the sum is nearest to its share of the total."""
    until, count, ends = [0, *accumulate(costs)], len(costs), []
    for stage in range(1, num_stages):
        goal = until[-1] * stage / num_stages
        places = range((ends[-1] if ends else 0) + 1, count - (num_stages - stage) + 1)
        ends.append(min(places, key=lambda place: abs(until[place] - goal)))
    return cut_at(ends, count)


def in_halves(costs, num_stages):
    """The best cut in two, then the slower one of the pieces again."""
    ends = []
    while len(ends) < num_stages - 1:
        pieces = [one for one in cut_at(ends, len(costs)) if len(one) > 1]
        piece = max(pieces, key=lambda one: sum(costs[layer] for layer in one))
        place = min(
            piece[1:],
            key=lambda at: max(sum(costs[piece[0] : at]), sum(costs[at : piece[-1] + 1])),
        )
        ends = sorted([*ends, place])
    return cut_at(ends, len(costs))


def the_least_sum_of_squares(costs, num_stages):
    """The usual measure of stages that are alike."""
    return _by_sums(costs, num_stages, lambda seconds: seconds**2)


def _by_sums(costs, num_stages, measure):
    until, count = [0, *accumulate(costs)], len(costs)

    @lru_cache(None)
    def best(end, stages):
        if stages == 1:
            return measure(until[end]), (0,)
        return min(
            (best(start, stages - 1)[0] + measure(until[end] - until[start]),
             (*best(start, stages - 1)[1], start))
            for start in range(stages - 1, end)
        )  # fmt: skip

    return cut_at(best(count, num_stages)[1][1:], count)


def as_little_between_slowest_and_fastest_as_can_be(costs, num_stages):
    count = len(costs)
    if count > 20:
        return right(costs, num_stages)

    def spread(ends):
        times = [sum(costs[layer] for layer in stage) for stage in cut_at(ends, count)]
        return max(times) - min(times)

    return cut_at(min(combinations(range(1, count), num_stages - 1), key=spread), count)


def a_search_that_ends_too_early(costs, num_stages):
    """By halving the limit four times."""
    low, high = max(costs), sum(costs)
    for _ in range(4):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_up_to(costs, middle)) <= num_stages else (middle, high)
    return _cut_on(_up_to(costs, high), num_stages)


def the_slowest_stage_as_slow_as_can_be(costs, num_stages):
    count = len(costs)
    if count > 20:
        return right(costs, num_stages)

    def slowest(ends):
        return max(sum(costs[layer] for layer in stage) for stage in cut_at(ends, count))

    return cut_at(max(combinations(range(1, count), num_stages - 1), key=slowest), count)


def only_as_many_stages_as_it_takes(costs, num_stages):
    """By halving the limit; stages that are not needed stay empty."""
    low, high = max(costs), sum(costs)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_up_to(costs, middle)) <= num_stages else (middle, high)
    stages = _up_to(costs, high)
    return stages + [[]] * (num_stages - len(stages))


def _up_to(costs, limit):
    stages, load = [[]], 0.0
    for layer, cost in enumerate(costs):
        if load + cost > limit:
            stages.append([])
            load = 0.0
        stages[-1].append(layer)
        load += cost
    return stages


def more_layers_than_stages(costs, num_stages):
    if len(costs) <= num_stages:
        raise ValueError("more layers than stages")
    return right(costs, num_stages)


def a_cut_at_least(costs, num_stages):
    return right(costs, max(2, num_stages))


def all_cuts(costs, num_stages):
    count = len(costs)

    def slowest(ends):
        return max(sum(costs[layer] for layer in stage) for stage in cut_at(ends, count))

    return cut_at(min(combinations(range(1, count), num_stages - 1), key=slowest), count)


def again_and_again(costs, num_stages):
    """Recursive, and forgets what it has worked out."""

    def best(end, stages):
        if stages == 1:
            return sum(costs[:end]), []
        found = float("inf"), []
        for start in range(stages - 1, end):
            before, ends = best(start, stages - 1)
            found = min(found, (max(before, sum(costs[start:end])), [*ends, start]))
        return found

    return cut_at(best(len(costs), num_stages)[1], len(costs))


# Right ------------------------------------------------------------------------------------------


def by_halving(costs, num_stages):
    """The least limit for which filling needs no more stages; then cut what is left over."""
    sums = {sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1)}
    limits = sorted(one for one in sums if one >= max(costs) - 1e-9)
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if len(_up_to(costs, limits[middle] + 1e-9)) <= num_stages:
            high = middle
        else:
            low = middle + 1
    return _cut_on(_up_to(costs, limits[low] + 1e-9), num_stages)


def _cut_on(stages, num_stages):
    """Until there are so many of them."""
    while len(stages) < num_stages:
        place = next(number for number, stage in enumerate(stages) if len(stage) > 1)
        stages[place : place + 1] = [stages[place][:1], stages[place][1:]]
    return stages


def remembered(costs, num_stages):
    @lru_cache(None)
    def best(start, stages):
        if stages == 1:
            return sum(costs[start:]), (range(start, len(costs)),)
        found = []
        for end in range(start + 1, len(costs) - stages + 2):
            rest, cut = best(end, stages - 1)
            found.append((max(sum(costs[start:end]), rest), end, cut))
        slowest, end, cut = min(found, key=lambda one: one[:2])
        return slowest, (range(start, end), *cut)

    return best(0, num_stages)[1]


RIGHT = [right, by_halving, remembered]

WRONG = {
    untouched: {"cut": "is not written yet"},
    nothing: {"cut": "returns None"},
    numbers_of_layers: {"cut": "it returns ["},
    costs_in_place_of_layers: {"cut": "holds the layers' costs. Return their numbers"},
    by_the_library: {"cut": "finished code"},
    dealt_out: {"cut": "a stage has consecutive layers"},
    heaviest_first: {"cut": "a stage has consecutive layers"},
    one_layer_twice: {"cut": "there twice"},
    one_stage_too_many: {"cut": "stages, not"},
    equal_numbers: {"best": "the same number of layers"},
    filled_up_to_the_mean: {"best": "neither filling"},
    filled_over_the_mean: {"best": "neither filling"},
    where_the_sum_comes_nearest: {"best": "there is a cut"},
    in_halves: {"best": "there is a cut"},
    the_least_sum_of_squares: {"best": "as equal as possible"},
    as_little_between_slowest_and_fastest_as_can_be: {"best": "as equal as possible"},
    a_search_that_ends_too_early: {"best": "is a cut in which"},
    the_slowest_stage_as_slow_as_can_be: {"best": "there is a cut"},
    only_as_many_stages_as_it_takes: {"edges": "has no layer"},
    more_layers_than_stages: {"edges": "more layers than stages"},
    a_cut_at_least: {"edges": "makes 2 stages"},
    all_cuts: {"large": "it is only too slow"},
    again_and_again: {"large": "did not finish"},
}

TWICE = "an option that is there twice is the same"
EQUIVALENT = {
    "if stages == 1:; return (sum(costs[:end]), [list(range(end))]); options = [] -> "
    "options = []; if stages == 1:; return (sum(costs[:end]), [list(range(end))])": "neither "
    "needs the other",
    "for start in range(stages - 1, end): -> for start in range(stages - 1, end + 1):": "a stage "
    "without layers is never faster, and of equal cuts min takes that with shorter first stages",
    "for start in range(stages - 1, end): -> "
    "for start in reversed(range(stages - 1, end)):": "of several "
    "options min finds the least in any order",
    "slowest = max(slowest, sum(costs[start:end])) -> "
    "slowest = max(sum(costs[start:end]), slowest)": "the larger of two has no order",
    "... [*cut, ... -> ... [*cut, list(range(start, end))])); "
    "options.append((slowest, [*cut, ...": TWICE,
    "... [*cut, list(range(start, end))])) -> ... [*cut, list(range(start, end))])); "
    "for start in range(stages - 1, end):; ...": TWICE,
}
