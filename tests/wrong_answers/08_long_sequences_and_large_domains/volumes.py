"""Answers to 08/volumes: what a rank sends with Megatron, Ulysses and ring attention."""

from dtlab.predict.context import (
    megatron_sequence_elements,
    ring_attention_elements,
    ulysses_elements,
)

WAYS = ("megatron", "ulysses", "ring")

# Right ----------------------------------------------------------------------------------------


def sizes_of(given):
    return 128 * given["heads"], 128 * given["kv_heads"]


def by_hand(given):
    (h, h_k), n, p = sizes_of(given), given["tokens"], given["ranks"]
    sent = {
        "megatron": 4 * n * h * (p - 1) / p,
        "ulysses": 2 * n * (h + h_k) * (p - 1) / p**2,
        "ring": 2 * n * h_k * (p - 1) / p,
    }
    more = (2 * p - 1) / (2 * p) / ((p - 1) / p)
    return {
        **{way: 2 * elements / 1e6 for way, elements in sent.items()},
        "least": min(sent, key=sent.get),
        "doubled": [more, more / 2, more],
    }


def by_the_library(given):
    """In bytes."""
    (h, h_k), n, p = sizes_of(given), given["tokens"], given["ranks"]

    def sent(p):
        return [
            2 * megatron_sequence_elements(n, h, p),
            2 * ulysses_elements(n, h, p, h_k),
            2 * ring_attention_elements(n, h_k, p),
        ]

    now, later = sent(p), sent(2 * p)
    return {
        **{way: f"{size / 1e6} MB" for way, size in zip(WAYS, now, strict=True)},
        "least": "ring" if now[2] < now[1] else "ulysses",
        "doubled": [b / a for a, b in zip(now, later, strict=True)],
    }


def part_by_part(given):
    """What leaves a rank: shares of tensors of N/P tokens, or whole blocks."""
    (h, h_k), n, p = sizes_of(given), given["tokens"], given["ranks"]
    own = 2 * n / p / 1e6  # MB of one element for each own token
    megatron = 4 * (p - 1) * own * h
    ulysses = (2 * h + 2 * h_k) * own * (p - 1) / p
    ring = sum(own * 2 * h_k for _ in range(p - 1))
    return {
        "megatron": round(megatron, 2),
        "ulysses": round(ulysses, 2),
        "ring": round(ring, 2),
        "least": "ring" if ring < ulysses else "ulysses",
        "doubled": [round((p - 0.5) / (p - 1) / s, 4) for s in (1, 2, 1)],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right[name])}

    return answer


def whole(given, right):
    return right * given["ranks"] / (given["ranks"] - 1)


half_a_layer = instead("megatron", lambda given, right: right / 2)
sends_to_itself = instead("megatron", whole)
divided_twice = instead("megatron", lambda given, right: right / given["ranks"])
megatron_in_elements = instead("megatron", lambda given, right: right * 0.7)
not_grouped = instead(
    "ulysses",
    lambda given, right: 2 * right * given["heads"] / (given["heads"] + given["kv_heads"]),
)
all_tokens = instead("ulysses", lambda given, right: right * given["ranks"])
no_way_back = instead(
    "ulysses",
    lambda given, right: (
        right
        * (given["heads"] + 2 * given["kv_heads"])
        / (2 * (given["heads"] + given["kv_heads"]))
    ),
)
to_itself_too = instead("ulysses", whole)
a_tenth_less = instead("ulysses", lambda given, right: right * 0.9)
ring_not_grouped = instead("ring", lambda given, right: right * given["heads"] / given["kv_heads"])
one_round_too_many = instead("ring", whole)
keys_alone = instead("ring", lambda given, right: right / 2)
one_round = instead("ring", lambda given, right: right / (given["ranks"] - 1))
forwards_and_back = instead("ring", lambda given, right: right * 3)
megatron_is_least = instead("least", lambda given, right: "megatron")
the_other_one = instead(
    "least", lambda given, right: {"ring": "ulysses", "ulysses": "ring"}[right]
)
for_large_p = instead("doubled", lambda given, right: [1, 0.5, 1])
all_alike = instead("doubled", lambda given, right: right[:1] * 3)
all_halved = instead("doubled", lambda given, right: right[1:2] * 3)
nothing_changes = instead("doubled", lambda given, right: [2, 2, 2])

RIGHT = [by_hand, by_the_library, part_by_part]

WRONG = {
    half_a_layer: {"megatron": "one half of the layer"},
    sends_to_itself: {"megatron": "does not send its own part to itself"},
    divided_twice: {"megatron": "divides by P twice"},
    megatron_in_elements: {"megatron": "is not it. Each of the four collectives"},
    not_grouped: {"ulysses": "Yours are grouped"},
    all_tokens: {"ulysses": "all N tokens on a rank"},
    no_way_back: {"ulysses": "has to come back"},
    to_itself_too: {"ulysses": "does not send its own part to itself"},
    a_tenth_less: {"ulysses": "is not it. Each rank begins with N/P tokens"},
    ring_not_grouped: {"ring": "Yours are grouped"},
    one_round_too_many: {"ring": "passed on P - 1 times"},
    keys_alone: {"ring": "keys and values both travel"},
    one_round: {"ring": "this is one round"},
    forwards_and_back: {"ring": "is not it. What travels"},
    megatron_is_least: {"least": "both others divide"},
    the_other_one: {"least": "compare your second and your third"},
    for_large_p: {"doubled": "P - 1 changes too"},
    all_alike: {"doubled": "Ulysses sends parts of N/P tokens"},
    all_halved: {"doubled": "about all N tokens"},
    nothing_changes: {"doubled": "is not it. Write down which"},
}
