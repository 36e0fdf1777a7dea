"""The closed forms against figures worked out elsewhere, and with known answers put in."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtlab import predict
from dtlab.predict import Cluster, Link, communication

GB = 1e9
LINK = Link(1e-3, 1e6)


@pytest.mark.slow
def test_importing_it_loads_no_torch() -> None:
    code = "import sys, dtlab.predict; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ------------------------------------------------------------------------------- closed forms


def test_gradients_of_175_billion_parameters_take_two_seconds_on_eight_gpus() -> None:
    assert predict.ring_all_reduce_seconds(350 * GB, 8, Link(0, 300 * GB)) == pytest.approx(
        2.0417, abs=1e-4
    )


@pytest.mark.parametrize(
    ("name", "ranks", "latencies", "shares"),
    [  # how many a, how many S/B
        ("naive_all_reduce", 4, 6, 6),
        ("ring_all_reduce", 4, 6, 1.5),
        ("ring_all_reduce", 1, 0, 0),
        ("tree_all_reduce", 8, 6, 6),
        ("tree_all_reduce", 5, 6, 6),
        ("recursive_doubling_all_reduce", 8, 3, 3),
        ("recursive_doubling_all_reduce", 3, 3, 3),
        ("recursive_doubling_all_reduce", 1, 0, 0),
        ("halving_doubling_all_reduce", 8, 6, 1.75),
        ("halving_doubling_all_reduce", 3, 4, 3),
        ("reduce_scatter", 4, 3, 0.75),
        ("all_gather", 3, 2, 2 / 3),
        ("all_to_all", 8, 7, 7 / 8),
        ("broadcast", 4, 3, 1),
        ("broadcast", 1, 0, 0),
        ("reduce", 2, 1, 1),
        ("tree_broadcast", 6, 3, 3),
        ("gather", 4, 1, 0.75),
        ("scatter", 1, 0, 0),
    ],
)
def test_latencies_and_bytes(name: str, ranks: int, latencies: float, shares: float) -> None:
    seconds = getattr(predict, f"{name}_seconds")
    assert seconds(0, ranks, LINK) == pytest.approx(latencies * LINK.latency)
    assert seconds(1e5, ranks, Link(0, 1e6)) == pytest.approx(shares * 0.1)
    sizes = np.array([1e3, 1e5])
    both = [seconds(size, ranks, LINK) for size in sizes.tolist()]
    np.testing.assert_allclose(seconds(sizes, ranks, LINK), both)


def test_two_levels() -> None:
    cluster = Cluster(2, 4, Link(2e-6, 300 * GB), Link(5e-6, 25 * GB))
    size = 1 * GB
    inside = 6 * 2e-6 + 1.5 * size / (300 * GB)
    between = 2 * 5e-6 + size / 4 / (25 * GB)
    both = predict.hierarchical_all_reduce_seconds(size, cluster)
    assert both == pytest.approx(inside + between)
    flat = 14 * 5e-6 + 1.75 * size / (25 * GB)
    assert predict.flat_ring_all_reduce_seconds(size, cluster) == pytest.approx(flat)
    one_node = Cluster(1, 8, cluster.intra, cluster.inter)
    ring = predict.ring_all_reduce_seconds(size, 8, cluster.intra)
    assert predict.flat_ring_all_reduce_seconds(size, one_node) == ring
    assert predict.hierarchical_all_reduce_seconds(size, one_node) == ring


@pytest.mark.parametrize(
    ("gpus", "flat", "a_ring_each"),
    [(4, 4.2, 1.05), (8, 5.87, 0.73)],  # in lesson 9: two nodes of four
)
def test_two_levels_gain_little_over_a_ring_on_each_adapter(
    gpus: int, flat: float, a_ring_each: float
) -> None:
    cluster, size = Cluster(2, gpus, Link(0, 450 * GB), Link(0, 50 * GB)), 100 * GB
    both = predict.hierarchical_all_reduce_seconds(size, cluster)
    one_ring = predict.flat_ring_all_reduce_seconds(size, cluster)
    rings = predict.ring_all_reduce_seconds(size / gpus, 2 * gpus, cluster.inter)
    assert one_ring / both == pytest.approx(flat, rel=0.01)
    assert rings / both == pytest.approx(a_ring_each, rel=0.01)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    "name",
    ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather",
     "scatter"],
)  # fmt: skip
def test_built_in_collectives_on_one_node_are_the_closed_forms(name: str, ranks: int) -> None:
    form = "ring_all_reduce" if name == "all_reduce" else name
    expected = getattr(predict, f"{form}_seconds")(1e5, ranks, LINK)
    cluster = Cluster(1, ranks, LINK)
    assert predict.collective_seconds(name, 1e5, cluster) == pytest.approx(expected)


def test_built_in_collectives_over_two_nodes() -> None:
    cluster = Cluster(2, 2, Link(1e-3, 1e6), Link(5e-3, 1e5))
    seconds = predict.collective_seconds
    fast, slow = cluster.intra, cluster.inter
    flat = predict.flat_ring_all_reduce_seconds(1e4, cluster)
    assert seconds("all_reduce", 1e4, cluster) == pytest.approx(flat)
    inside = predict.ring_all_reduce_seconds(1e4, 2, fast)
    assert seconds("all_reduce", 1e4, cluster, [0, 1]) == pytest.approx(inside)
    across = predict.ring_all_reduce_seconds(1e4, 2, slow)
    assert seconds("all_reduce", 1e4, cluster, [1, 3]) == pytest.approx(across)
    chain = 2 * fast.latency + slow.latency + 1e4 / slow.bandwidth  # 0 -> 1 -> 2 -> 3
    assert seconds("broadcast", 1e4, cluster) == pytest.approx(chain)
    assert seconds("reduce", 1e4, cluster, root=3) == pytest.approx(chain)
    assert seconds("gather", 1e4, cluster) == pytest.approx(slow.seconds(5e3))  # two of them
    assert seconds("barrier", 0, cluster) == pytest.approx(2 * slow.latency)
    with pytest.raises(ValueError, match="'send' is not a known collective"):
        seconds("send", 1, cluster)


def test_bandwidths() -> None:
    assert predict.bus_factor("all_reduce", 4) == 1.5
    assert predict.bus_factor("all_gather", 4) == 0.75
    assert predict.bus_factor("gather", 4) == predict.bus_factor("scatter", 4) == 0.75
    assert predict.bus_factor("broadcast", 4) == 1
    time = predict.ring_all_reduce_seconds(1e9, 8, Link(0, 25 * GB))
    assert predict.algorithm_bandwidth(1e9, time) == pytest.approx(25 * GB / 1.75)
    assert predict.bus_bandwidth("all_reduce", 1e9, time, 8) == pytest.approx(25 * GB)
    with pytest.raises(ValueError, match="'barrier' has no bus bandwidth factor"):
        predict.bus_factor("barrier", 4)


# ------------------------------------------------------------------------------- fitting


@pytest.mark.slow
@given(
    latency=st.floats(1e-7, 1e-2),
    bandwidth=st.floats(1e6, 1e12),
    sizes=st.lists(st.floats(1e2, 1e9), min_size=3, max_size=12, unique=True),
)
def test_an_exact_line_is_found(latency: float, bandwidth: float, sizes: list[float]) -> None:
    link = Link(latency, bandwidth)
    times = [link.seconds(size) for size in sizes]
    try:
        fitted = predict.fit_link(sizes, times)
    except ValueError:  # latency is all there is to see
        assert max(times) < 1.01 * min(times)
        return
    np.testing.assert_allclose([fitted.seconds(size) for size in sizes], times, rtol=1e-3)


def test_disturbed_measurements_change_little() -> None:
    generator = np.random.default_rng(0)
    link, sizes = Link(30e-6, 2e9), np.geomspace(1e3, 1e8, 15)
    times = link.seconds(sizes) * generator.normal(1, 0.02, 15)
    times[[3, 8]] *= 10
    fitted = predict.fit_link(sizes.tolist(), times.tolist())
    assert fitted.latency == pytest.approx(link.latency, rel=0.05)
    assert fitted.bandwidth == pytest.approx(link.bandwidth, rel=0.05)


def test_a_latency_below_zero_is_none() -> None:
    fitted = predict.fit_link([1e6, 2e6, 4e6], [0.9e-3, 2.1e-3, 4.4e-3])
    assert fitted.latency == 0
    assert fitted.bandwidth == pytest.approx(1e9, rel=0.15)


@pytest.mark.parametrize(
    ("sizes", "times", "message"),
    [
        ([1e6], [1.0], "at least two different sizes; got 1 sizes, 1 different, and 1 times"),
        ([1e6, 1e6], [1.0, 1.1], "2 sizes, 1 different"),
        ([1e6, 2e6], [1.0], "2 sizes, 2 different, and 1 times"),
        ([1e6, 2e6], [1.0, 0.0], "times above 0"),
        ([1e6, 2e6], [1.0, float("nan")], "times above 0"),
        ([1e6, 2e6], [1.0, 0.5], "Measure larger messages"),
        ([1e4, 3e5], [1e-3, 1e-3], "Measure larger messages"),
        ([1.0, 10.0, 300.0, 7e6], [1e-3] * 4, "Measure larger messages"),
    ],
)
def test_times_that_cannot_be_fitted_are_refused(
    sizes: list[float], times: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        predict.fit_link(sizes, times)


# ------------------------------------------------------------------------------- links, clusters


def test_ranks_fill_one_node_after_the_other() -> None:
    cluster = Cluster(2, 4)
    assert cluster.size == 8
    assert [cluster.node_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert cluster.link(0, 3) == cluster.intra == Link(2e-6, 300e9)
    assert cluster.link(3, 4) == cluster.inter == Link(5e-6, 25e9)
    with pytest.raises(ValueError, match="no rank 8: .* has ranks 0 to 7"):
        cluster.node_of(8)


def test_links_and_clusters_print_readably() -> None:
    assert repr(Cluster()) == "Cluster(4 GPUs, 300 GB/s and 2 µs between GPUs)"
    assert str(Cluster(2, 4)) == (
        "2 nodes of 4 GPUs, 300 GB/s and 2 µs inside a node, 25 GB/s and 5 µs between nodes"
    )
    assert str(Cluster(2, 1, slowdown=1000)) == (
        "2 nodes of 1 GPU, 25 GB/s and 5 µs between nodes, slowed down 1000 times"
    )
    assert str(Link(0, 1.25e9)) == "1.25 GB/s and 0 s"
    assert str(Link(1e-3, 999)) == "999 B/s and 1 ms"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Link(-1, 1), "latency must be 0 seconds or more, not -1"),
        (lambda: Link("1", 1), "latency must be 0 seconds or more, not '1'"),
        (lambda: Link(1, 0), "bandwidth must be bytes/s above 0, not 0"),
        (lambda: Link(1, float("nan")), "bandwidth must be bytes/s above 0, not nan"),
        (lambda: Cluster(nodes=0), "nodes must be a whole number of 1 or more, not 0"),
        (lambda: Cluster(gpus_per_node=2.5), "gpus_per_node must be a whole number"),
        (lambda: Cluster(intra=3), r"intra must be a Link\(latency, bandwidth\), not 3"),
        (lambda: Cluster(slowdown=0), "slowdown must be a number above 0, not 0"),
        (lambda: predict.ring_all_reduce_seconds(1, 0, LINK), "ranks must be a whole number"),
    ],
)
def test_impossible_links_and_sizes_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_every_form_is_public() -> None:
    forms = {name for name in vars(communication) if name.endswith("_seconds")}
    assert forms <= set(communication.__all__) <= set(predict.__all__)
