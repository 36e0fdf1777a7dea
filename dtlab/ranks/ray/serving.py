"""Starts Ray Serve without its log lines, and sends a service a load that rises and falls."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dtlab.ranks.ray.cluster import local_ray

__all__ = ["LoadTest", "load_test", "start_serve", "stop_serve"]

SAMPLE = 0.1  # seconds between two looks at the number of replicas
QUEUE_LIMIT = "2"  # seconds for a replica to say how long its queue is; 0.1 is too short for us


class LoadTest(NamedTuple):
    """Samples over time, and the answers as pairs (number of the input, answer)."""

    seconds: list[float]
    requests: list[int]
    replicas: list[int]
    answers: list[tuple[int, Any]]


def start_serve() -> Any:
    """Start Serve on the running cluster, without a web server; returns the module `ray.serve`."""
    local_ray.demand_running()
    os.environ.setdefault("RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S", QUEUE_LIMIT)
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    return serve


def stop_serve() -> None:
    """End all services; do nothing without Ray. The end of the cluster ends Serve's controller.

    `serve.shutdown` would end it at once, and Ray would then print warnings that it is dead.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    from ray import serve
    from ray.serve.context import _get_global_client, _set_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    if client is not None:
        for name in serve.status().applications:
            serve.delete(name)
        client.shutdown_cached_handles()
        _set_global_client(None)


def load_test(
    name: str, inputs: Sequence[Any], *, clients: int = 8, replicas: int = 3, limit: float = 20.0
) -> LoadTest:
    """Send requests to the service `name`: from one client, from `clients`, and from one again.

    A client sends its next request after the answer to the last. The high load ends 2 s after
    `replicas` of them run, and the test ends when one is left; each phase ends after `limit`
    seconds at the latest.
    Raises: what a request raises; DtlabError if Ray is not running.
    """
    local_ray.demand_running()
    from ray import serve

    handle = serve.get_app_handle(name)
    test, started = LoadTest([], [], [], []), time.monotonic()
    numbers, failures = itertools.count(), list[BaseException]()
    over, many = threading.Event(), threading.Event()

    def client(go: threading.Event) -> None:
        try:
            while not over.is_set():
                if go.wait(SAMPLE):
                    number = next(numbers) % len(inputs)
                    test.answers.append((number, handle.remote(inputs[number]).result()))
        except BaseException as failure:  # noqa: BLE001  `load_test` raises it, in its thread
            failures.append(failure)

    def sampled(goal: int, hold: float) -> None:
        """Sample until `goal` replicas have run for `hold` seconds."""
        begin = last = time.monotonic()
        while not failures and (now := time.monotonic()) < begin + limit:
            running = running_replicas(handle)
            test.seconds.append(now - started)
            test.requests.append(clients if many.is_set() else 1)
            test.replicas.append(running)
            last = last if running == goal else now
            if now - last > hold:
                return
            time.sleep(SAMPLE)

    with _threads(client, clients, many, over):
        sampled(goal=1, hold=1.5)
        many.set()
        sampled(goal=replicas, hold=2.0)
        many.clear()
        sampled(goal=1, hold=1.0)
    if failures:
        raise failures[0]
    return test


def running_replicas(handle: Any) -> int:
    """Return how many replicas of a service run."""
    from ray import serve

    service = handle.deployment_id
    status = serve.status().applications[service.app_name].deployments[service.name]
    return int(status.replica_states.get("RUNNING", 0))


@contextlib.contextmanager
def _threads(
    client: Any, clients: int, many: threading.Event, over: threading.Event
) -> Iterator[None]:
    """Run the clients in threads: the first sends always, the others while `many` is set."""
    always = threading.Event()
    always.set()
    started = [threading.Thread(target=client, args=(always,))]
    started += [threading.Thread(target=client, args=(many,)) for _ in range(clients - 1)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in started:
            thread.join()
