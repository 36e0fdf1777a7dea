"""Answers to 10/thousand_gpus: states and activations on each of 1,024 GPUs, and a claim."""

from dtlab.predict.memory import activation_bytes, first_stage_activation_bytes, model_states

SETUPS = ("plain", "zero_1", "selective", "both")
GPT3 = 175 / 64  # billions of parameters on one GPU

# Right ----------------------------------------------------------------------------------------


def share_of(given):
    """Billions of parameters on one GPU."""
    return given["billions"] / given["tensor"] / given["pipeline"]


def layer_of(given, norms=None, tensor=None):
    """MB of one layer and microbatch, without and with selective recomputation."""
    sbh = given["tokens"] * given["micro"] * given["hidden"] / 1e6
    matrices = 5 * given["heads"] * given["tokens"] / given["hidden"]
    t = tensor or given["tensor"]
    outside = 10 / t if (norms or given["norms"]) == "with" else 10
    return [sbh * (outside + (24 + kept) / t) for kept in (matrices, 0)]


def first_stage_of(given):
    return [given["layers"] * layer / 1000 for layer in layer_of(given)]


def fitting(states, kept):
    totals = [state + activations for activations in kept for state in states]
    return {name for name, total in zip(SETUPS, totals, strict=True) if total <= 80}


def by_hand(given):
    share = share_of(given)
    states = [16 * share, (4 + 12 / given["data"]) * share]
    return {
        "states": [2 * share, 2 * share, 4 * share, 8 * share],
        "zero_1": states[1],
        "layer": layer_of(given),
        "first_stage": first_stage_of(given),
        "fits": fitting(states, first_stage_of(given)),
        "forgot": {"gradients", "optimizer"},
        "correct": [16 * GPT3 + 40, (4 + 12 / 16) * GPT3 + 40],
    }


def by_the_library(given):
    """In bytes, by the formulas of `predict.memory`."""
    params = round(given["billions"] * 1e9) // (given["tensor"] * given["pipeline"])
    whole, sharded = (
        model_states(params, stage, given["data"], "mixed").total for stage in (0, 1)
    )
    layer = [
        activation_bytes(
            given["tokens"], given["micro"], given["hidden"], given["heads"], given["tensor"],
            given["norms"] == "with", recompute,
        )
        for recompute in ("none", "selective")
    ]  # fmt: skip
    kept = [first_stage_activation_bytes(one, given["layers"], given["pipeline"]) for one in layer]
    gpt3 = [model_states(175e9 // 64, stage, 16, "mixed").total for stage in (0, 1)]
    return {
        "states": [each * params for each in (2, 2, 4, 8)],
        "zero_1": f"{sharded / 1e9} GB",
        "layer": layer,
        "first_stage": kept,
        "fits": fitting((whole / 1e9, sharded / 1e9), [each / 1e9 for each in kept]),
        "forgot": "optimizer, gradients",
        "correct": [f"{each / 1e9 + 40:.2f} GB" for each in gpt3],
    }


def stage_by_stage(given):
    """Layers of the stage times microbatches in flight; rounded to four digits."""
    stages = given["pipeline"]
    of_a_stage = [given["layers"] / stages * layer for layer in layer_of(given)]
    kept = [f"{each * stages / 1e3:.4g} GB" for each in of_a_stage]
    share = share_of(given)
    rest = 12 * share / given["data"]
    return {
        "states": tuple(f"{each * share:.4g}" for each in (2, 2, 4, 8)),
        "zero_1": round(2 * share + 2 * share + rest, 3),
        "layer": [f"{each:.5g} MB" for each in layer_of(given)],
        "first_stage": kept,
        "fits": list(fitting((16 * share, 4 * share + rest), first_stage_of(given))),
        "forgot": ("gradients", "optimizer"),
        "correct": ("83.75", "52.99"),
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def scaled(name, factor):
    """Each number of an answer times a factor of the given values."""

    def answer(given):
        return instead(given, **{name: [each * factor(given) for each in by_hand(given)[name]]})

    return answer


states_by_tensor_only = scaled("states", lambda given: given["pipeline"])
states_by_all = scaled("states", lambda given: 1 / given["data"])
states_in_gib = scaled("states", lambda given: 1e9 / 2**30)
one_microbatch = scaled("first_stage", lambda given: 1 / given["pipeline"])
all_layers = scaled("first_stage", lambda given: given["pipeline"])
warm_up_only = scaled("first_stage", lambda given: 1 - 1 / given["pipeline"])
as_gpipe = scaled(
    "first_stage", lambda given: 1536 / given["data"] / given["micro"] / given["pipeline"]
)
two_stages = scaled("first_stage", lambda given: 2.5)


def one_moment(given):
    share = share_of(given)
    return instead(given, states=[2 * share, 2 * share, 4 * share, 4 * share])


def all_in_fp32(given):
    share = share_of(given)
    return instead(given, states=[4 * share, 4 * share, 0, 8 * share])


def one_sum_for_states(given):
    return instead(given, states=16 * share_of(given))


def no_zero(given):
    return instead(given, zero_1=16 * share_of(given))


def stage_3(given):
    return instead(given, zero_1=16 * share_of(given) / given["data"])


def stage_2(given):
    return instead(given, zero_1=(2 + 14 / given["data"]) * share_of(given))


def master_is_whole(given):
    return instead(given, zero_1=(8 + 8 / given["data"]) * share_of(given))


def among_all_gpus(given):
    return instead(given, zero_1=(4 + 12 / 1024) * share_of(given))


def whole_model(given):
    return instead(given, zero_1=16 * given["billions"])


def the_other_norms(given):
    norms = {"with": "without", "without": "with"}[given["norms"]]
    return instead(given, layer=layer_of(given, norms))


def layer_of_one_gpu(given):
    return instead(given, layer=layer_of(given, tensor=1))


def layer_the_other_way(given):
    return instead(given, layer=layer_of(given)[::-1])


def matrices_are_whole(given):
    sbh = given["tokens"] * given["micro"] * given["hidden"] / 1e6
    less = layer_of(given)[1]
    whole = less + sbh * 5 * given["heads"] * given["tokens"] / given["hidden"]
    return instead(given, layer=[whole, less])


def fits_but_for(name):
    def answer(given):
        return instead(given, fits=by_hand(given)["fits"] ^ {name})

    return answer


wrong_plain, wrong_zero_1, wrong_selective, wrong_both = map(fits_but_for, SETUPS)


def forgot(*names):
    def answer(given):
        return instead(given, forgot=set(names))

    return answer


no_gradients_alone = forgot("gradients")
optimizer_alone = forgot("optimizer")
weights_too = forgot("weights", "gradients", "optimizer")
data_too = forgot("data", "gradients", "optimizer")
sum_too = forgot("sum", "gradients", "optimizer")


def correct(*numbers):
    def answer(given):
        return instead(given, correct=list(numbers))

    return answer


states_alone = correct(16 * GPT3, 4.75 * GPT3)
still_no_gradients = correct(14 * GPT3 + 40, 2.75 * GPT3 + 40)
still_no_master = correct(12 * GPT3 + 40, 4.5 * GPT3 + 40)
gradients_added = correct(10 * GPT3 + 40, (4 + 6 / 16) * GPT3 + 40)
stage_3_for_gpt3 = correct(16 * GPT3 + 40, GPT3 + 40)
what_the_text_says = correct(61.6, 61.6)


RIGHT = [by_hand, by_the_library, stage_by_stage]

WRONG = {
    states_by_tensor_only: {"states": "divides by the tensor ranks only"},
    states_by_all: {"states": "divides by all 1,024 GPUs"},
    states_in_gib: {"states": "right in GiB"},
    one_moment: {"states": "Adam has two moments"},
    all_in_fp32: {"states": "is not it. Which part of the parameters"},
    one_sum_for_states: {"states": "write a list of 4 numbers"},
    no_zero: {"zero_1": "this is without ZeRO"},
    stage_3: {"zero_1": "shards all kinds"},
    stage_2: {"zero_1": "shards gradients too"},
    master_is_whole: {"zero_1": "keeps the master copy whole"},
    among_all_gpus: {"zero_1": "shards among all 1,024 GPUs"},
    whole_model: {"zero_1": "is not it. Which kinds does ZeRO-1 shard"},
    the_other_norms: {"layer": "the other choice of sequence parallelism"},
    layer_of_one_gpu: {"layer": "this is one GPU alone"},
    layer_the_other_way: {"layer": "nothing recomputed first"},
    matrices_are_whole: {"layer": "is not it. Which tensors of a layer"},
    one_microbatch: {"first_stage": "this is one microbatch"},
    all_layers: {"first_stage": "p microbatches of all layers"},
    warm_up_only: {"first_stage": "forward passes of the warm-up"},
    as_gpipe: {"first_stage": "as under GPipe"},
    two_stages: {"first_stage": "is not it. Multiply by the layers"},
    wrong_plain: {"fits": "look at `plain` again"},
    wrong_zero_1: {"fits": "look at `zero_1` again"},
    wrong_selective: {"fits": "look at `selective` again"},
    wrong_both: {"fits": "look at `both` again"},
    no_gradients_alone: {"forgot": "look at `optimizer` again"},
    optimizer_alone: {"forgot": "look at `gradients` again"},
    weights_too: {"forgot": "look at `weights` again"},
    data_too: {"forgot": "look at `data` again"},
    sum_too: {"forgot": "look at `sum` again"},
    states_alone: {"correct": "these are the states"},
    still_no_gradients: {"correct": "this still has no gradients"},
    still_no_master: {"correct": "this has no master copy"},
    gradients_added: {"correct": "this adds gradients only"},
    stage_3_for_gpt3: {"correct": "the second one shards all kinds"},
    what_the_text_says: {"correct": "is not it. Add up all states"},
}
