"""Using up processes, memory, disks, outputs, and the judge's own memory."""

from __future__ import annotations

from tests.hostile.catalogue_crashes import ENDED, STILL_RUNNING, cell
from tests.hostile.submissions import Hostile, code, right_answer

__all__ = ["CATALOGUE"]

NOTHING = {"reduce_scatter": 0.0}  # after a forged message to the grader, no answer can be fetched
NOT_TAKEN = "could not be taken from the notebook"
NO_RESULTS = {"results": 0.0}

# The line to the grader: the other socket, with a lower number, is that to the server of ranks.
GRADER = """
    import gc, socket
    from dtlab.ranks import protocol
    from dtlab.ranks.plain import encode
    from dtlab.ranks.transport import send_frame

    sockets = [one for one in gc.get_objects() if isinstance(one, socket.socket)]
    grader = max(sockets, key=socket.socket.fileno)
    """

CATALOGUE = [
    # Using up resources ------------------------------------------------------------------------
    cell(
        "fork bomb",
        "Forks as long as it can, each child in a new session, ignoring signals.",
        """
        import os, signal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            try:
                if os.fork() == 0:
                    os.setsid()
            except OSError:
                pass
        """,
        STILL_RUNNING,
        seconds=60,  # waiting for a busy CPU does not count
    ),
    cell(
        "fork and leave",
        "Forks as long as it can, and each parent ends, before it can be killed.",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        while True:
            if libc.fork() > 0:
                libc._exit(0)
        """,
        ENDED,
        seconds=25,
    ),
    cell(
        "memory",
        "Takes memory until there is none.",
        """
        hog = []
        while True:
            hog.append(bytearray(1 << 26))
        """,
        seconds=25,
    ),
    cell(
        "memory of children",
        "Has children take memory until there is none: each has a separate limit.",
        """
        import os, time
        for _ in range(3):
            if os.fork() == 0:
                hog = [bytearray(1 << 20) for _ in range(3000)]
                time.sleep(600)
        while True: time.sleep(1)
        """,
        seconds=25,
    ),
    cell(
        "disk",
        "Fills every folder that it may write to, with one large file and with many small ones.",
        """
        import os
        for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")):
            try:
                with open(f"{folder}/large", "wb") as file:
                    while True: file.write(bytes(1 << 24))
            except OSError as error:
                print(folder, error.strerror)
            try:
                for number in range(50_000): open(f"{folder}/{number}", "w").close()
            except OSError as error:
                print(folder, error.strerror)
        """,
        "/dev/shm",
        seconds=25,
    ),
    cell("endless output", "Prints without end.", "while True: print('x' * 1000)", STILL_RUNNING),
    cell(
        "50 MB of output",
        "Prints 50 MB, half of it to stderr, and shows 200 large tables.",
        """
        import sys
        from IPython.display import HTML, display
        for _ in range(25):
            print("x" * 1_000_000)
            print("y" * 1_000_000, file=sys.stderr)
        for _ in range(200):
            display(HTML("z" * 100_000))
        """,
        "more characters",
    ),
    cell(
        "60 figures",
        "Shows more figures than are kept.",
        """
        import matplotlib.pyplot as plt
        for _ in range(60):
            plt.figure(figsize=(0.2, 0.2))
            plt.show()
        """,
        seconds=25,
    ),
    cell(
        "a huge exception",
        "Raises an exception of 50 MB, of a class with a name of 10 MB.",
        'raise type("A" * 10_000_000, (Exception,), {})("x" * 50_000_000)',
    ),
    cell(
        "deep recursion",
        "Calls itself, with no limit.",
        """
        import sys
        sys.setrecursionlimit(10**9)
        def deeper(): return deeper()
        deeper()
        """,
    ),
    cell(
        "half a sign",
        "Prints, shows and raises a lone surrogate, which no file can hold.",
        r"""
        print("\ud800")
        raise ValueError("\udfff")
        """,
        quick=True,
    ),
    # Talking to the grader in the notebook's name -----------------------------------------------
    cell(
        "nonsense to the grader",
        "Writes bytes without sense to the grader's line.",
        code(GRADER, "import os; grader.sendall(os.urandom(10_000))"),
        ENDED,
    ),
    cell(
        "100 MB to the grader",
        "Writes outputs of 100 MB to the grader's line, past all limits of its process.",
        code(
            GRADER,
            """
            one = {"output_type": "stream", "name": "stdout", "text": "x" * 10_000_000}
            send_frame(grader, protocol.DONE, encode([one] * 10))
            """,
        ),
        ENDED,
    ),
    cell(
        "a list of 40 million lists",
        "Writes 40 MB to the grader's line that become gigabytes where they are opened.",
        code(
            GRADER,
            r"""
            bomb = b"\xdd" + (40_000_000).to_bytes(4, "big") + b"\x90" * 40_000_000
            send_frame(grader, protocol.DONE, bomb)
            """,
        ),
    ),
    cell(
        "outputs of no kind",
        "Writes outputs to the grader's line that no notebook can have.",
        code(
            GRADER,
            r"""
            odd = [{}, {"output_type": 7}, {"output_type": "stream", "text": ["\ud800", 5]},
                   {"output_type": "error", "ename": [], "evalue": None, "traceback": [[], 5]},
                   {"output_type": "display_data", "data": {"text/plain": 5, 7: 8, "x": []}},
                   {"output_type": "display_data", "data": [1], "metadata": 5}]
            send_frame(grader, protocol.DONE, encode(odd))
            """,
        ),
        NOT_TAKEN,
        earns=NOTHING,
    ),
    # Answers that are too large to read ---------------------------------------------------------
    Hostile(
        "an answer of 50 MB",
        "Answers with a name of 50 MB, and with 200 000 unknown names.",
        NO_RESULTS,
        15,
        answers={
            "results": 'results = {"k" * 50_000_000: 0} | {f"k{i}": 0 for i in range(200_000)}'
        },
    ),
    Hostile(
        "an id of 50 MB",
        "Types an id of 50 MB.",
        NO_RESULTS,
        15,
        answers={"results": 'results = {}\nlearner = "x" * 50_000_000'},
    ),
    Hostile(
        "lists in lists in lists",
        "Answers with a list that is 450 lists deep.",
        NO_RESULTS,
        15,
        answers={
            "results": """
                deep = []
                for _ in range(450): deep = [deep]
                results = {"gather": deep}
                """
        },
    ),
    Hostile(
        "diagnoses of no kind",
        "Answers with an array and an infinite number where a number and a row are asked for.",
        {"fix_4": 4.0, "fix_5": 4.0},
        25,
        answers={
            "fix_4": code(
                right_answer(3, "fix_4"),
                """
                import numpy

                fix_4["diagnosis"] = {"ranks": numpy.ones(3), "top": {0: 3}}
                """,
            ),
            "fix_5": code(
                right_answer(3, "fix_5"),
                'fix_5["diagnosis"] = {"bytes": 40, "summed": [(float("inf"), 1)]}',
            ),
        },
    ),
]
