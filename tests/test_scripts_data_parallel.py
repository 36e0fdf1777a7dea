"""Level III of unit 02: broken training scripts, their symptoms and lines, and their judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import TensorDataset

import dtlab
from dtlab.grading import Part, find_part
from dtlab.grading.checking.bench import HERE, warm_up
from dtlab.grading.checking.checks import UNANSWERED
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.data_parallel import SYMPTOMS
from dtlab.grading.scripts.judges import copies_differ, not_shared_out
from dtlab.grading.scripts.lines import judge_line
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.scripts.reference import (
    Optimizer,
    averaged_after_each_step,
    in_one_process,
    mean,
    off,
    steps_of,
)
from dtlab.grading.scripts.symptoms import Scene
from dtlab.training.datasets import digits
from dtlab.training.models import MLP
from dtlab.units.unit02 import scripts
from dtlab.units.unit02.script_4 import OnShards, not_as_one_process_on_shards, unused_samples
from dtlab.units.unit02.script_8 import OnCards, no_card_of_its_own
from tests.marks import first
from tests.staying import BENCH
from tests.wrong_answers import answers_of

pytestmark = pytest.mark.unit("02")

PARTS = [find_part(f"02/script_{number}") for number in range(1, 9)]
OPTIMIZERS = {
    "sgd": (Optimizer(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (Optimizer(0.05, 0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": (
        Optimizer(2e-3, adam=True, eps=1e-3),
        lambda p: torch.optim.Adam(p, lr=2e-3, eps=1e-3),
    ),
}


def mend_of(part: Part) -> MendScript:
    """The check of a part."""
    assert isinstance(part.check, MendScript)
    return part.check


def said_of(part: Part) -> dict[str, Any]:
    """The right diagnosis, as the right answers have it."""
    known = answers_of(part)
    assert known is not None
    return dict(known.right[0]()["diagnosis"])


def name_of(part: Part) -> str:
    """How pytest names a case."""
    return part.symbol


each_part = pytest.mark.parametrize("part", PARTS, ids=name_of)


@pytest.fixture(scope="module")
def warm() -> None:
    """The server of ranks has imported what optimizers need."""
    warm_up()


def test_every_part_has_five_points_and_all_take_73_minutes() -> None:
    assert [part.points for part in PARTS] == [5] * 8
    assert sum(part.minutes for part in PARTS) == 73


# Symptoms ---------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", first(range(3)))
@each_part
def test_a_script_shows_its_symptom_and_no_other(part: Part, seed: int, warm: None) -> None:
    mend = mend_of(part)
    cases = [replace(case, seed=100 * seed) for case in mend.scene.cases]  # type: ignore[type-var]
    seen = BENCH.observe(Trial(mend.scene.world_size, cases), mend.broken)
    scene = Scene(seen, mend.optimizer)
    measured = [name for name, symptom in SYMPTOMS.items() if symptom.find(scene).seen]
    assert measured == [said_of(part)["symptom"]]


def train_on_rank(seed: int) -> list[float]:
    """The losses of the seventh script on 512 digits."""
    data = TensorDataset(*digits(shifts=False).train[:512])
    return scripts.train_7(MLP(64, 32, 10, seed=seed), data, 12)


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("seed", first(range(5)))
def test_gradients_that_pile_up_undo_what_was_learnt(seed: int, warm: None) -> None:
    run = dtlab.launch(train_on_rank, seed, world_size=4, backend="gloo", trace=False)
    losses = torch.tensor(run.values).mean(0)
    assert losses[-3:].mean() > 1.5 * losses.min()


def test_no_two_scripts_have_the_same_symptom() -> None:
    named = [said_of(part)["symptom"] for part in PARTS]
    assert len(set(named)) == len(named)
    assert len(SYMPTOMS) > len(named), "the last one should not be told by the others"


@pytest.mark.sample(1)
@pytest.mark.sample(3)
@pytest.mark.slow
@each_part
def test_the_broken_script_earns_nothing(part: Part, warm: None) -> None:
    diagnosis = {"symptom": None, "line": None}
    answer = {"diagnosis": diagnosis, "mended": mend_of(part).broken}
    criteria = part.check.run(part.symbol, answer, bench=BENCH)
    assert [one.status for one in criteria] == ["open", "open", "lost", "blocked"]
    assert [one.name for one in criteria][:2] == ["symptom", "line"]


def nothing(*_: Any) -> None:
    """Stands for a script that does nothing."""


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("said", [3, "drift", [], {"symptom": object()}, {"symptom": 7}])
def test_a_strange_diagnosis_is_lost_and_nothing_worse(said: Any, warm: None) -> None:
    criteria = PARTS[0].check.run("script_1", {"diagnosis": said, "mended": nothing}, bench=BENCH)
    assert criteria[0].status == "lost"
    assert criteria[1].status == ("open" if isinstance(said, dict) else "blocked")
    assert criteria[0].message


@pytest.mark.slow
@pytest.mark.parametrize("answer", [None, 3, nothing, {}, {"mended": nothing}])
def test_what_is_no_dict_of_both_is_told_what_to_write(answer: Any, warm: None) -> None:
    criteria = PARTS[0].check.run("script_1", answer, bench=BENCH)
    assert criteria[0].message.startswith("script_1 must be a dict")
    assert [one.status for one in criteria] == ["lost", "blocked", "blocked", "blocked"]


@pytest.mark.sample(3)
@pytest.mark.slow
@each_part
def test_a_script_that_does_nothing_earns_nothing(part: Part, warm: None) -> None:
    criteria = mend_of(part).check.run("mended", nothing, bench=BENCH)
    assert [one.status for one in criteria] == ["lost", "blocked"], criteria


# Lines ------------------------------------------------------------------------------------------

LINE = ["dist.all_reduce(parameter.data)", "parameter.data /= size"]


@pytest.mark.parametrize(
    "said",
    [
        6, 7, 6.0, torch.tensor(6), "6", " line 7: ", "Line 6", "dist.all_reduce(parameter.data)",
        "  dist.all_reduce( parameter.data )  # here", "parameter.data/=size", "all_reduce",
    ],
)  # fmt: skip
def test_a_line_may_be_named_in_many_ways(said: Any) -> None:
    assert judge_line(scripts.train_5, said, LINE, "Look.").status == "ok"


@pytest.mark.parametrize(
    ("said", "piece"),
    [
        (10, "line 10, `dist.broadcast(parameter.data, src=0)`, does what it should here. Look."),
        (0, "train_5 has no line 0"),
        (99, "train_5 has no line 99"),
        (-1, "train_5 has no line -1"),
        (6.5, "train_5 has no line 6.5"),
        ([6], "train_5 has no line"),
        ("there", "train_5 has no line"),
        ("parameter.data", "lines have that text"),
        ("for", "train_5 has no line"),
        ("optimizer.step()", "does what it should here"),
    ],
)
def test_a_wrong_line_is_told_where_to_look(said: Any, piece: str) -> None:
    verdict = judge_line(scripts.train_5, said, LINE, "Look.")
    assert verdict.status == "lost"
    assert piece in verdict.message
    assert "all_reduce" not in verdict.message


@pytest.mark.parametrize("said", [None, ""])
def test_a_line_that_is_not_filled_in_waits(said: Any) -> None:
    assert judge_line(scripts.train_5, said, LINE, "Look.") == UNANSWERED


# One process ------------------------------------------------------------------------------------


def torchs_own(
    case: Training, steps: list[list[int]], make: Callable[..., Any], zero: bool
) -> torch.Tensor:
    """Parameters after the steps, by torch.optim."""
    model = MLP(64, case.hidden, 10).double()
    vector_to_parameters(case.start(0).double(), model.parameters())
    optimizer = make(model.parameters())
    images, labels = case.data
    for step in steps:
        if zero:
            optimizer.zero_grad()
        F.cross_entropy(model(images[step].double()), labels[step]).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("piled_up", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_process_is_what_torch_makes_of_the_whole_batch(name: str, piled_up: bool) -> None:
    ours, theirs = OPTIMIZERS[name]
    case, steps = Training(3, 60), [list(range(k, k + 12)) for k in range(0, 60, 12)]
    shared = [[[step[:6]], [step[6:]]] for step in steps]
    got = in_one_process(case, [mean(step) for step in shared], ours, piled_up=piled_up)
    assert off(got, torchs_own(case, steps, theirs, not piled_up), case.start(0)) < 1e-9


def test_averaging_parameters_is_averaging_gradients_with_sgd_and_not_with_adam() -> None:
    case = Training(4, 60)
    steps = [[[list(range(k, k + 6))], [list(range(k + 6, k + 12))]] for k in range(0, 60, 12)]
    for name, same in (("sgd", True), ("momentum", True), ("adam", False)):
        optimizer = OPTIMIZERS[name][0]
        wanted = in_one_process(case, [mean(step) for step in steps], optimizer)
        far = off(averaged_after_each_step(case, steps, optimizer), wanted, case.start(0))
        assert (far < 1e-9) == same, name
        assert same or far > 1e-2


def test_steps_are_what_ranks_do_together() -> None:
    case = Training(0, 12, epochs=2)
    one = seen([[0, 1], [2, 3], [4, 5], [6, 7]])
    other = seen([[8], [9]])
    assert steps_of(case, [one, other]) == [
        [[[0, 1]], [[8]]], [[[2, 3]], []], [[[4, 5]], [[9]]], [[[6, 7]], []]
    ]  # fmt: skip
    assert steps_of(replace(case, passes=2), [one, one])[0] == [[[0, 1], [2, 3]]] * 2


# Judges -----------------------------------------------------------------------------------------


def seen(passes: list[list[int]], after: float = 0.0, cards: list[int] | None = None) -> Seen:
    """What a rank did, with a model of two parameters."""
    row = torch.full((2,), after, dtype=torch.float64)
    return Seen(passes, torch.zeros(len(passes), 2, dtype=torch.float64), row, cards or [])


NO_TRACE = Observation(Trial(2, []))


@pytest.mark.parametrize(
    ("passes", "piece"),
    [
        ([[[0, 1], [2, 3]], [[2, 3], [0, 1]]], ""),
        ([[[0, 1], [2, 0]], [[2, 3], [3, 1]]], ""),
        ([[[0, 1, 2, 3]] * 2] * 2, "every rank goes through all 4 samples"),
        ([[[0, 1], [0, 1]], [[2], [2]]], "1 of 4 samples are in no rank's"),
        ([[[0, 1], [0, 1]], [[2, 3], [2, 3]]], "in the order of epoch 0"),
        ([[[0, 1], [1, 0]], [[2, 3], [3, 2]]], "only their order is new"),
        ([[[0, 1, 2], [0, 1, 3]], [[1, 2, 3], [1, 2, 0]]], "2 samples are taken more than once"),
        ([[[0, 1], [2, 3]], [[2, -1], [0, 1]]], "images that are not in the data"),
        ([[[0, 1], [2, 3]], [[2, 3]]], "rank 1 makes 1 forward passes in 2 epochs"),
        ([[[0, 1], [2, 3]], []], "rank 1 makes 0 forward passes"),
    ],
)
def test_samples_are_shared_out_or_it_is_said_why_not(
    passes: list[list[list[int]]], piece: str
) -> None:
    said = not_shared_out(Training(0, 4), [seen(own) for own in passes], NO_TRACE)
    assert piece in said
    assert bool(piece) == bool(said)


def test_a_share_may_be_filled_up_by_less_than_a_sample_for_each_rank() -> None:
    ranks = [seen([[0, 1]]), seen([[2, 3]]), seen([[4, 0]])]
    assert not not_shared_out(Training(0, 5, epochs=1), ranks, NO_TRACE)


def test_samples_of_a_shard_that_are_left_out_are_counted() -> None:
    case = OnShards(0, shards=(2, 3))
    whole = seen([[0], [1], [1], [0]])
    assert not unused_samples(case, [whole, seen([[2, 3, 4], [4, 2, 3]])], NO_TRACE)
    said = unused_samples(case, [whole, seen([[2, 3, 4], [4, 2]])], NO_TRACE)
    assert "rank 1 leaves out 1 of its 3 samples in epoch 1" in said


@pytest.mark.parametrize(
    ("cards", "piece"),
    [
        ([[0], [0], [1], [1]], ""),
        ([[0], [1], [0], [1]], "rank 1 asks for card 1, which rank 3 on its node has too"),
        ([[0], [0], [1], []], "rank 3 asks for no card"),
        ([[0], [0], [2, 1], [1]], "rank 2 asks for card 2."),
    ],
)
def test_ranks_dealt_round_the_nodes_have_their_cards(cards: list[list[int]], piece: str) -> None:
    case = OnCards(0, 8, nodes=2, round=True)
    said = no_card_of_its_own(case, [seen([[0]], cards=own) for own in cards], NO_TRACE)
    assert piece in said
    assert bool(piece) == bool(said)


def test_copies_are_compared_bit_by_bit() -> None:
    case = Training(0, 4)
    start = case.start(0).double()

    def rank(after: torch.Tensor) -> Seen:
        return Seen([[0]], start[None], after, [])

    first = rank(start + 1)
    assert not copies_differ(case, [first, rank(start + 1)], NO_TRACE)
    assert "by rounding only" in copies_differ(case, [first, rank(start + 1 + 1e-12)], NO_TRACE)
    assert "10.0% of the distance" in copies_differ(case, [first, rank(start + 1.1)], NO_TRACE)
    other = Seen([[0]], start[None] + 1, start + 2, [])
    assert "in their first forward pass" in copies_differ(case, [first, other], NO_TRACE)


@pytest.mark.parametrize("divisor", ["ranks", "present", "samples", "nothing"])
def test_three_means_over_shards_are_right_and_no_other(divisor: str) -> None:
    case, optimizer = OnShards(5, epochs=1, shards=(4, 10)), Optimizer(0.1)
    passes = [[[0, 1, 2, 3]], [[4, 5, 6, 7], [8, 9, 10, 11, 12, 13]]]
    weights: list[dict[int, float]] = [dict.fromkeys(range(8), 1 / 8)]
    weights.append(
        dict.fromkeys(range(8, 14), {"ranks": 1 / 12, "nothing": 1 / 2}.get(divisor, 1 / 6))
    )
    after = in_one_process(case, weights, optimizer)
    ranks = [Seen(own, torch.zeros(len(own), len(after)), after, []) for own in passes]
    said = not_as_one_process_on_shards(optimizer)(case, ranks, NO_TRACE)
    assert bool(said) == (divisor == "nothing")


@pytest.mark.slow
def test_a_scene_is_run_where_the_answer_is(warm: None) -> None:
    part = PARTS[2]
    seen_here = HERE.observe(mend_of(part).scene, mend_of(part).broken)
    assert seen_here.error is None
    (results,) = seen_here.results
    assert all(isinstance(one, Seen) and len(one.passes) == 8 for one in results)
