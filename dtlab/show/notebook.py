"""Display of output below a notebook cell, with plain text as a fallback outside a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtlab.ranks.system import has_front_end, in_a_kernel

__all__ = [
    "Kept", "has_front_end", "in_a_kernel", "kernel_variables", "place_words", "running_cell",
    "show_bundle",
]  # fmt: skip

# After a restart of the kernel, JupyterLab has no model for a widget and shows an error in its
# place. It does not fall back to the output's other MIME types.
_STYLE = """<style>
.jp-OutputArea-child:has(.dtlab-kept):has(+ .jp-OutputArea-child .widget-vbox) {display: none}
.jp-OutputArea-child:has(.dtlab-kept):not(:has(+ .jp-OutputArea-child .widget-vbox))
  + .jp-OutputArea-child:has(> .jupyter-widgets) {display: none}
</style>"""


def kernel_variables() -> list[Any]:
    """Return the values of the notebook's variables; an empty list outside a notebook."""
    if not in_a_kernel():
        return []
    from IPython import get_ipython

    return list(get_ipython().user_ns.values())


def running_cell() -> int | None:
    """Return the number of the cell that runs; None outside a notebook."""
    if not in_a_kernel():
        return None
    from IPython import get_ipython

    return int(get_ipython().execution_count)


def place_words(file: str, line: int) -> str:
    """Describe a line of a cell or a file, with its text: `cell 7, line 4:   dist.recv(...)`."""
    from dtlab.errors import place_in_words
    from dtlab.ranks.protocol import Frame
    from dtlab.ranks.watch.locate import place

    return place_in_words(**place(Frame(file, line, "")))


def show_bundle(bundle: Mapping[str, Any]) -> None:
    """Show a MIME bundle below the cell; outside a notebook, print its plain text."""
    if not in_a_kernel():
        print(bundle["text/plain"])
        return
    from IPython.display import display

    display(dict(bundle), raw=True)


class Kept:
    """A static output that replaces the widget below it when the widget's kernel has ended.

    While the widget works, the page hides this output. When the widget no longer works, the page
    hides the widget's error and shows the latest content of this output.
    """

    def __init__(self, page: str, text: str) -> None:
        """Display the output; the widget must be the cell's next output."""
        from IPython.display import display

        self._handle: Any = display(self._bundle(page, text), raw=True, display_id=True)

    def update(self, page: str, text: str) -> None:
        """Replace the content: HTML, and plain text for front ends that show no HTML."""
        self._handle.update(self._bundle(page, text), raw=True)

    def _bundle(self, page: str, text: str) -> dict[str, str]:
        content = f'<div class="dtlab-kept">{_STYLE}{page}</div>'
        return {"text/html": content, "text/plain": text}
