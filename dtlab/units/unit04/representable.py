"""04/representable: which numbers a floating-point format holds, and how it rounds others."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import asked, choice, choices, formula, number
from dtlab.predict.formats import BF16, FP16, BinaryFormat


def _draw(draw: Random) -> Values:
    kinds = ["subnormal", "tiny", "large", "fine", "odd", "decimal"]
    draw.shuffle(kinds)
    six = [_written(kind, draw) for kind in kinds]
    exponent_bits, mantissa_bits = draw.choice(((4, 3), (5, 2)))
    exponent = draw.randint(4, 6)
    step = 2.0 ** (exponent - mantissa_bits)
    place = draw.randrange(2**mantissa_bits - 1) + 0.75  # nearer to the number above
    return {
        "kinds": kinds,
        "written": [text for text, _ in six],
        "values": [value for _, value in six],
        "exponent_bits": exponent_bits,
        "mantissa_bits": mantissa_bits,
        "number": 2.0**exponent + place * step,
        "power": draw.choice((8, 9, 10)),
        "gradient": draw.randint(28, 40),
        **_weights(draw),
    }


def _written(kind: str, draw: Random) -> tuple[str, float]:
    """A number of this kind, as text and as a float. Each kind shows one property of formats."""
    if kind in ("subnormal", "tiny"):
        power = draw.randint(17, 23) if kind == "subnormal" else draw.randint(27, 40)
        return f"2^-{power}", 2.0**-power
    if kind == "fine":
        power = draw.randint(8, 10)
        return f"1 + 2^-{power}", 1 + 2.0**-power
    numbers = {
        "large": (3 * 2**15, 5 * 2**15, 7 * 2**15),
        "odd": range(2051, 4096, 2),
        "decimal": (0.1, 0.2, 0.3, 0.6, 0.7),
    }
    value = draw.choice(numbers[kind])
    return f"{value}", float(value)


def _weights(draw: Random) -> Values:
    """Weights and updates whose sizes mislead: the largest update is lost, smaller ones are not.

    No weight is a power of two, or within one update of a power of two.
    """
    while True:
        # exponent of the weight, and its update in multiples of the spacing there
        cases = {
            "heavy": (draw.choice((4, 5)), draw.uniform(0.2, 0.4)),
            "rounded up": (0, draw.uniform(0.6, 0.9)),
            "short": (draw.choice((0, 1)), draw.uniform(0.05, 0.15)),
            "light": (draw.choice((-5, -4)), draw.uniform(1.6, 3)),
        }
        order = draw.sample(list(cases), len(cases))
        weights = [draw.choice((1.25, 1.5, 1.75)) * 2.0 ** cases[name][0] for name in order]
        spacings = [BF16.spacing(weight) for weight in weights]
        updates = [
            float(f"{cases[name][1] * spacing:.1e}")
            for name, spacing in zip(order, spacings, strict=True)
        ]
        short = order.index("short")
        if 0.15 < spacings[short] / updates[short] / 2 % 1 < 0.85:  # clear of half-way
            return {"weights": weights, "updates": updates, "short": "pqrs"[short]}


def _rows(given: Values) -> list[tuple[str, str]]:
    small = f"1 bit for the sign, {given['exponent_bits']} for the exponent"
    weights = zip("pqrs", given["weights"], given["updates"], strict=True)
    return [
        *zip("abcdef", given["written"], strict=True),
        ("small format", f"{small}, {given['mantissa_bits']} for the mantissa"),
        ("x", f"{given['number']:g}"),
        ("gradient g", f"2^-{given['gradient']}"),
        *((f"weight {n}", f"{w:.9g} in bf16, update lr x g = {u:g}") for n, w, u in weights),
    ]


def _which(name: str, other: str, large: str, small: str, odd: str) -> Question:
    """Asks which of the six values a format holds; `large`, `small` and `odd` are hints."""
    wrong = {
        "large": large,
        "subnormal": small,
        "tiny": small,
        "fine": "look at the sum: how far above 1 is the next number?",
        "odd": odd,
        "decimal": "look at the decimal fraction: is it a finite sum of powers of two?",
    }
    return choices(
        f"in_{name}",
        f"which of a to f {name} holds exactly",
        "abcdef",
        formula(f"held({name})"),
        "For each number: does its exponent exist, and how many bits follow the leading 1?",
        {
            formula(f"held({other})"): "these are the numbers that the other format holds.",
            **{formula(f"letter['{kind}']"): why for kind, why in wrong.items()},
        },
    )


_EXPONENTS = (
    "look at the largest of them and at the powers of two: which exponents are possible with 8 "
    "bits, and how many bits after the leading 1 does each of these need?"
)

_QUESTIONS = asked(
    _draw,
    _rows,
    _which(
        "fp16",
        "bf16",
        large="look at the largest of them: which exponents are there?",
        small="look at the powers of two again: below 2^-14 fp16 continues with the spacing that "
        "it has there. Down to where?",
        odd="look at the odd number: how far apart are numbers above 2048?",
    ),
    _which(
        "bf16",
        "fp16",
        large=_EXPONENTS,
        small=_EXPONENTS,
        odd="look at the odd number: how many bits does it need?",
    ),
    number(
        "spacing",
        "the distance between neighbouring numbers of the small format around x",
        "spacing",
        "Which power of two is just below x? Into how many steps is the range up to the next cut?",
        {
            "2.0**-mantissa_bits": "this is the spacing between 1 and 2. Each power of two "
            "doubles it.",
            "answer / 2": "this counts the leading 1 in the mantissa. It is not stored.",
            "answer * 2**mantissa_bits": "this is the distance to the next power of two.",
        },
        exact=True,
    ),
    number(
        "rounded",
        "the number of the small format to which x is rounded",
        "small.rounded(x)",
        "Find the two numbers between which x lies. To which of them is x rounded?",
        {
            "below_x": "this cuts off the bits that do not fit. Which neighbour of x is nearer?",
            "x": "this is x itself, which needs more bits than there are.",
            "2 * below_x - answer": "x does not lie next to this one. Between which two?",
        },
        exact=True,
    ),
    choice(
        "one_plus",
        "why 1 + 2^-{power} becomes 1 in bf16",
        {
            "nearer": "the next number above 1 is 1 + 2^-7, and 1 is nearer",
            "tie": "it lies half-way to the next number above 1, and a tie goes to the one "
            "whose last bit is 0",
            "small": "bf16 has no number as small as the one that is added",
            "cut": "bits that do not fit are cut off",
        },
        formula("'tie' if power == 8 else 'nearer'"),
        "What is the next number above 1, and where between the two does the sum lie?",
        {
            formula("'nearer' if power == 8 else 'tie'"): "compare the added number with half of "
            "the spacing above 1.",
            "small": "bf16 holds that number alone: it has as many exponents as fp32.",
            "cut": "then 1 + 0.9 x 2^-7 would be 1 as well. bf16 rounds to the nearest number.",
        },
    ),
    number(
        "survives",
        "the smallest whole number k for which g x 2^k is not 0 in fp16",
        "gradient - 24",
        "What is the smallest number of fp16 above 0? Only the last of its bits is 1.",
        {
            "gradient - 14": "then it is a normal number. fp16 has smaller numbers too.",
            "gradient - 25": "then it is half of the smallest number. A tie goes to the "
            "one whose last bit is 0.",
            "gradient": "then it is 1. It need not be as large as that.",
        },
        exact=True,
    ),
    choices(
        "lost",
        "which of the weights p, q, r, s do not change in bf16: w - lr x g rounds to w",
        "pqrs",
        formula("below(0.5)"),
        "For each weight, compute the power of two below it, the spacing there, and half of that.",
        {
            formula("smallest"): "these have the smallest updates. How large is each update "
            "compared with the spacing at its weight?",
            formula("below(1)"): "the updates of these are smaller than the spacing. How does "
            "rounding to the nearest treat updates of more than half of it?",
            formula("set('pqrs') - below(0.5)"): "this is the opposite: these weights change.",
        },
    ),
    number(
        "master",
        "weight {short} gets a master weight in fp32, and the same update in every step: "
        "after how many steps does its bf16 copy change for the first time?",
        "int(updates_in_spacing / 2) + 1",
        "How far must the master weight move until another number is nearer?",
        {
            "int(updates_in_spacing) + 1": "by then the master weight is past the next "
            "number. Its copy is rounded to the nearest.",
            "answer - 1": "after that many steps the master weight is not yet half-way.",
            "1": "one update changes the master weight, but not its copy.",
        },
        exact=True,
    ),
    where={
        "fp16": FP16,
        "bf16": BF16,
        "letter": "dict(zip(kinds, 'abcdef'))",
        "held": "lambda of: {name for name, value in zip('abcdef', values) if of.holds(value)}",
        "format_of": BinaryFormat,
        "x": "number",
        "small": "format_of(exponent_bits, mantissa_bits)",
        "spacing": "small.spacing(x)",
        "below_x": "x // spacing * spacing",
        "smallest": "{name for _, name in sorted(zip(updates, 'pqrs'))[:2]}",
        "shares": "{n: u / bf16.spacing(w) for n, w, u in zip('pqrs', weights, updates)}",
        "below": "lambda share: {name for name in 'pqrs' if shares[name] < share}",
        "updates_in_spacing": "1 / shares[short]",
    },
)

PART = Part("04/representable", 1, "What a format can represent", 10, 2, _QUESTIONS)
