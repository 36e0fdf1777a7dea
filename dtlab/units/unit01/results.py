"""The values of 01/results: what three ranks hold after each collective.

Every rank begins with a tensor of three elements, every answer has one list for each rank, and
many mistakes are another collective's right answer.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Mistake, Number, Question, Questions, Values

__all__ = ["PART"]

Table = list[list[float]]  # what each rank holds
Made = Callable[[Values], Table]

_ROOT = "The root need not be rank 0."
_ITSELF = "the root is missing: it takes part like every other rank."
_DIVIDED = "these are averages. SUM does not divide."
_OWN_ELEMENTS = (
    "these are sums over the elements of one rank. A collective adds what stands in the same "
    "place on different ranks."
)
_NOTHING_SENT = "each rank has what it brought, as if nobody had sent anything."
_HINT = (
    "Follow one element: on which rank does it begin, and where does it end? The lesson shows "
    "every collective on labelled data."
)
_FIRST_ONLY = "these are whole tensors. Here each rank brings only the first element of its own."


def _draw(draw: Random) -> Values:
    numbers = draw.sample(range(1, 30), 9)
    return {"tensors": [numbers[0:3], numbers[3:6], numbers[6:9]], "root": draw.choice((1, 2))}


def _rows(given: Values) -> list[tuple[str, str]]:
    rows = [(f"rank {rank}", str(tensor)) for rank, tensor in enumerate(given["tensors"])]
    return [*rows, ("root", f"rank {given['root']}")]


# Pieces that the results are made of -----------------------------------------------------------


def _tensors(given: Values) -> Table:
    return [list(tensor) for tensor in given["tensors"]]


def _columns(given: Values) -> Table:
    return [list(column) for column in zip(*given["tensors"], strict=True)]


def _sums(given: Values) -> list[float]:
    return [sum(column) for column in _columns(given)]


def _firsts(given: Values) -> list[float]:
    return [tensor[0] for tensor in given["tensors"]]


def _of_root(given: Values) -> list[float]:
    return list(given["tensors"][given["root"]])


def _on(rank: int, content: list[float]) -> Table:
    return [content if one == rank else [] for one in range(3)]


def _one_each(content: list[float]) -> Table:
    return [[element] for element in content]


def _without_root(given: Values) -> list[float]:
    return [sum(column) - column[given["root"]] for column in _columns(given)]


# The results, which serve as each other's mistakes ---------------------------------------------


def _broadcast(given: Values) -> Table:
    return [_of_root(given)] * 3


def _gather(given: Values) -> Table:
    return _on(given["root"], _firsts(given))


def _elements(given: Values) -> list[float]:
    """All elements of all tensors, one tensor after another."""
    return [element for tensor in given["tensors"] for element in tensor]


def _reduce(given: Values) -> Table:
    return _on(given["root"], _sums(given))


def _all_reduce(given: Values) -> Table:
    return [_sums(given)] * 3


def _all_gather(given: Values) -> Table:
    return [_firsts(given)] * 3


def _reduce_scatter(given: Values) -> Table:
    return _one_each(_sums(given))


def _row_sums(given: Values) -> Table:
    return [[sum(tensor)] for tensor in given["tensors"]]


def _divided(result: Made) -> Made:
    return lambda given: [[element / 3 for element in content] for content in result(given)]


def _question(name: str, prompt: str, result: Made, *mistakes: tuple[Made, str]) -> Question:
    known = tuple(Mistake(value, why) for value, why in mistakes)
    return Question(name, 1, prompt, Number(result, known, _HINT, tolerance=0))


RESULTS = Questions(
    _draw,
    _rows,
    (
        _question(
            "broadcast",
            "rank {root} broadcasts its tensor",
            _broadcast,
            (lambda given: [given["tensors"][0]] * 3, f"this is rank 0's tensor. {_ROOT}"),
            (
                lambda given: [
                    [] if rank == given["root"] else _of_root(given) for rank in range(3)
                ],
                "the root holds its tensor afterwards too: a broadcast copies.",
            ),
            (_tensors, _NOTHING_SENT),
        ),
        _question(
            "scatter",
            "rank {root} scatters its tensor, one element for each rank",
            lambda given: _one_each(_of_root(given)),
            (_broadcast, "every rank has the whole tensor: that is a broadcast."),
            (
                lambda given: _one_each(given["tensors"][0]),
                f"these are elements of rank 0's tensor. {_ROOT}",
            ),
            (
                lambda given: _one_each([given["tensors"][rank][rank] for rank in range(3)]),
                "each rank has an element of its own tensor, as if nobody had sent anything.",
            ),
        ),
        _question(
            "gather",
            "each rank brings the first element of its tensor, and rank {root} gathers them",
            _gather,
            (_all_gather, "every rank has them: that is an all-gather."),
            (lambda given: _on(0, _firsts(given)), f"they are on rank 0. {_ROOT}"),
            (
                lambda given: _on(
                    given["root"],
                    [one for rank, one in enumerate(_firsts(given)) if rank != given["root"]],
                ),
                _ITSELF,
            ),
            (
                lambda given: _on(given["root"], [sum(_firsts(given))]),
                "this adds them up. A gather puts them one after another.",
            ),
            (lambda given: _on(given["root"], _elements(given)), _FIRST_ONLY),
        ),
        _question(
            "reduce",
            "the tensors are reduced to rank {root}, with SUM",
            _reduce,
            (_all_reduce, "every rank has the sum: that is an all-reduce."),
            (lambda given: _on(0, _sums(given)), f"the sum is on rank 0. {_ROOT}"),
            (lambda given: _on(given["root"], _without_root(given)), _ITSELF),
            (_divided(_reduce), _DIVIDED),
        ),
        _question(
            "all_reduce",
            "an all-reduce with SUM",
            _all_reduce,
            (_reduce, "one rank has the sum: that is a reduce."),
            (_reduce_scatter, "each rank has one element of it: that is a reduce-scatter."),
            (_divided(_all_reduce), _DIVIDED),
            (_row_sums, _OWN_ELEMENTS),
        ),
        _question(
            "all_gather",
            "each rank brings the first element of its tensor, and all ranks gather them",
            _all_gather,
            (_gather, "one rank has them: that is a gather."),
            (lambda given: _one_each(_firsts(given)), _NOTHING_SENT),
            (
                lambda given: [[sum(_firsts(given))]] * 3,
                "this adds them up. An all-gather puts them one after another.",
            ),
            (lambda given: [_elements(given)] * 3, _FIRST_ONLY),
        ),
        _question(
            "reduce_scatter",
            "a reduce-scatter with SUM, one element for each rank",
            _reduce_scatter,
            (_all_reduce, "every rank has the whole sum: that is an all-reduce."),
            (_columns, "what arrives is not added up: that is an all-to-all."),
            (_divided(_reduce_scatter), _DIVIDED),
            (_row_sums, _OWN_ELEMENTS),
        ),
        _question(
            "all_to_all",
            "an all-to-all: of every tensor, element r goes to rank r",
            _columns,
            (_reduce_scatter, "what arrives is added up: that is a reduce-scatter."),
            (_all_gather, "every rank has the same: that is an all-gather."),
            (_tensors, _NOTHING_SENT),
        ),
    ),
)

PART = Part("01/results", 1, "What each rank holds", 9, 1, RESULTS)
