"""08/head_limit: how many ranks Ulysses can use, and what to do with more."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number

_COUNTS = (2, 3, 4, 6, 8, 12, 16)
_GROUPS = [  # query heads for each KV head; ranks for each KV head
    (4, 2), (4, 4), (6, 2), (6, 3), (8, 2), (8, 4), (10, 2), (10, 5), (12, 2), (12, 3), (12, 4),
]  # fmt: skip
_DIVIDES = "look at {} again: can every rank get as many KV heads as every other one?"


def _draw(draw: Random) -> Values:
    kv_heads = draw.choice((4, 6, 8, 10, 12))
    group, times = draw.choice(_GROUPS)
    return {
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "tensor": 2,
        "times": times,
    }


_QUESTIONS = asked(
    _draw,
    lambda given: [
        ("your model", "{heads} heads, {kv_heads} KV heads".format(**given)),
        ("the cluster that you are offered", f"{given['kv_heads'] * given['times']} ranks"),
        ("for `tensor`", "the heads are split over {tensor} tensor ranks first".format(**given)),
    ],
    number(
        "most",
        "the most ranks that Ulysses can use if each KV head is on one rank only",
        "kv_heads",
        "After the all-to-all a rank has whole heads, queries and keys alike.",
        {
            "heads": "so many ranks have a query head each. Which of them has keys for it?",
            "heads // kv_heads": "this is the number of query heads for each KV head.",
            "heads * kv_heads": "a head is not divided.",
        },
        unit="ranks",
        exact=True,
    ),
    choices(
        "allowed",
        "which numbers of ranks can Ulysses use in this way?",
        tuple(map(str, _COUNTS)),
        formula("frozenset(str(n) for n in counts if kv_heads % n == 0)"),
        "Every rank has the same number of KV heads, and at least one.",
        {str(count): _DIVIDES.format(count) for count in _COUNTS},
    ),
    number(
        "copies",
        "Ulysses on all ranks of the cluster: on how many ranks must each KV head be?",
        "times",
        "Every rank needs the keys of its query heads.",
        {
            "heads // kv_heads": "so many query heads share a KV head. How many ranks have them?",
            "1": "then some ranks have query heads and no keys.",
            "kv_heads * times": "this is all ranks. A rank needs the keys of its heads only.",
        },
        unit="ranks",
        exact=True,
    ),
    number(
        "two_levels",
        "without copies, with Ulysses inside of groups and a ring across them: [ranks of a group, "
        "groups], with groups as large as they can be",
        "[kv_heads, times]",
        "Ulysses first, up to its limit. The groups split the tokens among each other.",
        {
            "[times, kv_heads]": "write the ranks of a group first.",
            "[kv_heads * times, 1]": "this is beyond the limit of Ulysses.",
            "[1, kv_heads * times]": "this is a ring alone.",
        },
        exact=True,
    ),
    number(
        "tensor",
        "the most ranks that Ulysses can use for the heads of one tensor rank",
        "kv_heads // tensor",
        "How many KV heads has a tensor rank?",
        {
            "kv_heads": "tensor parallelism has divided these heads already.",
            "heads // tensor": "these are query heads. A rank needs a KV head too.",
            "kv_heads * tensor": "a tensor rank has fewer heads, not more.",
        },
        unit="ranks",
        exact=True,
    ),
    number(
        "smaller",
        "with as many KV heads as query heads, a rank of Ulysses would send 4 N h (P-1)/P^2 "
        "elements. How many times what it sends in your model is that, on as many ranks?",
        "2 * heads / (heads + kv_heads)",
        "Queries and output have h elements a token. Keys and values have fewer in your model.",
        {
            "heads / kv_heads": "this is for keys and values. Queries and output travel too.",
            "(heads + kv_heads) / (2 * heads)": "this is the other way round.",
            "3 * heads / (heads + 2 * kv_heads)": "the output is sent back too.",
        },
        unit="times",
    ),
    where={"counts": _COUNTS},
)

PART = Part("08/head_limit", 1, "How many ranks for Ulysses", 6, 1, _QUESTIONS)
