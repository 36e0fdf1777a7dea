"""The shallow water of 08/field_budget: its start, cut anywhere, and its run in one process.

This file imports torch, so it is imported only when a check runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtlab.parallel.domain import shallow_water_step

__all__ = ["one_process", "start_of"]

_BAND = 64  # rows at a time, so that a large field needs little more memory than its result


def start_of(setting: Mapping[str, Any], rows: range, columns: range) -> Tensor:
    """Return some rows and columns of the start: [3, rows, columns], the depth and two momenta.

    The water is at rest, and 1 deep but for some humps.
    """
    y = torch.arange(rows.start, rows.stop, dtype=torch.float64).unsqueeze(1) / setting["rows"]
    x = torch.arange(columns.start, columns.stop, dtype=torch.float64) / setting["columns"]
    tile = torch.zeros(3, len(rows), len(columns), dtype=torch.float64)
    tile[0] = 1
    for centre_y, centre_x, height in setting["humps"]:
        far_y, far_x = (-50 * (y - centre_y) ** 2).exp(), (-50 * (x - centre_x) ** 2).exp()
        tile[0].addcmul_(far_y, far_x, value=height)
    return tile


def one_process(setting: Mapping[str, Any]) -> Tensor:
    """Return the whole field after the last step."""
    height, width = setting["rows"], setting["columns"]
    field = start_of(setting, range(height), range(width))
    for _ in range(setting["steps"]):
        padded = F.pad(field.unsqueeze(0), (1, 1, 1, 1), "circular").squeeze(0)
        for first in range(0, height, _BAND):
            last = min(first + _BAND, height)
            field[:, first:last] = shallow_water_step(padded[:, first : last + 2], setting["dt"])
    return field
