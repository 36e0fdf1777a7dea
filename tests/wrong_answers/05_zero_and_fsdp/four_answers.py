"""Answers to 05/four_answers: one model, four policies, and four numbers of cards."""

from math import ceil

from dtlab.predict import POLICIES, model_states

TOTALS = {"mixed": 16, "mixed_fp32_grads": 18, "mixed_fp32_accumulation": 20, "half_only": 8}
GRADIENTS = (2, 4, 2 + 4, 2)
OPTIMIZER = (4 + 8, 4 + 8, 4 + 8, 4)

# Right ----------------------------------------------------------------------------------------


def on_each_rank(given, whole, divided):
    return [
        given["parameters"] * (one + other / given["ranks"])
        for one, other in zip(whole, divided, strict=True)
    ]


def cards(given, *sizes):
    return [ceil(size * given["parameters"] * 1e9 / given["card"]) for size in sizes]


def by_hand(given):
    each = given["text"] / given["parameters"]
    gradients_and_more = [g + o for g, o in zip(GRADIENTS, OPTIMIZER, strict=True)]
    return {
        "policy": min(TOTALS, key=lambda name: abs(TOTALS[name] - each)),
        "stage_1": on_each_rank(given, [2 + one for one in GRADIENTS], OPTIMIZER),
        "stage_2": on_each_rank(given, [2] * 4, gradients_and_more),
        "ranks": cards(given, *TOTALS.values()),
        "divided": {"gradients", "buffer", "master", "moments"},
    }


def by_the_library(given):
    """In bytes, as text, and as lists."""
    params = round(given["parameters"] * 1e9)
    held = {
        (name, stage): model_states(params, stage, given["ranks"], POLICIES[name]).total
        for name in TOTALS
        for stage in (1, 2)
    }
    each = round(given["text"] / given["parameters"], 1)
    needed = {name: params * POLICIES[name].total for name in TOTALS}
    return {
        "policy": {policy.total: name for name, policy in POLICIES.items() if name != "fp32"}[
            round(each)
        ],
        "stage_1": [held[name, 1] for name in TOTALS],
        "stage_2": [f"{held[name, 2] / 1e9:.4f} GB" for name in TOTALS],
        "ranks": [
            next(n for n in range(1, 10_000) if n * given["card"] >= needed[name])
            for name in TOTALS
        ],
        "divided": ["Adam's moments", "gradients", "the fp32 buffer for gradients", "master"],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def nearest_policy(given):
    own = by_hand(given)["policy"]
    others = [name for name in TOTALS if name != own]
    return instead(given, policy=min(others, key=lambda name: abs(TOTALS[name] - TOTALS[own])))


def eight_or_sixteen(given):
    own = by_hand(given)["policy"]
    return instead(given, policy="mixed" if own == "half_only" else "half_only")


def policy_as_a_number(given):
    return instead(given, policy=16)


def master_on_every_rank(given):
    """As texts have it that count the master copy among the weights."""
    whole = [2 + one + 4 for one in GRADIENTS[:3]] + [4]
    return instead(given, stage_1=on_each_rank(given, whole, [8, 8, 8, 4]))


def buffer_divided_too_early(given):
    return instead(given, stage_1=on_each_rank(given, [4, 6, 4, 4], [12, 12, 16, 4]))


def all_divided(given):
    return instead(given, stage_1=on_each_rank(given, [0] * 4, TOTALS.values()))


def nothing_divided(given):
    return instead(given, stage_1=on_each_rank(given, TOTALS.values(), [0] * 4))


def forgets_the_last_policy(given):
    return instead(given, stage_1=[*by_hand(given)["stage_1"][:3], given["parameters"] * 8])


def buffer_whole_at_stage_2(given):
    return instead(given, stage_2=on_each_rank(given, [2, 2, 6, 2], [14, 16, 14, 6]))


def master_whole_at_stage_2(given):
    return instead(given, stage_2=on_each_rank(given, [6, 6, 6, 2], [10, 12, 14, 6]))


def stage_1_twice(given):
    return instead(given, stage_2=by_hand(given)["stage_1"])


def stage_3_for_2(given):
    return instead(given, stage_2=on_each_rank(given, [0] * 4, TOTALS.values()))


def sixteen_for_three(given):
    return instead(given, ranks=cards(given, 16, 16, 16, 8))


def without_moments(given):
    return instead(given, ranks=cards(given, 8, 10, 12, 8))


def rounded_down(given):
    return instead(given, ranks=[one - 1 for one in by_hand(given)["ranks"]])


def one_number(given):
    return instead(given, ranks=cards(given, 16)[0])


def upside_down(given):
    return instead(given, ranks=by_hand(given)["ranks"][::-1])


def divided_with(*names):
    def answer(given):
        return instead(given, divided=by_hand(given)["divided"] ^ {*names})

    return answer


activations_too = divided_with("activations")
weights_too = divided_with("weights")
not_the_buffer = divided_with("buffer")
not_the_master = divided_with("master")
not_gradients = divided_with("gradients")
not_moments = divided_with("moments")


RIGHT = [by_hand, by_the_library]

WRONG = {
    nearest_policy: {"policy": "this is the second nearest policy"},
    eight_or_sixteen: {"policy": "divide GB by billions"},
    policy_as_a_number: {"policy": "none of the options"},
    master_on_every_rank: {"stage_1": "this keeps the whole master copy"},
    buffer_divided_too_early: {"stage_1": "this divides the buffer, which accumulates"},
    all_divided: {"stage_1": "as stage 3 does"},
    nothing_divided: {"stage_1": "is not it. For each policy"},
    forgets_the_last_policy: {"stage_1": "Look at the fourth entry."},
    buffer_whole_at_stage_2: {"stage_2": "this keeps the buffer whole"},
    master_whole_at_stage_2: {"stage_2": "this keeps the whole master copy"},
    stage_1_twice: {"stage_2": "this is stage 1"},
    stage_3_for_2: {"stage_2": "is not it. Only the weights stay whole"},
    sixteen_for_three: {"ranks": "this uses 16 bytes"},
    without_moments: {"ranks": "have two fp32 moments"},
    rounded_down: {"ranks": "each of these is one rank short"},
    one_number: {"ranks": "write a list of 4 numbers"},
    upside_down: {"ranks": "is not it. For each policy, divide"},
    activations_too: {"divided": "look at activations again"},
    weights_too: {"divided": "look at the weights again"},
    not_the_buffer: {"divided": "look at the buffer again"},
    not_the_master: {"divided": "look at the master copy again"},
    not_gradients: {"divided": "look at the gradients again"},
    not_moments: {"divided": "look at the moments again"},
}
