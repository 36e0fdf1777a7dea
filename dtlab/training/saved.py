"""Tensors that a forward pass saves for backward, by module."""

from __future__ import annotations

import html
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from dtlab.torch_internals import base_of
from dtlab.training.live import Storage, storage_of

__all__ = ["SavedBytes", "SavedTensor", "saved_bytes"]


class SavedTensor(NamedTuple):
    """A tensor that autograd saves; stands for all saved tensors that share its storage."""

    module: str  # dotted name; "" for the function itself
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int  # of the whole storage


@dataclass(frozen=True)
class SavedBytes:
    """What autograd saves between a forward pass and its backward pass.

    A storage that several modules save belongs to the first of them. `parameters` are the bytes of
    saved parameters and buffers, which exist anyway and are in none of the other figures.
    """

    tensors: tuple[SavedTensor, ...]
    parameters: int

    @property
    def total(self) -> int:
        """Bytes of all tensors except parameters."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def by_module(self) -> dict[str, int]:
        """Bytes that each module saved, without submodules, in the order of the first save."""
        modules: dict[str, int] = {}
        for tensor in self.tensors:
            modules[tensor.module] = modules.get(tensor.module, 0) + tensor.bytes
        return modules

    def within(self, module: str) -> int:
        """Return the bytes saved by a module and all its submodules."""
        inside = module + "."
        return sum(
            tensor.bytes
            for tensor in self.tensors
            if not module or tensor.module == module or tensor.module.startswith(inside)
        )

    @property
    def _rows(self) -> list[tuple[str, str, str]]:
        total = self.total
        return [
            (name or "(the function itself)", f"{count:,}", f"{count / total if total else 0:.1%}")
            for name, count in self.by_module.items()
        ]

    @property
    def _headline(self) -> str:
        return f"{self.total:,} bytes kept for backward"

    @property
    def _aside(self) -> str:
        return f"and {self.parameters:,} bytes of parameters and buffers, which exist anyway"

    def __str__(self) -> str:
        names = max((len(name) for name, _, _ in self._rows), default=0)
        width = max((len(count) for _, count, _ in self._rows), default=0)
        rows = [
            f"  {name:<{names}}  {count:>{width}}  {share:>6}" for name, count, share in self._rows
        ]
        return "\n".join([self._headline, *rows, f"  {self._aside}"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = "padding:.2em 1em .2em 0;text-align:"
        rows = "".join(
            f'<tr style="background:none"><th scope="row" style="{cell}left">{html.escape(name)}'
            f'</th><td style="{cell}right">{count}</td><td style="{cell}right">{share}</td></tr>'
            for name, count, share in self._rows
        )
        return (
            '<table style="color:inherit;border-collapse:collapse;margin:0">'
            '<caption style="color:inherit;text-align:left;white-space:nowrap;padding:.3em 0">'
            f"<b>{self._headline}</b></caption><tbody>{rows}</tbody></table>"
            f'<p style="margin:.3em 0">{self._aside}</p>'
        )


class _Kept:
    """A saved tensor; exists as long as the graph."""

    def __init__(self, tensor: Tensor, module: str) -> None:
        # Detached, to avoid a cycle: a node that saves its own result would keep itself alive.
        self.tensor, self.module = tensor.detach(), module
        self.is_parameter = isinstance(base_of(tensor), nn.Parameter)


def saved_bytes(fn: Callable[..., Any], *inputs: Any, **keywords: Any) -> SavedBytes:
    """Run `fn` forward, and return what autograd saves for backward, by module.

    `fn` is a module, or a function that calls modules. Each storage counts once. Names are those
    of submodules of `fn`; in a function, a module is named after its class. Inputs count if a
    module saves them, as in the formula of Korthikanti et al. 2022 ("Reducing activation
    recomputation in large transformer models", section 4); parameters and buffers do not. What a
    checkpoint saves is listed under the module that called it. Data that a node keeps outside of
    `save_for_backward`, such as random states, is not counted.
    """
    graph: list[weakref.ref[_Kept]] = []
    with _Running(fn) as running:

        def keep(tensor: Tensor) -> _Kept:
            saved = _Kept(tensor, running.name)
            graph.append(weakref.ref(saved))
            return saved

        with saved_tensors_hooks(keep, lambda saved: saved.tensor), torch.enable_grad():
            outputs = fn(*inputs, **keywords)
    # Count only what is still in the graph: branches that lead to no output are freed by now.
    alive = [saved for reference in graph if (saved := reference()) is not None]
    del outputs
    return _count(alive, running.parameters())


def _count(alive: list[_Kept], parameters: set[Storage]) -> SavedBytes:
    tensors, counted, of_parameters = [], set[Storage](), 0
    for saved in alive:
        key, size = storage_of(saved.tensor)
        if key in counted:
            continue
        counted.add(key)
        if key in parameters or saved.is_parameter:
            of_parameters += size
        elif size:
            shape, dtype = tuple(saved.tensor.shape), saved.tensor.dtype
            tensors.append(SavedTensor(saved.module, shape, dtype, size))
    return SavedBytes(tuple(tensors), of_parameters)


class _Running:
    """Tracks which module is running, by hooks on all modules."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._names: dict[nn.Module, str] = {}
        self._stack = [""]
        if isinstance(fn, nn.Module):
            self._learn(fn, "")

    def _learn(self, root: nn.Module, name: str) -> None:
        for inner, module in root.named_modules(prefix=name):
            self._names.setdefault(module, inner)

    def __enter__(self) -> _Running:
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if module not in self._names:  # called by a function, or not registered as a submodule
            plain = f"{self.name}.{type(module).__name__}".removeprefix(".")
            names = chain([plain], (f"{plain}_{number}" for number in count(2)))
            taken = set(self._names.values())
            self._learn(module, next(name for name in names if name not in taken))
        self._stack.append(self._names[module])

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self._stack.pop()

    @property
    def name(self) -> str:
        """Dotted name of the innermost running module."""
        return self._stack[-1]

    def parameters(self) -> set[Storage]:
        """Return the storage keys of parameters and buffers of all modules that ran."""
        tensors = (t for each in self._names for t in (*each.parameters(), *each.buffers()))
        return {storage_of(tensor)[0] for tensor in tensors}
