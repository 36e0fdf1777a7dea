"""Answers to 07/run_b: what caps a pipeline, and the cut that lifts the cap.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

from collections import defaultdict
from itertools import combinations, pairwise
from statistics import median

from dtlab.predict import balance_stages

SPANS = ("forward", "backward")


def costs_of(trace, steps=None):
    """Seconds of each layer, in the last step, or added up over these."""
    pieces = [one for one in trace.events if one.name == "layer"]
    wanted = steps or {max(one.extra["step"] for one in pieces)}
    costs = defaultdict(float)
    for one in pieces:
        if one.extra["step"] in wanted:
            costs[one.extra["layer"]] += one.end - one.start
    return [costs[layer] for layer in sorted(costs)]


def stage_times(costs, ranks):
    each = len(costs) // ranks
    return [sum(costs[each * rank : each * (rank + 1)]) for rank in range(ranks)]


def fewest(times, goal):
    m = 1
    while m * sum(times) < goal * (sum(times) + (m - 1) * max(times)) and m < 400:
        m += 1
    return m


def answer(trace, goal, costs=None, cut=None, **instead):
    costs = costs or costs_of(trace)
    times = stage_times(costs, trace.world_size)
    cut = cut or [list(part) for part in balance_stages(costs, trace.world_size)]
    after = [sum(costs[layer] for layer in part) for part in cut]
    found = {
        "stage": times.index(max(times)),
        "ceiling": sum(times) / max(times),
        "cut": cut,
        "num_microbatches": fewest(after, goal),
    }
    return {**found, **instead}


# Right, written differently -------------------------------------------------------------------


def the_last_step(trace, goal):
    return answer(trace, goal)


def medians(trace, goal):
    """Of a stage its spans; of a layer the median over all of its pieces."""
    spans, pieces = defaultdict(list), defaultdict(list)
    for one in trace.events:
        if one.name in SPANS:
            spans[one.rank, one.name].append(one.end - one.start)
        elif one.name == "layer":
            pieces[one.extra["layer"]].append(one.end - one.start)
    times = [sum(median(spans[rank, name]) for name in SPANS) for rank in range(trace.world_size)]
    costs = [median(pieces[layer]) for layer in sorted(pieces)]
    instead = {"stage": times.index(max(times)), "ceiling": sum(times) / max(times)}
    return answer(trace, goal, costs, **instead)


def every_cut(trace, goal):
    """From the last stage back, over all places where a stage may begin."""
    costs, p = costs_of(trace), trace.world_size
    totals = [0.0]
    for each in costs:
        totals.append(totals[-1] + each)
    starts = min(
        combinations(range(1, len(costs)), p - 1),
        key=lambda at: max(totals[b] - totals[a] for a, b in pairwise((0, *at, len(costs)))),
    )
    cut = [list(range(a, b)) for a, b in pairwise((0, *starts, len(costs)))]
    return answer(trace, goal, costs, cut)


def with_ranges_and_one_to_spare(trace, goal):
    found = answer(trace, goal)
    cut = tuple(balance_stages(costs_of(trace), trace.world_size))
    return {**found, "cut": cut, "num_microbatches": found["num_microbatches"] + 1.0}


# Wrong ------------------------------------------------------------------------------------------


def all_steps_together(trace, goal):
    """With the one in which a rank compiles."""
    return answer(trace, goal, costs_of(trace, {0, 1, 2}))


def the_first_step(trace, goal):
    return answer(trace, goal, costs_of(trace, {0}))


def busiest_over_all_steps(trace, goal):
    times = stage_times(costs_of(trace, {0, 1, 2}), trace.world_size)
    return answer(trace, goal, stage=times.index(max(times)))


def the_one_that_waits_longest(trace, goal):
    waits = [0.0] * trace.world_size
    for one in trace.events:
        if one.name == "recv":
            waits[one.rank] += one.end - one.start
    return answer(trace, goal, stage=waits.index(max(waits)))


def the_last_stage(trace, goal):
    return answer(trace, goal, stage=trace.world_size - 1)


def counted_from_1(trace, goal):
    return answer(trace, goal, stage=answer(trace, goal)["stage"] + 1)


def its_name(trace, goal):
    return answer(trace, goal, stage=f"rank {answer(trace, goal)['stage']}")


def what_was_measured(trace, goal):
    """Of these four microbatches."""
    times = stage_times(costs_of(trace), trace.world_size)
    return answer(trace, goal, ceiling=4 * sum(times) / (sum(times) + 3 * max(times)))


def as_many_as_ranks(trace, goal):
    return answer(trace, goal, ceiling=trace.world_size)


def of_the_new_cut(trace, goal):
    costs, cut = costs_of(trace), answer(trace, goal)["cut"]
    times = [sum(costs[layer] for layer in part) for part in cut]
    return answer(trace, goal, ceiling=sum(times) / max(times))


def upside_down(trace, goal):
    return answer(trace, goal, ceiling=1 / answer(trace, goal)["ceiling"])


def ceiling_over_all_steps(trace, goal):
    times = stage_times(costs_of(trace, {0, 1, 2}), trace.world_size)
    return answer(trace, goal, ceiling=sum(times) / max(times))


def filled_up(trace, goal):
    """Stage after stage, up to its share."""
    costs, p = costs_of(trace), trace.world_size
    cut = [[]]
    for layer, each in enumerate(costs):
        over = sum(costs[one] for one in cut[-1]) + each / 2 > sum(costs) / p
        if cut[-1] and over and len(cut) < p:
            cut.append([])
        cut[-1].append(layer)
    return answer(trace, goal, costs, cut)


def as_many_layers_each(trace, goal):
    each = len(costs_of(trace)) // trace.world_size
    cut = [list(range(each * rank, each * (rank + 1))) for rank in range(trace.world_size)]
    return answer(trace, goal, cut=cut)


def the_slow_ones_layers_shared_out(trace, goal):
    """Every rank some of them: layers do not follow each other any more."""
    p = trace.world_size
    cut = [list(range(rank, len(costs_of(trace)), p)) for rank in range(p)]
    return answer(trace, goal, cut=cut)


def where_stages_end(trace, goal):
    return answer(trace, goal, cut=None) | {
        "cut": [part[-1] + 1 for part in answer(trace, goal)["cut"]]
    }


def by_the_first_step(trace, goal):
    cut = [list(part) for part in balance_stages(costs_of(trace, {0}), trace.world_size)]
    return answer(trace, goal, cut=cut)


def four_times_the_ranks(trace, goal):
    return answer(trace, goal, num_microbatches=4 * trace.world_size)


def as_if_stages_were_equal(trace, goal):
    """m / (m + p - 1) of p."""
    p, m = trace.world_size, 1
    while p * m < goal * (m + p - 1):
        m += 1
    return answer(trace, goal, num_microbatches=m)


def one_too_few(trace, goal):
    return answer(trace, goal, num_microbatches=answer(trace, goal)["num_microbatches"] - 1)


def more_is_better(trace, goal):
    return answer(trace, goal, num_microbatches=128)


def two_to_spare(trace, goal):
    return answer(trace, goal, num_microbatches=answer(trace, goal)["num_microbatches"] + 2)


def none_at_all(trace, goal):
    return answer(trace, goal, num_microbatches=0)


def a_pair(trace, goal):
    found = answer(trace, goal)
    return found["cut"], found["num_microbatches"]


def without_a_ceiling(trace, goal):
    found = answer(trace, goal)
    del found["ceiling"]
    return found


def not_written(trace, goal):
    raise NotImplementedError()


RIGHT = [the_last_step, medians, every_cut, with_ranges_and_one_to_spare]

WRONG = {
    all_steps_together: {
        "stage": "in the first step", "ceiling": "", "cut": "compiled", "goal": "the goal"
    },
    the_first_step: {"stage": "in the first step", "ceiling": "", "cut": "", "goal": "the goal"},
    busiest_over_all_steps: {"stage": "It takes long only in the first step"},
    the_one_that_waits_longest: {"stage": "not the stage for which the others wait"},
    the_last_stage: {"stage": "not the stage for which the others wait"},
    counted_from_1: {"stage": "not the stage for which the others wait"},
    its_name: {"stage": "not a whole number"},
    what_was_measured: {"ceiling": "its ceiling is higher"},
    as_many_as_ranks: {"ceiling": "this cut is at most 4.00 times as fast"},
    of_the_new_cut: {"ceiling": "its ceiling is lower"},
    upside_down: {"ceiling": "its ceiling is higher"},
    ceiling_over_all_steps: {"ceiling": ""},
    filled_up: {"cut": "-47] stage"},
    as_many_layers_each: {"cut": "", "goal": "Its ceiling is"},
    the_slow_ones_layers_shared_out: {"cut": "all layers in order", "goal": "all layers in order"},
    where_stages_end: {"cut": "is not a list of", "goal": ""},
    by_the_first_step: {"cut": "compiled", "goal": "the goal"},
    four_times_the_ranks: {"goal": "the goal is"},
    as_if_stages_were_equal: {"goal": "the goal is"},
    one_too_few: {"goal": "the goal is"},
    more_is_better: {"fewest": "fewer than 128"},
    two_to_spare: {"fewest": "slower kernels"},
    none_at_all: {"goal": "from 1 to"},
    a_pair: {"stage": "returns a tuple"},
    without_a_ceiling: {"stage": "has no 'ceiling'"},
    not_written: {"stage": "run_b is not written yet"},
}  # fmt: skip

_ORDER = "a sum, or the largest of some, is the same in any order"
_SHIFT = "layers are only put in order by their numbers, so all may be one more or less"
_APART = "neither needs the other to have been done"
_NUMBER = "a number either way"
_TIME = "a trace is in order of time, in which the first microbatch comes to layer after layer"
_TWICE = "all counted twice: only ratios matter"
_FEW = "so few microbatches reach no goal"
_EVEN = "drawn seconds never come out even"
_SPARE = "one microbatch more than it takes is allowed"

EQUIVALENT = {
    "pieces = [event for event in trace.events if event.name == 'layer'] -> piece"
    "s = [event for event in reversed(trace.events) if event.name == 'layer']": _ORDER,
    "last = max((event.extra['step'] for event in pieces)) -> last = max((event.e"
    "xtra['step'] for event in reversed(pieces)))": _ORDER,
    "for event in pieces: -> for event in reversed(pieces):": _ORDER,
    "layers[event.extra['layer']] += event.end - event.start -> layers[event.extr"
    "a['layer'] + 1] += event.end - event.start": _SHIFT,
    "layers[event.extra['layer']] += event.end - event.start -> layers[event.extr"
    "a['layer'] - 1] += event.end - event.start": _SHIFT,
    "layers[event.extra['layer']] += event.end - event.start -> layers[event.extr"
    "a['layer']] = layers[event.extra['layer']] + (event.end - event.start)": _NUMBER,
    "layers[event.extra['layer']] += event.end - event.start; stages[event.rank] "
    "+= event.end - event.start -> stages[event.rank] += event.end - event.start;"
    " layers[event.extra['layer']] += event.end - event.start": _APART,
    "stages[event.rank] += event.end - event.start -> stages[event.rank] = stages"
    "[event.rank] + (event.end - event.start)": _NUMBER,
    "costs = [layers[layer] for layer in sorted(layers)] -> costs = [layers[layer"
    "] for layer in layers]": _TIME,
    "stages[event.rank] += event.end - event.start -> stages[event.rank] += event"
    ".end - event.start; for event in pieces:; ...": _TWICE,
    "... for layer in part)) for part in cut))) -> ... for layer in part)) for pa"
    "rt in reversed(cut))))": _ORDER,
    "... max((sum((costs[layer] for layer in part)) for part in cut))) -> ... max"
    "((sum((costs[layer] for layer in reversed(part))) for part in cut)))": _ORDER,
    "m = 1 -> m = 0": _FEW,
    "m = 1 -> m = 2": _FEW,
    "while m * total < goal * (total + (m - 1) * slowest): -> while m * total <= "
    "goal * (total + (m - 1) * slowest):": _EVEN,
    "m += 1 -> m += 1; m += 1": _SPARE,
    "m += 1 -> m += 2": _SPARE,
}
