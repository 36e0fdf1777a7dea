"""Display in a notebook's cell, and the same outside a notebook."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["Kept", "in_a_kernel", "kernel_variables", "show_bundle"]

# After a restart of the kernel, JupyterLab has no model for a widget and shows an error in its
# place. It does not fall back to the output's other forms.
_STYLE = """<style>
.jp-OutputArea-child:has(.dtlab-kept):has(+ .jp-OutputArea-child .widget-vbox) {display: none}
.jp-OutputArea-child:has(.dtlab-kept):not(:has(+ .jp-OutputArea-child .widget-vbox))
  + .jp-OutputArea-child:has(> .jupyter-widgets) {display: none}
</style>"""


def in_a_kernel() -> bool:
    """Whether this runs in a notebook's kernel, not in a script or a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def kernel_variables() -> list[Any]:
    """What the notebook's variables hold; nothing where there is no notebook."""
    if not in_a_kernel():
        return []
    from IPython import get_ipython

    return list(get_ipython().user_ns.values())


def show_bundle(bundle: Mapping[str, Any]) -> None:
    """Show a MIME bundle below the cell; where there is no notebook, print its plain text."""
    if not in_a_kernel():
        print(bundle["text/plain"])
        return
    from IPython.display import display

    display(dict(bundle), raw=True)


class Kept:
    """An output that replaces the widget below it when the widget's kernel has ended.

    While the widget works, the page hides this output; without it, the page hides the widget's
    error and shows what this output held last.
    """

    def __init__(self, page: str, text: str) -> None:
        """Show it; the widget must be the cell's next output."""
        from IPython.display import display

        self._handle: Any = display(self._bundle(page, text), raw=True, display_id=True)

    def update(self, page: str, text: str) -> None:
        """Hold this instead: HTML, and plain text where no HTML is shown."""
        self._handle.update(self._bundle(page, text), raw=True)

    def _bundle(self, page: str, text: str) -> dict[str, str]:
        held = f'<div class="dtlab-kept">{_STYLE}{page}</div>'
        return {"text/html": held, "text/plain": text}
