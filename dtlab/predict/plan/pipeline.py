"""The seconds of a pipeline's step in closed form, as the simulator of schedules gives them.

    p ranks, m microbatches, v chunks on each rank; c: seconds of a message, which occupies no rank

    S: a microbatch on any rank but the last; L: on the last one, which has the output head too

    GPipe        sum of F + (m-1) max F  +  sum of B + (m-1) max B  +  2(p-1) c
    1F1B         (m+p-1) S + 2c (p+m-2 - ceil((m-1)/p))                                  if L = S
    interleaved  max(m L + (p-1) S/v, m S + (p-2) S/v) + 2(vp-1) c
    ZB-H1        m S + (p-1) (F+I-W) + 4(p-1) c                         if L = S, m > p, 2c <= W

A step takes as long as its longest path through actions and messages. Under 1F1B a path goes down
from some rank to the last one, as forwards, and up again, as backwards. A path over i ranks
advances by i microbatches and waits for 2(i-1) messages. So 1F1B exposes messages throughout the
step. Interleaving starts more forwards early, and ZB-H1 delays W; both hide these messages
behind other work, and expose only those at the start and at the end.

`tests/test_plan.py` compares the formulas with the simulator, on 200 random plans. GPipe is exact,
and 1F1B within 1 %. ZB-H1 is within 1 % and the interleaved schedule exact if the last rank is not
faster than the others, and a message takes no longer than a chunk's F, or half of its B. Otherwise
ZB-H1 is within 10 %, and the interleaved schedule within 5 %, or, if a message takes longer than
a chunk's F, within 20 %.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Work", "pipeline_seconds"]


class Work(NamedTuple):
    """Seconds of one microbatch on one rank; a whole backward takes I + W. Numbers or arrays."""

    forward: Any
    backward_input: Any
    backward_weight: Any

    @property
    def chain(self) -> Any:
        """Seconds for which the next rank, and then the previous one, must wait: F + I."""
        return self.forward + self.backward_input

    @property
    def backward(self) -> Any:
        """Seconds of a whole backward: I + W."""
        return self.backward_input + self.backward_weight

    @property
    def total(self) -> Any:
        """All seconds: F + I + W."""
        return self.chain + self.backward_weight


def pipeline_seconds(
    schedule: str, ranks: Any, microbatches: Any, chunks: Any, work: Work, last: Work, message: Any
) -> Any:
    """Return the seconds from the first forward to the end of the last backward on any rank.

    `work` is that of each rank but the last, with all its chunks. A message, in seconds, goes to
    the next stage or to the previous one. All arguments but `schedule` may be arrays.
    """
    p, m, v = ranks, microbatches, chunks
    seconds = {
        "gpipe": lambda: _gpipe(p, m, work, last, message),
        "1f1b": lambda: _one_f_one_b(p, m, work, last, message),
        "interleaved": lambda: _interleaved(p, m, v, work, last, message),
        "zb_h1": lambda: _zb_h1(p, m, work, last, message),
    }[schedule]()
    return np.where(p == 1, m * last.total, seconds)


def _gpipe(p: Any, m: Any, work: Work, last: Work, c: Any) -> Any:
    """Return the time of GPipe: two sweeps over the ranks, each at the pace of its slowest."""
    slowest = np.maximum(work.forward, last.forward) + np.maximum(work.backward, last.backward)
    return (p - 1) * (work.total + 2 * c) + last.total + (m - 1) * slowest


def _one_f_one_b(p: Any, m: Any, work: Work, last: Work, c: Any) -> Any:
    """Return the time of 1F1B: the longest path, as pieces that go down and up over some ranks.

    The pieces of a path go over m + p - 1 ranks together, and each over at most p. So there are at
    least (m+p-1)/p pieces. Fewer pieces contain more messages. If the last rank is fast, only two
    pieces must contain it, and the others turn around on the rank before it, over at most p - 1.
    """
    s, el = work.total, last.total
    total = m + p - 1
    pieces = -(-total // p)

    def path(on_last: Any, ranks: Any) -> Any:
        """Return the time of paths of which `on_last` pieces contain the last rank."""
        others = -(-np.maximum(ranks - p * on_last, 0) // np.maximum(p - 1, 1))
        return ranks * s - on_last * (s - el) + 2 * c * (ranks - on_last - others)

    seconds = np.maximum(path(pieces, total), m * el + (p - 1) * (s + 2 * c))
    # As few pieces on a fast last rank as possible, or one less than all pieces.
    fast = (el < s) & (m > 1)
    for on_last in (2, 2 + (total - 2) % np.maximum(p - 1, 1), pieces - 1):
        possible = fast & (on_last >= 2) & (on_last < pieces)
        seconds = np.where(possible, np.maximum(seconds, path(on_last, total)), seconds)
    # At its start or end a path may pass the rank before the last twice, as F F or as B B.
    ends = path(0, total - 2) + s, path(1, total - 1) + np.maximum(work.forward, work.backward)
    return np.where(fast, np.maximum(seconds, np.maximum(*ends)), seconds)


def _interleaved(p: Any, m: Any, v: Any, work: Work, last: Work, c: Any) -> Any:
    """Return the time of the interleaved schedule, for microbatches in groups of p.

    Work and the last rank's output head are the only differences between ranks: its chunks but
    the last are as those of the others. A message that takes longer than a chunk's forward delays
    each group of microbatches.
    """
    chunk = work.total / v
    busy = np.maximum(m * last.total + (p - 1) * chunk, m * work.total + (p - 2) * chunk)
    late = np.maximum(
        v * np.maximum(c - chunk / 2, 0), (v - 1) * np.maximum(c - work.forward / v, 0)
    )
    return busy + 2 * (v * p - 1) * c + (m - p) * late


def _zb_h1(p: Any, m: Any, work: Work, last: Work, c: Any) -> Any:
    """Return the time of ZB-H1: paths as those of 1F1B, of F and I, which contain some W."""
    found = _zero_bubble_path(p, m, work, last, c)
    alike = _zero_bubble_path(p, m, work, work, c)  # a fast last rank saves at most F + I - W
    saved = np.minimum(work.chain - last.chain, work.chain - work.backward_weight)
    fast = (last.chain < work.chain) & (m > 1)
    return np.where(fast, np.maximum(found, alike - saved), found)


def _zero_bubble_path(p: Any, m: Any, work: Work, last: Work, c: Any) -> Any:
    """Return the longest of some paths: few pieces, a long one and short ones, only short ones.

    A piece over one rank contains a W, so it hides two messages of W/2. The first p - 1 pieces on
    the last rank have none, because that rank delays each W by p - 1 microbatches.
    """
    w, hop = work.backward_weight, work.chain + 2 * c
    on_last, w_last = last.chain, last.backward_weight
    down = (p - 1) * hop
    pieces = -(-(m - 1) // p)
    few = (1 + pieces) * (on_last + w) + (p + m - 2 - pieces) * hop
    long_first = 2 * (down + w) + (m - p + 1) * on_last + (m - p - 1) * w_last
    short = down + w + m * on_last + (m - p) * w_last
    many = np.maximum(np.maximum(few, long_first), short)
    start = down + w + np.maximum(m * on_last, (m > 1) * ((m - 2) * hop + on_last) + on_last)
    return np.maximum(np.where(m > p, many, start), (p - 1) * (work.forward + c) + m * last.total)
