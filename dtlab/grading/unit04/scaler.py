"""Level II of unit 04, the loss scaler, in three steps.

`scaled_backward` (its runs in `scaling`), `update_scale`, and the whole in `loss_scaler` (its runs
in `steps`).
"""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit04.loss_scaler import LOSS_SCALER
from dtlab.grading.unit04.scaled_backward import SCALED_BACKWARD
from dtlab.grading.unit04.update_scale import UPDATE_SCALE

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (SCALED_BACKWARD, UPDATE_SCALE, LOSS_SCALER)
