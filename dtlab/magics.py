"""IPython magics `%%ranks` and `%ranks`, which run cells on the ranks of a session.

    %%ranks             runs this cell on all ranks of the session
    %%ranks 0,2-3       runs it on these ranks
    %%ranks --timeout 120
    %ranks              shows the session
    %ranks open 4       opens a session of four ranks; --cluster NAME: on an emulated cluster
    %ranks restart      starts new ranks
    %ranks close        ends the ranks
"""

from __future__ import annotations

import ast
import re
import shlex
from argparse import ArgumentParser
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

from dtlab.errors import LaunchError, RankError
from dtlab.ranks import session as sessions
from dtlab.ranks.session import Session

__all__ = ["RanksMagics", "load"]

_UNDEFINED = re.compile(r"NameError: name '(\w+)' is not defined")


def load(shell: Any) -> None:
    """Register the magics in an IPython shell, and start the server that forks ranks."""
    from dtlab.ranks.launch.client import SERVER

    shell.register_magics(RanksMagics)
    SERVER.share(sessions.IN_RANKS)
    SERVER.start()


@magics_class
class RanksMagics(Magics):  # type: ignore[misc]
    """`%%ranks` and `%ranks`."""

    @line_cell_magic  # type: ignore[untyped-decorator]
    def ranks(self, line: str, cell: str | None = None) -> Session | None:
        """%%ranks [RANKS] [--timeout SECONDS]: run this cell on the ranks of a session.

        RANKS are numbers and ranges, as in `0,2-3`; without them the cell runs on all ranks. Its
        output and its last expression are shown for each rank; variables persist. The first cell
        opens a session of two ranks; `%ranks open 4`, or `dtlab.session(4)`, opens another.

        As a line magic, `%ranks` shows the session, `%ranks open 4 [--cluster NAME]` opens
        another, `%ranks restart` starts new ranks, and `%ranks close` ends them.
        """
        if cell is None:
            return self._line(shlex.split(line))
        options = _cell_parser().parse_args(shlex.split(line))
        source = f"# %%ranks {line}\n{cell}"  # keeps the learner's line numbers
        if cell.lstrip().startswith("%%"):
            source = cell.lstrip()  # another magic, which must come first
        name = self._named(source)
        session = sessions.current() or self._new()
        chosen = _numbers(options.ranks) if options.ranks else None
        try:
            session.cell(source, ranks=chosen, timeout=options.timeout, name=name)
        except RankError as error:
            matches = map(_UNDEFINED.match, [f.message for f in error.failures.values()])
            here = sorted({match[1] for match in matches if match} & self.shell.user_ns.keys())
            if here:
                error.args = (
                    f"{error}\n  The notebook defines {', '.join(here)}, but a session's ranks "
                    "do not see the notebook's variables. Write\n  %%ranks above that cell too.",
                )
            raise
        return None

    def _named(self, source: str) -> str:
        """The file name that stands for a cell in tracebacks. Raises LaunchError."""
        transformed, compiler = self.shell.transform_cell(source), self.shell.compile
        # The running cell was compiled with its number; IPython versions differ in when they
        # increment `execution_count`.
        number = max(compiler._filename_map.values(), default=self.shell.execution_count)
        name = compiler.cache(transformed, number, raw_code=source)
        try:
            compile(transformed, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
        except SyntaxError as error:
            where = f"line {error.lineno}:   {(error.text or '').strip()}"
            raise LaunchError(f"this cell has a syntax error: {error.msg}\n  {where}") from None
        return str(name)

    def _new(self) -> Session:
        session = sessions.session()
        print(f"{session}; `%ranks open 4` opens another")
        return session

    def _line(self, arguments: list[str]) -> Session | None:
        options = _line_parser().parse_args(arguments)
        session = sessions.current()
        if options.what == "open":
            cluster = self._cluster(options.cluster) if options.cluster else None
            if session is not None:
                session.close()  # also if Out[3], say, still refers to it
            return sessions.session(options.world_size, cluster=cluster)
        if session is None:
            print("No session is open. `%ranks open 4` opens one, and so does the first %%ranks.")
        elif options.what == "restart":
            session.restart()
        elif options.what == "close":
            session.close()
        return session

    def _cluster(self, name: str) -> Any:
        try:
            return self.shell.user_ns[name]
        except KeyError:
            raise UsageError(f"%ranks: no variable {name!r} here. Define the Cluster.") from None


class _Parser(ArgumentParser):
    """An argument parser whose errors IPython shows as one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. `%ranks?` shows the options.")


def _cell_parser() -> ArgumentParser:
    parser = _Parser("%%ranks", add_help=False)
    parser.add_argument("ranks", nargs="?", help="0,2-3; default: all ranks")
    parser.add_argument("--timeout", type=float, help="seconds")
    return parser


def _line_parser() -> ArgumentParser:
    parser = _Parser("%ranks", add_help=False)
    parser.add_argument("what", nargs="?", choices=["open", "restart", "close"])
    parser.add_argument("world_size", nargs="?", type=int)
    parser.add_argument("--cluster", help="name of a dtlab.Cluster")
    return parser


def _numbers(text: str) -> list[int]:
    """Parse ranks such as `0,2-3` into a list of integers."""
    ranks: list[int] = []
    try:
        for piece in text.split(","):
            first, _, last = piece.partition("-")
            ranks += range(int(first), int(last or first) + 1)
    except ValueError:
        ranks = []
    if not ranks:
        raise UsageError(f"%%ranks: {text!r} names no ranks. Write 0, or 0,2-3, or nothing.")
    return ranks
