"""Answers to 06/holds: what is whole on every rank, a shard, or a part of a sum."""

from math import hypot, sqrt

# Right ----------------------------------------------------------------------------------------


def letters(given, *names):
    return {given["tensors"][name] for name in names}


def by_hand(given):
    each = 2 * given["layers"] * given["count"]
    return {
        "whole": letters(given, "norm", "after", "bias", "norm_grad"),
        "sums": letters(given, "product", "before_f"),
        "tokens": letters(given, "norm", "after"),
        "sums_sp": letters(given, "product", "before_f", "norm_grad"),
        "pair": {"f_backward", "g_forward"},
        "calls": [each, each],
        "alike": {"embedding", "residual"},
        "norm": sqrt(sum(given["squares"]) + given["common"]),
        "claims": {"rows", "row_first", "linear"},
    }


def by_exclusion(given):
    """What is left when the rest is taken away; as text, in lower case, call by call."""
    everything = set(given["tensors"].values())
    shards = letters(given, "queries", "gelu", "first_grad")
    sums = letters(given, "product", "before_f")
    forward = backward = 0
    for _ in range(given["count"]):
        for _ in range(given["layers"]):
            for _ in ("attention", "mlp"):
                forward, backward = forward + 1, backward + 1
    return {
        "whole": ", ".join(everything - shards - sums).lower(),
        "sums": list(sums),
        "tokens": everything - shards - sums - letters(given, "bias", "norm_grad"),
        "sums_sp": sums | letters(given, "norm_grad"),
        "pair": ["g in the forward pass", "f in the backward pass"],
        "calls": (forward, backward),
        "alike": ["Residual", "Embedding"],
        "norm": hypot(sqrt(given["common"]), *map(sqrt, given["squares"])),
        "claims": "linear, rows, row_first",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def tensors(question, *names):
    """A set in which these are wrong: they are there and should not be, or are missing."""

    def answer(given):
        return instead(given, **{question: by_hand(given)[question] ^ letters(given, *names)})

    return answer


def names(question, name):
    def answer(given):
        return instead(given, **{question: by_hand(given)[question] ^ {name}})

    return answer


norm_is_a_shard = tensors("whole", "norm")
product_is_whole = tensors("whole", "product")
gradient_before_f_is_whole = tensors("whole", "before_f")
bias_is_a_shard = tensors("whole", "bias")
norm_gradient_is_a_sum = tensors("whole", "norm_grad")
after_g_is_not_whole = tensors("whole", "after")
queries_are_whole = tensors("whole", "queries")
gelu_is_whole = tensors("whole", "gelu")
weight_gradient_is_whole = tensors("whole", "first_grad")

after_g_is_a_sum = tensors("sums", "after")
product_is_no_sum = tensors("sums", "product")
gradient_before_f_is_no_sum = tensors("sums", "before_f")
norm_gradient_among_sums = tensors("sums", "norm_grad")
gelu_is_a_sum = tensors("sums", "gelu")
queries_are_a_sum = tensors("sums", "queries")
weight_gradient_is_a_sum = tensors("sums", "first_grad")
bias_is_a_sum = tensors("sums", "bias")

queries_by_tokens = tensors("tokens", "queries")
gelu_by_tokens = tensors("tokens", "gelu")
product_by_tokens = tensors("tokens", "product")
gradient_by_tokens = tensors("tokens", "before_f")
norm_has_all_tokens = tensors("tokens", "norm")
after_g_has_all_tokens = tensors("tokens", "after")
bias_by_tokens = tensors("tokens", "bias")
norm_gradient_by_tokens = tensors("tokens", "norm_grad")
weight_gradient_by_tokens = tensors("tokens", "first_grad")

norm_gradient_forgotten = tensors("sums_sp", "norm_grad")
bias_among_sums_sp = tensors("sums_sp", "bias")
after_among_sums_sp = tensors("sums_sp", "after")
norm_among_sums_sp = tensors("sums_sp", "norm")
no_product_sp = tensors("sums_sp", "product")
no_gradient_sp = tensors("sums_sp", "before_f")
queries_among_sums_sp = tensors("sums_sp", "queries")


def letters_without_a_tensor(given):
    return instead(given, whole={"A", "Z"})


f_sends_forward = names("pair", "f_forward")
g_sends_backward = names("pair", "g_backward")
f_sends_nothing = names("pair", "f_backward")
g_sends_nothing = names("pair", "g_forward")


def calls_of(forward, backward):
    def answer(given):
        each = given["layers"] * given["count"]
        return instead(given, calls=[forward * each, backward * each])

    return answer


two_per_block = calls_of(2, 0)
one_pair = calls_of(1, 1)
both_functions = calls_of(4, 4)
three_in_backward = calls_of(2, 3)


def one_micro_batch(given):
    return instead(given, calls=[2 * given["layers"]] * 2)


def one_number_of_calls(given):
    return instead(given, calls=sum(by_hand(given)["calls"]))


matrices_alike = names("alike", "matrix")
residual_alike_by_tokens = names("alike", "residual_sp")
residual_differs = names("alike", "residual")
embedding_differs = names("alike", "embedding")


def whole_ones_counted_often(given):
    ranks = len(given["squares"])
    return instead(given, norm=sqrt(sum(given["squares"]) + ranks * given["common"]))


def rank_0_alone(given):
    return instead(given, norm=sqrt(given["squares"][0] + given["common"]))


def shards_alone(given):
    return instead(given, norm=sqrt(sum(given["squares"])))


def squared(given):
    return instead(given, norm=sum(given["squares"]) + given["common"])


def norms_added(given):
    return instead(given, norm=sum(sqrt(one + given["common"]) for one in given["squares"]))


def mean_of_ranks(given):
    each = [one + given["common"] for one in given["squares"]]
    return instead(given, norm=sqrt(sum(each) / len(each)))


gathers_between_halves = names("claims", "gather")
the_same_bits = names("claims", "bits")
attention_by_tokens = names("claims", "attention")
rows_are_row_parallel = names("claims", "rows")
row_first_is_as_good = names("claims", "row_first")
not_linear = names("claims", "linear")


RIGHT = [by_hand, by_exclusion]

WRONG = {
    norm_is_a_shard: {"whole": "look again at the output of the norm before attention"},
    product_is_whole: {"whole": "summed only over its own heads"},
    gradient_before_f_is_whole: {"whole": "only through this rank's part of the first weight"},
    bias_is_a_shard: {"whole": "before the sum, or after it"},
    norm_gradient_is_a_sum: {"whole": "f's backward comes before the norm's"},
    after_g_is_not_whole: {"whole": "what does an all-reduce leave"},
    queries_are_whole: {"whole": "which heads does a rank have"},
    gelu_is_whole: {"whole": "which features does a rank have"},
    weight_gradient_is_whole: {"whole": "which part of the weight does a rank have"},
    letters_without_a_tensor: {"whole": "'Z' is none of the options"},
    after_g_is_a_sum: {"sums": "before the all-reduce, or after it"},
    product_is_no_sum: {"sums": "over which features does a rank sum"},
    gradient_before_f_is_no_sum: {"sums": "through which weights"},
    norm_gradient_among_sums: {"sums": "which collective came just before it"},
    gelu_is_a_sum: {"sums": "each feature is complete on one rank"},
    queries_are_a_sum: {"sums": "each head is complete on one rank"},
    weight_gradient_is_a_sum: {"sums": "complete for the rank's part"},
    bias_is_a_sum: {"sums": "is not it"},
    queries_by_tokens: {"tokens": "they come after the all-gather"},
    gelu_by_tokens: {"tokens": "it comes after the all-gather"},
    product_by_tokens: {"tokens": "it is the input of the reduce-scatter"},
    gradient_by_tokens: {"tokens": "it is the input of a reduce-scatter"},
    norm_has_all_tokens: {"tokens": "it comes before the all-gather"},
    after_g_has_all_tokens: {"tokens": "it is the output of a reduce-scatter"},
    bias_by_tokens: {"tokens": "does a parameter have tokens"},
    norm_gradient_by_tokens: {"tokens": "does a parameter's gradient have tokens"},
    weight_gradient_by_tokens: {"tokens": "is not it"},
    norm_gradient_forgotten: {"sums_sp": "over which tokens does a rank sum"},
    bias_among_sums_sp: {"sums_sp": "the bias itself, not its gradient"},
    after_among_sums_sp: {"sums_sp": "what does a reduce-scatter leave"},
    norm_among_sums_sp: {"sums_sp": "each token is complete"},
    no_product_sp: {"sums_sp": "a reduce-scatter sums, too"},
    no_gradient_sp: {"sums_sp": "a reduce-scatter sums, too"},
    queries_among_sums_sp: {"sums_sp": "is not it"},
    f_sends_forward: {"pair": "every rank already has the same x"},
    g_sends_backward: {"pair": "the gradient of one of its parts"},
    f_sends_nothing: {"pair": "has a part of its gradient"},
    g_sends_nothing: {"pair": "the next norm needs the whole sum"},
    two_per_block: {"calls": "backward also sums gradients"},
    one_pair: {"calls": "one pair of f and g per layer"},
    both_functions: {"calls": "one of f and g does not communicate"},
    three_in_backward: {"calls": "is not it"},
    one_micro_batch: {"calls": "this is one microbatch"},
    one_number_of_calls: {"calls": "write a list of 2 numbers"},
    matrices_alike: {"alike": "have different heads"},
    residual_alike_by_tokens: {"alike": "which tokens does a rank have there"},
    residual_differs: {"alike": "continue with the same tensor"},
    embedding_differs: {"alike": "continue with the same tensor"},
    whole_ones_counted_often: {"norm": "once per rank"},
    rank_0_alone: {"norm": "this is only rank 0's part"},
    shards_alone: {"norm": "leaves out the whole parameters"},
    squared: {"norm": "this is the square of the norm"},
    norms_added: {"norm": "norms do not add up"},
    mean_of_ranks: {"norm": "is not it"},
    gathers_between_halves: {"claims": "which input does the row half need"},
    the_same_bits: {"claims": "does rounding depend on the order"},
    attention_by_tokens: {"claims": "process each token separately"},
    rows_are_row_parallel: {"claims": "What do some of its rows compute"},
    row_first_is_as_good: {"claims": "is GELU of a sum the sum of GELUs"},
    not_linear: {"claims": "write xW as a sum"},
}
