"""`%load_ext dtlab`: the `%%ranks` magic, which runs cells on a session's ranks.

    %%ranks             this cell runs on all ranks of the session
    %%ranks 0,2-3       on these
    %%ranks --timeout 120
    %ranks              what the session is
    %ranks open 4       another one, of four ranks; --cluster NAME: on an emulated cluster
    %ranks restart      fresh ranks
    %ranks close
"""

from __future__ import annotations

import ast
import shlex
from argparse import ArgumentParser
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

from dtlab.errors import LaunchError
from dtlab.ranks import session as sessions
from dtlab.ranks.session import Session

__all__ = ["RanksMagics", "load"]


def load(shell: Any) -> None:
    """Add the magics to a shell, and have ranks ready soon."""
    from dtlab.ranks.launch.client import SERVER

    shell.register_magics(RanksMagics)
    SERVER.share(sessions.IN_RANKS)
    SERVER.start()


@magics_class
class RanksMagics(Magics):  # type: ignore[misc]
    """`%%ranks` and `%ranks`."""

    @line_cell_magic  # type: ignore[untyped-decorator]
    def ranks(self, line: str, cell: str | None = None) -> Session | None:
        """%%ranks [RANKS] [--timeout SECONDS]: run this cell on ranks that stay.

        RANKS are numbers and spans, as in `0,2-3`; without them the cell runs on all. What it
        prints, and its last expression, are shown by rank; variables persist. The first cell opens
        a session of two ranks; `%ranks open 4`, or `dtlab.session(4)`, opens another.

        In a line of its own: `%ranks` says what the session is, `%ranks open 4 [--cluster NAME]`
        opens another, `%ranks restart` begins with fresh ranks, `%ranks close` ends them.
        """
        if cell is None:
            return self._line(shlex.split(line))
        asked = _cell_parser().parse_args(shlex.split(line))
        source = f"# %%ranks {line}\n{cell}"  # lines are counted as the learner sees them
        if cell.lstrip().startswith("%%"):
            source = cell.lstrip()  # another magic, which has to come first
        name = self._named(source)
        session = sessions.current() or self._new()
        chosen = _numbers(asked.ranks) if asked.ranks else None
        session.cell(source, ranks=chosen, timeout=asked.timeout, name=name)
        return None

    def _named(self, source: str) -> str:
        """The file that stands for a cell, in errors of any rank. Raises LaunchError."""
        transformed, compiler = self.shell.transform_cell(source), self.shell.compile
        # The cell that is running was compiled with its number; versions of IPython differ in
        # when they count on.
        number = max(compiler._filename_map.values(), default=self.shell.execution_count)
        name = compiler.cache(transformed, number, raw_code=source)
        try:
            compile(transformed, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
        except SyntaxError as error:
            where = f"line {error.lineno}:   {(error.text or '').strip()}"
            raise LaunchError(f"no rank can read this cell: {error.msg}\n  {where}") from None
        return str(name)

    def _new(self) -> Session:
        session = sessions.session()
        print(f"{session}; `%ranks open 4` opens another")
        return session

    def _line(self, words: list[str]) -> Session | None:
        asked = _line_parser().parse_args(words)
        session = sessions.current()
        if asked.what == "open":
            cluster = self._cluster(asked.cluster) if asked.cluster else None
            if session is not None:
                session.close()  # Out[3] may hold it
            return sessions.session(asked.world_size, cluster=cluster)
        if session is None:
            print("No session is open. `%ranks open 4` opens one, and so does the first %%ranks.")
        elif asked.what == "restart":
            session.restart()
        elif asked.what == "close":
            session.close()
        return session

    def _cluster(self, name: str) -> Any:
        try:
            return self.shell.user_ns[name]
        except KeyError:
            raise UsageError(f"%ranks: there is no {name!r} here: define the Cluster.") from None


class _Parser(ArgumentParser):
    """Raises what IPython shows as one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. `%ranks?` tells more.")


def _cell_parser() -> ArgumentParser:
    parser = _Parser("%%ranks", add_help=False)
    parser.add_argument("ranks", nargs="?", help="0,2-3; all where left out")
    parser.add_argument("--timeout", type=float, help="seconds")
    return parser


def _line_parser() -> ArgumentParser:
    parser = _Parser("%ranks", add_help=False)
    parser.add_argument("what", nargs="?", choices=["open", "restart", "close"])
    parser.add_argument("world_size", nargs="?", type=int)
    parser.add_argument("--cluster", help="name of a dtlab.Cluster")
    return parser


def _numbers(text: str) -> list[int]:
    """`0,2-3` as numbers of ranks."""
    found: list[int] = []
    try:
        for piece in text.split(","):
            first, _, last = piece.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        found = []
    if not found:
        raise UsageError(f"%%ranks: {text!r} names no ranks. Write 0, or 0,2-3, or nothing.")
    return found
