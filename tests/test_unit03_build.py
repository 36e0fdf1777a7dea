"""The judges of Level II of unit 03: what they try, what they say, and what they look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import dtlab
from dtlab.checks import find_part
from dtlab.checks.comparison import close
from dtlab.checks.functions.criteria import Noted, right_on_some
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import groups_in_words, members_of
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import inside_marks, unseen_source
from dtlab.checks.functions.values import sgd_step
from dtlab.errors import RankTimeoutError
from dtlab.trace import Event, Trace
from dtlab.training.learning_rate import WarmupThenDecay, noise_scale_from_norms
from dtlab.units.unit03.accumulate_over_ranks import travels_once
from dtlab.units.unit03.graphs import Graphs
from dtlab.units.unit03.measure_noise_scale import Measuring, Norms
from dtlab.units.unit03.shares import Shares, plain_value, wrong_gradients, wrong_loss
from dtlab.units.unit03.training import Accumulating
from dtlab.units.unit03.warmup_then_decay import (
    Curve,
    Scheduled,
    still_optimizer,
    wrong_stretches,
)

RANKS = {
    "accumulate": {1},
    "accumulate_over_ranks": {1, 2, 3, 4},
    "warmup_then_decay": {1},
    "measure_noise_scale": {2, 3, 4, 5},
}
SEEDS = range(30)


def trials_of(part: str, seed: int) -> list[Trial]:
    check: Any = find_part(f"03/{part}").check
    return list(check.trials(seed))


# What is tried ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", RANKS)
def test_other_seeds_try_other_values_of_the_same_kind(part: str) -> None:
    plans = [trials_of(part, seed) for seed in range(20)]
    assert len({str(plan) for plan in plans}) == 20
    for plan in plans:
        assert {trial.world_size for trial in plan} == RANKS[part]


def micro_means(case: Accumulating) -> list[bool]:
    """Whether the mean of the microbatches' means is right, for each group and step."""
    found = []
    for shares in (one for steps in case.shares.values() for one in steps):
        ranks = []
        for rank in shares.members:
            pairs = zip(shares.sums[rank], shares.counts[rank], strict=True)
            ranks.append(torch.stack([one / max(1, count) for one, count in pairs]).mean(0))
        found.append(close(torch.stack(ranks).mean(0), shares.mean))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", ["accumulate", "accumulate_over_ranks"])
def test_equal_trials_forgive_a_mean_of_means_and_uneven_ones_never_do(part: str) -> None:
    for seed in SEEDS if part == "accumulate" else (0, 1, 2):
        for trial in trials_of(part, seed):
            for case in trial.cases:
                assert isinstance(case, Accumulating)
                assert len(case.sizes) == trial.world_size
                if case.topic == "equal":
                    assert all(micro_means(case))
                elif case.topic in ("uneven", "subgroups"):
                    assert not any(micro_means(case))


def test_curves_are_long_enough_to_tell_mistakes_apart() -> None:
    for seed in SEEDS:
        for trial in trials_of("warmup_then_decay", seed):
            for case in trial.cases:
                assert isinstance(case, Scheduled)
                curve = case.curve
                if case.topic == "warmup":
                    assert curve.warmup >= 4
                    assert case.steps > curve.total > curve.warmup + 8
                if case.topic == "resume":
                    assert case.steps >= 2
                    assert 2 * case.steps <= curve.total
                if case.topic == "groups":
                    assert len(set(case.bases)) == 3


def test_noise_is_drawn_so_that_it_can_be_measured() -> None:
    for seed in SEEDS[:10]:
        for trial in trials_of("measure_noise_scale", seed):
            for case in trial.cases:
                assert isinstance(case, Measuring)
                groups = case.groups or (tuple(range(trial.world_size)),)
                every = [case.norms(trial.world_size, members) for members in groups]
                for norms in every:
                    wanted = {
                        "clear": 5 < norms.scale < 100 and 0 < norms.signal < 1,
                        "none": -1 < norms.signal < -0.01,
                    }
                    assert wanted.get(case.signal, norms.signal == 0)


# Gradients -------------------------------------------------------------------------------------


def shares(
    sums: Sequence[Sequence[float]],
    counts: Sequence[Sequence[int]],
    members: tuple[int, ...] = (),
) -> Shares:
    """Shares of a parameter of two elements, whose second one is three times the first."""

    def vector(one: float) -> Tensor:
        return torch.tensor([one, 3 * one])

    return Shares(
        members or tuple(range(len(sums))),
        ["weight"],
        [(2,)],
        [True],
        {rank: [vector(one) for one in ranks] for rank, ranks in enumerate(sums)},
        {rank: list(ranks) for rank, ranks in enumerate(sums)},
        {rank: list(ranks) for rank, ranks in enumerate(counts)},
        torch.zeros(2),
    )


ALONE = shares([[6.0, 20.0, 2.0]], [[3, 10, 1]])
TWO = shares([[6.0, 20.0], [16.0]], [[3, 10], [1]])
GROUP = shares([[6.0, 20.0], [16.0], [9.0]], [[3, 10], [1], [4]], members=(0, 1))


@pytest.mark.parametrize(
    ("of", "got", "words"),
    [
        (ALONE, 2.0, ""),
        (ALONE, 6 / 14, "comes from the first microbatch only"),
        (ALONE, math.nan, "contains NaN. Is there a division by zero?"),
        (TWO, 3.0, ""),
        (TWO, 2.0, "the rank's own samples alone"),
        (GROUP, 3.0, ""),
        (GROUP, 3.5, "and multiplied by the number of all ranks"),
    ],
)
def test_the_message_on_a_wrong_gradient_says_what_it_is(
    of: Shares, got: float, words: str
) -> None:
    said = wrong_gradients([torch.tensor([got, 3 * got])], of, 0)
    assert words in said
    assert bool(said) == bool(words)


def test_a_gradient_of_another_shape() -> None:
    assert "is (3,) now" in wrong_gradients([torch.zeros(3)], ALONE, 0)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (3.0, ""),
        (26.0, "the sum of the losses of this rank"),
        (20 / 3, "the mean of the microbatches' means"),
    ],
)
def test_the_message_on_a_wrong_loss_says_what_it_is(got: float, words: str) -> None:
    said = wrong_loss(got, TWO, 0)
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.parametrize(("value", "sent"), [(1, 1.0), (0.5, 0.5), (True, "a bool")])
def test_what_a_function_returned_is_sent_plainly(value: Any, sent: float | str) -> None:
    assert plain_value(value) == sent


def accumulates(model: nn.Module, loss_sum: Callable[..., Tensor], micro_batches: Any) -> float:
    samples, total = sum(len(inputs) for inputs, _ in micro_batches), 0.0
    for inputs, targets in micro_batches:
        loss = loss_sum(model(inputs), targets) / samples
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def test_trials_not_run_after_a_hang_are_not_right() -> None:
    check: Any = find_part("03/accumulate").check
    equal, uneven, _ = trials_of("accumulate", 0)
    results = [
        [case.opened(type(case).on_rank(accumulates, case.given(0, 1)))] for case in equal.cases
    ]
    hung = Observation(uneven, error=RankTimeoutError("", running=[]))
    statuses = {one.name: one.status for one in check.settle([Observation(equal, results), hung])}
    assert statuses == {
        "equal": "ok", "uneven": "lost", "added": "blocked", "graphs": "ok", "loss": "blocked",
    }  # fmt: skip


# Graphs ----------------------------------------------------------------------------------------


def keeps_one_graph(model: nn.Module) -> None:
    for _ in range(3):
        model(torch.ones(4, 3)).sum().backward()


def keeps_all_graphs(model: nn.Module) -> None:
    torch.stack([model(torch.ones(4, 3)).sum() for _ in range(3)]).sum().backward()


def retains_graphs(model: nn.Module) -> None:
    for _ in range(3):
        loss = model(torch.ones(4, 3)).sum()
        loss.backward(retain_graph=True)


def keeps_what_has_no_graph(model: nn.Module) -> None:
    losses = []
    for _ in range(3):
        losses.append(model(torch.ones(4, 3)).sum())
        losses[-1].backward()
    with torch.no_grad():
        kept = [model(torch.ones(2, 3)) for _ in range(2)]
        assert len(kept) == 2


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "samples", "is_one"),
    [
        (keeps_one_graph, [4, 4, 4], True),
        (keeps_what_has_no_graph, [4, 4, 4, 2, 2], True),
        (keeps_all_graphs, [4, 4, 4], False),
        (retains_graphs, [4, 4, 4], False),
    ],
)
def test_graphs_that_are_held_are_seen_at_the_next_forward_pass(
    run: Callable[[nn.Module], None], samples: list[int], is_one: bool
) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    graphs = Graphs(model)
    for _ in range(2):
        with graphs.watched() as passes:
            run(model)
        assert [seen for seen, _ in passes] == samples
        assert all(held == 0 for _, held in passes) == is_one
        del passes
    assert graphs.held == 0


# What travelled --------------------------------------------------------------------------------


def sent(*events: tuple[str, int]) -> str:
    made = [Event(0, "comm", name, (1,), size) for name, size in events]
    return travels_once(made, 20_000, "the gradients")


def test_only_gradients_and_a_few_numbers_are_sent() -> None:
    assert not sent(("all_reduce", 8), ("all_reduce", 20_000), ("broadcast", 40))
    assert not sent(("all_reduce", 12_000), ("all_gather", 900), ("all_reduce", 8_000))
    assert sent(("all_reduce", 24_000)).startswith("the all-reduces have 24 kB")


def test_events_belong_to_the_mark_in_which_they_begin() -> None:
    events = [
        Event(0, "compute", "step", (), 0, 1.0, 2.0),
        Event(0, "comm", "all_reduce", (1,), 8, 1.5, 2.5),
        Event(1, "comm", "all_reduce", (0,), 8, 1.5, 2.5),
        Event(0, "comm", "broadcast", (1,), 8, 2.5, 2.6),
        Event(0, "compute", "step", (), 0, 3.0, 4.0),
    ]
    inside = list(inside_marks(Trace(events, world_size=2), 0, "step"))
    assert [[one.name for one in step] for step in inside] == [["step", "all_reduce"], ["step"]]
    assert not list(inside_marks(None, 0, "step"))


def test_a_right_result_must_have_been_communicated() -> None:
    case = Measuring(0, 1000, 4)

    def said(*wire: int | None, groups: Any = ()) -> str:
        trace = Trace([], world_size=4, wire=list(wire))
        seen = Observation(Trial(4, [case]), [], trace)
        return unseen_source(seen, "the value is", 4000, groups)

    assert not said(6000, 6000, 6000, 6000)
    assert not said(None, 0, 0, 0)
    assert "of the 24 kB that ranks must send each other for that, 8 kB" in said(*[2000] * 4)
    assert not said(4000, 4000, 4000, 4000, groups=((0, 1), (2, 3)))


# The schedule ----------------------------------------------------------------------------------


def factors(curve: Curve, count: int) -> list[float]:
    return [curve.factor(step) for step in range(count)]


@pytest.mark.parametrize("curve", [Curve(5, 16, 0.2), Curve(0, 9, 0.5), Curve(4, 4, 0.1)])
def test_the_curve_is_the_librarys(curve: Curve) -> None:
    optimizer = still_optimizer([1.0])
    scheduler = WarmupThenDecay(optimizer, curve.warmup, curve.total, start_factor=curve.start)
    seen = [scheduler.factor(step) for step in range(curve.total + 4)]
    # At a warm-up of all steps the library has the decay's first value at the end.
    until = curve.total + (4 if curve.warmup < curve.total else 0)
    assert seen[:until] == pytest.approx(factors(curve, until))
    assert curve.factor(curve.total) == 0


CURVE = Curve(4, 12, 0.2)


@pytest.mark.parametrize(
    ("stretch", "wrong", "words"),
    [
        ("warmup", lambda k: CURVE.factor(k + 5), "where an earlier schedule stopped"),
        ("decay", lambda k: 0.0 if k < 4 else CURVE.factor(k), ""),
        ("decay", lambda k: CURVE.factor(k + 1), "still has the full rate"),
        ("end", lambda k: 1.0 if k < 12 else 0.0, ""),
    ],
)
def test_the_message_on_a_wrong_curve_describes_its_shape(
    stretch: str, wrong: Callable[[int], float], words: str
) -> None:
    said = wrong_stretches(CURVE, [wrong(step) for step in range(18)])[stretch]
    assert words in said
    assert bool(said) == bool(words)


def test_a_wrong_warm_up_loses_only_its_own_points() -> None:
    check: Any = find_part("03/warmup_then_decay").check
    case = Scheduled(CURVE, (1.0,), 18)

    def judged(wrong: Callable[[int], float]) -> list[str]:
        rates = [([wrong(step)], [wrong(step)]) for step in range(18)]
        seen = [Observation(Trial(1, [case]), [[Noted({"rates": rates})]])]
        return [rule.settle(seen).status for rule in check.rules[:3]]

    assert judged(CURVE.factor) == ["ok", "ok", "ok"]
    assert judged(lambda k: 0.2 if k < 4 else CURVE.factor(k)) == ["lost", "ok", "ok"]
    assert judged(lambda k: 1.0) == ["lost", "blocked", "blocked"]
    assert judged(lambda k: CURVE.factor(k) if k < 4 else 0.5) == ["ok", "lost", "blocked"]


def test_the_optimizer_of_schedules_keeps_its_rates() -> None:
    def ranks() -> list[float]:
        optimizer = still_optimizer([0.5, 0.1])
        scheduler = WarmupThenDecay(optimizer, 2, 5, start_factor=0.5)
        optimizer.step()
        scheduler.step()
        optimizer.load_state_dict(optimizer.state_dict())
        return [group["lr"] for group in optimizer.param_groups]

    (found,) = dtlab.launch(ranks, world_size=1).values
    assert found == [0.375, pytest.approx(0.075)]


# The noise scale -------------------------------------------------------------------------------


def test_the_noise_scale_is_the_librarys() -> None:
    for norms in (Norms(8.0, 5.0, 6, 4), Norms(8.0, 3.0, 2, 2), Norms(8.0, 2.0, 4, 3)):
        theirs = noise_scale_from_norms(
            norms.small, norms.big, norms.batch, norms.batch * norms.ranks
        )
        assert norms.variance == pytest.approx(theirs.variance)
        assert norms.signal == pytest.approx(theirs.gradient_squared)
        assert norms.scale == pytest.approx(theirs.batch)


def test_the_message_on_a_wrong_noise_scale_says_what_it_is() -> None:
    case = Measuring(3, 2000, 8)
    norms = case.norms(3, (0, 1, 2))
    batch, ranks, right = 8, 3, norms.scale

    def said(*values: float) -> str:
        every = values if len(values) == 3 else values * 3
        pairs = zip(every, case.gradients(3), strict=True)
        return case.mistake([Noted({"value": one, "gradient": two}) for one, two in pairs])

    assert not said(right)
    assert not said(right * 1.0001)
    assert "rank 2: the noise scale that your function returns is" in said(right, right, 2 * right)
    variance = (norms.small - norms.big) / (batch * ranks - batch)
    assert "divide their difference?" in said(variance / (norms.big - variance / (batch * ranks)))
    assert "is inf, not " in said(math.inf)


# What both units share -------------------------------------------------------------------------


def test_groups_and_their_members() -> None:
    groups = ((0, 2), (1, 3))
    assert members_of(groups, 3, 4) == (1, 3)
    assert members_of((), 3, 4) == (0, 1, 2, 3)
    assert groups_in_words(groups) == "groups (0, 2) and (1, 3)"


def test_a_step_is_taken_with_the_mean() -> None:
    module = nn.Linear(1, 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    one = torch.ones(1, 1)
    sgd_step(module, [[one, None], [3 * one, None]])
    assert module.weight.item() == pytest.approx(-0.2)
    assert module.bias.item() == 0


def test_allowed_names_of_finished_code_do_not_count() -> None:
    optimizer = still_optimizer([1.0])
    home = "torch.optim.lr_scheduler"
    with finished_calls(home, allowed={"LRScheduler", "LambdaLR"}) as called:
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    assert not called
    with finished_calls(home, allowed={"LRScheduler"}) as called:
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    assert called == {f"{home}.LambdaLR"}


def test_right_on_some_numbers_of_ranks() -> None:
    case = Measuring(3, 2000, 8)

    def seen(ranks: int, is_right: bool) -> Observation:
        value = case.norms(ranks, range(ranks)).scale if is_right else 5.0
        gradients = case.gradients(ranks)
        results = [Noted({"value": value, "gradient": one}) for one in gradients]
        return Observation(Trial(ranks, [case]), [results])

    assert right_on_some([seen(2, True), seen(3, False)]).startswith("Right on 2 ranks only")
    assert not right_on_some([seen(2, True), seen(3, True)])
    assert not right_on_some([seen(2, False)])


@pytest.mark.slow
def test_ddp_and_ours_send_what_the_judge_expects() -> None:
    """The wrappers' own messages in a step are few, so that a learner's are what is counted."""
    case: Any = trials_of("accumulate_over_ranks", 0)[0].cases[0]

    def ranks(sizes: tuple[int, ...]) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from dtlab.parallel.data import DataParallel

        for wrapper in (DistributedDataParallel, DataParallel):
            model = wrapper(nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(sizes))))
            for _ in range(2):
                with dtlab.span("step"):
                    model(torch.ones(2, sizes[0]) + dist.get_rank()).sum().backward()

    run = dtlab.launch(ranks, case.net.sizes, world_size=2)
    steps = list(inside_marks(run.trace, 0, "step"))
    assert len(steps) == 4
    assert not [travels_once(step, case.reduced[0], "they") for step in steps if not step]
    for step in steps:
        assert not travels_once(step, case.reduced[0], "they")
