"""`dtlab.launch(engine="ray")`: the ranks of a launch run on a node of a Ray cluster.

    this process (engine.py)             a node of the cluster (agent.py)
    ────────────────────────             ────────────────────────────────
    placement group: one bundle, with
    a CPU for each rank if they are free
    Agent.run(spec, call)      ─ Ray ─►  supervisor: forks the ranks, watches them
    Agent.news(), repeatedly   ◄─ Ray ─  what they print
    Collected                  ◄─ Ray ─  values, failures, records, outcome

All ranks of a launch are on one node, so their records have one clock, and one watcher sees all of
their operations. The agent stays on its node for later launches; between launches, it reserves
nothing. It ends with this process or with `local_ray.stop()`.
"""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from dtlab.errors import DtlabError, LaunchError
from dtlab.ranks import notices
from dtlab.ranks.launch import client
from dtlab.ranks.launch.output import Output
from dtlab.ranks.protocol import Spec
from dtlab.ranks.ray.agent import THREADS, Agent
from dtlab.ranks.ray.cluster import demand_our_version, local_ray
from dtlab.ranks.transport import Packed

__all__ = ["RayConversation"]

ROOM_LIMIT = 60.0  # seconds to wait for a free CPU in the cluster
STOP_LIMIT = 5.0  # seconds for the ranks of an interrupted launch to end
SMALLEST = 0.01  # CPUs that a launch reserves at least
_AGENTS: dict[str, Any] = {}  # by the id of their node


class RayConversation(client.Conversation):
    """One launch on a Ray cluster; `modules` should be imported before the ranks are forked."""

    def __init__(self, spec: Spec, call: Packed, output: Output, modules: Sequence[str]) -> None:
        super().__init__(spec, call, output)
        self._modules = list(modules)

    def run(self) -> client.Collected:
        """Run the launch; return when its ranks have ended. Raises LaunchError."""
        local_ray.demand_running()
        ray = local_ray()
        with _bundle(ray, self.spec.world_size) as node:
            try:
                self._run_on(ray, _agent_on(ray, node))
            except ray.exceptions.RayActorError as error:
                _AGENTS.pop(node, None)
                first_line = str(error).partition("\n")[0]
                raise LaunchError(
                    "the process that ran the ranks on the Ray cluster has ended; it was probably "
                    f"killed, or its node was lost. Run it again. Ray says: {first_line}"
                ) from error
        return self.collected

    def _run_on(self, ray: Any, agent: Any) -> None:
        name, host = uuid.uuid4().hex, socket.gethostname()
        result = agent.run.remote(name, self.spec, host, self.call, self._modules)
        begun, over = time.monotonic(), False
        try:
            with self.running(begun):
                while not over:
                    printed, over = self._get(ray, agent.news.remote(name))
                    for rank, stream, data in printed:
                        self.output.feed(rank, stream, data)
                    self.show_progress()
                collected = ray.get(result)
        except BaseException:  # Ctrl-C, most likely
            _end(ray, agent, name, result)
            raise
        finally:
            self.output.finish()
        if isinstance(collected, LaunchError):
            raise collected
        self.collected = collected
        self._load_values()

    def _get(self, ray: Any, reference: Any) -> Any:
        """Wait for a result, and show progress."""
        while True:
            patience = self.output.patience()
            patience = notices.PATIENCE if patience is None else patience
            if ray.wait([reference], timeout=min(patience, notices.PATIENCE))[0]:
                return ray.get(reference)
            self.show_progress()

    def _load_values(self) -> None:
        """Unpickle the values of the ranks here."""
        for rank, packed in enumerate(self.collected.values):
            if packed is None:
                continue
            self.collected.values[rank] = None
            try:
                # Ray's memory is read-only, and a tensor must not be.
                buffers = map(bytearray, packed.buffers)
                self.collected.values[rank] = Packed(packed.pickled, buffers).load()
            except Exception as error:  # noqa: BLE001  unpickling may run any code
                self.collected.failures[rank] = client.cannot_be_unpickled(error)


def _end(ray: Any, agent: Any, name: str, result: Any) -> None:
    """End the launch in progress; if that takes long, kill the agent, with which the ranks end."""
    ended: list[Any] = []
    try:
        agent.stop.remote(name)
        ended, _ = ray.wait([result], timeout=STOP_LIMIT)
    finally:
        if not ended:  # it takes too long, or Ctrl-C was pressed again
            ray.kill(agent)
            for node in [node for node, known in _AGENTS.items() if known is agent]:
                del _AGENTS[node]


@contextlib.contextmanager
def _bundle(ray: Any, ranks: int) -> Iterator[str]:
    """Reserve CPUs on one node for a launch; yields the id of the node. Raises LaunchError.

    That is a CPU for each rank, if a node has so many free ones, else all free CPUs of a node. If
    there are none, it waits.
    """
    from ray.util.placement_group import placement_group, placement_group_table
    from ray.util.placement_group import remove_placement_group as remove

    free = max(_cpus(ray, "available"), default=0.0)
    if free < SMALLEST:
        free = max(_cpus(ray, "total"), default=0.0)
    group = placement_group([{"CPU": max(SMALLEST, min(ranks, free))}], strategy="STRICT_PACK")
    try:
        with notices.notice("waiting for a free CPU of the Ray cluster"):
            deadline = time.monotonic() + ROOM_LIMIT
            while not group.wait(notices.PATIENCE):
                notices.tick()
                if time.monotonic() > deadline:
                    raise LaunchError(
                        f"the Ray cluster has had no free CPU for {ROOM_LIMIT:.0f} s. Its tasks "
                        "and actors use all of them: end one, or start Ray with more CPUs, as in "
                        "local_ray(num_cpus=8)."
                    )
        yield placement_group_table(group)["bundles_to_node_id"][0]
    finally:
        remove(group)


def _cpus(ray: Any, which: str) -> list[float]:
    """The CPUs of each node: "total" or "available"."""
    if which == "total":
        return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    nodes = ray._private.state.available_resources_per_node()
    return [float(resources.get("CPU", 0.0)) for resources in nodes.values()]


def _agent_on(ray: Any, node: str) -> Any:
    """The agent of a node; starts it if there is none. Raises LaunchError."""
    if node not in _AGENTS:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        actor = ray.remote(num_cpus=0, max_concurrency=THREADS)(Agent)
        agent = actor.options(scheduling_strategy=On(node, soft=False)).remote()
        with notices.notice("Ray starts a process for the ranks"):
            try:
                demand_our_version(ray, [agent])
            except DtlabError as error:
                raise LaunchError(str(error)) from error.__cause__
        _AGENTS[node] = agent
    return _AGENTS[node]
