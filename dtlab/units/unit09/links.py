"""09/links: how long an all-reduce takes over NVLink, over adapters, and when it is small."""

from __future__ import annotations

from dtlab.checks.parts import Part
from dtlab.checks.questions.declared import asked, choice, number

_GIGABITS = "1 byte has 8 bits: an adapter of 200 Gb/s moves 25 GB/s."

_QUESTIONS = asked(
    {
        "billions": (130, 150, 175, 190, 220),
        "printed": (600, 900),
        "adapters": (2, 4),
        "gigabits": (100, 200, 400),
        "nodes": (4, 8, 16),
        "kilobytes": (32, 64, 128),
        "latency": (4, 5, 6, 8),
    },
    [
        ("your gradients", "{billions} billion, 2 bytes each"),
        ("a node", "8 GPUs; the data sheet says {printed} GB/s of NVLink per GPU, both ways"),
        ("the network", "{adapters} adapters per node, {gigabits} Gb/s each, one way"),
        ("your cluster", "{nodes} nodes"),
        ("for `small`", "a tensor of {kilobytes} kB; {latency} µs of latency per message"),
    ],
    number(
        "inside",
        "a ring all-reduce of all gradients over the eight GPUs of one node",
        "ring * size / nvlink",
        "How many bytes does each GPU send, and how fast in one direction?",
        {
            "answer / 2": "this is half. Is the printed bandwidth that of one direction? And the "
            "ring goes round twice.",
            "size / nvlink": "this is bytes over bandwidth. Which multiple of the bytes does a "
            "GPU send in a ring?",
            "size / (2 * nvlink)": "this is the bytes over the printed bandwidth, which counts "
            "both directions. And how often do bytes travel in a ring?",
            "2 * size / nvlink": "a GPU sends 7 of its 8 chunks, twice.",
        },
        unit="s",
    ),
    number(
        "node",
        "what a node can send to the network, one way",
        "adapters * gigabits / 8",
        "Add up the adapters of a node. Bits or bytes?",
        {
            "adapters * gigabits": _GIGABITS,
            "gigabits / 8": "this is one adapter. A node has several.",
            "8 * gigabits / 8": "this has an adapter for each GPU. How many does yours have?",
        },
        unit="GB/s",
    ),
    number(
        "one_ring",
        "the all-reduce over all GPUs of all nodes, in one ring, which enters and leaves each "
        "node through one adapter",
        "flat / adapter",
        "A ring runs at the speed of its slowest link, here one adapter.",
        {
            "flat / (adapters * adapter)": "this is for a ring through all adapters of a node.",
            "flat / (8 * adapter)": _GIGABITS,
            "flat / nvlink": "the ring also crosses the network.",
            "across * size / adapter": "this is for a ring with one member per node. How many "
            "members has a ring over all GPUs?",
            "size / adapter": "which multiple of the bytes does each GPU send in a ring?",
        },
        unit="s",
    ),
    number(
        "two_levels",
        "the same in two levels: rings inside the nodes, and rings across nodes that share all "
        "adapters of a node",
        "ring * size / nvlink + across * size / (adapters * adapter)",
        "Add up both levels. Each GPU of a node sends an eighth of the bytes across, through the "
        "node's adapters.",
        {
            "across * size / (adapters * adapter)": "the rings inside the nodes take time too.",
            "ring * size / nvlink + across * size / adapter": "this is through one adapter. The "
            "eight rings across share all of them.",
            "ring * size / nvlink + across * size / (8 * adapters * adapter)": "this divides by 8 "
            "twice: eight GPUs, each with an eighth of the bytes, send through these adapters.",
        },
        unit="s",
    ),
    number(
        "small",
        "an all-reduce of the small tensor in one ring over all GPUs, with its latency",
        "2 * (gpus - 1) * (latency + kilobytes / gpus / adapter)",
        "How many messages does a GPU send, one after the other? Each takes the latency and the "
        "time of its bytes, both in µs.",
        {
            "answer / 2": "the ring goes round twice.",
            "2 * (gpus - 1) * kilobytes / gpus / adapter": "this is without the latency.",
            "latency + 2 * (gpus - 1) * kilobytes / gpus / adapter": "each message has the "
            "latency, and there are many.",
        },
        unit="µs",
    ),
    choice(
        "helps",
        "what shortens that small all-reduce most?",
        {
            "bandwidth": "links with twice the bandwidth",
            "bits": "elements of half the bytes",
            "rounds": "an algorithm with fewer messages in a row, such as a tree",
        },
        "rounds",
        "Which of the two terms of your last answer is large?",
        {
            "bandwidth": "the bytes take next to no time here.",
            "bits": "fewer bytes help if bytes take the time. Compare both terms.",
        },
    ),
    where={
        "size": "2 * billions",  # GB
        "nvlink": "printed / 2",  # GB/s, one way
        "adapter": "gigabits / 8",  # GB/s; and kB over GB/s are µs
        "gpus": "8 * nodes",
        "ring": "2 * 7 / 8",
        "across": "2 * (nodes - 1) / nodes",
        "flat": "2 * (gpus - 1) / gpus * size",
    },
)

PART = Part("09/links", 1, "Seconds of an all-reduce", 7, 2, _QUESTIONS)
