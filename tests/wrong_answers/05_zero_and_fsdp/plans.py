"""Answers to 05/plans: stage, ranks, precision and recomputation for three models."""

from itertools import product

from dtlab.predict import POLICIES, activation_bytes, model_states, zero_traffic

AGAIN = ("none", "selective", "full")
DEMANDS = {
    "master": ("mixed", "mixed_fp32_grads", "fp32"),
    "gradients": ("mixed_fp32_grads", "fp32"),
}

# Right ----------------------------------------------------------------------------------------


def needs(model, stage, ranks, policy, again):
    """Bytes on a rank, by kind."""
    one = POLICIES[policy]
    sizes = model["sequence"], model["microbatch"], model["hidden"], model["heads"]
    kept, whole = (
        activation_bytes(*sizes, recompute=how, dropout=False) for how in (again, "none")
    )
    blocks = (one.gradients if stage >= 2 else 0) + (2 * one.weights if stage == 3 else 0)
    return {
        "states": model_states(model["parameters"], stage, ranks, policy).total,
        "blocks": blocks * model["block"],
        "activations": kept * (model["layers"] - 1) + whole,
        "reserve": model["reserve"],
    }


def sent(model, stage, ranks, policy):
    count = model["batch"] // (ranks * model["microbatch"])
    one = POLICIES[policy]
    traffic = zero_traffic(model["parameters"], stage, ranks, count)
    return traffic.nbytes(one.weights, one.gradients)


def allowed(model):
    most = model["nodes"] * model["gpus_per_node"]
    return [
        ranks
        for ranks in range(model["least_ranks"], most + 1)
        if ranks % model["gpus_per_node"] == 0
        and model["batch"] % (ranks * model["microbatch"]) == 0
    ]


def cheapest(
    model, stages=(0, 1, 2, 3), ranks=None, again=AGAIN, policies=None, without=(), card=None,
    key=None,
):  # fmt: skip
    """The plan that fits and sends least, and of those the one that computes least twice."""
    found = []
    policies = policies or DEMANDS[model["demand"]]
    for plan in product(stages, ranks or allowed(model), policies, again):
        pieces = needs(model, *plan)
        if sum(pieces[name] for name in pieces if name not in without) <= (card or model["card"]):
            cost = sent(model, *plan[:3]), AGAIN.index(plan[3])
            found.append(((key(*plan), *cost) if key else cost, plan))
    best = min(found)[1] if found else (3, allowed(model)[-1], policies[0], "full")
    return dict(zip(("stage", "ranks", "policy", "recompute"), best, strict=True))


def search(given):
    return {name: cheapest(given[name]) for name in "abc"}


def by_stages(given):
    """Stage after stage, as text and numbers of other types."""
    import numpy as np

    plans = {}
    for name in "abc":
        every = [cheapest(given[name], stages=[stage]) for stage in range(4)]
        fitting = [
            one
            for one in every
            if sum(needs(given[name], *one.values()).values()) <= given[name]["card"]
        ]
        best = min(
            fitting,
            key=lambda one: (
                sent(given[name], one["stage"], one["ranks"], one["policy"]),
                AGAIN.index(one["recompute"]),
            ),
        )
        plans[name] = {
            "recompute": best["recompute"].upper(),
            "policy": f" {best['policy']}",
            "ranks": np.int64(best["ranks"]),
            "stage": str(best["stage"]),
        }
    return plans


# Wrong ----------------------------------------------------------------------------------------


def instead(given, of, **changes):
    """The right plans, but for the model of which the best plan is of stage `of`.

    Which it is depends on the learner: a, b and c for stages 1, 2 and 3 with seed 0.
    """
    plans = search(given)
    name = next(name for name, plan in plans.items() if plan["stage"] == of)
    return plans | {name: plans[name] | changes}


def searched(given, **how):
    return {name: cheapest(given[name], **how) for name in "abc"}


def first_stage_that_fits(given):
    return searched(given, key=lambda stage, *_: stage)


def stage_3_for_all(given):
    return searched(given, stages=[3])


def all_ranks(given):
    return {name: cheapest(given[name], ranks=[allowed(given[name])[-1]]) for name in "abc"}


def fewest_ranks(given):
    return searched(given, key=lambda stage, ranks, *_: ranks)


def nothing_twice_if_it_can_be(given):
    return searched(given, key=lambda stage, ranks, policy, again: AGAIN.index(again))


def everything_twice(given):
    return searched(given, again=["full"])


def without_the_reserve(given):
    return searched(given, without=["reserve"])


def without_blocks(given):
    return searched(given, without=["blocks"])


def states_alone(given):
    return searched(given, without=["activations"])


def fewest_bytes_on_a_card(given):
    def key(*plan):
        return sum(needs(model, *plan).values())

    plans = {}
    for name in "abc":
        model = given[name]
        plans[name] = cheapest(model, key=key)
    return plans


def without_fp32(given):
    return searched(given, policies=["half_only"])


def no_whole_nodes(given):
    return instead(given, 1, ranks=given["a"]["least_ranks"] + 1)


def one_rank(given):
    return instead(given, 1, ranks=1)


def more_ranks_than_samples(given):
    return {
        name: plan | {"ranks": given[name]["nodes"] * given[name]["gpus_per_node"] * 8}
        for name, plan in search(given).items()
    }


def stage_4(given):
    return instead(given, 2, stage=4)


def gradients_in_16_bits(given):
    return instead(given, 1, policy="mixed")


def gradients_in_fp32_for_all(given):
    return searched(given, policies=["mixed_fp32_grads"])


def weights_in_fp32(given):
    return instead(given, 3, policy="fp32")


def no_policy(given):
    plans = search(given)
    del plans["b"]["policy"]
    return plans


def a_stage_alone(given):
    return search(given) | {"c": 3}


def another_word(given):
    return search(given) | {"a": search(given)["a"] | {"recompute": "attention"}}


def half_a_rank(given):
    return search(given) | {"a": search(given)["a"] | {"ranks": 0.5}}


RIGHT = [search, by_stages]

STAGE, RANKS, TWICE = "another stage that fits", "The stage is right", "recomputes less than"
WRONG = {
    first_stage_that_fits: {"a": STAGE},
    stage_3_for_all: {"a": STAGE, "b": STAGE},
    all_ranks: {"a": RANKS},
    fewest_ranks: {"b": RANKS, "c": RANKS},
    nothing_twice_if_it_can_be: {"a": RANKS, "b": STAGE},
    everything_twice: {"c": TWICE},
    without_the_reserve: {"a": "without the reserve", "b": "the reserve", "c": "the reserve"},
    without_blocks: {"b": "temporarily whole", "c": "temporarily whole"},
    states_alone: {"a": "without activations", "b": "activations", "c": "activations"},
    fewest_bytes_on_a_card: {"a": STAGE, "b": STAGE, "c": TWICE},
    without_fp32: dict.fromkeys("abc", "does not keep in fp32 what the model demands"),
    no_whole_nodes: {"a": "would not fill whole nodes"},
    one_rank: {"a": "1 rank, but"},
    more_ranks_than_samples: dict.fromkeys("abc", "are allowed"),
    stage_4: {"b": "there is no stage 4"},
    gradients_in_16_bits: {"a": "does not keep in fp32 what the model demands"},
    gradients_in_fp32_for_all: {"b": "", "c": "How many bytes of weights"},
    weights_in_fp32: {"c": "How many bytes of weights"},
    no_policy: {"b": "has no 'policy'"},
    a_stage_alone: {"c": "is a number: write"},
    another_word: {"a": "has 'attention': write one of 'none'"},
    half_a_rank: {"a": "has 0.5 for 'ranks'"},
}
