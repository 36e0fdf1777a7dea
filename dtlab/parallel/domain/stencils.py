"""Two simulations on a grid whose step reaches one cell: heat, and shallow water.

Each step takes a field with a halo of width 1 and returns the field without it, by slices alone.
So four tiles compute the same numbers as one, to the last bit:

    padded = halo_exchange(field, mesh, 1, boundary="periodic")
    field = heat_step(padded, 0.2)

`step_alone` pads a whole field, to run the same simulation on one rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["heat_step", "shallow_water_start", "shallow_water_step", "step_alone"]


def heat_step(padded: Tensor, rate: float) -> Tensor:
    """One explicit Euler step of the heat equation: [..., H + 2, W + 2] to [..., H, W].

    `rate` is dt * conductivity / dx^2; the step is stable up to 1/4.
    """
    centre = padded[..., 1:-1, 1:-1]
    vertical = padded[..., :-2, 1:-1] + padded[..., 2:, 1:-1]
    horizontal = padded[..., 1:-1, :-2] + padded[..., 1:-1, 2:]
    return centre + rate * (vertical + horizontal - 4 * centre)


def shallow_water_step(padded: Tensor, dt: float, gravity: float = 1.0) -> Tensor:
    """One Lax-Friedrichs step of the shallow-water equations: [3, H + 2, W + 2] to [3, H, W].

    The fields are the depth h and the momenta hu (along x) and hv (along y); dx is 1:

        h_t  + (hu)_x                 + (hv)_y                 = 0
        hu_t + (hu u + g h^2 / 2)_x   + (hu v)_y               = 0
        hv_t + (hv u)_x               + (hv v + g h^2 / 2)_y   = 0

    Each new value is the mean of the four neighbours minus dt times the central differences of
    the fluxes. The step is stable while dt (|u| + sqrt(g h)) is at most 1/2, and it conserves
    mass. LeVeque 2002, "Finite Volume Methods for Hyperbolic Problems", sections 4.6 and 13.1.
    """
    depth, along_x, along_y = padded
    pressure = gravity * depth * depth / 2
    cross = along_x * along_y / depth
    flux_x = torch.stack([along_x, along_x * along_x / depth + pressure, cross])
    flux_y = torch.stack([along_y, cross, along_y * along_y / depth + pressure])
    up, down = (slice(None, -2), slice(1, -1)), (slice(2, None), slice(1, -1))
    left, right = (slice(1, -1), slice(None, -2)), (slice(1, -1), slice(2, None))
    mean = (padded[:, *up] + padded[:, *down] + padded[:, *left] + padded[:, *right]) / 4
    change = flux_x[:, *right] - flux_x[:, *left] + flux_y[:, *down] - flux_y[:, *up]
    return mean - dt / 2 * change


def shallow_water_start(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return water at rest, 1 deep, with a hump beside the centre: [3, rows, columns]."""
    y = torch.arange(rows, dtype=dtype).unsqueeze(1) / rows - 0.4
    x = torch.arange(columns, dtype=dtype) / columns - 0.3
    depth = 1 + 0.5 * torch.exp(-50 * (x * x + y * y))
    return torch.stack([depth, torch.zeros_like(depth), torch.zeros_like(depth)])


def step_alone(step: Callable[[Tensor], Tensor], field: Tensor, boundary: str) -> Tensor:
    """Apply a step to a whole field on one rank, with a halo of width 1."""
    mode = "circular" if boundary == "periodic" else "constant"
    flat = field.reshape(1, -1, *field.shape[-2:])
    padded = F.pad(flat, (1, 1, 1, 1), mode)
    return step(padded.view(*field.shape[:-2], *padded.shape[-2:]))
