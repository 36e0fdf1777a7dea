"""The values of 06/shapes: what each rank has of the weights of a block, and of the vocabulary.

Shoeybi et al. 2019, "Megatron-LM", section 3; heads of keys and values shared by several of
queries: Ainslie et al. 2023, "GQA".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from random import Random
from typing import Any, Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]

_OPTIONS: Final = (2, 3, 4, 6, 8, 12, 16)
_MULTIPLE: Final = 128  # rows that Megatron-LM pads a rank's vocabulary to


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
    telling = heads % 16 and given["vocabulary"] % given["ranks"]  # 16 divides h
    return given if telling else _draw(draw)


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("h, hidden size", str(given["hidden"])),
        ("heads", f"{given['heads']} of queries, {given['kv_heads']} of keys, and as many of "
         f"values; {given['size']} features each"),
        ("f, features inside the MLP", str(given["inner"])),
        ("tokens of the vocabulary", str(given["vocabulary"])),
        ("t, ranks", str(given["ranks"])),
    ]  # fmt: skip


def _sizes(given: Values) -> tuple[int, int, int, int]:
    """h, f, all rows of Q, K and V, and t."""
    rows = given["size"] * (given["heads"] + 2 * given["kv_heads"])
    return given["hidden"], given["inner"], rows, given["ranks"]


def _of(shape: Callable[[int, int, int, int], list[float]]) -> Callable[[Values], list[float]]:
    """A list made of h, f, the rows of Q, K and V, and t."""
    return lambda given: shape(*_sizes(given))


def _attention(heads: Callable[[int, int, int], float]) -> Callable[[Values], list[float]]:
    """[out, in] with so many heads, made of those of queries, of keys, and t."""
    return lambda given: [
        heads(given["heads"], given["kv_heads"], given["ranks"]) * given["size"],
        given["hidden"],
    ]


def _parameters(row_biases: float, norms: float, t: int, given: Values) -> float:
    """Of a layer on one of `t` ranks, with so many whole biases of h, and norms of 2h."""
    h, f, rows, _ = _sizes(given)
    shared = rows * (h + 1) + h * h + f * (h + 1) + h * f
    return shared / t + row_biases * h + norms * 2 * h


def _parameters_if(row_biases: float = 2, norms: float = 2) -> Callable[[Values], float]:
    return lambda given: _parameters(row_biases, norms, given["ranks"], given)


def _as_many_keys(given: Values) -> float:
    """Parameters on a rank, if there were as many heads of keys as of queries."""
    return _parameters_if()(dict(given, kv_heads=given["heads"]))


def _padded(given: Values, multiple: int) -> int:
    """Rows of the vocabulary, up to the next `multiple`."""
    return ceil(int(given["vocabulary"]) / multiple) * multiple


def _vocabulary(given: Values) -> int:
    return int(_padded(given, _MULTIPLE * given["ranks"]) / given["ranks"])


def _dividing(sizes: Callable[[Values], tuple[int, ...]]) -> Callable[[Values], frozenset[str]]:
    """The numbers of ranks that divide all of these."""
    return lambda given: frozenset(
        str(t) for t in _OPTIONS if all(size % t == 0 for size in sizes(given))
    )


_exact = partial(number, exact=True)

_ALLOWED = Choices(
    {str(t): "" for t in _OPTIONS},
    _dividing(lambda given: (given["kv_heads"], given["heads"], given["inner"])),
    (
        Mistake(
            _dividing(lambda given: (given["heads"],)),
            "these divide the heads of queries. Which other heads are there?",
        ),
        Mistake(
            _dividing(lambda given: (given["hidden"], given["inner"])),
            "these divide h and f. And a rank that has half of a head?",
        ),
        *(
            Mistake(str(t), f"look at {t} again: go through all that is cut, size by size.")
            for t in _OPTIONS
        ),
    ),
    "Which of your sizes are cut, and which is the first not to come out whole?",
)

SHAPES = Questions(
    _draw,
    _rows,
    (
        _exact(
            "first",
            "the shape [out, in] of what a rank has of the MLP's first weight, h to f, which is "
            "column parallel",
            _of(lambda h, f, rows, t: [f // t, h]),
            "y = xW^T: a column parallel rank has some of the features of y.",
            (
                _of(lambda h, f, rows, t: [f, h / t]),
                "this cuts the inputs. Such a rank has a part of each sum, and GELU wants it all.",
            ),
            (
                _of(lambda h, f, rows, t: [h, f / t]),
                "`nn.Linear` stores [out, in]. How many features go into this layer?",
            ),
            (_of(lambda h, f, rows, t: [f, h]), "this is the whole weight."),
        ),
        _exact(
            "second",
            "the same of the MLP's second weight, f to h, which is row parallel",
            _of(lambda h, f, rows, t: [h, f // t]),
            "A row parallel rank takes in what it has computed itself in the first half.",
            (
                _of(lambda h, f, rows, t: [h / t, f]),
                "this cuts the outputs: to compute one, a rank would need the features of all.",
            ),
            (
                _of(lambda h, f, rows, t: [f / t, h]),
                "`nn.Linear` stores [out, in]. How many features go into this layer?",
            ),
            (_of(lambda h, f, rows, t: [h, f]), "this is the whole weight."),
        ),
        _exact(
            "queries_keys_values",
            "the same of the one weight that gives queries, keys and values, its rows [q; k; v]",
            _attention(lambda a, k, t: (a + 2 * k) // t),
            "Count heads: of queries, of keys, of values. Which has a rank, and how many rows "
            "is each?",
            (
                _attention(lambda a, k, t: 3 * a / t),
                "this has as many heads of keys and of values as of queries. And yours?",
            ),
            (
                _attention(lambda a, k, t: a / t + 2 * k),
                "this has all heads of keys and values on every rank. Whose queries use them?",
            ),
            (
                _attention(lambda a, k, t: (a + k) / t),
                "count again what each head of queries works with: keys, and what else?",
            ),
            (_attention(lambda a, k, t: a + 2 * k), "this is the whole weight."),
            (
                _of(lambda h, f, rows, t: [rows, h / t]),
                "this cuts the inputs: no rank would have a whole head.",
            ),
        ),
        _exact(
            "biases",
            "how many elements of each bias a rank has, as a list of four: of queries, keys and "
            "values; of attention's projection; of the MLP's first layer; of its second",
            _of(lambda h, f, rows, t: [rows // t, h, f // t, h]),
            "A bias belongs to the outputs. Which outputs has a rank, in each of the four?",
            (
                _of(lambda h, f, rows, t: [rows / t, h / t, f / t, h / t]),
                "a row parallel layer's sum has all h outputs: where is its bias added, and to "
                "how many of them?",
            ),
            (
                _of(lambda h, f, rows, t: [rows, h / t, f, h / t]),
                "this has column and row the other way round: which of them has only some "
                "outputs on a rank?",
            ),
            (_of(lambda h, f, rows, t: [rows, h, f, h]), "nothing is divided here."),
        ),
        _exact(
            "parameters",
            "the parameters of one layer on one rank: all its weights and biases, and two "
            "LayerNorms of h weights and h biases each",
            _parameters_if(),
            "Add up the four weights and your `biases`. And what does no rank divide?",
            (
                lambda given: _parameters(2, 2, 1, given) / given["ranks"],
                "this is a t-th part of everything. Some parameters every rank has whole.",
            ),
            (_parameters_if(norms=0), "this leaves out the norms."),
            (
                _parameters_if(row_biases=0),
                "2h are missing: the biases of row parallel layers, or those of the norms?",
            ),
            (
                lambda given: _parameters(2 / given["ranks"], 2, given["ranks"], given),
                "this divides the biases of row parallel layers. Look at your `biases`.",
            ),
            (lambda given: _parameters(2, 2, 1, given), "this is the whole layer."),
            (_as_many_keys, "this has as many heads of keys and of values as of queries."),
            points=2,
        ),
        _exact(
            "vocabulary",
            "rows of the embedding on each rank, padding included, as Megatron-LM pads it",
            _vocabulary,
            "First the padded vocabulary: the next multiple of what? Then its t-th part.",
            (
                lambda given: ceil(given["vocabulary"] / given["ranks"]),
                "this pads until the ranks divide it. Megatron-LM goes on to a multiple of more.",
            ),
            (
                lambda given: _padded(given, _MULTIPLE) / given["ranks"],
                "this pads to a multiple of 128 in all. Each rank is to have one.",
            ),
            (
                lambda given: _padded(given, _MULTIPLE * given["ranks"]),
                "this is the padded vocabulary. And a rank's part of it?",
            ),
            (
                lambda given: given["vocabulary"] // given["ranks"],
                "with this, all ranks together have fewer rows than there are tokens.",
            ),
        ),
        Question("allowed", 1, "which numbers of ranks your block can be divided among", _ALLOWED),
    ),
)

PART = Part("06/shapes", 1, "Shapes of the shards", 8, 2, SHAPES)
