"""Experts spread over ranks, against a dense evaluation of the same experts."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.parallel.expert import ExpertParallel, balance_loss, dense_experts, route
from tests.staying import on_ranks

EXACT = {"rtol": 1e-10, "atol": 1e-12}
EXPERTS, WIDTH = 12, 6  # 1, 2, 3 and 4 ranks divide the experts


def layer() -> tuple[nn.ModuleList, nn.Linear]:
    torch.manual_seed(5)
    experts = nn.ModuleList(
        nn.Sequential(nn.Linear(WIDTH, 9), nn.GELU(), nn.Linear(9, WIDTH)) for _ in range(EXPERTS)
    )
    return experts.double(), nn.Linear(WIDTH, EXPERTS).double()


def tokens_of(rank: int) -> Tensor:
    """A different number of tokens on each rank; on rank 2 none."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randn([17, 10, 0, 23][rank], WIDTH, generator=draw, dtype=torch.float64)


def spread(choices: int, factor: float | None) -> tuple[Tensor, list[Tensor], list[Tensor], int]:
    """Output, gradients of input and router, those of this rank's experts, and dropped pairs."""
    experts, router = layer()
    tokens = tokens_of(dist.get_rank()).requires_grad_()
    module = ExpertParallel(experts, router, choices=choices, capacity_factor=factor)
    out = module(tokens)
    out.square().sum().backward()
    assert module.routing is not None and tokens.grad is not None
    shared = [tokens.grad, *(p.grad for p in router.parameters() if p.grad is not None)]
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.experts.parameters()]
    return out.detach(), shared, own, module.routing.dropped


@pytest.mark.parametrize("factor", [None, 1.0])
@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_spread_experts_equal_the_dense_evaluation(
    ranks: int, choices: int, factor: float | None
) -> None:
    experts, router = layer()
    inputs, outputs, dropped = [], [], 0
    for rank in range(ranks):
        tokens = tokens_of(rank).requires_grad_()
        capacity = None if factor is None else -(-choices * len(tokens) // EXPERTS)
        routing = route(router(tokens), choices, capacity)
        inputs.append(tokens)
        outputs.append(dense_experts(experts, tokens, routing))
        dropped += routing.dropped
    torch.cat(outputs).square().sum().backward()
    values = on_ranks(spread, choices, factor, world_size=ranks).values
    assert sum(value[3] for value in values) == dropped
    assert (factor is None) == (dropped == 0)
    here = EXPERTS // ranks
    for rank, (out, shared, own, _) in enumerate(values):
        torch.testing.assert_close(out, outputs[rank].detach(), **EXACT)
        wanted = [inputs[rank].grad, router.weight.grad, router.bias.grad]
        of_experts = [p.grad for p in experts[rank * here : (rank + 1) * here].parameters()]
        for ours, dense in zip([*shared, *own], [*wanted, *of_experts], strict=True):
            torch.testing.assert_close(ours, dense, **EXACT)


def shaped(shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    experts, router = layer()
    draw = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randn(*shape, WIDTH, generator=draw, dtype=torch.float64).requires_grad_()
    routing = route(router(tokens.reshape(-1, WIDTH)), 2)
    dense = dense_experts(experts, tokens, routing)
    (wanted,) = torch.autograd.grad(dense.square().sum(), tokens)
    out = ExpertParallel(experts, router, choices=2)(tokens)
    (gradient,) = torch.autograd.grad(out.square().sum(), tokens)
    return [(out.detach(), dense.detach()), (gradient, wanted)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (2, 3, 2), (0, 4), (4, 0)])
def test_tokens_may_have_any_leading_dims(shape: tuple[int, ...], ranks: int) -> None:
    for pairs in on_ranks(shaped, shape, world_size=ranks).values:
        for ours, dense in pairs:
            assert ours.shape == (*shape, WIDTH)
            torch.testing.assert_close(ours, dense, **EXACT)


def test_experts_are_named_after_their_number_among_all() -> None:
    def names() -> list[str]:
        module = ExpertParallel(*layer())
        assert module.experts[0] is next(iter(module.experts))
        return [name for name, _ in module.experts.named_children()]

    here = EXPERTS // 2
    numbers = [str(number) for number in range(EXPERTS)]
    assert on_ranks(names, world_size=2).values == [numbers[:here], numbers[here:]]


def test_capacity_keeps_first_choices_in_order() -> None:
    logits = torch.tensor([[9.0, 5, 0], [9, 5, 0], [9, 0, 5], [0, 9, 5]])
    routing = route(logits, 2, capacity=2)
    assert routing.experts.tolist() == [[0, 1], [0, 1], [0, 2], [1, 2]]
    # Expert 0 takes tokens 0 and 1. Expert 1 takes its first choice, token 3, then token 0.
    assert routing.kept.tolist() == [[True, True], [True, False], [False, True], [True, True]]
    assert routing.dropped == 2


def test_the_weights_of_the_two_choices_of_a_token_sum_to_one() -> None:
    probabilities = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.1, 0.5, 0.4]])
    weights = route(probabilities.log(), 2).weights
    wanted = torch.tensor([[6 / 9, 3 / 9], [6 / 8, 2 / 8], [5 / 9, 4 / 9]])
    torch.testing.assert_close(weights, wanted)


def test_balance_loss_is_one_for_equal_shares_and_n_for_one_expert() -> None:
    even = route(torch.eye(4).repeat(2, 1) * 100)
    single = route(torch.tensor([[100.0, 0, 0, 0]] * 7))
    assert balance_loss(even).item() == pytest.approx(1)
    assert balance_loss(single).item() == pytest.approx(4)


def uneven() -> None:
    experts, router = layer()
    ExpertParallel(experts[:5], router)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="3 choices of 4 experts; use 1 or 2"):
        route(torch.eye(4), 3)
    with pytest.raises(Exception, match="2 ranks do not divide 5 experts"):
        on_ranks(uneven, world_size=2)
