"""Fields split into tiles, against the whole field in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.parallel.domain import (
    DomainParallelConv2d,
    DomainParallelGroupNorm,
    halo_exchange,
    heat_step,
    join_tiles,
    mean_over_tiles,
    on_tiles,
    own_tile,
    shallow_water_start,
    shallow_water_step,
    step_alone,
)
from dtlab.parallel.domain import layers as domain_layers
from dtlab.parallel.mesh import make_mesh
from dtlab.training.models import UNet
from tests.staying import on_ranks

EXACT = {"rtol": 1e-12, "atol": 1e-12}
MESHES = [{"y": 1}, {"y": 2}, {"x": 3}, {"y": 4}, {"y": 2, "x": 2}, {"y": 1, "x": 3}]
BOUNDARIES = ("zero", "periodic")


def ranks_of(sizes: dict[str, int]) -> int:
    ranks = 1
    for size in sizes.values():
        ranks *= size
    return ranks


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_halo(
    field: Tensor, mesh: DeviceMesh, width: dict[str, tuple[int, int]], boundary: str
) -> Tensor:
    """The tile with its halo, cut from the padded whole field."""
    for axis, dim in {"y": -2, "x": -1}.items():
        if axis not in (mesh.mesh_dim_names or ()):
            continue
        before, after = width.get(axis, (0, 0))
        size, group = field.shape[dim], mesh.get_group(axis)
        places = torch.arange(-before, size + after)
        outside = (places < 0) | (places >= size)
        padded = field.index_select(dim, places % size)
        if boundary == "zero":
            padded = padded.index_fill(dim, outside.nonzero().flatten(), 0)
        parts = torch.arange(size).tensor_split(dist.get_world_size(group))
        mine = parts[dist.get_rank(group)]
        field = padded.narrow(dim, int(mine[0]), len(mine) + before + after)
    return field


def exchange(sizes: dict[str, int], widths: Any, boundary: str) -> list[tuple[Tensor, Tensor]]:
    mesh = make_mesh(**sizes)
    field = drawn(2, 11, 13).requires_grad_()
    tile = own_tile(field.detach(), mesh).requires_grad_()
    both = dict.fromkeys("yx", (widths, widths)) if isinstance(widths, int) else widths
    wanted = with_halo(field, mesh, both, boundary)
    padded = halo_exchange(tile, mesh, widths, boundary)
    weight = drawn(*padded.shape, seed=dist.get_rank())
    (gradient,) = torch.autograd.grad((padded * weight).sum(), tile)
    (of_whole,) = torch.autograd.grad((wanted * weight).sum(), field)
    dist.all_reduce(of_whole)
    return [(padded.detach(), wanted.detach()), (gradient, own_tile(of_whole, mesh))]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("widths", [1, 2, {"y": (2, 1), "x": (0, 2)}, {"x": (1, 0)}])
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_tiles_with_halos_are_cuts_of_the_whole_field(
    sizes: dict[str, int], widths: Any, boundary: str
) -> None:
    for pairs in on_ranks(exchange, sizes, widths, boundary, world_size=ranks_of(sizes)).values:
        (padded, wanted), (gradient, of_whole) = pairs
        assert torch.equal(padded, wanted)
        torch.testing.assert_close(gradient, of_whole, **EXACT)


def simulate(kind: str, sizes: dict[str, int], boundary: str) -> tuple[Tensor, Tensor]:
    mesh = make_mesh(**sizes)
    step: Callable[[Tensor], Tensor]
    if kind == "heat":
        field, step = drawn(12, 10), lambda padded: heat_step(padded, 0.2)
    else:
        field, step = shallow_water_start(12, 10), lambda padded: shallow_water_step(padded, 0.3)
    tile = own_tile(field, mesh)
    for _ in range(20):
        field = step_alone(step, field, boundary)
        tile = step(halo_exchange(tile, mesh, 1, boundary))
    return join_tiles(tile, mesh), field


@pytest.mark.parametrize("sizes", [{"y": 2, "x": 2}, {"y": 1, "x": 3}, {"y": 3, "x": 1}], ids=str)
@pytest.mark.parametrize(
    ("kind", "boundary"), [("heat", "zero"), ("heat", "periodic"), ("water", "periodic")]
)
def test_simulations_on_tiles_equal_one_tile_to_the_last_bit(
    kind: str, sizes: dict[str, int], boundary: str
) -> None:
    for tiles, alone in on_ranks(
        simulate, kind, sizes, boundary, world_size=ranks_of(sizes)
    ).values:
        assert torch.equal(tiles, alone)


def test_shallow_water_conserves_mass_and_stays_finite() -> None:
    start = field = shallow_water_start(24, 24)
    for _ in range(200):
        field = step_alone(lambda padded: shallow_water_step(padded, 0.3), field, "periodic")
    assert abs(field[0].sum() - start[0].sum()) < 1e-9 and field[0].min() > 0.5
    assert (field[0] - start[0]).abs().max() > 0.01


CONVOLUTIONS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 5, "padding": 2, "padding_mode": "circular"},
    {"kernel_size": 3, "padding": 2, "dilation": 2, "groups": 2},
    {"kernel_size": 3, "padding": 1, "stride": 2},
    {"kernel_size": 2, "padding": "same"},
    {"kernel_size": 4, "padding": 1, "stride": 2, "padding_mode": "circular"},
    {"kernel_size": (1, 3), "padding": (0, 1), "bias": False},
    {"kernel_size": 1, "stride": 2},
]


def compare(
    dense: nn.Module, sizes: dict[str, int], shape: tuple[int, ...]
) -> list[tuple[Tensor, Tensor]]:
    """Output, gradient of the input, and gradients of the parameters: on tiles, and whole."""
    mesh = make_mesh(**sizes)
    dense.double()
    field = drawn(*shape).requires_grad_()
    whole = dense(field)
    weight = drawn(*whole.shape, seed=1)
    inputs = [field, *dense.parameters()]
    expected = torch.autograd.grad((whole * weight).sum(), inputs)
    tile = own_tile(field.detach(), mesh).requires_grad_()
    layers = {nn.Conv2d: DomainParallelConv2d, nn.GroupNorm: DomainParallelGroupNorm}
    kind: Any = layers.get(type(dense))
    tiled = kind.from_dense(dense, mesh) if kind else on_tiles(dense, mesh)
    out = tiled(tile)
    found = torch.autograd.grad((out * own_tile(weight, mesh)).sum(), [tile, *tiled.parameters()])
    joined = [join_tiles(out, mesh), join_tiles(found[0], mesh), *found[1:]]
    return list(zip(joined, [whole.detach(), *expected], strict=True))


def convolve(options: dict[str, Any], sizes: dict[str, int]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return compare(nn.Conv2d(2, 4, **options), sizes, (2, 2, 8, 16))


@pytest.mark.parametrize(
    "sizes", [{"y": 2}, {"x": 4}, {"y": 2, "x": 2}, {"y": 1, "x": 2}], ids=str
)
@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_convolutions_equal_the_whole_field(
    options: dict[str, Any], sizes: dict[str, int]
) -> None:
    for pairs in on_ranks(convolve, options, sizes, world_size=ranks_of(sizes)).values:
        for ours, whole in pairs:
            torch.testing.assert_close(ours, whole, **EXACT)


def normalise(sizes: dict[str, int]) -> list[tuple[Tensor, Tensor]]:
    return compare(nn.GroupNorm(2, 6), sizes, (3, 6, 5, 7))  # tiles of different sizes


def unet(sizes: dict[str, int], circular: bool) -> list[tuple[Tensor, Tensor]]:
    return compare(UNet(2, width=4, circular=circular), sizes, (2, 2, 16, 16))


@pytest.mark.parametrize("sizes", [{"y": 3}, {"y": 2, "x": 2}], ids=str)
def test_norms_reduce_over_all_tiles(sizes: dict[str, int]) -> None:
    for pairs in on_ranks(normalise, sizes, world_size=ranks_of(sizes)).values:
        for ours, whole in pairs:
            torch.testing.assert_close(ours, whole, **EXACT)


@pytest.mark.parametrize("sizes", [{"y": 2}, {"y": 2, "x": 2}], ids=str)
@pytest.mark.parametrize("circular", [False, True])
def test_a_unet_on_tiles_equals_the_whole_field(sizes: dict[str, int], circular: bool) -> None:
    for pairs in on_ranks(unet, sizes, circular, world_size=ranks_of(sizes)).values:
        for ours, whole in pairs:
            torch.testing.assert_close(ours, whole, rtol=1e-9, atol=1e-10)


def mean() -> tuple[Tensor, Tensor]:
    mesh = make_mesh(y=2, x=2)
    field = drawn(3, 5, 7)
    return mean_over_tiles(own_tile(field, mesh), mesh, (-2, -1)), field.mean(
        (-2, -1), keepdim=True
    )


def test_means_of_tiles_of_different_sizes() -> None:
    for ours, whole in on_ranks(mean, world_size=4).values:
        torch.testing.assert_close(ours, whole, **EXACT)


def misuse(case: str) -> None:
    mesh = make_mesh(y=2)
    tile = torch.zeros(1, 1, 3, 3)
    if case == "wide":
        halo_exchange(tile, mesh, 4)
    elif case == "boundary":
        halo_exchange(tile, mesh, 1, "mirror")
    elif case == "names":
        halo_exchange(tile, make_mesh(data=2), 1)
    elif case == "padding":
        DomainParallelConv2d(1, 1, 3, mesh=mesh)
    elif case == "stride":
        DomainParallelConv2d(1, 1, 3, stride=2, padding=1, mesh=mesh)(tile)
    else:
        on_tiles(nn.Sequential(nn.BatchNorm2d(1)), mesh)


@pytest.mark.parametrize(
    ("case", "message"),
    {
        "wide": r"does not\s+fit a tile of 3 cells",
        "boundary": 'is "zero" or "periodic", not',
        "names": r"named x, y or z,\s+not",
        "padding": "Use 1",
        "stride": "stride 2 does not divide the 3 cells",
        "batch norm": r"0 is\s+BatchNorm2d\(1,.*which\s+may\s+need\s+cells",
    }.items(),
)
def test_bad_input_is_named(case: str, message: str) -> None:
    with pytest.raises(Exception, match=f"(?s){message}"):
        on_ranks(misuse, case, world_size=2)


class Doubled(nn.Module):
    """A user's own layer that treats each cell alone."""

    def forward(self, field: Tensor) -> Tensor:
        return field * 2


class Residual(nn.Module):
    """A user's own module that calls one convolution twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, field: Tensor) -> Tensor:
        return field + self.second(self.first(field))


ACCEPTED: list[nn.Module] = [
    *[kind() for kind in domain_layers._CELLWISE[:21]],
    nn.Threshold(0.1, 0.2), nn.Dropout(0.5).eval(), nn.ChannelShuffle(2), nn.LocalResponseNorm(3),
    nn.Softmax2d(), nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.GLU(1), nn.LogSoftmax(1),
    nn.Softmax(1), nn.Softmin(1), nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=(3, 1)),
    nn.Upsample(scale_factor=2, mode="nearest-exact"), nn.UpsamplingNearest2d(scale_factor=2),
    nn.MaxPool2d(2, stride=(2, 2)), nn.MaxPool2d((2, 1), ceil_mode=True), nn.AvgPool2d(2),
    nn.MaxPool2d(1, 2), nn.LPPool2d(2, 2), nn.Conv2d(4, 2, 3, padding=1), nn.GroupNorm(2, 4),
    nn.Sequential(Residual(), Doubled(), nn.Sequential(nn.MaxPool2d(2), nn.ReLU())),
]  # fmt: skip


def accepted(sizes: dict[str, int]) -> list[tuple[str, Tensor, Tensor]]:
    mesh, field = make_mesh(**sizes), drawn(2, 4, 8, 16)
    result = []
    for layer in ACCEPTED:
        dense = copy.deepcopy(layer).double()
        whole = dense(field)
        tiled = on_tiles(dense, mesh, local=(Doubled,))
        assert on_tiles(tiled, mesh, local=(Doubled,)) is tiled
        result.append((repr(layer), join_tiles(tiled(own_tile(field, mesh)), mesh), whole))
    return result


@pytest.mark.parametrize("sizes", [{"y": 2}, {"x": 4}, {"y": 2, "x": 2}], ids=str)
def test_every_accepted_layer_equals_the_whole_field(sizes: dict[str, int]) -> None:
    for found in on_ranks(accepted, sizes, world_size=ranks_of(sizes)).values:
        for name, tiles, whole in found:
            torch.testing.assert_close(tiles, whole, **EXACT, msg=lambda m, n=name: f"{n}: {m}")


def test_all_cellwise_layers_are_tried() -> None:
    tried = {type(layer) for layer in ACCEPTED}
    ours = domain_layers._CELLWISE, domain_layers._OVER_A_DIM, domain_layers._POOLING
    assert tried >= {kind for kinds in (*ours, domain_layers._UPSAMPLING) for kind in kinds}


class OfMyOwn(nn.Conv2d):
    pass


REFUSED: list[nn.Module] = [
    nn.Softmax(-1), nn.Softmax(), nn.GLU(), nn.ReflectionPad2d(1), nn.ZeroPad2d(1), nn.Flatten(),
    nn.MaxPool2d(2, dilation=2), nn.MaxPool2d(3, 2), nn.MaxPool2d(2, padding=1),
    nn.MaxPool2d(2, return_indices=True), nn.AvgPool2d(3, 1), nn.LPPool2d(2, 3, stride=2),
    nn.FractionalMaxPool2d(2, 4), nn.Unfold(2), nn.Fold(4, 2), nn.Upsample(size=16),
    nn.Upsample(scale_factor=1.5), nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.UpsamplingBilinear2d(scale_factor=2), nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2),
    nn.BatchNorm2d(4), nn.InstanceNorm2d(4), nn.LayerNorm([4, 8, 16]), nn.ConvTranspose2d(4, 4, 2),
    nn.Conv1d(4, 4, 3), nn.Conv3d(4, 4, 3), nn.Linear(16, 16), nn.PReLU(), nn.Bilinear(2, 2, 2),
    nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2), nn.Embedding(3, 4), Doubled(),
    OfMyOwn(4, 4, 1), nn.Dropout2d(), nn.CosineSimilarity(-1), nn.LSTM(4, 4),
]  # fmt: skip


def refused() -> list[tuple[str, str, bool]]:
    mesh, result = make_mesh(y=2), []
    for layer in REFUSED:
        model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ModuleDict({"named": layer}))
        texts = []
        for tried in (layer, model):
            with pytest.raises(TypeError) as error:
                on_tiles(tried, mesh)
            texts.append(str(error.value))
        here = f"on_tiles: the model is {layer!r}" in texts[0]
        below = f"on_tiles: 1.named is {layer!r}" in texts[1]
        untouched = type(model[0]) is nn.Conv2d
        result.append((repr(layer), "; ".join(texts), here and below and untouched))
    return result


def test_every_other_layer_is_refused_by_name() -> None:
    for name, text, right in on_ranks(refused, world_size=2).values[0]:
        assert right, f"{name}: {text}"


def test_parameters_outside_of_layers_are_refused() -> None:
    def scaled() -> None:
        model = Residual()
        model.scale = nn.Parameter(torch.ones(1))
        on_tiles(nn.Sequential(model), make_mesh(y=1))

    with pytest.raises(Exception, match=r"0 is a Residual with\s+the\s+parameter\s+scale"):
        on_ranks(scaled, world_size=1)


def test_pooling_refuses_a_tile_that_it_would_cut() -> None:
    def pool() -> None:
        mesh = make_mesh(y=2)
        on_tiles(nn.MaxPool2d(2), mesh)(own_tile(drawn(1, 1, 6, 4), mesh))

    with pytest.raises(Exception, match="stride 2 does not divide the 3 cells"):
        on_ranks(pool, world_size=2)
