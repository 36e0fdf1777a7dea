"""06/volume: what a rank sends for a layer, and the seconds that everyone waits.

8bsh(t-1)/t elements per layer and microbatch: Narayanan et al. 2021, "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", section 3.2; 72bsh^2 (1 + s/(6h))
operations: their equation (3), less what is recomputed. What sequence parallelism gathers once
more: Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.2.2.
"""

from __future__ import annotations

from functools import partial
from math import gcd
from random import Random
from typing import Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import asked, number
from dtlab.predict.communication import bus_factor, ring_all_reduce_seconds
from dtlab.predict.hardware import Link
from dtlab.predict.transformer import gpt_flops

_CARDS: Final = {"A100": (312, 600, 200), "H100": (989, 900, 400)}
"""Peak TFLOP/s; NVLink in GB/s, both directions together; the adapter's Gb/s, each way."""


def _draw(draw: Random) -> Values:
    card = draw.choice(list(_CARDS))
    peak, nvlink, adapter = _CARDS[card]
    kv_heads = draw.choice((6, 8, 10, 12, 20, 24))
    return {
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


million_elements = partial(number, unit="million elements")
_ON_A_RING = "on a ring of t ranks each sends (t-1)/t of it."
_SHARED = "all ranks share the operations of a layer."
_GROUPS = "every rank has whole heads then. And how many groups has a node?"
_ELEMENTS = "these are elements. How many millions are that?"

QUESTIONS = asked(
    _draw,
    [
        ("b, sequences of a microbatch", "{micro_batch}"),
        ("s, tokens of a sequence", "{sequence}"),
        ("h, hidden size", "{hidden}"),
        ("L, layers", "{layers}"),
        ("t, ranks", "{ranks}"),
        ("your card", "{card}, which reaches {reached} TFLOP/s here"),
        ("NVLink inside a node", "{nvlink} GB/s, both directions together"),
        ("InfiniBand between nodes", "{adapter} Gb/s each way, an adapter per GPU"),
        ("your other model", "{kv_heads} heads of queries, of keys, and of values"),
        ("your other nodes", "{node} GPUs each"),
    ],
    million_elements(
        "layer",
        "what a rank sends for one layer and microbatch, forward and backward",
        "4 * sent",
        "Count all-reduces first. On a ring each of them sends 2(t-1)/t of its elements.",
        {
            "answer / 2": "this is one of the two passes, or half of each all-reduce.",
            "sent": "this is a single all-reduce. A layer has more: where?",
            "8 * bsh": _ON_A_RING,
            "4 * bsh": "what goes into the calls is not yet what a ring sends.",
            "1e6 * answer": _ELEMENTS,
        },
    ),
    million_elements(
        "sequence",
        "the same with sequence parallelism, in a list: where ranks keep the gathered inputs of "
        "column parallel layers for backward; where they keep their own tokens, and gather again",
        "[4 * sent, 5 * sent]",
        "In all-gathers and reduce-scatters: how many are in each pass, and what does each send?",
        {
            "[4 * sent, 4 * sent]": "what is gathered again goes over the wire again.",
            "[8 * sent, 10 * sent]": "this takes a reduce-scatter for as much as an all-reduce.",
            "[2 * sent, 2.5 * sent]": "this is one pass, or one of the two kinds of calls.",
            "[4 * sent, 6 * sent]": "how many inputs of column parallel layers has a layer?",
            "[1e6 * one for one in answer]": _ELEMENTS,
        },
    ),
    million_elements(
        "recomputed",
        "tensor parallelism alone, if backward runs the forward pass of every layer once more",
        "6 * sent",
        "What of your `layer` belongs to the forward pass?",
        {
            "4 * sent": "the forward pass that is run again has calls of its own.",
            "8 * sent": "is the backward pass run again, too?",
            "5 * sent": "how many all-reduces has a forward pass?",
            "12 * bsh": _ON_A_RING,
            "1e6 * answer": _ELEMENTS,
        },
    ),
    number(
        "milliseconds",
        "how long the calls of your `layer` take in all L layers, without latency, in a list: "
        "inside a node; each rank on another node",
        "[1e3 * layers * one for one in seconds]",
        "Bytes that a rank sends, over bytes per second in one direction.",
        {
            "[answer[0] / 2, answer[1]]": "a rank sends in one direction. GB/s are of two here.",
            "[answer[0], answer[1] / 8]": "adapters are sold in bits, and elements have bytes.",
            "[answer[0] / 2, answer[1] / 8]": "read the units of both links again.",
            "[one / 2 for one in answer]": "an element has 16 bits.",
            "[one / layers for one in answer]": "this is one layer.",
        },
        unit="ms",
    ),
    number(
        "share",
        "what part of all time that is, if ranks compute for the rest, in a list of the same two",
        "[100 * s / (s + compute) for s in seconds]",
        "Seconds that t ranks compute a layer, and seconds of its calls.",
        {
            "[100 * s / compute for s in seconds]": "this is beside the compute. And of both?",
            "[100 * s / (s + ranks * compute) for s in seconds]": _SHARED,
            "[100 * s / (s + compute / 3) for s in seconds]": "this is of a forward pass only.",
            "[100 - one for one in answer]": "this is the part in which ranks compute.",
        },
        unit="%",
        points=2,
    ),
    number(
        "twice",
        "the factors of a rank's compute and of its `layer`, in a list, with twice as many ranks",
        "[1 / 2, factor('all_reduce', 2 * ranks) / factor('all_reduce', ranks)]",
        "Put 2t in place of t: once in the operations over t, once in (t-1)/t.",
        {
            "[1 / 2, 1 / 2]": "does a ring of twice as many send half as much?",
            "[1 / 2, 2]": "does each rank of a ring of twice as many send twice?",
            "[1 / 2, 1]": "so it is nearly, for very many ranks. Yours are few: use (t-1)/t.",
            "[1, answer[1]]": "operations are shared by the ranks, too.",
        },
    ),
    number(
        "largest",
        "the largest t for your other model on your other nodes: whole heads, no group in two "
        "nodes, no GPU left over",
        "gcd(node, kv_heads)",
        "Two things have to be divided by t.",
        {
            "node": "how many heads has each rank then?",
            "max(n for n in range(1, node + 1) if kv_heads % n == 0)": _GROUPS,
            "kv_heads": "how many GPUs of a node are in each group then?",
            "1": "this always goes. Is there no larger one?",
        },
        unit="ranks",
        exact=True,
    ),
    where={
        "gcd": gcd,
        "factor": bus_factor,
        "ring_seconds": ring_all_reduce_seconds,
        "Link": Link,
        "gpt_flops": gpt_flops,
        "bsh": "micro_batch * sequence * hidden / 1e6",  # millions of elements
        "sent": "factor('all_reduce', ranks) * bsh",  # in one of the all-reduces
        "bandwidths": "[nvlink * 1e9 / 2, adapter * 1e9 / 8]",  # one-way, in bytes/s
        "seconds": "[4 * ring_seconds(2e6 * bsh, ranks, Link(0, one)) for one in bandwidths]",
        "sizes": "(hidden, 1, sequence, micro_batch)",
        "layer": "gpt_flops(2, *sizes) - gpt_flops(1, *sizes)",  # without the head
        "compute": "layer / ranks / (reached * 1e12)",
    },
)

PART = Part("06/volume", 1, "What is sent, and how long it takes", 8, 2, QUESTIONS)
