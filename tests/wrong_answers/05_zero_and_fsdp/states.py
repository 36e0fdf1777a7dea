"""Answers to 05/states: model states by stage and ranks, and what fits a card in bytes."""

from math import ceil, floor

from dtlab.predict import model_states, smallest_world_size

# Right ----------------------------------------------------------------------------------------


def by_stage(given, stage, ranks):
    """GB of weights, gradients and optimizer state."""
    divided = [ranks if stage >= first else 1 for first in (3, 2, 1)]
    return [size * given["small"] / among for size, among in zip((2, 2, 12), divided, strict=True)]


def totals_of(given):
    return [sum(by_stage(given, stage, given["few"])) for stage in (1, 2, 3)]


def fitting(given, totals):
    room = given["budget"] / 1e9 - given["activations"]
    return {f"stage {n}" for n, total in enumerate(totals, 1) if total <= room}


def cards(given, size, activations=0):
    return ceil(size * given["large"] * 1e9 / (given["budget"] - activations * 1e9))


def by_hand(given):
    return {
        "pieces": by_stage(given, given["stage"], given["few"]),
        "totals": totals_of(given),
        "floor": (2 + 2 * (given["stage"] == 1)) * given["small"],
        "ranks": cards(given, 16),
        "ranks_beside": cards(given, 16, given["activations"]),
        "fits": fitting(given, totals_of(given)),
    }


def by_the_library(given):
    """With units, in bytes, and as text."""
    small, large = round(given["small"] * 1e9), given["large"] * 10**9
    held = [model_states(small, stage, given["few"], "mixed") for stage in (1, 2, 3)]
    own = held[given["stage"] - 1]
    room = given["budget"] - given["activations"] * 1e9
    return {
        "pieces": [own.parameters, own.gradients, own.optimizer],
        "totals": [f"{one.total / 1e9:.3f} GB" for one in held],
        "floor": model_states(small, given["stage"], 10**9, "mixed").total,
        "ranks": f"{smallest_world_size(large, 3, given['budget'], 'mixed')} ranks",
        "ranks_beside": next(n for n in range(1, 10_000) if 16 * large / n <= room),
        "fits": [f"Stage {n}" for n, one in enumerate(held, 1) if one.total <= room],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def nothing_is_divided(given):
    return instead(given, pieces=[size * given["small"] for size in (2, 2, 12)])


def all_is_divided(given):
    return instead(given, pieces=by_stage(given, 3, given["few"]))


def the_other_stage(given):
    return instead(given, pieces=by_stage(given, 3 - given["stage"], given["few"]))


def master_among_the_weights(given):
    small, ranks = given["small"], given["few"]
    gradients = 2 * small / (ranks if given["stage"] == 2 else 1)
    return instead(given, pieces=[6 * small, gradients, 8 * small / ranks])


def one_total_for_pieces(given):
    return instead(given, pieces=sum(by_hand(given)["pieces"]))


def bytes_per_parameter(given):
    return instead(given, pieces=[one / given["small"] for one in by_hand(given)["pieces"]])


def stage_1_without_gradients(given):
    """Claim 5."""
    first, *others = totals_of(given)
    return instead(given, totals=[first - 2 * given["small"], *others])


def stage_3_three_times(given):
    return instead(given, totals=totals_of(given)[2:] * 3)


def eight_bytes(given):
    return instead(given, totals=[one / 2 for one in totals_of(given)])


def totals_in_gib(given):
    return instead(given, totals=[one * 1e9 / 2**30 for one in totals_of(given)])


def stage_2_first(given):
    return instead(given, totals=totals_of(given)[::-1])


def nothing_is_left(given):
    return instead(given, floor=0)


def floor_of_the_other_stage(given):
    return instead(given, floor=2 * given["stage"] * given["small"])


def one_rank_alone(given):
    return instead(given, floor=16 * given["small"])


def another_floor(given):
    return instead(given, floor=3.1)


def without_fp32_state(given):
    """Claim 4."""
    return instead(given, ranks=cards(given, 8))


def rounded_down(given):
    return instead(given, ranks=floor(16 * given["large"] * 1e9 / given["budget"]))


def gb_over_gib(given):
    return instead(given, ranks=ceil(16 * given["large"] / (given["budget"] / 2**30)))


def whole_nodes(given):
    return instead(given, ranks=1024)


def without_activations(given):
    return instead(given, ranks_beside=by_hand(given)["ranks"])


def activations_are_divided(given):
    in_all = (16 * given["large"] + given["activations"]) * 1e9
    return instead(given, ranks_beside=ceil(in_all / given["budget"]))


def one_more(given):
    return instead(given, ranks_beside=by_hand(given)["ranks_beside"] + 1)


def fits_with(name):
    def answer(given):
        return instead(given, fits=by_hand(given)["fits"] ^ {name})

    return answer


stage_1_fits = fits_with("stage 1")
stage_2_fits = fits_with("stage 2")
stage_3_fits = fits_with("stage 3")


RIGHT = [by_hand, by_the_library]

WRONG = {
    nothing_is_divided: {"pieces": "nothing is divided here"},
    all_is_divided: {"pieces": "as stage 3 does"},
    the_other_stage: {"pieces": "the other of stages 1 and 2"},
    master_among_the_weights: {"pieces": "counts the master copy as weights"},
    one_total_for_pieces: {"pieces": "write a list of 3 numbers"},
    bytes_per_parameter: {"pieces": "is not it. They take 2, 2 and 12"},
    stage_1_without_gradients: {"totals": "leaves out the gradients at stage 1"},
    stage_3_three_times: {"totals": "divides everything at each stage"},
    eight_bytes: {"totals": "this is 8 bytes per parameter"},
    totals_in_gib: {"totals": "right in GiB"},
    stage_2_first: {"totals": "is not it. For each stage, which bytes"},
    nothing_is_left: {"floor": "the limit at stage 3"},
    floor_of_the_other_stage: {"floor": "limit of the other of"},
    one_rank_alone: {"floor": "the states on a single rank"},
    another_floor: {"floor": "is not it. With more and more ranks"},
    without_fp32_state: {"ranks": "no fp32 master copy"},
    rounded_down: {"ranks": "round up"},
    gb_over_gib: {"ranks": "this divides GB by GiB"},
    whole_nodes: {"ranks": "is not it. Divide all bytes of the model"},
    without_activations: {"ranks_beside": "this is without activations"},
    activations_are_divided: {"ranks_beside": "divides the activations among the ranks"},
    one_more: {"ranks_beside": "is not it. Each rank holds its own activations"},
    stage_1_fits: {"fits": "look at stage 1 again"},
    stage_2_fits: {"fits": "look at stage 2 again"},
    stage_3_fits: {"fits": "look at stage 3 again"},
}
