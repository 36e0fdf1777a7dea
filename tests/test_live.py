"""`live_bytes` and `peak_bytes`, compared with counts by hand."""

from __future__ import annotations

from math import isqrt

import pytest
import torch
from torch import Tensor, nn

from dtlab.training.activation import checkpoint_every
from dtlab.training.live import live_bytes, peak_bytes
from dtlab.training.saved import saved_bytes

X = 400  # bytes of the tensor between layers
SCALAR = 4


def inputs() -> Tensor:
    return torch.randn(100, requires_grad=True)


def tanhs(count: int) -> nn.Sequential:
    """Layers that each keep what they put out, and nothing else."""
    return nn.Sequential(*(nn.Tanh() for _ in range(count)))


def test_a_chain_operator_by_operator() -> None:
    live = live_bytes(tanhs(3), inputs())
    assert list(dict.fromkeys(live.forward)) == [X, 2 * X, 3 * X]
    # A loss, and its gradient, which a view spreads. Then each layer's gradient beside the one
    # before it, while outputs are freed, from the last to the first.
    ends = 2 * SCALAR
    assert list(dict.fromkeys(live.backward)) == [
        3 * X + SCALAR, 3 * X + ends, 4 * X + ends, 2 * X + ends,
    ]  # fmt: skip
    assert live.peak == 4 * X + ends
    assert live.gradients == 0


def test_tensors_freed_in_forward_are_no_longer_counted() -> None:
    live = live_bytes(lambda x: (x + 1 + 1 + 1 + 1).sin(), inputs())
    assert live.forward == [X, 2 * X, 2 * X, 2 * X, 2 * X]


def test_changes_in_place_and_views_make_nothing() -> None:
    live = live_bytes(lambda x: x.view(4, 25).t(), inputs())
    assert live.forward == [0, 0]
    live = live_bytes(lambda x: (x * 2).mul_(3).add_(1), inputs())
    assert live.forward == [X, X, X]


def test_gradients_of_parameters_are_separate_and_grad_is_unchanged() -> None:
    linear = nn.Linear(100, 100)
    live = live_bytes(linear, torch.randn(1, 100))
    assert live.gradients == 4 * (100 * 100 + 100)
    assert live.peak < 4 * X
    assert linear.weight.grad is None
    linear(torch.randn(1, 100)).sum().backward()
    before = linear.weight.grad
    assert live_bytes(linear, torch.randn(1, 100)) == live
    assert linear.weight.grad is before


def test_backward_begins_with_what_is_saved() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 30), nn.Tanh())
    x = torch.randn(5, 10, requires_grad=True)
    live, saved = live_bytes(model, x), saved_bytes(model, x)
    assert live.backward[0] == saved.total - x.nbytes + SCALAR  # the inputs were there before


def test_results_repeat_and_an_empty_measurement_is_refused() -> None:
    model, x = checkpoint_every(tanhs(9), 2), inputs()
    assert live_bytes(model, x) == live_bytes(model, x)
    with pytest.raises(ValueError, match="No output needs a gradient"):
        peak_bytes(model, torch.ones(3))
    with torch.no_grad():
        assert peak_bytes(model, x) == live_bytes(model, x).peak


def test_backward_starts_from_all_outputs() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    live = live_bytes(
        lambda x, *, y: {"a": [first(x)], "b": second(y)}, torch.ones(4), y=torch.ones(4)
    )
    assert live.gradients == 2 * 4 * (16 + 4)


@pytest.mark.slow
@pytest.mark.parametrize("count", [16, 25, 36])
def test_the_best_spacing_is_near_the_square_root(count: int) -> None:
    layers, x = tanhs(count), inputs()
    models = {k: checkpoint_every(layers, k) for k in range(1, count + 1)}
    peaks = {k: peak_bytes(model, x) for k, model in models.items()}
    best = min(peaks, key=lambda k: peaks[k])
    assert abs(best - isqrt(count)) <= 1
    assert peaks[best] < 0.75 * min(peaks[1], peaks[count])
    even = {k: saved_bytes(models[k], x).total for k in models if count % k == 0}
    assert min(even, key=lambda k: even[k]) == isqrt(count)
    for k, kept in even.items():
        # The inputs of all groups but the last, the first's among them, and the last group whole.
        assert kept == X * (count // k - 1 + k)
        assert 0 <= peaks[k] - kept <= 3 * X


@pytest.mark.slow
def test_where_layers_keep_more_than_their_inputs_the_best_spacing_is_smaller() -> None:
    """n inputs of b bytes, n layers that keep a: n b / k + k a is least at sqrt(n b / a)."""
    layers = nn.Sequential(*(tanhs(9) for _ in range(36)))
    peaks = {k: peak_bytes(checkpoint_every(layers, k), inputs()) for k in (1, 2, 3, 6, 12)}
    assert min(peaks, key=lambda k: peaks[k]) == 2
