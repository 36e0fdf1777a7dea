"""01/results: write down the tensors that three ranks hold after each collective.

Every rank begins with a tensor of three elements. Every answer has one list for each rank. Many
known mistakes are the right answers for other collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import asked, number

_ROOT = "The root need not be rank 0."
_ITSELF = "the root is missing: it takes part like every other rank."
_DIVIDED = "these are averages. SUM does not divide."
_OWN_ELEMENTS = "these are sums over the elements of one rank, not over the ranks."
_NOTHING_SENT = "each rank has its own values, as if no rank had sent anything."
_FIRST_ONLY = "these are whole tensors. Here each rank sends only the first element of its tensor."
_ADDED = "this adds the elements. A gather and an all-gather concatenate them."
_AVERAGES = "[[value / 3 for value in content] for content in answer]"


def _draw(draw: Random) -> Values:
    numbers = draw.sample(range(1, 30), 9)
    return {"tensors": [numbers[0:3], numbers[3:6], numbers[6:9]], "root": draw.choice((1, 2))}


def _held(name: str, prompt: str, wrong: Mapping[Any, str]) -> Question:
    """A question on the result of a collective; the formula `name` in `where` is right."""
    hint = (
        "Follow one element: on which rank does it begin, and where does it end? Write three "
        "lists, one for each rank, with all elements of its result; [] if it gets none."
    )
    return number(name, prompt, name, hint, wrong, exact=True)


PART = Part(
    "01/results",
    1,
    "What each rank holds",
    9,
    1,
    asked(
        _draw,
        [
            ("rank 0", "{tensors[0]}"),
            ("rank 1", "{tensors[1]}"),
            ("rank 2", "{tensors[2]}"),
            ("root", "rank {root}"),
        ],
        _held(
            "broadcast",
            "rank {root} broadcasts its tensor",
            {
                "[tensors[0]] * 3": f"this is rank 0's tensor. {_ROOT}",
                "[[] if rank == root else tensors[root] for rank in range(3)]": "a broadcast "
                "copies: the root keeps its tensor.",
                "tensors": _NOTHING_SENT,
            },
        ),
        _held(
            "scatter",
            "rank {root} scatters its tensor, one element for each rank",
            {
                "broadcast": "every rank has the whole tensor: that is a broadcast.",
                "one_each(tensors[0])": f"these are elements of rank 0's tensor. {_ROOT}",
                "one_each(tensors[rank][rank] for rank in range(3))": _NOTHING_SENT,
            },
        ),
        _held(
            "gather",
            "rank {root} gathers the first element of each rank's tensor",
            {
                "all_gather": "every rank has them: that is an all-gather.",
                "on(0, firsts)": f"they are on rank 0. {_ROOT}",
                "on(root, firsts[:root] + firsts[root + 1 :])": _ITSELF,
                "on(root, [sum(firsts)])": _ADDED,
                "on(root, sum(tensors, []))": _FIRST_ONLY,
            },
        ),
        _held(
            "reduce",
            "the tensors are reduced to rank {root}, with SUM",
            {
                "all_reduce": "every rank has the sum: that is an all-reduce.",
                "on(0, sums)": f"the sum is on rank 0. {_ROOT}",
                "on(root, [sum(column) - column[root] for column in columns])": _ITSELF,
                _AVERAGES: _DIVIDED,
            },
        ),
        _held(
            "all_reduce",
            "an all-reduce with SUM",
            {
                "reduce": "one rank has the sum: that is a reduce.",
                "reduce_scatter": "each rank has one element of it: that is a reduce-scatter.",
                _AVERAGES: _DIVIDED,
                "row_sums": _OWN_ELEMENTS,
            },
        ),
        _held(
            "all_gather",
            "an all-gather of the first element of each rank's tensor",
            {
                "gather": "one rank has them: that is a gather.",
                "one_each(firsts)": _NOTHING_SENT,
                "[[sum(firsts)]] * 3": _ADDED,
                "[sum(tensors, [])] * 3": _FIRST_ONLY,
            },
        ),
        _held(
            "reduce_scatter",
            "a reduce-scatter with SUM, one element for each rank",
            {
                "all_reduce": "every rank has the whole sum: that is an all-reduce.",
                "columns": "the elements that arrive are not added: that is an all-to-all.",
                _AVERAGES: _DIVIDED,
                "row_sums": _OWN_ELEMENTS,
            },
        ),
        _held(
            "all_to_all",
            "an all-to-all: of every tensor, element r goes to rank r",
            {
                "reduce_scatter": "the elements that arrive are added: that is a reduce-scatter.",
                "all_gather": "every rank has the same elements: that is an all-gather.",
                "tensors": _NOTHING_SENT,
            },
        ),
        where={
            "columns": "[list(column) for column in zip(*tensors)]",
            "sums": "[sum(column) for column in columns]",
            "row_sums": "[[sum(tensor)] for tensor in tensors]",
            "firsts": "[tensor[0] for tensor in tensors]",
            "one_each": "lambda elements: [[element] for element in elements]",
            "on": "lambda rank, content: [content if r == rank else [] for r in range(3)]",
            "broadcast": "[tensors[root]] * 3",
            "scatter": "one_each(tensors[root])",
            "gather": "on(root, firsts)",
            "reduce": "on(root, sums)",
            "all_reduce": "[sums] * 3",
            "all_gather": "[firsts] * 3",
            "reduce_scatter": "one_each(sums)",
            "all_to_all": "columns",
        },
    ),
)
