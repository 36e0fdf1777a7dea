"""Secrets where graded code must not get at them, each with a mark that tells where it was."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket
import sqlite3
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha1
from pathlib import Path

__all__ = ["PREFIX", "Canaries"]

PREFIX = "canary" + "-"  # in two pieces, so that this file contains no mark
_IPC_PRIVATE, _IPC_RMID, _WORLD_READABLE = 0, 0, 0o666


class Canaries:
    """Places them while it is open. `places` has the paths and the port that attacks are given.

    It opens before a server is started, so that the server inherits what it inherits in a course.
    """

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self.marks: dict[str, str] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Canaries:
        with contextlib.ExitStack() as undo:
            course = undo.enter_context(tempfile.TemporaryDirectory(prefix="course-"))
            self._course(Path(course))
            name = f".dtlab-hostile-{os.getpid()}"
            undo.enter_context(self._file("home", Path.home() / name, "the home folder"))
            undo.enter_context(self._file("shared_file", Path("/dev/shm", name), "shared memory"))
            undo.enter_context(self._environment())
            undo.enter_context(self._segment())
            undo.enter_context(self._listening())
            self.memory = self._new("the memory of the judge").encode() * 100
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def told(self, text: str) -> list[str]:
        """The places whose mark occurs in a text."""
        return [place for place, mark in self.marks.items() if mark in text]

    def course_files(self) -> dict[str, bytes]:
        """What the course's files hold."""
        folder = Path(self.places["course"])
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def _new(self, place: str) -> str:
        """A mark for a place, never seen before."""
        self.marks[place] = f"{PREFIX}{secrets.token_hex(8)}"
        return self.marks[place]

    # ------------------------------------------------------------------ the places

    def _course(self, folder: Path) -> None:
        """A gradebook, a solution, another submission, and an object of git's."""
        with contextlib.closing(sqlite3.connect(folder / "gradebook.db")) as gradebook:
            gradebook.execute("create table grade (mark text)")
            gradebook.execute("insert into grade values (?)", [self._new("the gradebook")])
            gradebook.commit()
        self.places["gradebook"] = str(folder / "gradebook.db")
        for name, place in (
            ("solution", "solutions/01/level-2.ipynb"),
            ("submission", "submitted/grace/01/level-2.ipynb"),
        ):
            file = folder / place
            file.parent.mkdir(parents=True)
            file.write_text(f"# {self._new(f'a {name}')}\n" * 3)
            self.places[name] = str(file)
        blob = f"blob 23\0{self._new('an object of git')}".encode()
        name = sha1(blob, usedforsecurity=False).hexdigest()
        self.places["git_object"] = str(folder / ".git" / "objects" / name[:2] / name[2:])
        Path(self.places["git_object"]).parent.mkdir(parents=True)
        Path(self.places["git_object"]).write_bytes(zlib.compress(blob))
        self.places["pipe"] = str(folder / "pipe")
        os.mkfifo(folder / "pipe")  # opening it to read blocks until it has a writer
        self.places["course"] = str(folder)

    @contextlib.contextmanager
    def _file(self, name: str, path: Path, place: str) -> Iterator[None]:
        path.write_text(f"{self._new(place)}\n" * 3)
        self.places[name] = str(path)
        try:
            yield
        finally:
            path.unlink()

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        os.environ["COURSE_TOKEN"] = self._new("an environment variable")
        try:
            yield
        finally:
            del os.environ["COURSE_TOKEN"]

    @contextlib.contextmanager
    def _segment(self) -> Iterator[None]:
        """System V's shared memory, for all to read."""
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        number = libc.shmget(_IPC_PRIVATE, 4096, _WORLD_READABLE)
        at = libc.shmat(number, None, 0)
        ctypes.memmove(at, self._new("System V's shared memory").encode(), 23)
        self.places["segment"] = str(number)
        try:
            yield
        finally:
            libc.shmdt(ctypes.c_void_p(at))
            libc.shmctl(number, _IPC_RMID, None)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """A port and an abstract socket of the host, which send their mark to any client."""
        name = f"dtlab-hostile-{os.getpid()}"
        self.places["abstract"] = name
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(f"\0{name}")
        unix.listen()
        tcp = socket.create_server(("127.0.0.1", 0))
        self.places["port"] = str(tcp.getsockname()[1])
        with (
            _served(tcp, self._new("a port of the host")),
            _served(unix, self._new("an abstract socket of the host")),
        ):
            yield


@contextlib.contextmanager
def _served(server: socket.socket, mark: str) -> Iterator[None]:
    """Sends a mark to every client that connects."""
    thread = threading.Thread(target=_serve, args=(server, mark.encode()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()


def _serve(server: socket.socket, mark: bytes) -> None:
    accept: Callable[[], tuple[socket.socket, object]] = server.accept
    with contextlib.suppress(OSError):  # shut down
        while True:
            with accept()[0] as connection:
                connection.sendall(mark)
