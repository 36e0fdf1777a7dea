"""Draws settings of the models in Level III. `measured` documents the keys of a setting."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from dtlab.predict.units import counted

__all__ = ["KINDS", "PLAN", "Setting", "draw_setting", "setting_words"]

Setting = dict[str, Any]

PLAN: Final = {"clear": "after step", "microbatches": 1, "checkpoint": False}
_PLAIN: Final = {"samples": 1, "dtype": "fp32", "optimizer": "SGD", "frozen": 0} | PLAN
KINDS: Final = ("activations", "states", "weights", "late", "frozen", "checkpointed")


def draw_setting(draw: Random, kind: str) -> Setting:
    """Draw the setting of a model; `kind` names the feature that shapes its memory use."""
    inner = [16 * draw.randint(5, 10) for _ in range(draw.randint(2, 4))]
    widths = [16 * draw.randint(3, 6), *inner, 16 * draw.randint(1, 3)]
    adam = {"optimizer": "Adam"}
    more: dict[str, Setting] = {
        "activations": {"batch": 16 * draw.randint(12, 24)},
        "states": {"batch": 16 * draw.randint(12, 20)} | adam,
        "weights": {"batch": draw.randint(1, 4), "dtype": draw.choice(("fp32", "bf16"))} | adam,
        "late": {"batch": 16 * draw.randint(4, 9), "clear": "before backward"},
        "frozen": {
            "batch": 16 * draw.randint(5, 9),
            "widths": [widths[0], 16 * draw.randint(24, 40), 16 * draw.randint(2, 4), widths[-1]],
            "frozen": 2,
        },
        "checkpointed": {
            "batch": 16 * draw.randint(8, 24),
            "checkpoint": True,
            "dtype": draw.choice(("fp32", "bf16")),
            "optimizer": draw.choice(("Adam", "SGD")),
        },
    }
    return _PLAIN | {"widths": widths} | more[kind]


def setting_words(setting: Mapping[str, Any]) -> str:
    """A setting as text."""
    parts = [
        f"widths {', '.join(map(str, setting['widths']))}",
        counted(setting["batch"], "row"),
        f"{setting['dtype']}",
        f"{setting['optimizer']}",
        f"gradients cleared {setting['clear'].replace('step', 'each step')}",
    ]
    if setting["frozen"]:
        parts.append(f"the first {setting['frozen']} layers frozen")
    if setting["checkpoint"]:
        parts.append("all layers but the last are checkpointed")
    return "; ".join(parts)
