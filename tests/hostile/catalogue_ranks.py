"""Crashing, hanging and flooding from a rank.

The answer itself does this. It loses the points of its part, and of no other part.
"""

from __future__ import annotations

from typing import Any

from tests.hostile.catalogue_channels import INSIDE
from tests.hostile.submissions import Hostile, code, right_answer

__all__ = ["CATALOGUE"]

NOTHING = {"reduce_scatter": 0.0}
EVERYTHING = {"reduce_scatter": 8.0}
RIGHT = right_answer(2, "reduce_scatter").replace("def reduce_scatter", "def right")
HANGS = "the ranks did not finish"

# What is tried on one rank need not be tried on five: a check has seven launches, and often twice.
ALONE = """
    def alone():
        if dist.get_world_size() > 1:
            raise ValueError("nothing here")
    """


def rank(name: str, tries: str, body: str, says: str = "", seconds: float = 20,
         **others: Any) -> Hostile:  # fmt: skip
    """What a rank does instead of an answer; `right` is the right one."""
    told = [says] if says else []
    answers = {"reduce_scatter": body}
    fields = {"earns": NOTHING, "before": code(INSIDE, ALONE, RIGHT), **others}
    return Hostile(name=name, tries=tries, seconds=seconds, answers=answers, says=told, **fields)


CATALOGUE = [
    # Ending and hanging -------------------------------------------------------------------------
    rank(
        "a rank that leaves",
        "Ends the process of a rank.",
        "def reduce_scatter(output, input, group=None): os._exit(0)",
        "left by os._exit(0)",
    ),
    rank(
        "a rank that crashes",
        "Reads memory that is not there.",
        """
        def reduce_scatter(output, input, group=None):
            import ctypes
            ctypes.string_at(0)
        """,
        "SIGSEGV",
    ),
    rank(
        "a rank that kills",
        "Kills whatever it may.",
        """
        def reduce_scatter(output, input, group=None):
            for number in range(1, 100):
                try:
                    os.kill(number, 9)
                except OSError:
                    pass
            os.kill(-1, 9)
        """,
    ),
    Hostile(
        "a rank that computes without end",
        "Does not end, which costs its own part only, and its time limit once.",
        {"reduce_scatter": 0.0, "ring_all_reduce": 10.0},
        20,
        answers={
            "reduce_scatter": """
                import signal

                def reduce_scatter(output, input, group=None):
                    for number in (signal.SIGINT, signal.SIGTERM):
                        signal.signal(number, signal.SIG_IGN)
                    while True: pass
                """
        },
        says=["still running"],
        quick=True,
    ),
    rank(
        "a rank that stops",
        "Stops itself, so that it can neither run nor say where it is.",
        """
        def reduce_scatter(output, input, group=None):
            os.kill(os.getpid(), 19)
        """,
        HANGS,
    ),
    rank(
        "a rank that waits",
        "Waits for a message that no rank sends.",
        """
        def reduce_scatter(output, input, group=None):
            dist.recv(output, src=(dist.get_rank() + 1) % dist.get_world_size())
        """,
        HANGS,
    ),
    rank(
        "a rank that sleeps",
        "Takes a third of a second for each call, and is right: slow is not wrong.",
        """
        def reduce_scatter(output, input, group=None):
            time.sleep(0.3)
            right(output, input, group)
        """,
        earns=EVERYTHING,
        seconds=30,
    ),
    # Using up resources ------------------------------------------------------------------------
    rank(
        "a rank's fork bomb",
        "Forks as long as it can.",
        """
        def reduce_scatter(output, input, group=None):
            while True:
                try:
                    if os.fork() == 0: os.setsid()
                except OSError:
                    pass
        """,
        HANGS,
        seconds=30,
    ),
    rank(
        "a rank's memory",
        "Takes memory until there is none.",
        """
        def reduce_scatter(output, input, group=None):
            hog = []
            while True: hog.append(torch.ones(1 << 24))
        """,
        seconds=60,
    ),
    rank(
        "a rank's output",
        "Prints 20 MB in each call, on both streams, and is right.",
        """
        def reduce_scatter(output, input, group=None):
            for _ in range(10):
                print("x" * 1_000_000)
                print("y" * 1_000_000, file=sys.stderr)
            right(output, input, group)
        """,
        earns=EVERYTHING,
        seconds=30,
    ),
    rank(
        "a rank's exception",
        "Raises an exception of 50 MB, of a class with a name of 10 MB.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            raise type("A" * 10_000_000, (Exception,), {})("x" * 50_000_000)
        """,
    ),
    rank(
        "a rank's daemon",
        "Leaves a daemon in a new session, and is right.",
        """
        def reduce_scatter(output, input, group=None):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    while True: time.sleep(60)
                os._exit(0)
            right(output, input, group)
        """,
        earns=EVERYTHING,
        seconds=30,
    ),
    rank(
        "a rank without descriptors",
        "Closes all file descriptors.",
        "def reduce_scatter(output, input, group=None): os.closerange(0, 1024)",
    ),
    rank(
        "half a sign from a rank",
        "Raises an exception with a lone surrogate in it.",
        r"""
        def reduce_scatter(output, input, group=None):
            raise ValueError("\ud800")
        """,
        "ValueError",
    ),
]
