"""Ray's own counters of the object store, in which tasks and actors of a node share values."""

from __future__ import annotations

import sys
from typing import NamedTuple

from dtlab.errors import DtlabError
from dtlab.ranks.ray.cluster import local_ray

__all__ = ["StoreCounters", "store_counters"]


class StoreCounters(NamedTuple):
    """Objects that were created in the stores of all nodes so far, and what they hold now."""

    created: int
    created_bytes: int
    held_bytes: int

    def since(self, earlier: StoreCounters) -> tuple[int, int]:
        """Return the objects and the bytes that were created after `earlier`."""
        return self.created - earlier.created, self.created_bytes - earlier.created_bytes


def store_counters() -> StoreCounters:
    """Read the counters of the object stores of all nodes that are alive.

    Values below about 100 kB travel inside messages, so they are not counted. A copy on a second
    node is an object there. Raises: DtlabError if Ray is not running.
    """
    local_ray.demand_running()
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        raise DtlabError("Ray is not running. Start it: from dtlab.ranks.ray import local_ray")
    from ray._private.internal_api import node_stats

    stores = [
        node_stats(
            node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False
        ).store_stats
        for node in ray.nodes()
        if node["Alive"]
    ]
    return StoreCounters(
        sum(store.cumulative_created_objects for store in stores),
        sum(store.cumulative_created_bytes for store in stores),
        sum(store.object_store_bytes_used for store in stores),
    )
