"""Answers to 08/choose_split: three ways to split a sequence, for three settings."""

from dtlab.predict.context import (
    megatron_sequence_elements,
    ring_attention_elements,
    ring_block_tokens,
    ulysses_elements,
)

# Right ------------------------------------------------------------------------------------------


def times(setting, mask=2):
    p, n = setting["ranks"], setting["tokens"]
    h, k = 128 * setting["heads"], 128 * setting["kv_heads"]
    c, rate, wire = n / p, setting["tflops"] * 1e12, setting["link"] * 1e9
    travels, computes = 4 * c * k / wire, mask * c * c * h / rate
    return [
        1e3 * 4 * n * (h + k) * (p - 1) / p**2 / wire,
        1e3 * (p - 1) * max(0, travels - computes),
        1e3 * 8 * n * h * (p - 1) / p / wire,
    ]


def best(setting):
    ulysses, ring, megatron = times(setting)
    divides = setting["kv_heads"] % setting["ranks"] == 0
    fits = setting["weights"] <= setting["room"]
    found = {"ring attention": ring} if fits else {}
    if divides:
        found["Megatron"] = megatron
    if divides and fits:
        found["Ulysses"] = ulysses
    return min(found, key=found.get)


def by_hand(given):
    answers = {}
    for name in "abc":
        answers[f"{name}_times"] = times(given[name])
        answers[f"{name}_way"] = best(given[name])
    return answers


def by_the_library(given):
    """With units, and the threshold of tokens that hides the ring."""
    answers = {}
    for name in "abc":
        one = given[name]
        n, p, h, k = one["tokens"], one["ranks"], 128 * one["heads"], 128 * one["kv_heads"]
        wire = one["link"] * 1e9
        enough = ring_block_tokens(one["tflops"] * 1e12, wire, causal=True) * k / h
        seen = max(0, 1 - n / p / enough)
        elements = (
            ulysses_elements(n, h, p, k),
            seen * ring_attention_elements(n, k, p),
            megatron_sequence_elements(n, h, p),
        )
        answers[f"{name}_times"] = [f"{2e3 * each / wire} ms" for each in elements]
        answers[f"{name}_way"] = best(one).upper()
    return answers


def in_any_spelling(given):
    found = by_hand(given)
    return {
        key: tuple(value) if isinstance(value, list) else f" {value.lower()} "
        for key, value in found.items()
    }


# Wrong ------------------------------------------------------------------------------------------


def wrong(key, function):
    """A wrong answer: a function of the setting, and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {key: function(given[key[0]], right[key])}

    return answer


def all_heads(setting, right):
    return times({**setting, "kv_heads": setting["heads"]})


def nothing_hidden(setting, right):
    return times({**setting, "tflops": 1e12})


def all_tokens(setting, right):
    return [right[0] * setting["ranks"], *right[1:]]


def half_of_megatron(setting, right):
    return [*right[:2], right[2] / 2]


def bytes_of_one(setting, right):
    return [each / 2 for each in right]


def both_ways(setting, right):
    return [2 * right[0], *right[1:]]


def one_number(setting, right):
    return right[0]


def first_of(setting, ways):
    return next(way for way in ways if way != best(setting))


def not_the_best(setting, right):
    return first_of(setting, ("Ulysses", "ring attention", "Megatron"))


def another(setting, right):
    return first_of(setting, ("Megatron", "ring attention", "Ulysses"))


def fsdp(setting, right):
    return "FSDP"


MISTAKES = {
    all_heads: "as many heads of keys and values as of queries",
    nothing_hidden: "what does a rank do while a block travels",
    all_tokens: "How many tokens has it",
    half_of_megatron: "the same around the MLP",
    bytes_of_one: "an element has two bytes",
    both_ways: "Elements sent per layer",
    one_number: "write a list of 3 numbers",
}
WAYS = {not_the_best: "", another: "", fsdp: "none of the options"}

RIGHT = [by_hand, by_the_library, in_any_spelling]

WRONG = {
    wrong(f"{name}_{what}", function): {f"{name}_{what}": text}
    for name in "abc"
    for what, known in (("times", MISTAKES), ("way", WAYS))
    for function, text in known.items()
}
