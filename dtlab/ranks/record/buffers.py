"""Notes tensors that are touched before the rank has waited for the operation that uses them.

    work = dist.irecv(x, 0)     x is in use: its class becomes a subclass of torch.Tensor
    y = x + 1                   `__torch_function__` runs: x is read too early, in this line
    work.wait()                 x has its old class again

`__torch_function__` runs for every function that takes this Python object, or a view that is made
from it while it is in use. A change through another view raises the tensor's version, which all
views share. NumPy does not raise the version. Its changes are found only in a tensor that is sent,
by comparing bytes.

Only CPU tensors are watched, of operations that the learner's own code calls in the main thread.
Of a call in a loop, only the first 100 operations are watched, so that long loops run at full
speed. Whether a touch is a mistake is decided afterwards, from the records of all ranks
(watch/early.py): a message from another rank may imply that the operation was complete.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from dtlab.ranks.protocol import Touch
from dtlab.ranks.record.operators import Operator
from dtlab.ranks.watch.locate import is_learners
from dtlab.torch_internals import (
    DispatchMode,
    files_of_a_call,
    schema,
    version,
    without_torch_function,
)

__all__ = ["Buffers"]

MOST = 64  # limit on watched operations in flight, and on watched tensor objects of each
OFTEN = 100  # limit on watched operations that the same call in the program issues
_PEEK = 64  # bytes compared at either end of a tensor
_BETWEEN = {*files_of_a_call(), __file__, str(Path(__file__).with_name("interception.py"))}
# In these operations gloo does not raise a tensor's version, unless it computes an average.
_KEEP_VERSION = ("send", "recv", "broadcast", "all_reduce")
_AVERAGE = dist.ReduceOp.RedOpType.__members__["AVG"].value
_READ_WITHOUT_OPERATOR = ("tolist", "__repr__", "__format__", "__deepcopy__", "__reduce_ex__")
# These change only the shape, and yet raise the version.
_RESHAPE = ("as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_")
# Methods of a Work that show whether it is complete. After one of them, `wait` is not needed.
_TELLING = (
    "is_completed", "is_success", "exception", "result", "synchronize", "get_future",
    "get_future_result", "block_current_stream",
)  # fmt: skip


class _Use:
    """An operation in flight and its tensors, which a send (`is_send`) only reads.

    `is_filled` is True if another operation in flight writes to these tensors, so that their bytes
    may change.
    """

    __slots__ = (
        "_bytes", "_handles", "_spans", "_tensors", "index", "is_collective", "is_send", "owner",
        "version", "was_touched", "work",
    )  # fmt: skip

    def __init__(
        self, owner: Buffers, index: int, work: Any, operator: Operator, reduction: Any,
        tensors: list[torch.Tensor], is_filled: bool,
    ) -> None:  # fmt: skip
        self.owner, self.index, self.work, self._tensors = owner, index, work, tensors
        self.is_send = operator.name == "send"
        self.is_collective = not operator.is_message
        self.was_touched = False
        self.version = -1  # not watched
        if operator.name in _KEEP_VERSION and reduction != _AVERAGE:
            with suppress(RuntimeError):  # the tensor was created in inference mode
                self.version = version(tensors[0])
        self._bytes = _peek(tensors[0]) if self.is_send and not is_filled else None
        self._spans: list[tuple[int, int]] | None = None
        self._handles: list[torch.Tensor] = []  # objects whose class is `_InUse`
        for tensor in tensors:
            self.add(tensor)

    def add(self, tensor: torch.Tensor) -> None:
        """Watch the accesses to a tensor object: a tensor of the operation, or a view of one."""
        if type(tensor) in (torch.Tensor, _InUse) and len(self._handles) < MOST:
            _InUse.uses.setdefault(id(tensor), []).append(self)
            tensor.__class__ = _InUse
            self._handles.append(tensor)

    def end(self) -> None:
        """Make the tensors ordinary again, unless another operation uses them too."""
        for tensor in self._handles:
            uses = _InUse.uses[id(tensor)]
            uses.remove(self)
            if not uses:
                del _InUse.uses[id(tensor)]
                tensor.__class__ = torch.Tensor
        self._handles.clear()

    def is_changed(self) -> bool:
        """Whether a tensor has certainly been changed since the operation was issued."""
        tensor = self._tensors[0]
        with without_torch_function():
            if self.version >= 0 and self.version != version(tensor) and _is_whole(tensor):
                return True
            return self._bytes is not None and self._bytes != _peek(tensor)

    def has(self, spans: Iterable[tuple[int, int]]) -> bool:
        """Whether one of these ranges of addresses overlaps the tensors of the operation."""
        if self._spans is None:
            with without_torch_function():
                self._spans = [_span(tensor) for tensor in self._tensors]
        for first, last in spans:
            for start, end in self._spans:
                if first < end and start < last:
                    return True
        return False


class Buffers:
    """The tensors in use by operations of this rank, and the touches noted so far.

    `line_of` returns the learner's file and line for a stack frame.
    """

    def __init__(self, line_of: Callable[[FrameType | None], tuple[str, int]]) -> None:
        self.uses: dict[int, _Use] = {}  # by the id of the Work
        self.touches: list[Touch] = []  # `row` is the operation's index until `Journal.as_rows`
        self._line_of = line_of
        self._main = threading.main_thread().ident
        self._plain: dict[str, Any] = {}
        self._is_learners = functools.cache(is_learners)
        self._times: dict[tuple[int, int], int] = {}  # calls so far, by their place
        self._is_filled = False  # whether an operation writes to the tensors that are passed next

    # ------------------------------------------------------------------ hooks of the recorder

    def hook(self) -> None:
        """Replace the methods of `dist.Work` that show whether it is complete."""
        for name in filter(partial(hasattr, dist.Work), _TELLING):  # versions of torch differ
            plain = self._plain[name] = getattr(dist.Work, name)
            setattr(dist.Work, name, self._telling(name, plain))

    def unhook(self) -> None:
        """Restore the methods that `hook` has replaced."""
        for name, plain in self._plain.items():
            setattr(dist.Work, name, plain)

    def begin(
        self, operator: Operator, index: int, work: Any, outputs: Any, reduction: Any,
        frame: FrameType | None,
    ) -> None:  # fmt: skip
        """Watch the tensors of an operation that has been issued by the code of `frame`."""
        if threading.get_ident() != self._main or not self._is_watched(frame):
            return
        if len(self.uses) >= MOST:
            self.end(next(iter(self.uses.values())))
        with without_torch_function():
            tensors = outputs if type(outputs) is list and len(outputs) == 1 else [outputs]
            if not (isinstance(tensors[0], torch.Tensor) and _is_plain(tensors[0])):
                tensors = [tensor for tensor in _tensors(outputs) if _is_plain(tensor)]
            if tensors:
                more = reduction, tensors, self._is_filled
                self.uses[id(work)] = _Use(self, index, work, operator, *more)
        self._is_filled = False

    def clash(self, operator: Operator, args: tuple[Any, ...]) -> None:
        """Note tensors in use that are passed to another operation, which is about to begin."""
        if operator.payload is None:
            return
        with without_torch_function():
            first = _spans(args[0])
            second = _spans(args[1]) if operator.group == 2 else []
        sends, self._is_filled = operator.name == "send", False
        for use in list(self.uses.values()):
            is_written = not sends and use.has(first)
            if is_written or (not use.is_send and use.has(first if sends else second)):
                self._is_filled = True
                self.note(use, operator.name)

    def look(self, use: _Use) -> None:
        """Note a change that `_InUse` did not detect; called before the rank waits."""
        if not use.was_touched and use.is_changed():
            self.note(use, "changed", here=False)

    def end_until(self, index: int) -> None:
        """End the uses by earlier collectives: the rank has waited for collective `index`.

        They may be complete too, since GPUs run the collectives of a group in their order.
        """
        for use in list(self.uses.values()):
            if use.is_collective and use.index < index:
                self.end(use)

    def finish(self, last: bool) -> list[Touch]:
        """End all uses and return all touches. If `last`, no later code can wait for the Works."""
        for use in list(self.uses.values()):
            self.look(use)
            if last and not use.is_send:  # a send is judged only by what the receiver gets
                self.note(use, "forgotten", here=False)
            self.end(use)
        self._times.clear()
        touches, self.touches = self.touches, []
        return touches

    # ------------------------------------------------------------------ touches

    def note(self, use: _Use, kind: str, here: bool = True) -> None:
        """Note the first touch of a use. If `here`, the code that runs now touches the tensor."""
        if use.was_touched:
            return
        use.was_touched = True
        file, line = self._line_of(sys._getframe(1)) if here else ("", 0)
        if len(self.touches) < 10 * MOST:
            self.touches.append(Touch(use.index, kind, time.perf_counter_ns(), file, line))
        use.end()

    def end(self, use: _Use) -> None:
        """Stop watching the tensors of an operation."""
        self.uses.pop(id(use.work), None)
        use.was_touched = True  # what comes now is too late to be noted
        use.end()

    def _telling(self, name: str, plain: Any) -> Callable[..., Any]:
        uses, may_be_open = self.uses, name in ("is_completed", "is_success")

        def tell(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = plain(work, *args, **kwargs)
            use = uses.get(id(work))
            if use is not None and (result or not may_be_open):
                self.end(use)
            return result

        return tell

    def _is_watched(self, frame: FrameType | None) -> bool:
        """Whether the learner's code called the operation, at most `OFTEN` times from this place.

        `send` and `recv` themselves wait for the operation that they issue. So do C++ functions,
        whose operations do not pass through Python functions of torch.distributed. A dispatch mode
        between the two, such as a counter of memory, makes no difference.
        """
        innermost = frame
        while frame is not None and (
            frame.f_code.co_filename in _BETWEEN or frame.f_code.co_name == "__torch_dispatch__"
        ):
            if frame.f_code.co_name in ("send", "recv"):
                return False
            frame = frame.f_back
        if frame is None or frame is innermost:
            return False
        place = id(frame.f_code), frame.f_lasti
        times = self._times[place] = self._times.get(place, 0) + 1
        return times <= OFTEN and self._is_learners(frame.f_code.co_filename)


# ---------------------------------------------------------------------------- the subclass


class _InUse(torch.Tensor):
    """The class of a tensor that an operation in flight uses."""

    __slots__ = ()
    uses: ClassVar[dict[int, list[_Use]]] = {}  # by the id of the tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors([*args, *kwargs.values()])
        handles: list[torch.Tensor] = [t for t in tensors if type(t) is _InUse]
        uses = list(dict.fromkeys(use for t in handles for use in cls.uses.get(id(t), ())))
        for tensor in handles:
            tensor.__class__ = torch.Tensor
        if not handles:  # the tensors are inside another object
            with without_torch_function():
                return func(*args, **kwargs)
        try:
            return _watched(func, args, kwargs, uses)
        finally:
            for tensor in handles:
                if id(tensor) in cls.uses:
                    tensor.__class__ = _InUse


# `type(x)` prints as for an ordinary tensor.
_InUse.__name__ = _InUse.__qualname__ = "Tensor"
_InUse.__module__ = "torch"
_PLAIN = (torch.Tensor, torch.nn.Parameter, _InUse)


def _watched(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], uses: list[_Use]) -> Any:
    """Call `func`, and note what it does to the tensors of `uses`."""
    if (getattr(func, "__module__", None) or "").startswith("torch.distributed"):
        return func(*args, **kwargs)  # `Buffers.clash` checks this call
    outputs, name = [use for use in uses if not use.is_send], getattr(func, "__name__", "")
    if name in _RESHAPE:
        for use in uses:
            use.version = -1
        return func(*args, **kwargs)
    if name in _READ_WITHOUT_OPERATOR:
        for use in outputs:
            use.owner.note(use, "read")
        return func(*args, **kwargs)
    if outputs:
        with _Accesses(outputs):
            result = func(*args, **kwargs)
    else:
        result = func(*args, **kwargs)
    for use in uses:
        if use.is_send and use.is_changed():
            use.owner.note(use, "changed")
    for tensor in _tensors(result):
        if type(tensor) is torch.Tensor and id(tensor) not in _InUse.uses:
            spans = _spans(tensor)
            for use in uses:
                if not use.was_touched and use.has(spans):
                    use.add(tensor)
    return result


class _Accesses(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators, among those that one function calls, that access tensors of `uses`."""

    def __init__(self, uses: list[_Use]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._uses = uses

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for position, (name, kind) in enumerate(_accesses(func)):
            value = args[position] if position < len(args) else kwargs.get(name)
            if kind and value is not None:
                spans = _spans(value)
                for use in self._uses:
                    if use.has(spans):
                        use.owner.note(use, kind)
        return func(*args, **kwargs)


@functools.cache
def _accesses(func: Any) -> list[tuple[str, str]]:
    """The name of each argument of an operator, with "read", "changed", or "" for neither."""
    name = schema(func).name.partition("::")[2]
    if (
        name.endswith("_like")
        or name.startswith(("new_", "is_", "sym_", "_has_", "set_", "resize_"))
        or torch.Tag.inplace_view in func.tags
    ):
        return []  # only the shape matters
    kinds = {None: "read", False: "", True: "changed"}
    return [
        (argument.name, kinds[argument.alias_info and argument.alias_info.is_write])
        for argument in schema(func).arguments
    ]


# ---------------------------------------------------------------------------- tensors


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an ordinary dense CPU tensor with at least one element."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.nbytes > 0
    )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's memory: begin and end."""
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


def _spans(value: Any) -> list[tuple[int, int]]:
    if type(value) is list and len(value) == 1 and type(value[0]) is torch.Tensor:
        return [_span(value[0])] if _is_plain(value[0]) else []
    return [_span(tensor) for tensor in _tensors(value) if _is_plain(tensor)]


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether each change that raises the version of a tensor changes the tensor itself.

    All views of a storage share the version, so the tensor must fill its storage. A change of an
    empty view raises it too. `tensor_split` creates empty views of a tensor with few elements, so
    the tensor must also be large.
    """
    size = tensor.nbytes
    return size > 2 * _PEEK and size == tensor.untyped_storage().nbytes()


def _peek(tensor: torch.Tensor) -> bytes:
    """The first and last bytes of a tensor's memory."""
    size, at = tensor.nbytes, tensor.data_ptr()
    if size > tensor.untyped_storage().nbytes():
        return b""  # the program has freed the storage
    width = min(_PEEK, size)
    return ctypes.string_at(at, width) + ctypes.string_at(at + size - width, width)
