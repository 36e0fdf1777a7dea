"""Level I of unit 10: its right answers agree with the library and with brute force."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dtlab.checks import find_part
from dtlab.parallel.mesh import coordinates_of, group_of, is_within_node, rank_at
from dtlab.predict import LINKS, Costs, bubble, peak_in_flight, simulate
from dtlab.predict.communication import bus_factor
from dtlab.predict.hardware import Cluster
from dtlab.predict.memory import PrecisionPolicy, gpt_parameters, model_states, smallest_world_size
from dtlab.predict.plan import Plan, Transformer, evaluate
from dtlab.schedules import one_f_one_b
from tests.known_answers import answers_of
from tests.level_one import drawn_for

LEARNERS = [f"learner{number}" for number in range(8)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]
AXES = ("data", "pipeline", "tensor")


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    return drawn_for(f"10/{symbol}", learner)


# 10/coordinates --------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_coordinates_are_those_of_the_mesh(learner: str) -> None:
    given, right = drawn("coordinates", learner)
    sizes = {axis: given[axis] for axis in AXES}
    assert right["coordinates"] == list(coordinates_of(given["rank"], sizes).values())
    assert right["rank_there"] == rank_at(dict(zip(AXES, given["place"], strict=True)), sizes)
    assert right["group"] == group_of(given["rank"], "pipeline", sizes)
    assert right["inside"] == {a for a in AXES if is_within_node(a, sizes, given["node"])}


@pytest.mark.parametrize("learner", LEARNERS)
def test_every_group_is_counted_and_every_one_touches_as_many_nodes(learner: str) -> None:
    given, right = drawn("coordinates", learner)
    for order, answer in ((AXES, None), (AXES[::-1], right["turned"])):
        sizes = {axis: given[axis] for axis in order}
        for index, axis in enumerate(AXES):
            groups = {tuple(group_of(rank, axis, sizes)) for rank in range(given["world"])}
            assert len(groups) == right["groups"][index]
            touched = {len({rank // given["node"] for rank in group}) for group in groups}
            assert len(touched) == 1
            if answer is not None:
                assert touched == {answer[index]}
            else:
                assert (touched == {1}) == (axis in right["inside"])


def test_one_axis_or_two_lie_inside_a_node_and_never_all() -> None:
    found = Counter(len(drawn("coordinates", learner)[1]["inside"]) for learner in MANY_LEARNERS)
    assert set(found) == {1, 2}
    assert min(found.values()) > 15


def test_the_place_is_never_that_of_the_learners_own_rank() -> None:
    for number in range(400):
        given, right = drawn("coordinates", f"learner {number}")
        assert given["place"] != right["coordinates"]
        assert right["rank_there"] != given["rank"]


# 10/thousand_gpus ------------------------------------------------------------------------------


def planned(given: Any, zero: int, recompute: Any) -> dict[str, float]:
    """GB that the planner finds on the fullest GPU, by kind; the vocabulary has 8 tokens."""
    model = Transformer(
        given["layers"], given["hidden"], given["heads"], 8, given["tokens"],
        fused_attention=False, dropout=True,
    )  # fmt: skip
    plan = Plan(
        given["tensor"], 1, given["pipeline"], given["data"], zero, given["micro"],
        recompute=recompute, sequence_parallel=given["norms"] == "with",
    )  # fmt: skip
    cluster = Cluster(128, 8, LINKS["NVLink 4"], LINKS["InfiniBand NDR"])
    memory = evaluate(model, cluster, 1536, plan, memory=1e12).memory
    return {kind: size / 1e9 for kind, size in memory.items()}


@pytest.mark.parametrize("learner", LEARNERS)
def test_bytes_are_those_of_the_planner_but_for_the_embedding(learner: str) -> None:
    given, right = drawn("thousand_gpus", learner)
    kinds = ("parameters", "gradients", "optimizer state")
    weights, gradients, master, moments = right["states"]
    for index, recompute in enumerate(("none", "selective")):
        plain, sharded = (planned(given, zero, recompute) for zero in (0, 1))
        assert plain["activations"] == pytest.approx(right["first_stage"][index])
        states = [weights, gradients, master + moments]
        assert [plain[kind] for kind in kinds] == pytest.approx(states, rel=0.08)
        assert sum(sharded[kind] for kind in kinds) == pytest.approx(right["zero_1"], rel=0.08)


@pytest.mark.parametrize("learner", LEARNERS)
def test_states_and_flights_are_those_of_the_library(learner: str) -> None:
    given, right = drawn("thousand_gpus", learner)
    params = round(given["billions"] * 1e9 / (given["tensor"] * given["pipeline"]))
    whole, sharded = (model_states(params, zero, given["data"], "mixed") for zero in (0, 1))
    assert sum(right["states"]) == pytest.approx(whole.total / 1e9)
    assert right["zero_1"] == pytest.approx(sharded.total / 1e9)
    microbatches = 1536 // given["data"] // given["micro"]
    in_flight = peak_in_flight(one_f_one_b(given["pipeline"], microbatches))[0]
    on_stage = given["layers"] // given["pipeline"] * in_flight / 1e3
    assert right["first_stage"] == pytest.approx([each * on_stage for each in right["layer"]])


def test_what_fits_does_not_depend_on_rounding_and_differs() -> None:
    found = Counter()
    for given, right in (drawn("thousand_gpus", learner) for learner in MANY_LEARNERS):
        states = sum(right["states"]), right["zero_1"]
        totals = [x + y for y, x in itertools.product(right["first_stage"], states)]
        fits = dict(zip(("plain", "zero_1", "selective", "both"), totals, strict=True))
        assert right["fits"] == {name for name, total in fits.items() if total <= 80}
        assert all(abs(total - 80) > 0.02 * 80 for total in totals)
        assert given["tensor"] * given["pipeline"] * given["data"] == 1024
        assert given["layers"] % given["pipeline"] == given["heads"] % given["tensor"] == 0
        shape = given["layers"], given["hidden"], 51200, 2048
        assert gpt_parameters(*shape) / 1e9 == pytest.approx(given["billions"], abs=0.06)
        found[frozenset(right["fits"])] += 1
    assert len(found) >= 4


def test_the_claim_leaves_out_gradients_and_half_of_the_optimizer_state() -> None:
    """Claim 27: 83.75 GB without ZeRO-1 and 53 GB with it."""
    _, right = drawn("thousand_gpus", "anybody")
    assert right["correct"] == pytest.approx([83.75, 52.99], abs=0.005)
    states = [model_states(175e9 // 64, zero, 16, "mixed").total / 1e9 for zero in (0, 1)]
    assert right["correct"] == pytest.approx([each + 40 for each in states])
    per_parameter = [round(size / (175 / 64)) for size in (5.4, 16.2)]
    assert per_parameter == [2, 6]  # gradients need 2 more, and optimizer state needs 12
    assert right["correct"][0] - (5.4 + 16.2 + 40) == pytest.approx(8 * 175 / 64, abs=0.5)


# 10/smallest_mesh ------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_fewest_gpus_are_those_of_the_library(learner: str) -> None:
    given, right = drawn("smallest_mesh", learner)
    params, room = given["weights"] * 10**9 // 2, given["room"] * 1e9
    weights_alone = PrecisionPolicy("weights alone", 2, 0, moments=0)
    assert right["weights"] == smallest_world_size(params, 3, 80e9, weights_alone)
    assert right["training"] == smallest_world_size(params, 3, room, "mixed")
    fitting = [
        stages
        for stages in range(1, given["layers"] + 1)
        if given["layers"] % stages == 0
        and model_states(params, 0, 1, "mixed").total / (8 * stages) <= room
    ]
    assert right["mesh"] == [8, min(fitting)]


@pytest.mark.parametrize("learner", LEARNERS)
def test_batch_and_bubble_are_those_of_the_mesh(learner: str) -> None:
    given, right = drawn("smallest_mesh", learner)
    tensor, stages = right["mesh"]
    sizes = {"data": right["replicas"], "pipeline": stages, "tensor": tensor}
    assert np.prod(list(sizes.values())) == given["gpus"]
    replicas = {coordinates_of(rank, sizes)["data"] for rank in range(given["gpus"])}
    assert right["batch"] == given["micro"] * given["count"] * len(replicas)
    half = right["batch"] // (given["micro"] * 2 * len(replicas))  # of twice the replicas
    for name, microbatches in (("bubble", given["count"]), ("doubled", half)):
        step = simulate(one_f_one_b(stages, microbatches), Costs(1.0, 1.0, 1.0))
        assert right[name] == pytest.approx(100 * bubble(step))


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_ratio_is_counted_layer_by_layer(learner: str) -> None:
    given, right = drawn("smallest_mesh", learner)
    all_reduces = 0
    for _layer in range(given["layers"] // right["mesh"][1]):
        for _half in ("attention", "mlp"):
            for _pass in ("forward", "backward"):
                all_reduces += 1
    in_all_reduces = all_reduces * bus_factor("all_reduce", 8)  # in units of b x s x h
    assert right["ratio"] == pytest.approx(in_all_reduces / 2)


def test_gpt_3_needs_five_cards_for_its_weights() -> None:
    known = answers_of(find_part("10/smallest_mesh"))
    assert known is not None
    given = {"weights": 350, "room": 60, "layers": 96, "micro": 1, "count": 64, "gpus": 1024}
    right = known.right[0](given)
    assert (right["weights"], right["training"], right["mesh"]) == (5, 47, [8, 6])
