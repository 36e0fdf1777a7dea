"""Level I of unit 04: formats, bytes and checkpoints worked out by hand."""

from __future__ import annotations

from dtlab.grading.parts import Part, reason_part
from dtlab.grading.unit04.activation_bytes import ACTIVATION_BYTES
from dtlab.grading.unit04.checkpoint_spacing import CHECKPOINT_SPACING
from dtlab.grading.unit04.representable import REPRESENTABLE
from dtlab.grading.unit04.scaler_steps import SCALER_STEPS
from dtlab.grading.unit04.sixteen_bytes import SIXTEEN_BYTES

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    reason_part("04/representable", "What a format holds", 10, 2, REPRESENTABLE),
    reason_part("04/scaler_steps", "A loss scaler, step by step", 5, 2, SCALER_STEPS),
    reason_part("04/sixteen_bytes", "Which bytes are what", 5, 1, SIXTEEN_BYTES),
    reason_part("04/activation_bytes", "What a layer keeps", 5, 2, ACTIVATION_BYTES),
    reason_part("04/checkpoint_spacing", "Where checkpoints go", 5, 3, CHECKPOINT_SPACING),
)
