"""Widgets for pipelines and tensor-parallel blocks.

explore_pipeline()    the bubble by stages, microbatches, schedule, backward and messages
explore_block()       what a tensor-parallel block holds and sends on each rank
"""

from __future__ import annotations

from typing import Final

from dtlab.show.drawing.style import Figure
from dtlab.show.figures.layer import parallel_block
from dtlab.show.figures.pipeline import SCHEDULES, full_name, predicted_pipeline
from dtlab.show.widgets.dials import Dial, Scale, box, choice, choose, count_scale
from dtlab.show.widgets.explorer import Explorer
from dtlab.show.words import number_from_words

__all__ = ["explore_block", "explore_pipeline"]

_STAGES: Final = range(1, 9)
_MICROBATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_BACKWARD: Final = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
_MESSAGES: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)


def explore_pipeline(
    schedule: str = "1F1B", num_stages: int = 4, num_microbatches: int = 8
) -> Explorer:
    """Simulate a pipeline, alone or next to another schedule. See `predicted_pipeline`.

    The arguments are starting values. At first, backward takes twice as long as forward.
    """
    backward, messages = (Scale(values, lambda each: f"{each:g}", _plain)
                          for values in (_BACKWARD, _MESSAGES))  # fmt: skip
    dials = {
        "num_stages": Dial("Stages, a rank each", count_scale(_STAGES), num_stages),
        "num_microbatches": Dial("Microbatches", count_scale(_MICROBATCHES), num_microbatches),
        "backward": Dial("Backward / forward", backward, 2.0),
        "communication": Dial("Message / forward", messages, 0.0),
    }
    choices = {
        "schedule": choice("Schedule", list(SCHEDULES)),
        "beside": choice("Below it", ["nothing", *SCHEDULES]),
    }
    choose(choices["schedule"], full_name(schedule))
    rows = [each.widget for each in dials.values()], list(choices.values())
    return Explorer(predicted_pipeline, dials | choices, rows)


def _plain(words: str) -> float:
    return number_from_words(words, {})


# Tensor-parallel blocks --------------------------------------------------------------------------


def explore_block(num_heads: int = 4) -> Explorer:
    """Choose ranks, pass and sequence parallelism of a block. See `parallel_block`."""
    ranks = choice("Ranks", [str(each) for each in (2, 4, 3, 1) if num_heads % each == 0])
    direction = choice("Pass", ["forward", "backward"])
    sequence = box("Sequence parallelism", False)

    def draw(ranks: str, way: str, sequence: bool) -> Figure:
        return parallel_block(int(ranks), num_heads, sequence, way == "backward")

    controls = {"ranks": ranks, "way": direction, "sequence": sequence}
    return Explorer(draw, controls, [[ranks, direction, sequence]])
