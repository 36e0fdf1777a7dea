"""Crashing and hanging the notebook's process, leaving things behind, and breaking its tools.

The cells do it; the answers are right. A cell may lose its outputs and use up its time
limit once, but the answers keep their points.
"""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from tests.hostile.submissions import QUICK, Hostile, code, right_answer

__all__ = ["CATALOGUE"]

EVERYTHING = {"reduce_scatter": 8.0}
NOTHING = {"reduce_scatter": 0.0}
ENDED = "ended the notebook's process"
STILL_RUNNING = f"was still running after {QUICK.cell:g} s"
RIGHT = right_answer(2, "reduce_scatter")


def cell(name: str, tries: str, source: str, says: str = "", seconds: float = 15,
         **others: Any) -> Hostile:  # fmt: skip
    """A cell that does it, above a right answer, which earns all of its points."""
    told = [says] if says else []
    fields = {"earns": EVERYTHING, **others}
    return Hostile(name, tries, seconds=seconds, before=source, says=told, **fields)


def with_a_crash_above_the_answer(notebook: NotebookNode) -> NotebookNode:
    """Ends the process 1.5 s after the cell has started, above the answer."""
    source = "import os, time; time.sleep(1.5); os._exit(0)"
    notebook.cells.insert(2, new_code_cell(source, id="crash"))
    return notebook


CATALOGUE = [
    # Ending the process -------------------------------------------------------------------------
    cell("os._exit", "Ends the process in a cell.", "import os; os._exit(0)", ENDED),
    cell(
        "segmentation fault",
        "Reads memory that is not there.",
        "import ctypes; ctypes.string_at(0)",
        ENDED,
        quick=True,
    ),
    cell("SIGKILL", "Kills itself.", "import os; os.kill(os.getpid(), 9)", ENDED),
    cell(
        "kill everything",
        "Kills all processes that it may kill, then process 1, its parents, and itself.",
        """
        import os, signal
        for number in range(1, 200):
            for one in (signal.SIGTERM, signal.SIGKILL):
                try:
                    if number != os.getpid():
                        os.kill(number, one)
                except OSError:
                    pass
        os.kill(-1, signal.SIGKILL)
        """,
    ),
    cell(
        "stop everything",
        "Stops all processes that it may stop, itself last: they neither run nor end.",
        """
        import os, signal
        os.kill(-1, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        """,
    ),
    cell("exit", "Leaves by exit() and quit().", "exit()\nquit()"),
    cell("SystemExit", "Raises SystemExit.", "raise SystemExit(0)", "SystemExit"),
    cell("KeyboardInterrupt", "Raises it.", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    Hostile(
        "an end at the end",
        "Ends the process in the last cell, when all is done.",
        EVERYTHING,
        15,
        after="import os; os._exit(0)",
        says=[ENDED],
    ),
    # Not ending ---------------------------------------------------------------------------------
    cell("a loop", "Does not end.", "while True: pass", STILL_RUNNING, quick=True),
    cell(
        "deaf to signals",
        "Ignores all signals that can be ignored, catches every exception, and continues.",
        """
        import signal, time
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
        """,
        STILL_RUNNING,
    ),
    cell(
        "a loop in an import",
        "Writes a module that does not end, and imports it.",
        """
        import os, sys
        open("endless.py", "w").write("while True: pass")
        sys.path.append(os.getcwd())
        import endless
        """,
        STILL_RUNNING,
    ),
    cell(
        "a loop in a repr",
        "Shows an object whose repr does not end.",
        """
        class Endless:
            def __repr__(self):
                while True: pass
        Endless()
        """,
        STILL_RUNNING,
    ),
    cell(
        "a loop in an exception",
        "Raises an exception whose text does not end.",
        """
        class Endless(Exception):
            def __str__(self):
                while True: pass
        raise Endless
        """,
        STILL_RUNNING,
    ),
    cell("a question", "Asks the user for input.", 'input("your name: ")'),
    cell("a sleeping shell", "Waits for a command of the shell.", "!sleep 600"),
    cell(
        "a hang when it is run again",
        "Crashes in one cell, and hangs in one above when that is run again after the crash.",
        "import time\nif time.time() > @later@: time.sleep(600)",
        edit=with_a_crash_above_the_answer,
    ),
    Hostile(
        "a loop in a pickle",
        "Hands in an object whose pickling does not end.",
        NOTHING,
        30,
        answers={
            "reduce_scatter": """
                class Endless:
                    def __call__(self, *_): pass
                    def __reduce__(self):
                        while True: pass
                reduce_scatter = Endless()
                """
        },
        says=["could not be taken from the notebook"],
    ),
    Hostile(
        "an end in a pickle",
        "Hands in an object whose pickling ends the process.",
        NOTHING,
        15,
        answers={
            "reduce_scatter": """
                import os
                class Exit:
                    def __call__(self, *_): pass
                    def __reduce__(self): os._exit(0)
                reduce_scatter = Exit()
                """
        },
        says=["could not be taken from the notebook"],
    ),
    # Leaving things behind ----------------------------------------------------------------------
    cell(
        "a daemon",
        "Leaves a daemon in a new session, whose parent has ended.",
        """
        import os, signal, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                while True: time.sleep(60)
            os._exit(0)
        """,
        quick=True,
    ),
    cell(
        "threads",
        "Starts 50 threads that never end, and handlers for the end that do not end either.",
        """
        import atexit, threading, time
        for _ in range(50):
            threading.Thread(target=time.sleep, args=(600,)).start()
        atexit.register(time.sleep, 600)
        """,
    ),
    # Breaking the tools -------------------------------------------------------------------------
    cell(
        "a child that writes to stderr",
        "Has a child process write to stderr, and warns: plain nbgrader gives 0 points for it.",
        """
        import subprocess, sys, warnings
        subprocess.run([sys.executable, "-S", "-c", "import sys; sys.stderr.write('hm')"])
        warnings.warn("careful")
        print("hm", file=sys.stderr)
        """,
        "careful",
        quick=True,
    ),
    cell(
        "all descriptors closed",
        "Closes all file descriptors, that to the grader too.",
        "import os; os.closerange(0, 1024)",
        ENDED,
    ),
    cell(
        "modules taken away",
        "Empties sys.modules and the built-in functions.",
        """
        import builtins, sys
        for name in [name for name in sys.modules if name not in ("sys", "builtins")]:
            del sys.modules[name]
        sys.stdout = sys.stderr = None
        for name in ("print", "isinstance", "getattr", "len"):
            delattr(builtins, name)
        """,
        ENDED,
    ),
    cell(
        "no working folder",
        "Deletes the folder that it works in, and goes nowhere.",
        """
        import os, shutil
        os.mkdir("/tmp/nowhere")
        os.chdir("/tmp/nowhere")
        os.rmdir("/tmp/nowhere")
        shutil.rmtree(os.path.expanduser("~"), ignore_errors=True)
        """,
    ),
    Hostile(
        "IPython turned off",
        "Takes away what runs the cells below: they are its own.",
        NOTHING,
        15,
        before="""
            shell = get_ipython()
            shell.run_cell = shell.run_cell_async = shell.compile = None
            """,
        says=["reduce_scatter is not defined when this cell is reached"],
    ),
    Hostile(
        "shell and magics in an answer",
        "Uses the shell and a magic in the cell of a right answer, as people do.",
        EVERYTHING,
        15,
        answers={"reduce_scatter": code("!echo a line of the shell\n%pwd", RIGHT)},
        says=["a line of the shell"],
    ),
]
