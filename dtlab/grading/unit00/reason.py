"""Level I of unit 00: strategies, efficiency and memory worked out by hand."""

from __future__ import annotations

from dtlab.grading.parts import Part, reason_part
from dtlab.grading.unit00.efficiency_needed import EFFICIENCY
from dtlab.grading.unit00.memory_moments import MEMORY_MOMENTS
from dtlab.grading.unit00.scenarios import FIVE_SCENARIOS, SCENARIOS

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    reason_part("00/scenarios", "Three jobs", 5, 1, SCENARIOS),
    reason_part("00/efficiency", "Nineteen days in five", 8, 2, EFFICIENCY),
    reason_part("00/memory_moments", "What lies in memory, and when", 7, 2, MEMORY_MOMENTS),
    reason_part("00/five_scenarios", "Five jobs of your own", 10, 3, FIVE_SCENARIOS),
)
