"""06/shapes: the shapes of each rank's shards of a block's weights and of the vocabulary.

Shoeybi et al. 2019, "Megatron-LM", section 3. Several heads of queries share a head of keys and
values: Ainslie et al. 2023, "GQA".
"""

from __future__ import annotations

from functools import partial
from math import ceil
from random import Random
from typing import Any, Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number

_OPTIONS: Final = (2, 3, 4, 6, 8, 12, 16)


def _draw(draw: Random) -> Values:
    size, kv_heads = draw.choice((64, 128)), draw.choice((4, 6, 8, 12))
    heads = kv_heads * draw.choice((2, 3, 4, 5))
    given: dict[str, Any] = {
        "size": size,
        "heads": heads,
        "kv_heads": kv_heads,
        "hidden": size * heads,
        "inner": round(size * heads * draw.choice((3, 3.5, 4))),
        "vocabulary": draw.randrange(30_000, 160_000),
    }
    given["ranks"] = draw.choice([t for t in _OPTIONS if kv_heads % t == 0])
    instructive = heads % 16 and given["vocabulary"] % given["ranks"]  # 16 divides h
    return given if instructive else _draw(draw)


def _dividing(*sizes: int) -> frozenset[str]:
    """The numbers of ranks that divide all of these."""
    return frozenset(str(t) for t in _OPTIONS if all(size % t == 0 for size in sizes))


exact = partial(number, exact=True)
_OUT_IN = "`nn.Linear` stores [out, in]. How many input features does this layer have?"
_WHOLE = "this is the whole weight."
_AS_QUERIES = "this has as many heads of keys and of values as of queries."

QUESTIONS = asked(
    _draw,
    [
        ("h, hidden size", "{hidden}"),
        (
            "heads",
            "{heads} of queries, {kv_heads} each of keys and values; {size} features each",
        ),
        ("f, features inside the MLP", "{inner}"),
        ("tokens of the vocabulary", "{vocabulary}"),
        ("t, ranks", "{ranks}"),
    ],
    exact(
        "first",
        "the shape [out, in] of a rank's shard of the MLP's first weight, column parallel, h to f",
        "[f // t, h]",
        "y = xW^T: a column parallel rank has some of the features of y.",
        {
            "[f, h / t]": "this cuts the inputs. GELU needs complete sums, not parts of them.",
            "[h, f / t]": _OUT_IN,
            "[f, h]": _WHOLE,
        },
    ),
    exact(
        "second",
        "the same of the MLP's second weight, row parallel, f to h",
        "[h, f // t]",
        "The input of a row parallel rank is its own output of the first half.",
        {
            "[h / t, f]": "this cuts the outputs: each rank would need the features of all ranks.",
            "[f / t, h]": _OUT_IN,
            "[h, f]": _WHOLE,
        },
    ),
    exact(
        "queries_keys_values",
        "the same of the one weight for queries, keys and values, with rows [q; k; v]",
        "[rows // t, h]",
        "Count a rank's heads of queries, of keys and of values. How many rows has each head?",
        {
            "[3 * a / t * size, h]": _AS_QUERIES,
            "[(a / t + 2 * k) * size, h]": "this has all heads of keys and values on every rank.",
            "[(a + k) / t * size, h]": "a head of queries uses keys and values: count both.",
            "[rows, h]": _WHOLE,
            "[rows, h / t]": "this cuts the inputs: no rank would have a whole head.",
        },
    ),
    exact(
        "biases",
        "how many elements of each bias a rank has, as a list of four: of queries, keys and "
        "values; of attention's projection; of the MLP's first layer; of its second",
        "[rows // t, h, f // t, h]",
        "A bias belongs to the outputs. Which outputs does a rank have, in each of the four?",
        {
            "[rows / t, h / t, f / t, h / t]": "a row parallel layer adds its bias after the sum.",
            "[rows, h / t, f, h / t]": "this exchanges column and row.",
            "[rows, h, f, h]": "nothing is divided here.",
        },
    ),
    exact(
        "parameters",
        "a rank's parameters of one layer, with two LayerNorms of h weights and h biases each",
        "cut / t + 6 * h",
        "Add up the four weights and your `biases`. Which other parameters are not divided?",
        {
            "(cut + 6 * h) / t": "this divides everything. Some parameters are on all ranks.",
            "answer - 4 * h": "this leaves out the norms.",
            "answer - 2 * h": "2h are missing: biases of row parallel layers, or of norms?",
            "(cut + 2 * h) / t + 4 * h": "this divides the biases of row parallel layers.",
            "cut + 6 * h": "this is the whole layer.",
            "answer + 2 * (a - k) * size * (h + 1) / t": _AS_QUERIES,
        },
        points=2,
    ),
    exact(
        "vocabulary",
        "rows of the embedding on each rank, padding included, as Megatron-LM pads it",
        "ceil(vocabulary / (multiple * t)) * multiple",
        "Pad the vocabulary to the next multiple of which number? Then divide it by t.",
        {
            "ceil(vocabulary / t)": "this pads to a multiple of t. Megatron-LM pads more.",
            "ceil(vocabulary / multiple) * multiple / t": "this pads all rows to a multiple of "
            "128. Pad each rank's rows.",
            "answer * t": "this is the padded vocabulary. Divide it by t.",
            "vocabulary // t": "all ranks together have fewer rows than there are tokens.",
        },
    ),
    choices(
        "allowed",
        "the numbers of ranks among which your block can be divided",
        [str(t) for t in _OPTIONS],
        formula("dividing(k, a, f)"),
        "Which of your sizes are cut? Each must be a multiple of the number of ranks.",
        {
            formula(
                "dividing(a)"
            ): "these divide the heads of queries. Which other heads are there?",
            formula("dividing(h, f)"): "these divide h and f. A rank must have whole heads, too.",
            **{
                str(t): f"look at {t} again: does it divide every size that is cut?"
                for t in _OPTIONS
            },
        },
    ),
    where={
        "ceil": ceil,
        "dividing": _dividing,
        "multiple": 128,  # Megatron-LM pads a rank's rows to a multiple of this
        "h": "hidden",
        "f": "inner",
        "t": "ranks",
        "a": "heads",
        "k": "kv_heads",
        "rows": "size * (a + 2 * k)",  # of Q, K and V
        "cut": "rows * (h + 1) + h * h + f * (h + 1) + h * f",  # parameters that ranks divide
    },
)

PART = Part("06/shapes", 1, "Shapes of the shards", 8, 2, QUESTIONS)
