"""06/volume: how much a rank sends for a layer, and how long its communication takes.

8bsh(t-1)/t elements per layer and microbatch: Narayanan et al. 2021, "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", section 3.2; 72bsh^2 (1 + s/(6h))
operations: their equation (3), without recomputation. The second all-gather of sequence
parallelism: Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.2.2.
"""

from __future__ import annotations

from functools import partial
from math import gcd
from random import Random
from typing import Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number
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
        "ranks": draw.choice((8, 16)),  # with 4 ranks, 16bsh(t-1)/t would be 12bsh
        "kv_heads": kv_heads,
        "node": draw.choice((4, 8, 16)),
    }


million_elements = partial(number, unit="million elements")
_ON_A_RING = "on a ring of t ranks each rank sends (t-1)/t of it."
_SHARED = "all ranks share the operations of a layer."
_GROUPS = "every rank has whole heads then, but t must also divide the GPUs of a node."
_ELEMENTS = "these are elements. Convert them to millions."

QUESTIONS = asked(
    _draw,
    [
        ("b, sequences of a microbatch", "{micro_batch}"),
        ("s, tokens of a sequence", "{sequence}"),
        ("h, hidden size", "{hidden}"),
        ("L, layers", "{layers}"),
        ("t, ranks", "{ranks}"),
        ("your GPU", "{card}, which reaches {reached} TFLOP/s here"),
        ("NVLink inside a node", "{nvlink} GB/s, both directions together"),
        ("InfiniBand between nodes", "{adapter} Gb/s each way, an adapter per GPU"),
        ("your other model", "{kv_heads} heads of queries, of keys, and of values"),
        ("your other nodes", "{node} GPUs each"),
    ],
    million_elements(
        "layer",
        "how much a rank sends for one layer and microbatch, forward and backward",
        "4 * sent",
        "Count all-reduces first. In a ring all-reduce a rank sends 2(t-1)/t of its elements.",
        {
            "answer / 2": "this is one of the two passes, or half of each all-reduce.",
            "sent": "this is a single all-reduce. Which others does a layer have?",
            "8 * bsh": _ON_A_RING,
            "4 * bsh": "these are the elements of the calls, not those that a ring sends.",
            "1e6 * answer": _ELEMENTS,
        },
    ),
    million_elements(
        "sequence",
        "the same with sequence parallelism, in a list: if ranks save the gathered inputs of "
        "column parallel layers for backward; if they save their own tokens, and gather again",
        "[4 * sent, 5 * sent]",
        "How many all-gathers and reduce-scatters are in each pass, and how much does each send?",
        {
            "[4 * sent, 4 * sent]": "a tensor that is gathered again is sent again.",
            "[8 * sent, 10 * sent]": "this counts a reduce-scatter as much as an all-reduce.",
            "[2 * sent, 2.5 * sent]": "this is one pass, or one of the two kinds of calls.",
            "[4 * sent, 6 * sent]": "how many column parallel inputs does a layer have?",
            "[1e6 * elements for elements in answer]": _ELEMENTS,
        },
    ),
    million_elements(
        "recomputed",
        "tensor parallelism only, if backward runs the forward pass of every layer once more",
        "6 * sent",
        "Which part of your `layer` belongs to the forward pass?",
        {
            "4 * sent": "the forward pass that runs again makes its calls again.",
            "8 * sent": "this counts the backward pass again, too.",
            "5 * sent": "how many all-reduces does a forward pass have?",
            "12 * bsh": _ON_A_RING,
            "1e6 * answer": _ELEMENTS,
        },
    ),
    number(
        "milliseconds",
        "how long the calls of your `layer` take in all L layers, without latency, in a list: "
        "inside a node; each rank on another node",
        "[1e3 * layers * s for s in seconds]",
        "Divide the bytes that a rank sends by the bytes per second in one direction.",
        {
            "[answer[0] / 2, answer[1]]": "a rank sends in one direction. Your GB/s are for both.",
            "[answer[0], answer[1] / 8]": "the adapter's speed is in bits per second.",
            "[answer[0] / 2, answer[1] / 8]": "read the units of both links again.",
            "[ms / 2 for ms in answer]": "an element has 16 bits.",
            "[ms / layers for ms in answer]": "this is one layer.",
        },
        unit="ms",
    ),
    number(
        "share",
        "the share of these calls in the total time, if ranks compute the rest of the time, in a "
        "list of the same two",
        "[100 * s / (s + compute) for s in seconds]",
        "Compare the seconds in which t ranks compute a layer with the seconds of its calls.",
        {
            "[100 * s / compute for s in seconds]": "this is relative to compute, not the total.",
            "[100 * s / (s + ranks * compute) for s in seconds]": _SHARED,
            "[100 * s / (s + compute / 3) for s in seconds]": "this has only the forward compute.",
            "[100 - percent for percent in answer]": "this is the share of compute.",
        },
        unit="%",
        points=2,
    ),
    number(
        "twice",
        "the factors by which a rank's compute and its `layer` change, in a list, with twice as "
        "many ranks",
        "[1 / 2, factor('all_reduce', 2 * ranks) / factor('all_reduce', ranks)]",
        "Replace t by 2t: once in the operations divided by t, once in (t-1)/t.",
        {
            "[1 / 2, 1 / 2]": "a rank of a ring of twice the size does not send half as much.",
            "[1 / 2, 2]": "a rank of a ring of twice the size does not send twice as much.",
            "[1 / 2, 1]": "this is nearly right for very many ranks. Yours are few: use (t-1)/t.",
            "[1, answer[1]]": "the ranks share the operations, too.",
        },
    ),
    number(
        "largest",
        "the largest t for your other model on your other nodes: with whole heads, no group that "
        "spans two nodes, and no GPU left over",
        "gcd(node, kv_heads)",
        "t must divide two numbers.",
        {
            "node": "how many heads does each rank have then?",
            "max(n for n in range(1, node + 1) if kv_heads % n == 0)": _GROUPS,
            "kv_heads": "then a group does not fit into a node, or GPUs are left over.",
            "1": "this always works. Is there a larger one?",
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
        "sent": "factor('all_reduce', ranks) * bsh",  # in one all-reduce
        "bandwidths": "[nvlink * 1e9 / 2, adapter * 1e9 / 8]",  # one-way, in bytes/s
        "seconds": "[4 * ring_seconds(2e6 * bsh, ranks, Link(0, bw)) for bw in bandwidths]",
        "sizes": "(hidden, 1, sequence, micro_batch)",
        "layer": "gpt_flops(2, *sizes) - gpt_flops(1, *sizes)",  # without the head
        "compute": "layer / ranks / (reached * 1e12)",
    },
)

PART = Part("06/volume", 1, "What a rank sends, and how long it takes", 8, 2, QUESTIONS)
