"""08/volumes: what a rank sends for one layer, in three ways to split a sequence.

Korthikanti et al. 2022 (Megatron); Jacobs et al. 2023 (Ulysses); Liu et al. 2023 (ring attention).
"""

from __future__ import annotations

from dtlab.checks.parts import Part
from dtlab.checks.questions.declared import asked, choice, formula, number

_QUESTIONS = asked(
    {
        "tokens": (32768, 49152, 65536, 98304, 131072),
        "heads": (32, 48, 64),
        "kv_heads": (8, 16),
        "ranks": (4, 8),
    },
    [
        ("your sequence", "N = {tokens} tokens"),
        ("your model", "{heads} heads of size 128, {kv_heads} KV heads"),
        ("your ranks", "P = {ranks}"),
        ("elements", "2 bytes each; forward pass of one layer"),
    ],
    number(
        "megatron",
        "what a rank sends with Megatron's sequence parallelism: the hidden states of all tokens "
        "are gathered twice and scattered twice",
        "sent['megatron']",
        "Each of the four collectives moves N h elements. Which share of them leaves one rank?",
        {
            "answer / 2": "this is half of it. Does it count 2 bytes for each element, and the "
            "collectives of both attention and MLP?",
            "answer * ranks / (ranks - 1)": "a rank does not send its own part to itself.",
            "answer / ranks": "this divides by P twice. A gathered tensor has all tokens.",
        },
        unit="MB",
    ),
    number(
        "ulysses",
        "what a rank sends with Ulysses: queries, keys and values, and the output on its way back",
        "sent['ulysses']",
        "Each rank begins with N/P tokens. Which share of its part leaves it in an all-to-all?",
        {
            "answer / 2": "this counts 1 byte for each element. An element has 2 bytes.",
            "answer * 2 * h / (h + h_k)": "this has as many KV heads as heads. Yours are grouped.",
            "answer * ranks": "this has all N tokens on a rank. It has N/P of them before the "
            "all-to-all.",
            "mega * (h + 2 * h_k) * (ranks - 1) * tokens / ranks ** 2": "the output has to come "
            "back to the ranks of its tokens.",
            "answer * ranks / (ranks - 1)": "a rank does not send its own part to itself.",
        },
        unit="MB",
    ),
    number(
        "ring",
        "what a rank sends with ring attention",
        "sent['ring']",
        "What travels, and how often does a rank pass a block on?",
        {
            "answer * h / h_k": "this has as many KV heads as heads. Yours are grouped.",
            "answer * ranks / (ranks - 1)": "with P ranks a block is passed on P - 1 times.",
            "answer / 2": "this is half of it. Does it count 2 bytes for each element, and both "
            "keys and values?",
            "answer / (ranks - 1)": "this is one round.",
        },
        unit="MB",
    ),
    choice(
        "least",
        "in which of them does a rank send least?",
        ("megatron", "ulysses", "ring"),
        formula("least"),
        "Compare your three numbers.",
        {
            "megatron": "both others divide what a rank sends: one by P, one to keys and values.",
            formula("'ring' if least == 'ulysses' else 'ulysses'"): "compare your second and your "
            "third number again.",
        },
    ),
    number(
        "doubled",
        "by which factor each of them changes on twice as many ranks, with the same sequence: "
        "[Megatron, Ulysses, ring]",
        "[q, q / 2, q]",
        "Write down which of the three have P squared below the line.",
        {
            "[1, 0.5, 1]": "P - 1 changes too: from (P-1)/P to (2P-1)/2P.",
            "[q, q, q]": "Ulysses sends parts of N/P tokens.",
            "[q / 2, q / 2, q / 2]": "which of them send something about all N tokens?",
        },
        unit="times",
    ),
    where={
        "h": "128 * heads",
        "h_k": "128 * kv_heads",
        "mega": "2 / 1e6",  # MB of an element
        "away": "(ranks - 1) / ranks",
        "sent": "{'megatron': mega * 4 * tokens * h * away, "
        "'ulysses': mega * 2 * tokens * (h + h_k) * away / ranks, "
        "'ring': mega * 2 * tokens * h_k * away}",
        "least": "min(sent, key=sent.get)",
        "q": "(2 * ranks - 1) / (2 * ranks - 2)",
    },
)

PART = Part("08/volumes", 1, "What a rank sends", 7, 2, _QUESTIONS)
