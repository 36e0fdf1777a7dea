"""Answers to 06/shapes: what each rank has of the weights of a block, and of the vocabulary."""

from math import ceil, gcd

OPTIONS = (2, 3, 4, 6, 8, 12, 16)

# Right ----------------------------------------------------------------------------------------


def sizes(given):
    """h, f, rows of Q, K and V, and t."""
    rows = given["heads"] * given["size"] + 2 * given["kv_heads"] * given["size"]
    return given["hidden"], given["inner"], rows, given["ranks"]


def counted(h, f, rows, t, row_biases=2, norms=2):
    """Parameters of a layer on a rank."""
    weights = rows * h + h * h + 2 * h * f
    return (weights + rows + f) / t + row_biases * h + norms * (h + h)


def by_hand(given):
    h, f, rows, t = sizes(given)
    return {
        "first": [f // t, h],
        "second": [h, f // t],
        "queries_keys_values": [rows // t, h],
        "biases": [rows // t, h, f // t, h],
        "parameters": counted(h, f, rows, t),
        "vocabulary": ceil(given["vocabulary"] / (128 * t)) * 128,
        "allowed": {str(t) for t in OPTIONS if given["kv_heads"] % t == 0},
    }


def by_pytorch(given):
    """Layers of one rank, made without memory; a vocabulary that grows row by row."""
    import torch
    from torch import nn

    t, h, width = given["ranks"], given["hidden"], given["size"]
    own = given["heads"] // t, given["kv_heads"] // t
    with torch.device("meta"):
        attention = nn.Linear(h, width * (own[0] + 2 * own[1])), nn.Linear(width * own[0], h)
        mlp = nn.Linear(h, given["inner"] // t), nn.Linear(given["inner"] // t, h)
        layer = nn.ModuleList([*attention, *mlp, nn.LayerNorm(h), nn.LayerNorm(h)])
    rows = given["vocabulary"]
    while rows % (128 * t):
        rows += 1
    return {
        "first": tuple(mlp[0].weight.shape),
        "second": list(mlp[1].weight.shape),
        "queries_keys_values": attention[0].weight.shape,
        "biases": [one.bias.numel() for one in (*attention, *mlp)],
        "parameters": sum(one.numel() for one in layer.parameters()),
        "vocabulary": f"{rows // t}",
        "allowed": [n for n in OPTIONS if gcd(n, given["kv_heads"]) == n],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def changed(name, make):
    """An answer in which one value is another function of h, f, rows and t."""

    def answer(given):
        return instead(given, **{name: make(*sizes(given))})

    return answer


row_for_column = changed("first", lambda h, f, rows, t: [f, h // t])
in_before_out = changed("first", lambda h, f, rows, t: [h, f // t])
first_undivided = changed("first", lambda h, f, rows, t: [f, h])
first_for_a_number = changed("first", lambda h, f, rows, t: f // t)
first_cut_twice = changed("first", lambda h, f, rows, t: [f // t, h // t])

column_for_row = changed("second", lambda h, f, rows, t: [h // t, f])
second_in_before_out = changed("second", lambda h, f, rows, t: [f // t, h])
second_undivided = changed("second", lambda h, f, rows, t: [h, f])
second_cut_twice = changed("second", lambda h, f, rows, t: [h // t, f // t])


def three_times_h(given):
    h, _, _, t = sizes(given)
    return instead(given, queries_keys_values=[3 * h // t, h])


def all_keys_on_every_rank(given):
    h, _, rows, t = sizes(given)
    return instead(given, queries_keys_values=[h // t + rows - h, h])


def keys_without_values(given):
    h, _, rows, t = sizes(given)
    return instead(given, queries_keys_values=[(h + (rows - h) // 2) // t, h])


all_heads = changed("queries_keys_values", lambda h, f, rows, t: [rows, h])
half_heads = changed("queries_keys_values", lambda h, f, rows, t: [rows, h // t])
queries_only = changed("queries_keys_values", lambda h, f, rows, t: [h // t, h])

all_biases_divided = changed("biases", lambda h, f, rows, t: [rows // t, h // t, f // t, h // t])
biases_of_rows = changed("biases", lambda h, f, rows, t: [rows, h // t, f, h // t])
whole_biases = changed("biases", lambda h, f, rows, t: [rows, h, f, h])
biases_of_inputs = changed("biases", lambda h, f, rows, t: [h, h // t, h, f // t])

everything_divided = changed(
    "parameters", lambda h, f, rows, t: (counted(h, f, rows, 1, 2, 2)) / t
)
no_norms = changed("parameters", lambda h, f, rows, t: counted(h, f, rows, t, norms=0))
no_row_biases = changed("parameters", lambda h, f, rows, t: counted(h, f, rows, t, 0))
row_biases_divided = changed("parameters", lambda h, f, rows, t: counted(h, f, rows, t, 2 / t))
whole_layer = changed("parameters", lambda h, f, rows, t: counted(h, f, rows, 1))
keys_as_queries = changed("parameters", lambda h, f, rows, t: counted(h, f, 3 * h, t))
no_biases = changed(
    "parameters", lambda h, f, rows, t: (rows * h + h * h + 2 * h * f) // t + 4 * h
)


def padded_to_the_ranks(given):
    return instead(given, vocabulary=ceil(given["vocabulary"] / given["ranks"]))


def padded_in_all(given):
    return instead(given, vocabulary=ceil(given["vocabulary"] / 128) * 128 / given["ranks"])


def padded_and_whole(given):
    return instead(given, vocabulary=by_hand(given)["vocabulary"] * given["ranks"])


def not_padded(given):
    return instead(given, vocabulary=given["vocabulary"] // given["ranks"])


def padded_too_far(given):
    return instead(given, vocabulary=by_hand(given)["vocabulary"] + 128)


def allowed_for_queries(given):
    return instead(given, allowed={str(t) for t in OPTIONS if given["heads"] % t == 0})


def allowed_for_features(given):
    return instead(given, allowed={str(t) for t in OPTIONS if given["hidden"] % t == 0})


def allowed_with(name):
    def answer(given):
        return instead(given, allowed=by_hand(given)["allowed"] ^ {name})

    return answer


three = allowed_with("3")
sixteen = allowed_with("16")


RIGHT = [by_hand, by_pytorch]

WRONG = {
    row_for_column: {"first": "this cuts the inputs"},
    in_before_out: {"first": "`nn.Linear` stores [out, in]"},
    first_undivided: {"first": "this is the whole weight"},
    first_for_a_number: {"first": "write a list of 2 numbers"},
    first_cut_twice: {"first": "is not it. y = xW^T"},
    column_for_row: {"second": "this cuts the outputs"},
    second_in_before_out: {"second": "`nn.Linear` stores [out, in]"},
    second_undivided: {"second": "this is the whole weight"},
    second_cut_twice: {"second": "is not it. The input of a row parallel rank"},
    three_times_h: {"queries_keys_values": "as many heads of keys and of values as of queries"},
    all_keys_on_every_rank: {"queries_keys_values": "all heads of keys and values on every rank"},
    keys_without_values: {"queries_keys_values": "uses keys and values"},
    all_heads: {"queries_keys_values": "this is the whole weight"},
    half_heads: {"queries_keys_values": "no rank would have a whole head"},
    queries_only: {"queries_keys_values": "is not it. Count a rank's heads"},
    all_biases_divided: {"biases": "adds its bias after the sum"},
    biases_of_rows: {"biases": "this exchanges column and row"},
    whole_biases: {"biases": "nothing is divided here"},
    biases_of_inputs: {"biases": "is not it. A bias belongs to the outputs"},
    everything_divided: {"parameters": "this divides everything"},
    no_norms: {"parameters": "leaves out the norms"},
    no_row_biases: {"parameters": "2h are missing"},
    row_biases_divided: {"parameters": "divides the biases of row parallel layers"},
    whole_layer: {"parameters": "this is the whole layer"},
    keys_as_queries: {"parameters": "as many heads of keys and of values as of queries"},
    no_biases: {"parameters": "is not it. Add up the four weights"},
    padded_to_the_ranks: {"vocabulary": "this pads to a multiple of t"},
    padded_in_all: {"vocabulary": "pads all rows to a multiple of 128"},
    padded_and_whole: {"vocabulary": "this is the padded vocabulary"},
    not_padded: {"vocabulary": "fewer rows than there are tokens"},
    padded_too_far: {"vocabulary": "is not it. Pad the vocabulary to the next multiple"},
    allowed_for_queries: {"allowed": "these divide the heads of queries"},
    allowed_for_features: {"allowed": "these divide h and f"},
    three: {"allowed": "look at 3 again"},
    sixteen: {"allowed": "look at 16 again"},
}
