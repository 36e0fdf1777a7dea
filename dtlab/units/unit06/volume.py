"""The values of 06/volume: what a rank sends for a layer, and the seconds that everyone waits.

8bsh(t-1)/t elements per layer and microbatch: Narayanan et al. 2021, "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", section 3.2; 72bsh^2 (1 + s/(6h))
operations: their equation (3), less what is recomputed. What sequence parallelism gathers once
more: Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from random import Random
from typing import Any, Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Question, Questions, Values
from dtlab.grading.questions.numbers import Value, number
from dtlab.predict.communication import bus_factor, ring_all_reduce_seconds
from dtlab.predict.gpt import gpt_flops
from dtlab.predict.hardware import Link

__all__ = ["PART"]

_CARDS: Final = {"A100": (312, 600, 200), "H100": (989, 900, 400)}
"""Peak TFLOP/s; NVLink in GB/s, both directions together; the adapter's Gb/s, each way."""
_BYTES: Final = 2


def _draw(draw: Random) -> Values:
    card = draw.choice(list(_CARDS))
    peak, nvlink, adapter = _CARDS[card]
    kv_heads = draw.choice((6, 8, 10, 12, 20, 24))
    given: dict[str, Any] = {
        "card": card,
        "nvlink": nvlink,
        "adapter": adapter,
        "reached": round(peak * draw.uniform(0.4, 0.6)),
        "micro_batch": draw.choice((1, 2, 4)),
        "sequence": draw.choice((2048, 4096, 8192)),
        "hidden": 128 * draw.randrange(32, 128, 8),
        "layers": draw.choice((24, 32, 40, 48, 64, 80)),
        "ranks": draw.choice((8, 16)),  # of 4, 16bsh(t-1)/t would be 12bsh
        "kv_heads": kv_heads,
        "node": draw.choice((4, 8, 16)),
    }
    return given


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("b, sequences of a microbatch", str(given["micro_batch"])),
        ("s, tokens of a sequence", str(given["sequence"])),
        ("h, hidden size", str(given["hidden"])),
        ("L, layers", str(given["layers"])),
        ("t, ranks", str(given["ranks"])),
        ("your card", f"{given['card']}, which reaches {given['reached']} TFLOP/s here"),
        ("NVLink inside a node", f"{given['nvlink']} GB/s, both directions together"),
        ("InfiniBand between nodes", f"{given['adapter']} Gb/s each way, an adapter per GPU"),
        ("your other model", f"{given['kv_heads']} heads of queries, of keys, and of values"),
        ("your other nodes", f"{given['node']} GPUs each"),
    ]


def _elements(given: Values) -> int:
    """Of one activation: bsh."""
    return int(given["micro_batch"] * given["sequence"] * given["hidden"])


def _all_reduces(number_of: float) -> Callable[[Values], float]:
    """Millions of elements that a rank sends in so many ring all-reduces of bsh."""
    return lambda given: (
        number_of * bus_factor("all_reduce", given["ranks"]) * _elements(given) / 1e6
    )


def _both(first: float, second: float) -> Callable[[Values], list[float]]:
    return lambda given: [_all_reduces(one)(given) for one in (first, second)]


def _without_factor(given: Values) -> float:
    return 8 * _elements(given) / 1e6


def _seconds(given: Values, bandwidth: float, number_of: int = 4) -> float:
    """Of a layer's all-reduces, latency aside."""
    nbytes, link = float(_BYTES * _elements(given)), Link(0, bandwidth)
    return number_of * ring_all_reduce_seconds(nbytes, given["ranks"], link)


def _bandwidths(given: Values) -> tuple[float, float]:
    """Bytes/s one-way: inside a node, between nodes."""
    return given["nvlink"] * 1e9 / 2, given["adapter"] * 1e9 / 8


def _ms(nvlink: float = 1, adapter: float = 1, of: float = 1) -> Callable[[Values], list[float]]:
    """ms of all layers, on links so many times as fast, and `of` that."""

    def times(given: Values) -> list[float]:
        inside, between = _bandwidths(given)
        both = inside * nvlink, between * adapter
        return [1e3 * of * given["layers"] * _seconds(given, each) for each in both]

    return times


def _one_layer(given: Values) -> list[float]:
    return [one / given["layers"] for one in _ms()(given)]


def _compute(given: Values) -> float:
    """Seconds of a layer, forward and backward, on each of t ranks."""
    sizes = given["hidden"], 1, given["sequence"], given["micro_batch"]
    layer = gpt_flops(2, *sizes) - gpt_flops(1, *sizes)  # without the head
    return float(layer / given["ranks"] / (given["reached"] * 1e12))


def _share(compute: float | str = 1.0) -> Callable[[Values], list[float]]:
    """Per cent of the time that is communication, with so many times the compute."""

    def shares(given: Values) -> list[float]:
        busy = _compute(given) * (given["ranks"] if compute == "t" else float(compute))
        both = [_seconds(given, one) for one in _bandwidths(given)]
        return [100 * one / (one + busy) for one in both]

    return shares


def _beside_compute(given: Values) -> list[float]:
    return [100 * _seconds(given, one) / _compute(given) for one in _bandwidths(given)]


def _twice(given: Values) -> list[float]:
    now, then = (bus_factor("all_reduce", n * given["ranks"]) for n in (1, 2))
    return [1 / 2, then / now]


def _largest_divisor(given: Values) -> int:
    """Of the heads, no larger than a node."""
    return max(n for n in range(1, given["node"] + 1) if given["kv_heads"] % n == 0)


def _millions(
    name: str, prompt: str, right: Value, hint: str, *mistakes: tuple[Value, str]
) -> Question:
    """Asks for millions of elements; who writes elements is told so."""

    def elements(given: Values) -> Any:
        found = right(given)
        return [1e6 * one for one in found] if isinstance(found, list) else 1e6 * found

    why = "these are elements. How many millions are that?"
    return number(name, prompt, right, hint, *mistakes, (elements, why), unit="million elements")


_PASSES = "Count all-reduces first. On a ring each of them sends 2(t-1)/t of its elements."

VOLUME = Questions(
    _draw,
    _rows,
    (
        _millions(
            "layer",
            "what a rank sends for one layer and microbatch, forward and backward",
            _all_reduces(4),
            _PASSES,
            (_all_reduces(2), "this is one of the two passes, or half of each all-reduce."),
            (_all_reduces(1), "this is a single all-reduce. A layer has more: where?"),
            (_without_factor, "on a ring of t ranks each sends (t-1)/t of it."),
            (
                lambda given: 4 * _elements(given) / 1e6,
                "this is what goes into the calls. And what does a rank send of it on a ring?",
            ),
        ),
        _millions(
            "sequence",
            "the same with sequence parallelism, as a list of two: where every rank keeps the "
            "gathered inputs of column parallel layers for backward; where it keeps its own "
            "tokens of them, and backward gathers them again",
            _both(4, 5),
            "In all-gathers and reduce-scatters: how many has a layer in each pass, and what is "
            "each of them beside an all-reduce?",
            (_both(4, 4), "what is gathered again goes over the wire again."),
            (
                _both(8, 10),
                "this takes a reduce-scatter for as much as an all-reduce. How do two of those "
                "calls make one?",
            ),
            (_both(2, 2.5), "this is one of the two passes, or one of the two kinds of calls."),
            (_both(4, 6), "how many inputs of column parallel layers are there to gather again?"),
        ),
        _millions(
            "recomputed",
            "tensor parallelism alone, if every layer runs its whole forward pass once more in "
            "the backward pass",
            _all_reduces(6),
            "What of your `layer` belongs to the forward pass?",
            (_all_reduces(4), "the forward pass that is run again has calls of its own."),
            (_all_reduces(8), "is the backward pass run again, too?"),
            (_all_reduces(5), "how many all-reduces has a forward pass?"),
            (
                lambda given: 1.5 * _without_factor(given),
                "on a ring of t ranks each sends (t-1)/t of it.",
            ),
        ),
        number(
            "milliseconds",
            "how long the calls of your `layer` take in all L layers, latency aside, as a list "
            "of two: all ranks inside a node; each rank on a node of its own",
            _ms(),
            "Bytes that a rank sends, over bytes per second in one direction.",
            (_ms(nvlink=2), "a rank sends in one direction. And 600 or 900 GB/s are of two."),
            (_ms(adapter=8), "adapters are sold in bits, Gb/s; elements have bytes."),
            (_ms(2, 8), "read the units of both links again: directions, and bits."),
            (_ms(of=1 / 2), "an element has 16 bits."),
            (_one_layer, "this is one layer."),
            unit="ms",
        ),
        number(
            "share",
            "what part of the time that is, if ranks compute for the rest and wait for every "
            "call, as a list of the same two",
            _share(),
            "Seconds that t ranks compute a layer, and seconds of its calls.",
            (_beside_compute, "this is beside the compute. Asked for is the part of both."),
            (_share("t"), "t ranks share the operations of a layer."),
            (_share(1 / 3), "this has the operations of a forward pass only."),
            (
                lambda given: [100 - one for one in _share()(given)],
                "this is the part in which ranks compute.",
            ),
            unit="%",
            points=2,
        ),
        number(
            "twice",
            "by what a rank's compute and by what a rank's `layer` is multiplied, if twice as "
            "many ranks share each layer, as a list of two",
            _twice,
            "Put 2t in place of t: once in the operations over t, once in (t-1)/t.",
            (lambda given: [1 / 2, 1 / 2], "does a ring of twice as many send half as much?"),
            (lambda given: [1 / 2, 2], "does each rank of a ring of twice as many send twice?"),
            (
                lambda given: [1 / 2, 1],
                "so it is nearly, for very many ranks. Yours are few: use (t-1)/t.",
            ),
            (lambda given: [1, _twice(given)[1]], "operations are shared by the ranks, too."),
        ),
        number(
            "largest",
            "the largest t for your other model on your other nodes, with whole heads on every "
            "rank, no group in two nodes, and no GPU left over",
            lambda given: gcd(given["node"], given["kv_heads"]),
            "Two things have to be divided by t.",
            (lambda given: given["node"], "how many heads has each rank then?"),
            (
                _largest_divisor,
                "with this every rank has whole heads. And how many groups has a node?",
            ),
            (lambda given: given["kv_heads"], "how many GPUs of a node are in each group then?"),
            (lambda given: 1, "this always goes. Is there no larger one?"),
            unit="ranks",
            exact=True,
        ),
    ),
)

PART = Part("06/volume", 1, "What is sent, and how long it takes", 8, 2, VOLUME)
