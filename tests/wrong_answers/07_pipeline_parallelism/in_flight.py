"""Answers to 07/in_flight: microbatches under way on each stage, and their bytes."""

from dtlab.predict import first_stage_activation_bytes

# Right ----------------------------------------------------------------------------------------


def all_layers(given):
    """GB for one microbatch."""
    return given["layers"] * given["layer"] / 1000


def by_hand(given):
    p, m, v = given["stages"], given["count"], given["chunks"]
    whole = all_layers(given)
    return {
        "gpipe": m * whole / p,
        "peaks": list(range(p, 0, -1)),
        "few": [min(given["few"], p - stage) for stage in range(p)],
        "first_stage": whole,
        "interleaved": whole * (1 + (p - 1) / (p * v)),
        "claims": {"fixed_size", "steady", "last"},
    }


def peak_of(warm_up, count):
    """Microbatches under way at the fullest moment of `warm_up` forwards, then F and B in turn."""
    events = [1] * min(warm_up, count)
    for number in range(count):
        events += [1, -1] if warm_up + number < count else [-1]
    return max(sum(events[:end]) for end in range(1, len(events) + 1))


def by_a_walk(given):
    """Forwards and backwards counted as they come; with units, in bytes, and as text."""
    p, m, v = given["stages"], given["count"], given["chunks"]
    layer = given["layer"] * 10**6
    on_stage = given["layers"] // p
    chunks = peak_of(2 * (p - 1) + (v - 1) * p, m * v)
    size = first_stage_activation_bytes(layer, given["layers"], p)
    return {
        "gpipe": f"{m * on_stage * given['layer']} MB",
        "peaks": tuple(peak_of(p - 1 - stage, m) for stage in range(p)),
        "few": [float(peak_of(p - 1 - stage, given["few"])) for stage in range(p)],
        "first_stage": f"{size} B",
        "interleaved": chunks * on_stage / v * layer,
        "claims": "last, steady, fixed_size",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def worth(name, factor):
    """So many times what all layers keep, from p, m and v."""

    def answer(given):
        times = factor(given["stages"], given["count"], given["chunks"])
        return instead(given, **{name: times * all_layers(given)})

    return answer


gpipe_in_mb = worth("gpipe", lambda p, m, v: 1000 * m / p)
gpipe_keeps_one = worth("gpipe", lambda p, m, v: 1 / p)
gpipe_has_all_layers = worth("gpipe", lambda p, m, v: m)
gpipe_as_1f1b = worth("gpipe", lambda p, m, v: 1)
gpipe_for_ever = worth("gpipe", lambda p, m, v: 7 * m)
first_keeps_one = worth("first_stage", lambda p, m, v: 1 / p)
first_as_gpipe = worth("first_stage", lambda p, m, v: m / p)
warm_up_only = worth("first_stage", lambda p, m, v: (p - 1) / p)
twice_the_model = worth("first_stage", lambda p, m, v: 2)
without_chunks = worth("interleaved", lambda p, m, v: 1)
whole_stages = worth("interleaved", lambda p, m, v: 1 + (p - 1) / p)
times_v = worth("interleaved", lambda p, m, v: v)
over_v = worth("interleaved", lambda p, m, v: 1 / v)
as_gpipe_with_chunks = worth("interleaved", lambda p, m, v: m)


def by_stage(name, count, each):
    """Microbatches for stage i of p, at most given[count]."""

    def answer(given):
        p = given["stages"]
        peaks = [min(given[count], each(p, stage)) for stage in range(p)]
        return instead(given, **{name: peaks})

    return answer


wrong_way_round = by_stage("peaks", "count", lambda p, i: i + 1)
without_the_last_forward = by_stage("peaks", "count", lambda p, i: p - 1 - i)
stage_0_everywhere = by_stage("peaks", "count", lambda p, i: p)
all_under_way = by_stage("peaks", "count", lambda p, i: 1000)
one_too_many = by_stage("peaks", "count", lambda p, i: p - i + 1)
more_than_there_are = by_stage("few", "stages", lambda p, i: p - i)
few_as_gpipe = by_stage("few", "few", lambda p, i: p)
few_without_the_last = by_stage("few", "few", lambda p, i: p - 1 - i)
few_and_nothing = by_stage("few", "few", lambda p, i: 0)


def one_peak_for_all(given):
    return instead(given, peaks=given["stages"])


def in_gib(given):
    return instead(given, first_stage=by_hand(given)["first_stage"] * 1e9 / 2**30)


def claims_with(name):
    def answer(given):
        return instead(given, claims=by_hand(given)["claims"] ^ {name})

    return answer


more_is_free = claims_with("fixed_size")
smaller_cost_more = claims_with("fixed_batch")
one_f_grows = claims_with("steady")
smaller_bubble = claims_with("smaller")
deeper_is_less = claims_with("deeper")
last_as_first = claims_with("last")


RIGHT = [by_hand, by_a_walk]

WRONG = {
    gpipe_in_mb: {"gpipe": "It is right in MB, but the question asks for GB"},
    gpipe_keeps_one: {"gpipe": "this is one microbatch"},
    gpipe_has_all_layers: {"gpipe": "these are all layers"},
    gpipe_as_1f1b: {"gpipe": "this is p microbatches"},
    gpipe_for_ever: {"gpipe": "is not it"},
    wrong_way_round: {"peaks": "this is the reverse"},
    without_the_last_forward: {"peaks": "forwards of the warm-up"},
    stage_0_everywhere: {"peaks": "this is right for stage 0"},
    all_under_way: {"peaks": "this is right for GPipe"},
    one_too_many: {"peaks": "is not it"},
    one_peak_for_all: {"peaks": "write a list of"},
    more_than_there_are: {"few": "more than there are"},
    few_as_gpipe: {"few": "this is right for GPipe"},
    few_without_the_last: {"few": "forwards of the warm-up"},
    few_and_nothing: {"few": "is not it"},
    first_keeps_one: {"first_stage": "this is one microbatch"},
    first_as_gpipe: {"first_stage": "this is right for GPipe"},
    warm_up_only: {"first_stage": "forwards of the warm-up"},
    twice_the_model: {"first_stage": "is not it"},
    in_gib: {"first_stage": "right in GiB"},
    without_chunks: {"interleaved": "this is with one chunk"},
    whole_stages: {"interleaved": "the factor for v = 1"},
    times_v: {"interleaved": "each chunk is smaller"},
    over_v: {"interleaved": "the bubble falls like that"},
    as_gpipe_with_chunks: {"interleaved": "is not it"},
    more_is_free: {"claims": "look at `fixed_size` again"},
    smaller_cost_more: {"claims": "look at `fixed_batch` again"},
    one_f_grows: {"claims": "look at `steady` again"},
    smaller_bubble: {"claims": "look at `smaller` again"},
    deeper_is_less: {"claims": "look at `deeper` again"},
    last_as_first: {"claims": "look at `last` again"},
}
