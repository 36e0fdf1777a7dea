"""Framed messages and pickled objects between the notebook and the ranks.

A frame is a one-byte tag, a length, and that many bytes. An object is sent as several frames: the
pickle, then each of its large buffers (tensors, arrays), so that hundreds of megabytes are neither
joined nor copied. Everything goes through Unix sockets, not through `/dev/shm` or the disk.
"""

from __future__ import annotations

import io
import pickle
import pkgutil
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from dtlab.torch_internals import untyped

Buffer = bytes | bytearray | memoryview
HEADER = struct.Struct("<cQ")
REQUEST = struct.Struct("<cI")
FDS_PER_MESSAGE = 200  # the kernel takes 253


class Closed(ConnectionError):
    """The other side has closed the connection."""


# ---------------------------------------------------------------------------- frames


def send_frame(sock: socket.socket, tag: bytes, *parts: Buffer) -> None:
    """Send one frame, whose body is the concatenation of `parts`."""
    views = [memoryview(part).cast("B") for part in parts]
    sock.sendall(HEADER.pack(tag, sum(view.nbytes for view in views)))
    for view in views:
        sock.sendall(view)


def receive_exactly(sock: socket.socket, size: int) -> bytearray:
    """Receive the next `size` bytes into a new, writable buffer. Raises `Closed`."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise Closed("the connection was closed in the middle of a message")
        view = view[count:]
    return buffer


def receive_frame(sock: socket.socket, limit: int | None = None) -> tuple[bytes, bytearray]:
    """Receive the next frame as (tag, body). A frame over `limit` bytes raises `Closed`."""
    tag, size = HEADER.unpack(receive_exactly(sock, HEADER.size))
    if limit is not None and size > limit:
        raise Closed(f"received a message of {size} bytes, but only {limit} are allowed")
    return tag, receive_exactly(sock, size)


# ---------------------------------------------------------------------------- objects


class Packed:
    """A pickled object that has not been loaded: the pickle, and its out-of-band buffers."""

    def __init__(self, pickled: bytes | bytearray, buffers: Iterable[Any] = ()) -> None:
        self.pickled = pickled
        self.buffers = list(buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it with its buffers out of band, if the pickler can do so, as Ray's can."""
        return Packed, (self.pickled, [pickle.PickleBuffer(buffer) for buffer in self.buffers])

    def load(self) -> Any:
        """Unpickle the object. Its tensors and arrays use the buffers as their memory."""
        return pickle.loads(self.pickled, buffers=self.buffers)

    def send(self, sock: socket.socket, tag: bytes) -> None:
        """Send the pickle and the number of buffers as one frame, then one frame per buffer."""
        send_frame(sock, tag, struct.pack("<I", len(self.buffers)), self.pickled)
        for buffer in self.buffers:
            send_frame(sock, b"b", buffer)

    @classmethod
    def receive(cls, sock: socket.socket, body: bytearray) -> Packed:
        """Receive an object from the body of its first frame; its buffers follow on `sock`."""
        (count,) = struct.unpack_from("<I", body)
        return cls(body[4:], [receive_frame(sock)[1] for _ in range(count)])


def pack(obj: Any) -> Packed:
    """Pickle an object; also functions, classes and modules that are defined in a notebook."""
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(obj)
    return Packed(stream.getvalue(), [buffer.raw() for buffer in buffers])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle pickler that puts the memory of CPU tensors out of band.

    Shared storages stay shared. Code keeps its file name, which tracebacks show; cloudpickle
    3.1.3 drops it.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            make, arguments = self.dispatch_table[CodeType](obj)
            return _code, (make, arguments, obj.co_filename)
        if isinstance(obj, type) and obj.__qualname__ != obj.__name__ and _is_found_by_name(obj):
            # torch renames classes of C++, such as SDPBackend, and leaves their __qualname__.
            return getattr, (sys.modules[obj.__module__], obj.__name__)
        if _is_custom_module(obj):
            return pkgutil.resolve_name, (obj.__name__,)
        torch = sys.modules.get("torch")
        if torch is not None:
            if isinstance(obj, torch.storage.TypedStorage):
                storage = untyped(obj)
                if storage.device.type == "cpu":
                    return _typed_storage, (storage, obj.dtype)
            elif isinstance(obj, torch.UntypedStorage) and obj.device.type == "cpu":
                return _untyped_storage, (pickle.PickleBuffer(_bytes_of(obj)),)
        return super().reducer_override(obj)


def _is_custom_module(obj: Any) -> bool:
    """Whether `obj` is an imported module whose class is not `ModuleType`, such as `torch.ops`."""
    is_module = isinstance(obj, ModuleType) and type(obj) is not ModuleType
    return is_module and sys.modules.get(obj.__name__) is obj


def _is_found_by_name(cls: type) -> bool:
    """Whether a class is the value of its name in its module, and that is not the notebook."""
    module = sys.modules.get(cls.__module__)
    in_notebook = cls.__module__ == "__main__"
    return module is not None and not in_notebook and vars(module).get(cls.__name__) is cls


def _code(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


def _bytes_of(storage: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _untyped_storage(buffer: Any) -> Any:
    import torch

    if memoryview(buffer).nbytes == 0:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _typed_storage(storage: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=storage, dtype=dtype, _internal=True
    )


# ---------------------------------------------------------------------------- file descriptors


def send_request(sock: socket.socket, kind: bytes, fds: list[int]) -> None:
    """Send a request to a server, with open file descriptors."""
    sock.sendall(REQUEST.pack(kind, len(fds)))
    for start in range(0, len(fds), FDS_PER_MESSAGE):
        socket.send_fds(sock, [b"f"], fds[start : start + FDS_PER_MESSAGE])


def receive_request(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a request: its kind, and its file descriptors, which are now open here too."""
    kind, count = REQUEST.unpack(receive_exactly(sock, REQUEST.size))
    fds: list[int] = []
    while len(fds) < count:
        data, received, _, _ = socket.recv_fds(sock, 1, FDS_PER_MESSAGE)
        if not data:
            raise Closed("the connection was closed in the middle of a message")
        fds.extend(received)
    return kind, fds
