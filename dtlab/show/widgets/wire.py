"""Widget for the wire: does communication hide behind compute?

explore_wire()    link, GPUs, tokens and bytes against exposed time and speed-up
"""

from __future__ import annotations

from typing import Final

from dtlab.show.figures.overlap import wire_step
from dtlab.show.widgets.dials import Dial, Scale, box, count_scale, rate_scale
from dtlab.show.widgets.explorer import Explorer
from dtlab.show.words import number_from_words

__all__ = ["explore_wire"]

_BANDWIDTHS: Final = (1.25e9, 5e9, 12.5e9, 25e9, 50e9, 100e9, 300e9, 450e9, 900e9)
_GPUS: Final = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS: Final = tuple(2**power for power in range(8, 21))


def explore_wire() -> Explorer:
    """Find out when the gradients of a data-parallel step hide behind compute. See `wire_step`.

    The dials start at 64 H100s, each with an adapter of 400 Gb/s, and at 16-bit gradients.
    """
    sizes = Scale((0.5, 1, 2, 4), "{:g}".format, lambda words: number_from_words(words, {}))
    dials = {
        "bandwidth": Dial("Bandwidth of a link", rate_scale(_BANDWIDTHS), 50e9),
        "num_gpus": Dial("Number of GPUs", count_scale(_GPUS), 64),
        "tokens": Dial("Tokens per GPU", count_scale(_TOKENS), 4096),
        "bytes_per_gradient": Dial("Bytes per gradient", sizes, 2),
    }
    overlaps = box("overlap with backward")
    rows = [each.widget for each in dials.values()], [overlaps]
    return Explorer(wire_step, dials | {"overlaps": overlaps}, rows)
