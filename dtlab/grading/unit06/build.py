"""Level II of unit 06: the pair f and g, both linear layers, and the MLP between them."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit06.adding import G
from dtlab.grading.unit06.column import COLUMN
from dtlab.grading.unit06.copying import F
from dtlab.grading.unit06.heads import ATTENTION
from dtlab.grading.unit06.mlp import MLP
from dtlab.grading.unit06.row import ROW

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (F, G, COLUMN, ROW, MLP, ATTENTION)
