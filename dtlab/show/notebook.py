"""What a cell shows when it runs, in a notebook and elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["in_a_kernel", "kernel_variables", "show_bundle"]


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
