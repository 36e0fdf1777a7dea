"""08/choose_split: Ulysses, ring attention or Megatron, for three settings of a learner.

    setting         the best way, and what is wrong with the others
    short blocks    Ulysses: ring attention is not hidden, Megatron sends more
    long blocks     ring attention: hidden; too few heads of keys and values for the others
    many weights    Megatron: the others leave the weights whole on every GPU

A learner has one of each, called a, b and c in a drawn order. Jacobs et al. 2023 (Ulysses, section
3), Liu et al. 2023 (ring attention, section 3), Korthikanti et al. 2022 (Megatron, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import asked, choice, number
from dtlab.predict.context import (
    megatron_sequence_elements,
    ring_attention_elements,
    ulysses_elements,
)

__all__ = ["NAMES", "PART", "WAYS", "best_of", "obstacle", "times_of"]

WAYS: Final = ("Ulysses", "ring attention", "Megatron")
NAMES: Final = ("a", "b", "c")
_APART: Final = 1.15  # every other way that is possible takes so many times as long as the best
_HEAD: Final = 128  # features of a head

Setting = Mapping[str, Any]

# By the best way: ranks, heads of queries, of keys and values, tokens of a rank, GB of weights
_DRAWN: Final = {
    "Ulysses": ((8, 16), (32, 48, 64), (16, 32), (512, 768, 1024, 1536), (12, 16, 20)),
    "ring attention": ((16, 32), (32, 64), (8,), (8192, 12288, 16384), (12, 16, 20)),
    "Megatron": ((8,), (64, 72), (8,), (1024, 2048, 4096), (140, 150, 160)),
}


def _draw(draw: Random) -> Values:
    ways = draw.sample(WAYS, 3)
    return {name: _drawn(draw, way) for name, way in zip(NAMES, ways, strict=True)}


def _drawn(draw: Random, best: str) -> Setting:
    for _ in range(1000):
        ranks, heads, kv_heads, block, weights = map(draw.choice, _DRAWN[best])
        setting = {
            "tokens": ranks * block,
            "ranks": ranks,
            "heads": heads,
            "kv_heads": kv_heads,
            "weights": weights,
            "room": draw.choice((30, 36, 40)),
            "tflops": draw.choice((300, 400, 500)),
            "link": draw.choice((25, 50)),
        }
        times = _possible(setting)
        least = times.pop(best, None)
        if (
            least is not None
            and kv_heads < heads
            and all(time > _APART * least for time in times.values())
        ):
            return setting
    raise AssertionError(f"no draw has {best} as its best way")


# The right answers ------------------------------------------------------------------------------


def times_of(setting: Setting, *, kv_heads: int = 0, hidden: bool = True) -> list[float]:
    """Milliseconds that the messages of a layer add to its forward pass, for each of `WAYS`.

    The options make known mistakes: other heads of keys and values, nothing hidden.
    """
    ranks, tokens, bandwidth = setting["ranks"], setting["tokens"], setting["link"] * 1e9
    hidden_size = _HEAD * setting["heads"]
    kv_size = _HEAD * (kv_heads or setting["kv_heads"])
    block = tokens / ranks
    rounds = ranks - 1
    sent = 2 * ring_attention_elements(tokens, kv_size, ranks) / rounds / bandwidth
    computed = 2 * block**2 * hidden_size / (setting["tflops"] * 1e12)  # half, by the mask
    return [
        1e3 * 2 * ulysses_elements(tokens, hidden_size, ranks, kv_size) / bandwidth,
        1e3 * rounds * max(0.0, sent - (computed if hidden else 0.0)),
        1e3 * 2 * megatron_sequence_elements(tokens, hidden_size, ranks) / bandwidth,
    ]


def obstacle(setting: Setting, way: str) -> str:
    """Why a way is not possible: "heads" or "weights"; empty if it is possible."""
    if way != "ring attention" and setting["kv_heads"] % setting["ranks"]:
        return "heads"
    shared = setting["ranks"] if way == "Megatron" else 1
    return "weights" if setting["weights"] / shared > setting["room"] else ""


def _possible(setting: Setting) -> dict[str, float]:
    times = zip(WAYS, times_of(setting), strict=True)
    return {way: time for way, time in times if not obstacle(setting, way)}


def best_of(setting: Setting) -> str:
    """The possible way that adds least time."""
    times = _possible(setting)
    return min(times, key=lambda way: times[way])


# The questions ----------------------------------------------------------------------------------

_WHY: Final = {
    "heads": "on so many GPUs some would have no whole head of keys and values.",
    "weights": "all weights are on every GPU, and they do not fit.",
    "": "it is possible, and another possible way adds less time. Compare your three times.",
}


def _of(name: str, value: Callable[[Setting], Any], given: Values) -> Any:
    return value(given[name])


def _is_not(way: str, why: str, setting: Setting) -> str:
    """The way, if this is why it is not the best one; no way otherwise."""
    is_wrong = way != best_of(setting) and obstacle(setting, way) == why
    return way if is_wrong else "-"


def _questions() -> Iterator[Question]:
    wrong: dict[Callable[[Setting], Any], str] = {
        lambda s: times_of(s, kv_heads=s["heads"]): "this has as many heads of keys and values as "
        "of queries.",
        lambda s: times_of(s, hidden=False): "the second: what does a rank do while a block "
        "travels?",
        lambda s: [times_of(s)[0] * s["ranks"], *times_of(s)[1:]]: "the first: a rank sends only "
        "some heads of its tokens. How many tokens does it have?",
        lambda s: [*times_of(s)[:2], times_of(s)[2] / 2]: "the third: in a layer there are an "
        "all-gather and a reduce-scatter around attention, and the same around the MLP.",
        lambda s: [time / 2 for time in times_of(s)]: "an element has two bytes.",
    }
    for name in NAMES:
        yield number(
            f"{name}_times",
            f"setting {name}: milliseconds that the messages of a layer add to its forward pass, "
            "[Ulysses, ring attention, Megatron]; also for a way that is not possible here",
            partial(_of, name, times_of),
            "Elements sent per layer, 2 bytes for each, over the bandwidth. In the ring only what "
            "a round does not hide counts, and there are P - 1 rounds with a message.",
            {partial(_of, name, value): why for value, why in wrong.items()},
            points=2,
            unit="ms",
        )
        yield choice(
            f"{name}_way",
            f"setting {name}: the possible way that adds least time",
            WAYS,
            partial(_of, name, best_of),
            "First leave out what is not possible, then compare the times.",
            {
                partial(_of, name, partial(_is_not, way, why)): text
                for why, text in _WHY.items()
                for way in WAYS
            },
        )


def _rows(given: Values) -> list[tuple[str, str]]:
    rows = []
    for name in NAMES:
        setting = given[name]
        parts = {
            "a sequence": "{tokens:,} tokens on {ranks} GPUs",
            "attention": "{heads} heads of queries, {kv_heads} of keys and values; head size 128",
            "weights": "{weights} GB; a GPU has room for {room} GB",
            "hardware": "{tflops} TFLOP/s in attention; {link} GB/s to other GPUs, one-way",
        }
        rows += [(f"{name}: {label}", text.format(**setting)) for label, text in parts.items()]
    return rows


PART = Part(
    "08/choose_split", 3, "Ulysses, ring attention or Megatron", 20, 2,
    asked(_draw, _rows, *_questions()),
)  # fmt: skip
