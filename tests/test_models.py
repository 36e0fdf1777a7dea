"""The models: shapes, starts, tied embeddings, and that they learn."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.training.datasets import batches, digits, standard_library
from dtlab.training.models import GPT, MLP, Block, ConvNet, GPTConfig

SMALL = GPTConfig(vocab_size=17, context=9, num_layers=2, num_heads=2, width=8)


def _state(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


def _equal(first: nn.Module, second: nn.Module) -> bool:
    return all(map(torch.equal, _state(first), _state(second)))


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: MLP(64, 32, 10, seed=seed),
        lambda seed: ConvNet(seed=seed),
        lambda seed: GPT(SMALL, seed=seed),
    ],
)
def test_the_seed_is_all_there_is(make) -> None:  # type: ignore[no-untyped-def]
    before = torch.random.get_rng_state()
    assert _equal(make(3), make(3))
    assert not _equal(make(3), make(4))
    assert _equal(make(3), make(torch.Generator().manual_seed(3)))
    generator = torch.Generator().manual_seed(3)
    assert not _equal(make(generator), make(generator))  # it continues to draw
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.isfinite().all() for parameter in make(0).parameters())
    assert all(parameter.requires_grad for parameter in make(0).parameters())


def test_the_mlp_is_linears_and_relus() -> None:
    model, inputs = (
        MLP(6, 5, 4, 3),
        torch.randn(7, 2, 3, generator=torch.Generator().manual_seed(0)),
    )
    w1, b1, w2, b2, w3, b3 = model.parameters()
    hidden = (inputs.view(7, 6) @ w1.T + b1).clamp(min=0)
    expected = (hidden @ w2.T + b2).clamp(min=0) @ w3.T + b3
    torch.testing.assert_close(model(inputs), expected)
    for sizes in ((), (3,), (3, 0)):
        with pytest.raises(ValueError, match="two sizes or more"):
            MLP(*sizes)


def test_linear_layers_start_as_pytorchs_do() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = nn.Linear(64, 4096)
    ours = MLP(64, 4096, seed=0).layers[0]
    for name in ("weight", "bias"):
        mine, reference = getattr(ours, name).detach(), getattr(theirs, name).detach()
        assert mine.abs().max() <= 1 / 8
        assert mine.std().item() == pytest.approx(reference.std().item(), rel=0.05)


def test_the_convolutional_net_has_batchnorm() -> None:
    images = digits(shifts=False).test.tensors[0][:12]
    model = ConvNet()
    assert model(images).shape == (12, 10)
    assert not torch.allclose(model(images)[:6], model(images[:6]))
    model.eval()
    torch.testing.assert_close(model(images)[:6], model(images[:6]))


def test_gpts_head_is_its_token_embedding() -> None:
    model = GPT(SMALL)
    assert model.head.weight is model.token_embedding.weight
    names = [name for name, _ in model.named_parameters()]
    assert "token_embedding.weight" in names
    assert "head.weight" not in names
    h, v, t = SMALL.width, SMALL.vocab_size, SMALL.context
    per_layer = 12 * h * h + 13 * h  # Narayanan et al. 2021, equation 2, without embeddings
    expected = SMALL.num_layers * per_layer + (v + t) * h + 2 * h
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert sum(p.numel() for p in GPT().parameters()) == pytest.approx(125e3, rel=0.05)


def test_a_tied_gradient_is_the_sum_of_both_uses() -> None:
    tied, untied = GPT(SMALL), GPT(SMALL)
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    tokens = torch.randint(0, 17, (3, 9), generator=torch.Generator().manual_seed(0))
    for model in (tied, untied):
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    both = untied.head.weight.grad + untied.token_embedding.weight.grad
    torch.testing.assert_close(tied.token_embedding.weight.grad, both)


def test_gpt_looks_back_and_never_ahead() -> None:
    model, generator = GPT(SMALL), torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 17, (2, 9), generator=generator)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 17
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert all((before[:, t] - after[:, t]).abs().max() > 1e-5 for t in range(5, 9))
    torch.testing.assert_close(model(tokens[:, :4]), before[:, :4])


def test_a_block_is_pytorchs_own_layer() -> None:
    block = Block(SMALL).double()
    for parameter in block.parameters():
        nn.init.normal_(
            parameter, 0, 0.3, generator=torch.Generator().manual_seed(parameter.numel())
        )
    theirs = nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    names = {
        "self_attn.in_proj_": "attention.queries_keys_values.",
        "self_attn.out_proj.": "attention.projection.",
        "linear1.": "mlp.0.",
        "linear2.": "mlp.2.",
        "norm1.": "attention_norm.",
        "norm2.": "mlp_norm.",
    }
    ours = block.state_dict()
    theirs.load_state_dict(
        {a + end: ours[b + end] for a, b in names.items() for end in ("weight", "bias")}
    )
    hidden = torch.randn(3, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)
    torch.testing.assert_close(block(hidden), theirs(hidden, src_mask=mask, is_causal=True))


def test_what_gpt_refuses() -> None:
    with pytest.raises(ValueError, match="3 heads do not divide a width of 64"):
        GPTConfig(num_heads=3)
    with pytest.raises(ValueError, match="num_layers must be a whole number of 1 or more, not 0"):
        GPTConfig(num_layers=0)
    with pytest.raises(ValueError, match="10 tokens do not fit a context of 9"):
        GPT(SMALL)(torch.zeros(1, 10, dtype=torch.int64))


@pytest.mark.slow
def test_digits_are_learned() -> None:
    split = digits(shifts=False)
    images, labels = split.test.tensors
    for model in (MLP(64, 32, 10), ConvNet()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        generator = torch.Generator().manual_seed(0)
        for _ in range(8):
            for inputs, targets in batches(split.train, 32, generator=generator):
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
        wrong = (model.eval()(images).argmax(1) != labels).float().mean()
        assert wrong < 0.15


@pytest.mark.slow
def test_the_text_is_learned() -> None:
    split = standard_library(context=32, max_bytes=100_000)
    model = GPT(GPTConfig(context=32, num_layers=1, width=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in batches(split.train, 32, generator=torch.Generator().manual_seed(0)):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(256), abs=0.2)
    assert losses[-1] < 3.3
