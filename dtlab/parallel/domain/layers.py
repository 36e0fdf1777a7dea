"""Convolutions, pooling and norms on a field of which each rank has a tile.

    rank 0's rows   0 1 2 3              a 3 x 3 convolution needs one row from each neighbour:
    rank 1's rows           4 5 6 7      a halo. Its outputs are the tile of the whole output.

A convolution with kernel k, dilation d and padding p on each side needs p cells before the tile
and d (k - 1) - p after it; at stride s, s - 1 fewer after it. Layers that look at one cell only,
such as ReLU or a 1 x 1 convolution, need nothing. Norms are different: their means are over the
whole field, so no halo is enough. They need an all-reduce of a few numbers.

Every rank has all weights, and computes their gradients from its tile: these parts are summed over
the mesh in backward. So after backward all ranks have the gradient of the whole field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.parallel.domain.halo import halo_exchange, split_dims
from dtlab.parallel.tensor.regions import copy_to_region, reduce_from_region
from dtlab.parallel.tensor.sequence import share_parameters

__all__ = ["DomainParallelConv2d", "DomainParallelGroupNorm", "mean_over_tiles", "on_tiles"]


class DomainParallelConv2d(nn.Conv2d):
    """`nn.Conv2d` on this rank's tile: [b, in_channels, H, W] to [b, out_channels, H / s, W / s].

    Takes the arguments of `nn.Conv2d`, and `mesh`, with axes "y" and "x" or one of them. The
    padding must be such that the whole output has H / s rows on the whole field: "same" or
    dilation * (kernel - 1) / 2 at stride 1; at stride 2 with kernel 3, 1. `padding_mode` is
    "zeros" or "circular".
    Raises: ValueError for another padding, or a tile that the stride does not divide.
    """

    def __init__(self, *args: Any, mesh: DeviceMesh, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mesh = mesh
        if self.padding_mode not in ("zeros", "circular"):
            raise ValueError(
                f'{self.padding_mode!r} is not known here: use "zeros" or "circular" padding.'
            )
        self.sides = {"y": self._sides(0), "x": self._sides(1)}

    @classmethod
    def from_dense(cls, dense: nn.Conv2d, mesh: DeviceMesh) -> Self:
        """Make the layer from a dense one, whose parameters it shares."""
        layer = cls(
            dense.in_channels, dense.out_channels, dense.kernel_size,
            stride=dense.stride, padding=dense.padding, dilation=dense.dilation,
            groups=dense.groups, bias=dense.bias is not None, padding_mode=dense.padding_mode,
            device="meta", mesh=mesh,
        )  # fmt: skip
        layer.weight, layer.bias = dense.weight, dense.bias
        return layer

    def _sides(self, dim: int) -> tuple[int, int]:
        """Return how many cells before and after its own a tile needs in a dim."""
        reach = self.dilation[dim] * (self.kernel_size[dim] - 1)
        stride = self.stride[dim]
        if self.padding == "same":
            before = reach // 2
        else:
            before = 0 if isinstance(self.padding, str) else int(self.padding[dim])
            both = 2 * before
            # The last output must be that of the last stride cells: (H + 2p - reach - 1) // s + 1
            # is H / s if and only if 0 <= 2p - reach + s - 1 < s.
            if not 0 <= both - reach + stride - 1 < stride:
                raise ValueError(
                    f"padding {before} with kernel {self.kernel_size[dim]}, dilation "
                    f"{self.dilation[dim]} and stride {stride} changes the size of the field by "
                    f"more than the stride, so tiles would not stay tiles. Use {reach // 2}."
                )
        return before, max(0, reach - before - stride + 1)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve this rank's tile, with a halo from its neighbours."""
        split = split_dims(self.mesh)
        _check_stride(input, self.stride, self.mesh)
        boundary = "periodic" if self.padding_mode == "circular" else "zero"
        padded = halo_exchange(input, self.mesh, self.sides, boundary)
        here = [0 if axis in split else side for axis in ("x", "y") for side in self.sides[axis]]
        if any(here):
            padded = F.pad(padded, here, "circular" if boundary == "periodic" else "constant")
        weight, bias = shared_over(self.mesh, self.weight, self.bias)
        assert weight is not None
        return F.conv2d(padded, weight, bias, self.stride, 0, self.dilation, self.groups)


def _check_stride(tile: Tensor, strides: tuple[int, ...], mesh: DeviceMesh) -> None:
    for axis, dim in split_dims(mesh).items():
        stride = strides[dim] if axis in ("y", "x") else 1
        if tile.shape[dim] % stride:
            raise ValueError(
                f"stride {stride} does not divide the {tile.shape[dim]} cells of this tile "
                f"on axis {axis}: choose a field and a mesh whose tiles it divides."
            )


class DomainParallelGroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` on this rank's tile, with mean and variance over all tiles.

    Takes the arguments of `nn.GroupNorm`, and `mesh`. Tiles may have different sizes. Forward
    needs two all-reduces, of the sums and of the sums of squared deviations.
    """

    def __init__(self, *args: Any, mesh: DeviceMesh, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mesh = mesh

    @classmethod
    def from_dense(cls, dense: nn.GroupNorm, mesh: DeviceMesh) -> Self:
        """Make the layer from a dense one, whose parameters it shares."""
        layer = cls(
            dense.num_groups, dense.num_channels, eps=dense.eps, affine=dense.affine,
            device="meta", mesh=mesh,
        )  # fmt: skip
        if dense.affine:
            layer.weight, layer.bias = dense.weight, dense.bias
        return layer

    def forward(self, input: Tensor) -> Tensor:
        """Normalise this rank's tile [b, num_channels, H, W]."""
        grouped = torch.unflatten(input, 1, (self.num_groups, -1))
        dims = tuple(range(2, grouped.dim()))
        mean = mean_over_tiles(grouped, self.mesh, dims)
        centred = grouped - mean
        variance = mean_over_tiles(centred.square(), self.mesh, dims)
        normed = (centred * (variance + self.eps).rsqrt()).flatten(1, 2)
        if not self.affine:
            return normed
        weight, bias = shared_over(self.mesh, self.weight, self.bias)
        assert weight is not None and bias is not None
        return normed * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)


def mean_over_tiles(tensor: Tensor, mesh: DeviceMesh, dims: tuple[int, ...]) -> Tensor:
    """Return the mean over `dims`, kept as dims of size 1, and over the tiles of all ranks.

    Every rank may use the mean differently, as in a norm: gradients are summed over the ranks.
    """
    dims = tuple(dim % tensor.dim() for dim in dims)
    count = tensor.new_tensor([math.prod(tensor.shape[dim] for dim in dims)])
    total = torch.cat([tensor.sum(dims, keepdim=True).flatten(), count])
    for axis in split_dims(mesh):
        group = mesh.get_group(axis)
        total = copy_to_region(reduce_from_region(total, group), group)
    shape = [1 if dim in dims else size for dim, size in enumerate(tensor.shape)]
    return (total[:-1] / total[-1].detach()).view(shape)


def shared_over(mesh: DeviceMesh, *parameters: Tensor | None) -> list[Tensor | None]:
    """Return parameters that all ranks use; backward sums their gradients over the mesh."""
    present = [each for each in parameters if each is not None]
    for axis in split_dims(mesh):
        if dist.get_world_size(mesh.get_group(axis)) > 1:
            present = list(share_parameters(*present, group=mesh.get_group(axis)))
    shared = iter(present)
    return [None if each is None else next(shared) for each in parameters]


# What stays within a tile -------------------------------------------------------------------

_CELLWISE = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh,
    nn.Identity, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.Sigmoid,
    nn.SiLU, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
    nn.Dropout,  # with the random numbers of this rank
    nn.ChannelShuffle, nn.LocalResponseNorm, nn.Softmax2d,  # over the channels of each cell
    nn.PixelShuffle, nn.PixelUnshuffle,  # a cell and a block of cells; its size is checked
)  # fmt: skip
_OVER_A_DIM = (nn.GLU, nn.LogSoftmax, nn.Softmax, nn.Softmin)
_UPSAMPLING = (nn.Upsample, nn.UpsamplingNearest2d)
_POOLING = (nn.AvgPool2d, nn.LPPool2d, nn.MaxPool2d)
_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)


def on_tiles(
    model: nn.Module, mesh: DeviceMesh, *, local: tuple[type[nn.Module], ...] = ()
) -> nn.Module:
    """Replace the layers of a model that look beyond a tile; return the model.

    The model takes [b, channels, H, W]. Convolutions and group norms are replaced, in place below
    the model itself; the parameters stay the same tensors. Layers that treat each cell alone stay,
    and so do nearest-neighbour upsampling by whole factors, and pooling whose windows do not
    overlap; such pooling raises ValueError for a tile that its stride does not divide. `local`
    are your own classes of modules that treat each cell alone and have no parameters. What the
    `forward` of a module does besides calling others is not checked.
    Raises: TypeError, before any layer is replaced, for every other layer, and for parameters
    outside of such layers, since their gradients would not be summed over the tiles.
    """
    versions = dict(_versions(model, "the model", mesh, local))
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if name and layer in versions:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, versions[layer])
    return versions.get(model, model)


def _versions(
    layer: Any, name: str, mesh: DeviceMesh, local: tuple[type[nn.Module], ...]
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield each layer to replace, and its version for tiles."""
    kind = type(layer)
    if kind is nn.Conv2d:
        yield layer, DomainParallelConv2d.from_dense(layer, mesh)
    elif kind is nn.GroupNorm:
        yield layer, DomainParallelGroupNorm.from_dense(layer, mesh)
    elif kind in _POOLING and (stride := _stride_of_windows(layer)):
        yield layer, _WholeWindows(layer, stride, mesh)
    elif _stays_within(layer) or isinstance(layer, (*local, *_OURS)):
        return
    elif not any(True for _ in layer.children()) or (
        kind.__module__.startswith("torch.nn.") and kind not in _CONTAINERS
    ):
        raise TypeError(
            f"on_tiles: {name} is {layer!r}, which may need cells of other tiles. Use Conv2d, "
            "GroupNorm, a layer that treats each cell alone, pooling whose stride is its window, "
            "or nearest-neighbour upsampling by a whole factor."
        )
    elif own := [each for each, _ in layer.named_parameters(recurse=False)]:
        raise TypeError(
            f"on_tiles: {name} is a {kind.__name__} with the parameter {own[0]}, whose gradient "
            "would not be summed over the tiles. Put it into a Conv2d or a GroupNorm."
        )
    else:
        for child, module in layer.named_children():
            path = child if name == "the model" else f"{name}.{child}"
            yield from _versions(module, path, mesh, local)


def _stays_within(layer: Any) -> bool:
    kind = type(layer)
    if kind in _UPSAMPLING:
        whole = all(float(factor).is_integer() for factor in _pair(layer.scale_factor or 0.5))
        return whole and str(layer.mode).startswith("nearest")
    if kind in _OVER_A_DIM:
        return bool(layer.dim == 1)
    return kind in _CELLWISE


def _stride_of_windows(layer: Any) -> tuple[int, ...] | None:
    """Return the stride of pooling if each window lies in its own stride; else None."""
    window, stride = _pair(layer.kernel_size), _pair(layer.stride or layer.kernel_size)
    plain = _pair(getattr(layer, "padding", 0)) == (0, 0)
    plain &= _pair(getattr(layer, "dilation", 1)) == (1, 1)
    plain &= not getattr(layer, "return_indices", False)  # they count cells of the whole field
    return stride if plain and all(w <= s for w, s in zip(window, stride, strict=True)) else None


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


class _WholeWindows(nn.Module):
    """Pooling of a tile into which its windows fit a whole number of times."""

    def __init__(self, pooling: nn.Module, stride: tuple[int, ...], mesh: DeviceMesh) -> None:
        super().__init__()
        self.pooling, self.stride, self.mesh = pooling, stride, mesh

    def forward(self, input: Tensor) -> Tensor:
        """Pool, once the tile is known to consist of whole windows."""
        _check_stride(input, self.stride, self.mesh)
        pooled: Tensor = self.pooling(input)
        return pooled


_OURS = (DomainParallelConv2d, DomainParallelGroupNorm, _WholeWindows)
