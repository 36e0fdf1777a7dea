"""IPython shells that run cells outside a kernel, for graded notebooks and for sessions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Show", "new_shell", "run", "show_figures"]

# A callback that gets a cell's rich output: the data by MIME type, and the metadata.
Show = Callable[[dict[str, Any], dict[str, Any]], None]


def new_shell(module: ModuleType | None = None, folder: str | None = None) -> InteractiveShell:
    """A shell without history that runs cells in the namespace of `module`.

    IPython's own files go to `folder`.
    """
    from IPython.core.compilerop import CachingCompiler
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Compiler(CachingCompiler):  # type: ignore[misc]
        """A compiler that takes the file name of a cell from `name`."""

        name = "<cell>"

        def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
            return self.name

    class Shell(InteractiveShell):  # type: ignore[misc]
        def enable_gui(self, gui: object = None) -> None:
            """Do nothing, because ranks have no GUI."""

        def showtraceback(self, *_: Any, **__: Any) -> None:
            """Do nothing: `run` returns the error to the caller."""

        showsyntaxerror = showtraceback

        def ask_exit(self) -> None:
            """Raise SystemExit for `exit()`, which ends a kernel."""
            raise SystemExit

        def system(self, command: str) -> None:
            """Run `!command` without a terminal; its output becomes output of the cell."""
            text = self.var_expand(command, depth=1)
            done = subprocess.run(
                text, shell=True, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
            sys.stdout.write(done.stdout.decode(errors="replace"))
            sys.stderr.write(done.stderr.decode(errors="replace"))
            self.user_ns["_exit_code"] = done.returncode

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "NoColor"
    if folder is not None:
        settings.InteractiveShell.ipython_dir = folder
    shell = Shell.instance(config=settings, user_module=module)
    shell.compile, shell.compiler_class = Compiler(), Compiler
    return shell


def run(shell: InteractiveShell, source: str, name: str, show: Show) -> BaseException | None:
    """Run a cell as file `name`, and return the exception that it raised, or None.

    `show` receives rich output; printed text goes to sys.stdout and sys.stderr.
    """
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher

    class Publisher(DisplayPublisher):  # type: ignore[misc]
        def publish(self, data: Any, metadata: Any = None, **_: Any) -> None:
            show(data, metadata or {})

        def clear_output(self, wait: bool = False) -> None:
            """Do nothing: output that has been shown stays."""

    def show_value(value: Any) -> None:
        if value is not None and not silent:
            shell.user_ns["_"] = value
            show(*shell.display_formatter.format(value))

    silent = DisplayHook.semicolon_at_end_of_expression(source)
    shell.compile.name = name
    shell.display_pub = Publisher()
    shell.display_trap.hook = show_value
    result = shell.run_cell(source, store_history=False)
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    shell.last_execution_result = None  # its error would keep the variables of its frames alive
    if error is not None:
        error.__traceback__ = _from_the_cell(error, name)
    return error


def _from_the_cell(error: BaseException, name: str) -> Any:
    """The traceback of an error without the shell's own frames, which come first."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != name:
        frame = frame.tb_next
    return frame or error.__traceback__


def show_figures(shell: InteractiveShell) -> None:
    """Show figures at the end of the cell that draws them, if matplotlib is installed."""
    with suppress(Exception):
        shell.enable_matplotlib("inline")
