"""Names of the collectives and implementations that a benchmark reports."""

from __future__ import annotations

from typing import Final

__all__ = ["BETWEEN_NODES", "BUILT_IN", "COLLECTIVES"]

COLLECTIVES: Final = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_recv",
)  # fmt: skip
BETWEEN_NODES: Final = "send_recv_between_nodes"  # in addition to send_recv on several nodes
BUILT_IN: Final = "built-in"
