"""The sandboxed process that runs the cells of one notebook, one by one, in IPython.

    grader                             the notebook's process
    (number, source)  ── CELL ──────►  run it in the notebook's namespace
    outputs           ◄── DONE ──────  in the format of nbformat, limited in size
    name              ── TAKE ──────►
    its value         ◄── TAKEN ─────  plain data; functions as pickles, which only ranks load

    its parent ── fork ──► a server for the launches in the notebook's cells
        │      └─ fork ──► the notebook's process
        └── ENDED ──► grader           how it ended, on a socket that only its parent has

The grader decodes only plain data from a notebook's process. If a cell does not end, the grader
ends the process, together with all others in the sandbox.
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
from dtlab.ranks.plain import NotPlain, Opaque, PickledFunction, decode, encode
from dtlab.ranks.sandbox.isolation import HOME, Isolation, confine, environment
from dtlab.ranks.sandbox.outer_process import close_all_but
from dtlab.ranks.transport import Closed, pack, receive_frame, send_frame

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

KEPT_TEXT = 100_000  # characters of a cell's printed text, for each of the two streams
KEPT_OUTPUTS = 50  # figures and tables of one cell
KEPT_BYTES = 4 * 2**20  # all outputs of one cell together
MEMORY = 4 * 2**30  # bytes of memory of the notebook's process
MOST_SECONDS = 8  # limit on the timeout of launches in a cell


def main(
    fds: list[int], isolation: Isolation, serve: Callable[[socket.socket, int], None]
) -> NoReturn:
    """Fork a notebook's process, wait until it ends, and report to the grader how it ended.

    `fds` are the sockets of the notebook's process and of this one to the grader.
    `serve(sock, parent)` serves the launches in cells until `parent` ends.
    """
    try:
        os.setsid()
        system.die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        setproctitle.setproctitle(protocol.NOTEBOOK_TITLE)
        close_all_but(*fds)
        ours, theirs = socket.socketpair()
        _fork(lambda: _launch_for(theirs, isolation, serve))
        notebook = _fork(lambda: _run_notebook(fds[0], ours, isolation))
        close_all_but(fds[1])
        _, status = os.waitpid(notebook, os.WUNTRACED)
        send_frame(socket.socket(fileno=fds[1]), protocol.ENDED, encode(status))
    finally:
        os._exit(0)  # the kernel then ends the children


def _fork(run: Callable[[], None]) -> int:
    """Fork a process that calls `run` and exits; return its id."""
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
    sock: socket.socket, isolation: Isolation, serve: Callable[[socket.socket, int], None]
) -> None:
    """Serve the launches in cells."""
    parent = os.getppid()
    close_all_but(sock.fileno())
    confine(isolation)
    setproctitle.setproctitle(protocol.SERVER_TITLE)
    system.adopt_orphans()
    serve(sock, parent)


def _run_notebook(line: int, launches: socket.socket, isolation: Isolation) -> None:
    close_all_but(line, launches.fileno())
    confine(isolation)
    torch.set_num_threads(1)  # on a busy machine, several threads would block each other
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    client.SERVER.adopt(launches)
    os.chdir(HOME if os.path.isdir(HOME) else "/")
    os.environ.clear()
    os.environ.update(environment(), **{protocol.MOST_SECONDS: str(MOST_SECONDS)})
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # output of a cell's subprocesses is dropped
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
    """An IPython shell for the notebook, which shows figures."""
    shell = cells.new_shell(folder=HOME)
    cells.show_figures(shell)
    return shell


def rehearse() -> None:
    """Do once what each notebook's process does first; before a fork, this saves each 100 ms."""
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
    vars(configure_inline_support).clear()  # a flag that formats have been set
    for name in ("__IPYTHON__", "display"):
        vars(builtins).pop(name, None)
    sys.modules["__main__"], sys.path[:] = main_module, path


def run_cell(shell: InteractiveShell, number: int, source: str) -> list[dict[str, Any]]:
    """Run one cell, and return its outputs in the format of nbformat, an error last."""
    out, err = _Bounded(), _Bounded()
    shown: list[dict[str, Any]] = []
    shell.execution_count = number
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        error = cells.run(shell, source, f"<cell {number}>", lambda data, _: shown.append(data))
    outputs = [_stream(name, text) for name, text in (("stdout", out), ("stderr", err)) if text]
    outputs += [{"output_type": "display_data", "data": data, "metadata": {}} for data in shown]
    return outputs + ([_error(error)] if error is not None else [])


class _Bounded(io.StringIO):
    """Stores the first `KEPT_TEXT` characters, and counts the others."""

    dropped = 0

    def write(self, text: str) -> int:
        left = max(0, KEPT_TEXT - self.tell())
        super().write(text[:left])
        self.dropped += max(0, len(text) - left)
        return len(text)

    def __bool__(self) -> bool:
        return bool(self.tell())


def _stream(name: str, text: _Bounded) -> dict[str, Any]:
    more = f"\n... {text.dropped:,} more characters\n" if text.dropped else ""
    return {"output_type": "stream", "name": name, "text": text.getvalue() + more}


def _error(error: BaseException) -> dict[str, Any]:
    lines = traceback.format_exception_only(error)
    frames = traceback.extract_tb(error.__traceback__)
    in_cells = [frame for frame in frames if frame.filename.startswith("<cell")]
    where = [f"  {f.filename[1:-1]}, line {f.lineno}: {f.line}" for f in in_cells[-8:]]
    return {
        "output_type": "error",
        "ename": type(error).__name__,
        "evalue": str(error)[:2000],
        "traceback": [line[:4000] for line in [*where, *lines]],
    }


def _bounded(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs that can be sent, up to the limits on their number and size."""
    result, size = [], 0
    for output in outputs[:KEPT_OUTPUTS] + outputs[KEPT_OUTPUTS:][-1:]:
        try:
            size += len(encode(output))
        except NotPlain:
            continue
        if size <= KEPT_BYTES or output["output_type"] == "error":
            result.append(output)
    return result


# ---------------------------------------------------------------------------- answers


def take(names: dict[str, Any], name: str) -> bytes:
    """Encode the value of a variable in a list, functions as pickles; [] if it is undefined."""
    try:
        return encode([names[name]] if name in names else [], _pickled)
    except NotPlain:
        return encode([Opaque(type(names[name]).__name__)])


def _pickled(value: Any) -> PickledFunction | Opaque:
    if callable(value):
        with contextlib.suppress(Exception):  # objects define how they are pickled
            packed = pack(value)
            return PickledFunction(bytes(packed.pickled), tuple(map(bytes, packed.buffers)))
    return Opaque(type(value).__name__)
