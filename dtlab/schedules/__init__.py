"""Pipeline schedules as data: the order of each rank's actions.

    one_f_one_b(num_stages=3, num_microbatches=4)

            0   1   2   3   4   5   6   7   8   9  10  11
    rank 0 0F0 0F1 0F2         0B0 0F3 0B1     0B2     0B3
    rank 1     1F0 1F1     1B0 1F2 1B1 1F3 1B2     1B3
    rank 2         2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3

A schedule is a plain list of `Action` for each rank; `2F0` is stage 2, forward, microbatch 0. It
contains no times: the grid above is drawn as if every action took one slot.

actions.py      Action, Schedule, dependencies; runs a schedule slot by slot, draws it as text
generators.py   naive, GPipe, 1F1B, interleaved, zero-bubble H1 and H2
validation.py   finds every fault of a schedule, and marks it in the grid
"""

from dtlab.schedules.actions import Action as Action
from dtlab.schedules.actions import Schedule as Schedule
from dtlab.schedules.actions import as_schedule as as_schedule
from dtlab.schedules.actions import grid as grid
from dtlab.schedules.actions import stage_ranks as stage_ranks
from dtlab.schedules.generators import gpipe as gpipe
from dtlab.schedules.generators import interleaved as interleaved
from dtlab.schedules.generators import naive as naive
from dtlab.schedules.generators import one_f_one_b as one_f_one_b
from dtlab.schedules.generators import zb_h1 as zb_h1
from dtlab.schedules.generators import zb_h2 as zb_h2
from dtlab.schedules.validation import Fault as Fault
from dtlab.schedules.validation import ScheduleError as ScheduleError
from dtlab.schedules.validation import find_faults as find_faults
from dtlab.schedules.validation import validate as validate

__all__ = [
    "Action",
    "Fault",
    "Schedule",
    "ScheduleError",
    "as_schedule",
    "find_faults",
    "gpipe",
    "grid",
    "interleaved",
    "naive",
    "one_f_one_b",
    "stage_ranks",
    "validate",
    "zb_h1",
    "zb_h2",
]
