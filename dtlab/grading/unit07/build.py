"""Level II of unit 07: schedules as lists, what they hold; the executor and the balancer."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit07.all_forward_first import GPIPE
from dtlab.grading.unit07.balancing import BALANCE_STAGES
from dtlab.grading.unit07.holding import PEAK_IN_FLIGHT
from dtlab.grading.unit07.in_turns import ONE_F_ONE_B
from dtlab.grading.unit07.running import RUN
from dtlab.grading.unit07.warming import WARM_UP

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (GPIPE, WARM_UP, ONE_F_ONE_B, PEAK_IN_FLIGHT, RUN, BALANCE_STAGES)
