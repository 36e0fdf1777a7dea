"""Figures of formats, gradients, loss scales and activations: parts and alt texts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from dtlab.predict.transformer import activation_pieces
from dtlab.show.drawing.style import Figure
from dtlab.show.figures.formats import (
    bit_layouts,
    gradient_ranges,
    loss_scale_chart,
    number_line,
)
from dtlab.show.figures.layer import activation_bars
from dtlab.show.widgets.formats import (
    explore_activations,
    explore_gradients,
    explore_number_line,
)
from tests.drawn import boxes, check_layout, lines

# --------------------------------------------------------------------------- number line


def drawn_numbers(figure: Figure, name: str) -> list[float]:
    (ticks,) = [each for axes in figure.axes for each in axes.collections
                if each.get_gid() == f"numbers {name}"]  # fmt: skip
    return [float(segment[0, 0]) for segment in ticks.get_segments()]


@pytest.mark.parametrize("value", [1.003, -1.003, 0.3, 2049.0, 2.0**-20])
def test_ticks_are_numbers_of_their_format_and_the_dot_is_the_nearest(value: float) -> None:
    figure = number_line(value, ("fp16", "bf16"))
    for name, dtype in {"fp16": torch.float16, "bf16": torch.bfloat16}.items():
        (dot,) = lines(figure)[f"rounded {name}"].get_xdata()
        assert dot == torch.tensor(value).to(dtype).item()
        if boxes(figure, f"band {name}"):
            continue
        numbers = drawn_numbers(figure, name)
        assert dot in numbers
        assert all(torch.tensor(one).to(dtype).item() == one for one in numbers)
        between = [(low + high) / 2 for low, high in pairwise(numbers)]
        assert not any(torch.tensor(one).to(dtype).item() == one for one in between)


def test_a_number_out_of_range_is_named() -> None:
    above, below = number_line(70_000.0), number_line(1e-9)
    assert "fp16: becomes inf above the largest, 65,504" in above.alt_text
    assert "fp16: becomes 0 smallest is 2^-24" in below.alt_text
    for figure in (above, below):
        assert drawn_numbers(figure, "fp16") == []
        assert "rounded fp16" not in lines(figure)
        assert "rounded bf16" in lines(figure)
    assert "bf16: becomes 1 spacing 2^-7" in number_line(1.003).alt_text
    assert boxes(number_line(1.003), "band fp32")  # 2^16 numbers for each one of bf16


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"formats": ()}, "not none"),
        ({"formats": ("fp16", "fp12")}, "not fp12"),
        ({"value": float("nan")}, "a finite value, not nan"),
    ],
)
def test_a_number_line_that_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        number_line(**wrong)


# ----------------------------------------------------------------------------- gradients


def some_gradients(seed: int = 0) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    sizes = 10 ** torch.empty(5000).uniform_(-10, 6, generator=draws)
    return [sizes[:3000].reshape(30, 100), -sizes[3000:], torch.zeros(7)]


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_shares_are_what_a_cast_makes_of_them(scale: float) -> None:
    gradients = some_gradients()
    figure = gradient_ranges(gradients, scale)
    sizes = torch.cat([one.reshape(-1) for one in gradients[:2]]).abs() * scale
    cast, smallest = sizes.half(), torch.finfo(torch.float16).smallest_normal
    wanted = {
        "becomes 0": cast == 0,
        "subnormal": (cast > 0) & (sizes < smallest),
        "normal": (sizes >= smallest) & cast.isfinite(),
        "overflows": cast.isinf(),
    }
    for kind, chosen in wanted.items():
        heights = sum(each.get_height() for each in boxes(figure, kind))
        assert heights == pytest.approx(100 * chosen.float().mean().item())
        assert f"{100 * chosen.double().mean().item():.3g} % {kind}" in figure.alt_text
    assert "5,000 gradients, and 7 that are 0 already" in figure.alt_text


def test_bars_are_above_their_powers_of_two() -> None:
    figure = gradient_ranges([np.array([1.5 * 2.0**-3, 2.0**-3, 0.9 * 2.0**-3, 2.0**-26])])
    found = {round(each.get_x() - 0.05): each.get_height() for each in boxes(figure, "normal")}
    assert found == {-3: 50.0, -4: 25.0}
    (gone,) = boxes(figure, "becomes 0")
    assert (round(gone.get_x() - 0.05), gone.get_height()) == (-26, 25.0)
    own, other = (lines(figure)[f"range {name}"].get_xdata() for name in ("fp16", "bf16"))
    assert list(own) == [-14, 16]
    assert list(other) == [-126, 128]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"gradients": []}, "nothing to draw"),
        ({"gradients": [np.zeros(3)]}, "nothing to draw"),
        ({"gradients": [np.ones(3)], "scale": 0.0}, "a scale above 0, not 0"),
        ({"gradients": [np.ones(3)], "name": "fp12"}, "not fp12"),
    ],
)
def test_gradients_that_cannot_be_drawn_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        gradient_ranges(**wrong)


# ---------------------------------------------------------------------------- loss scale


def test_stairs_are_the_scales_and_crosses_the_skipped_steps() -> None:
    scales, skipped = [16.0, 16.0, 8.0, 4.0, 4.0, 8.0], [False, True, True, False, False, True]
    figure = loss_scale_chart(scales, skipped, note="by hand")
    xs, ys = lines(figure)["predicted loss scale"].get_data()
    for step, scale in enumerate(scales, 1):
        inside = [y for x, y in zip(xs, ys, strict=True) if abs(x - step) <= 0.5 and y == scale]
        assert len(inside) >= 2
    crosses = [line.get_data() for axes in figure.axes for line in axes.lines
               if line.get_gid() == "skipped"]  # fmt: skip
    assert [(*x, *y) for x, y in crosses] == [(2, 16.0), (3, 8.0), (6, 8.0)]
    assert "by hand; a cross: overflow, the step is skipped (3 of 6)" in figure.alt_text
    assert "2^4 in step 1, 2^3 in step 6. Skipped: 2, 3, 6." in figure.alt_text
    assert "No step is skipped" in loss_scale_chart([2.0], [False]).alt_text


@pytest.mark.parametrize(("scales", "skipped"), [([], []), ([1.0], []), ([0.0], [False])])
def test_scales_that_cannot_be_are_refused(scales: list[float], skipped: list[bool]) -> None:
    with pytest.raises(ValueError, match="loss_scale_chart"):
        loss_scale_chart(scales, skipped)


# --------------------------------------------------------------------------- activations

S, B, H, A = 128, 2, 64, 4
SWITCHES: list[tuple[dict[str, Any], float]] = [
    ({}, 34 + 5 * A * S / H),
    ({"dropout": False}, 32 + 2 * A * S / H),
    ({"fused_attention": True}, 34),
    ({"dropout": False, "fused_attention": True}, 32),
    ({"recompute": "selective"}, 34),
    ({"recompute": "full"}, 2),
    ({"recompute": "full", "dropout": False, "fused_attention": True}, 2),
]


@pytest.mark.parametrize(("switches", "factor"), SWITCHES)
def test_pieces_add_up_to_the_formula(switches: dict[str, Any], factor: float) -> None:
    pieces = activation_pieces(S, B, H, A, **switches)
    assert sum(pieces.values()) == S * B * H * factor
    figure = activation_bars(S, B, H, A, **switches)
    widths = {name: boxes(figure, name)[0].get_width() for name in pieces}
    for name, width in widths.items():
        share = pieces[name] / sum(pieces.values())
        assert width / sum(widths.values()) == pytest.approx(share)


def test_measured_bytes_have_their_bar() -> None:
    figure = activation_bars(S, B, H, A, dropout=False, measured=3e5)
    (bar,) = boxes(figure, "measured")
    (norms, _) = boxes(figure, "inputs of the norms")
    share = bar.get_width() / norms.get_width()
    assert share == pytest.approx(3e5 / (4 * S * B * H))
    formula = S * B * H * (32 + 2 * A * S / H)
    assert f"Measured 300 kB, {3e5 / formula:.3g} times the formula." in figure.alt_text


@pytest.mark.parametrize(
    "wrong", [{"num_heads": 0}, {"num_heads": 3}, {"recompute": "some"}, {"measured": -1.0}],
)  # fmt: skip
def test_a_layer_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        activation_bars(**wrong)


# ------------------------------------------------------------------------------- display

RUN = [2.0**24 / 2**step for step in range(13)] + [2.0**12] * 187
SOME_OF_EACH = {
    "number": number_line,
    "number, above fp16": lambda: number_line(70_000.0),
    "number, below fp16": lambda: number_line(1e-30),
    "number, 0": lambda: number_line(0.0, ("fp16",)),
    "number, negative": lambda: number_line(-3.14159, ("fp32", "tf32", "fp16", "bf16")),
    "gradients": lambda: gradient_ranges(some_gradients()),
    "gradients, scaled": lambda: gradient_ranges(some_gradients(), 2.0**30, "fp8 e5m2"),
    "gradients, alike": lambda: gradient_ranges([np.ones(3)], 3.0, beside=("fp16",)),
    "scale": lambda: loss_scale_chart(RUN, [True] * 12 + [False] * 188, note="measured"),
    "scale, one step": lambda: loss_scale_chart([65_536.0], [True]),
    "activations": activation_bars,
    "activations, measured": lambda: activation_bars(dropout=False, measured=5.5e8),
    "activations, full": lambda: activation_bars(16_384, 1, 8192, 64, recompute="full"),
    "activations, tiny": lambda: activation_bars(1, 1, 1, 1, measured=0),
}


@pytest.mark.parametrize("name", SOME_OF_EACH)
def test_figures_have_a_title_and_words_that_lie_apart(name: str) -> None:
    check_layout(SOME_OF_EACH[name]())


@pytest.mark.slow
def test_explorers_draw_what_their_controls_say() -> None:
    line = explore_number_line()
    line.controls["value"].value = 2049.0
    assert line.figure.alt_text == number_line(2049.0).alt_text
    gradients = explore_gradients(iter(some_gradients()))
    gradients.controls["exponent"].value = 12
    assert gradients.figure.alt_text == gradient_ranges(some_gradients(), 2.0**12).alt_text
    gradients.controls["exponent"].field.value = "2^3"
    assert "times 2^3" in gradients.figure.alt_text
    layers = explore_activations()
    set_to = {"sequence_length": 4096, "num_heads": 32, "dropout": False, "recompute": "selective"}
    for name, value in set_to.items():
        layers.controls[name].value = value
    wanted = activation_bars(4096, 4, 2048, 32, dropout=False, recompute="selective")
    assert layers.figure.alt_text == wanted.alt_text


def test_bits_add_up_and_the_alt_text_has_the_range() -> None:
    figure = bit_layouts()
    assert len(figure.axes[0].patches) == 32 + 19 + 16 + 16 + 8 + 8
    assert "fp8 e4m3: exponent 4, mantissa 3 bits, from 0.00195 to 448" in figure.alt_text
    assert "fp16: exponent 5, mantissa 10 bits, from 5.96 × 10^-8 to 65,504;" in figure.alt_text
    with pytest.raises(KeyError):
        bit_layouts(["fp12"])
