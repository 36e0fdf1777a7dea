"""Domain parallelism: each rank has a tile of a field, such as an image or a grid of weather."""

from dtlab.parallel.domain.halo import halo_exchange as halo_exchange
from dtlab.parallel.domain.halo import join_tiles as join_tiles
from dtlab.parallel.domain.halo import own_tile as own_tile
from dtlab.parallel.domain.layers import DomainParallelConv2d as DomainParallelConv2d
from dtlab.parallel.domain.layers import DomainParallelGroupNorm as DomainParallelGroupNorm
from dtlab.parallel.domain.layers import mean_over_tiles as mean_over_tiles
from dtlab.parallel.domain.layers import on_tiles as on_tiles
from dtlab.parallel.domain.stencils import heat_step as heat_step
from dtlab.parallel.domain.stencils import shallow_water_start as shallow_water_start
from dtlab.parallel.domain.stencils import shallow_water_step as shallow_water_step
from dtlab.parallel.domain.stencils import step_alone as step_alone

__all__ = [
    "DomainParallelConv2d",
    "DomainParallelGroupNorm",
    "halo_exchange",
    "heat_step",
    "join_tiles",
    "mean_over_tiles",
    "on_tiles",
    "own_tile",
    "shallow_water_start",
    "shallow_water_step",
    "step_alone",
]
