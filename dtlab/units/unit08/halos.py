"""08/halos: how wide a halo is, and what strips and squares send."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number


def _draw(draw: Random) -> Values:
    first, second = draw.sample((3, 5, 7), 2)
    dilation, root = draw.choice((2, 3, 4)), draw.choice((4, 8))
    width = dilation * (first - 1) // 2 + (second - 1) // 2 + 1
    # A strip has at least as many rows as the halo, and at least one on four times as many ranks.
    side = 4 * root * root * (-(-width // 4) + draw.randrange(2))
    return {
        "first": first,
        "dilation": dilation,
        "second": second,
        "third": 3,
        "side": side,
        "channels": draw.choice((16, 24, 32)),
        "root": root,
        "ranks": root * root,
    }


_QUESTIONS = asked(
    _draw,
    [
        ("layer 1", "kernel {first} x {first}, dilation {dilation}"),
        ("layers 2 and 3", "kernels {second} x {second} and {third} x {third}, no dilation"),
        ("your field", "{side} x {side} cells, {channels} channels, 4 bytes each; stride 1"),
        ("your ranks", "{ranks}; answer for a rank that is not at the edge of the field"),
    ],
    number(
        "one",
        "the halo that layer 1 needs on each side",
        "w1",
        "How far from its centre does a kernel look, and how far apart are its cells?",
        {
            "(first - 1) // 2": "this is without dilation.",
            "2 * w1": "these are both sides together.",
            "dilation * first // 2": "the centre of the kernel does not count.",
            "dilation * first": "how far is the last cell of the kernel from the centre?",
        },
        unit="cells",
        exact=True,
    ),
    number(
        "three",
        "the halo on each side if one exchange serves all three layers",
        "w",
        "Layer 3 needs cells around the tile, which layer 2 computes from cells around those.",
        {
            "max(w1, (second - 1) // 2, 1)": "this is the widest layer. Later layers need outputs "
            "of the earlier ones outside the tile.",
            "2 * w": "these are both sides together.",
            "(first - 1) // 2 + (second - 1) // 2 + 1": "layer 1 has a dilation.",
        },
        unit="cells",
        exact=True,
    ),
    number(
        "strips",
        "what a rank sends in that exchange if the field is cut into strips of whole rows",
        "mega * 2 * w * side",
        "Two neighbours; how many cells has a row?",
        {
            "mega * w * side": "a strip has two neighbours.",
            "mega * 2 * w1 * side": "this is the halo of layer 1 alone.",
            "answer / channels": "each cell has several channels.",
            "answer / ranks": "a row has all columns of the field.",
        },
        unit="MB",
    ),
    number(
        "squares",
        "the same for squares, with corners",
        "mega * ((tile + 2 * w) ** 2 - tile ** 2)",
        "Take the tile with its halo, less the tile.",
        {
            "mega * 4 * w * tile": "this is without corners.",
            "mega * 2 * w * tile": "a square has four neighbours beside it, and four corners.",
            "mega * (4 * w * tile + w ** 2)": "there are four corners.",
            "mega * ((tile + w) ** 2 - tile ** 2)": "the halo is on both sides.",
        },
        unit="MB",
    ),
    number(
        "growth",
        "the field is divided over four times as many ranks, and the halo is one cell wide. By "
        "which factors do these change: [what a strip sends, what a square sends without its "
        "corners]",
        "[1, 0.5]",
        "What happens to the length of the border?",
        {
            "[0.25, 0.25]": "this is how the tile's cells change. What about its border?",
            "[1, 0.25]": "half of a side is left, not a quarter.",
            "[0.5, 0.5]": "a strip of fewer rows is as long as before.",
        },
        unit="times",
    ),
    number(
        "share",
        "the cells of a square's halo, with corners, over the cells of the square",
        "100 * ((tile + 2 * w) ** 2 - tile ** 2) / tile ** 2",
        "Surface over volume: both in cells.",
        {
            "100 * 4 * w / tile": "this is without corners.",
            "100 * ((tile + 2 * w) ** 2 - tile ** 2) / (tile + 2 * w) ** 2": "this is over the "
            "tile with its halo.",
            "200 * w * side / (side * side / ranks)": "this is for strips.",
        },
        unit="%",
    ),
    where={
        "mega": "4 * channels / 1e6",  # MB of a cell
        "tile": "side // root",
        "w1": "dilation * (first - 1) // 2",
        "w": "w1 + (second - 1) // 2 + 1",
    },
)

PART = Part("08/halos", 1, "How wide a halo is", 8, 2, _QUESTIONS)
