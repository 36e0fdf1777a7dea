"""Runs a notebook's cells in a sandbox, one by one, in IPython.

    grader                             room
    (number, source)  ── CELL ──────►  run it in the notebook's namespace
    outputs           ◄── DONE ──────  as nbformat has them, bounded
    name              ── TAKE ──────►
    what it is        ◄── TAKEN ─────  plain data, with functions sealed: ranks open them

    doorkeeper ── fork ──► a server of the room's own, for the launches in cells
        │      └─ fork ──► the room
        └── ENDED ──► grader           how the room ended: on a line that the room does not have

The grader opens nothing of what comes from here but plain data. A cell that does not end is the
grader's to end, with all else behind the walls.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import setproctitle
import torch

from dtlab.ranks import cells, protocol, system
from dtlab.ranks.launch import client
from dtlab.ranks.plain import NotPlain, Opaque, Sealed, decode, encode
from dtlab.ranks.sandbox.walls import HOME, Walls, environment, step_behind
from dtlab.ranks.sandbox.warden import close_all_but
from dtlab.ranks.transport import Closed, pack, receive_frame, send_frame

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

KEPT_TEXT = 100_000  # characters of what a cell prints, on each of the two streams
KEPT_OUTPUTS = 50  # figures and tables that one cell shows
KEPT_BYTES = 4 * 2**20  # of all that one cell shows
MEMORY = 4 * 2**30  # bytes that the notebook's own process may take
MOST_SECONDS = 8  # that ranks of a launch in a cell get, however many it asks for


def main(fds: list[int], walls: Walls, serve: Callable[[socket.socket, int], None]) -> NoReturn:
    """Have a room for a grader: `fds` are the room's line to it, and the doorkeeper's.

    `serve` serves the launches in cells, on a socket and until this parent has gone.
    """
    try:
        os.setsid()
        system.die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        setproctitle.setproctitle(protocol.ROOM_TITLE)
        close_all_but(*fds)
        ours, theirs = socket.socketpair()
        _fork(lambda: _launch_for(theirs, walls, serve))
        room = _fork(lambda: _be_room(fds[0], ours, walls))
        close_all_but(fds[1])
        _, status = os.waitpid(room, os.WUNTRACED)
        send_frame(socket.socket(fileno=fds[1]), protocol.ENDED, encode(status))
    finally:
        os._exit(0)  # and the kernel ends what was forked here


def _fork(run: Callable[[], None]) -> int:
    """A process that does this, and no more."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return pid


def _launch_for(
    sock: socket.socket, walls: Walls, serve: Callable[[socket.socket, int], None]
) -> None:
    """Serve the launches in cells."""
    doorkeeper = os.getppid()
    close_all_but(sock.fileno())
    step_behind(walls)
    setproctitle.setproctitle(protocol.SERVER_TITLE)
    system.adopt_orphans()
    serve(sock, doorkeeper)


def _be_room(line: int, launches: socket.socket, walls: Walls) -> None:
    close_all_but(line, launches.fileno())
    step_behind(walls)
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other stand still
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    client.SERVER.adopt(launches)
    os.chdir(HOME if os.path.isdir(HOME) else "/")
    os.environ.clear()
    os.environ.update(environment(), **{protocol.MOST_SECONDS: str(MOST_SECONDS)})
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # what children of a cell write is nobody's answer
        os.dup2(null, fd)
    os.close(null)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(Closed, ConnectionError):
        _serve(socket.socket(fileno=line), _shell())


# ---------------------------------------------------------------------------- cells


def _serve(grader: socket.socket, shell: InteractiveShell) -> None:
    while True:
        tag, body = receive_frame(grader)
        if tag == protocol.CELL:
            number, source = decode(body)
            reply = _bounded(run_cell(shell, number, source))
            send_frame(grader, protocol.DONE, encode(reply))
        elif tag == protocol.TAKE:
            send_frame(grader, protocol.TAKEN, take(shell.user_ns, decode(body)))


def _shell() -> InteractiveShell:
    """Cells are files named `<cell 7>`, as `run_cell` says; figures are shown."""
    shell = cells.new_shell(folder=HOME)
    cells.show_figures(shell)
    return shell


def rehearse() -> None:
    """Go through what every room does first: done before a fork, it saves each 100 ms."""
    import builtins

    import matplotlib.pyplot as plt
    from matplotlib_inline.backend_inline import configure_inline_support
    from matplotlib_inline.config import InlineBackend

    main_module, path = sys.modules["__main__"], sys.path[:]
    shell = _shell()
    run_cell(shell, 1, "import matplotlib.pyplot as plt\nplt.plot([0, 1])\nplt.show()\n1 / 0")
    plt.close("all")
    plt.switch_backend("agg")
    plt.ioff()
    shell.restore_sys_module_state()
    type(shell).clear_instance()
    InlineBackend.clear_instance()
    vars(configure_inline_support).clear()  # where it keeps that formats have been set
    for name in ("__IPYTHON__", "display"):
        vars(builtins).pop(name, None)
    sys.modules["__main__"], sys.path[:] = main_module, path


def run_cell(shell: InteractiveShell, number: int, source: str) -> list[dict[str, Any]]:
    """Runs one cell; its outputs as nbformat has them, an error last."""
    out, err = _Bounded(), _Bounded()
    shown: list[dict[str, Any]] = []
    shell.execution_count = number
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        error = cells.run(shell, source, f"<cell {number}>", lambda data, _: shown.append(data))
    outputs = [_stream(name, text) for name, text in (("stdout", out), ("stderr", err)) if text]
    outputs += [{"output_type": "display_data", "data": data, "metadata": {}} for data in shown]
    return outputs + ([_error(error)] if error is not None else [])


class _Bounded(io.StringIO):
    """Keeps the first so many characters, and counts the others."""

    dropped = 0

    def write(self, text: str) -> int:
        room = max(0, KEPT_TEXT - self.tell())
        super().write(text[:room])
        self.dropped += max(0, len(text) - room)
        return len(text)

    def __bool__(self) -> bool:
        return bool(self.tell())


def _stream(name: str, text: _Bounded) -> dict[str, Any]:
    more = f"\n... {text.dropped:,} more characters\n" if text.dropped else ""
    return {"output_type": "stream", "name": name, "text": text.getvalue() + more}


def _error(error: BaseException) -> dict[str, Any]:
    lines = traceback.format_exception_only(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith("<cell")]
    where = [f"  {one.filename[1:-1]}, line {one.lineno}: {one.line}" for one in own[-8:]]
    return {
        "output_type": "error",
        "ename": type(error).__name__,
        "evalue": str(error)[:2000],
        "traceback": [line[:4000] for line in [*where, *lines]],
    }


def _bounded(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many as may be kept, in a form that can be sent."""
    kept, size = [], 0
    for one in outputs[:KEPT_OUTPUTS] + outputs[KEPT_OUTPUTS:][-1:]:
        try:
            size += len(encode(one))
        except NotPlain:
            continue
        if size <= KEPT_BYTES or one["output_type"] == "error":
            kept.append(one)
    return kept


# ---------------------------------------------------------------------------- answers


def take(names: dict[str, Any], name: str) -> bytes:
    """What the notebook has under a name, if anything: plain data, with functions sealed."""
    try:
        return encode([names[name]] if name in names else [], _seal)
    except NotPlain:
        return encode([Opaque(type(names[name]).__name__)])


def _seal(value: Any) -> Sealed | Opaque:
    if callable(value):
        with contextlib.suppress(Exception):  # objects define how they are pickled
            packed = pack(value)
            return Sealed(bytes(packed.pickled), tuple(map(bytes, packed.buffers)))
    return Opaque(type(value).__name__)
