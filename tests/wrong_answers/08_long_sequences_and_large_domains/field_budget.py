"""Answers to 08/field_budget: shallow water under a limit of bytes sent, and of memory."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.parallel.domain import halo_exchange, shallow_water_step
from dtlab.parallel.mesh import make_mesh
from dtlab.units.unit08.water import start_of

# Meshes ------------------------------------------------------------------------------------------


def shapes(ranks):
    return [(y, ranks // y) for y in range(1, ranks + 1) if ranks % y == 0]


def sent(setting, y, x):
    """Cells that a rank sends in a step."""
    return (y > 1) * setting["columns"] // x + (x > 1) * (setting["rows"] // y + 2)


def best(setting):
    return min(shapes(dist.get_world_size()), key=lambda shape: sent(setting, *shape))


def squares(setting):
    """As square a mesh as there is, whatever the field is like."""
    return min(shapes(dist.get_world_size()), key=lambda shape: (abs(shape[0] - shape[1]), shape))


def squarest_tiles(setting):
    """The tiles with the smallest perimeter, although an axis of one rank sends nothing."""
    height, width = setting["rows"], setting["columns"]
    return min(
        shapes(dist.get_world_size()), key=lambda shape: height // shape[0] + width // shape[1]
    )


def strips_of_rows(setting):
    return dist.get_world_size(), 1


def along_the_longer_side(setting):
    ranks = dist.get_world_size()
    return (ranks, 1) if setting["rows"] > setting["columns"] else (1, ranks)


# A step ------------------------------------------------------------------------------------------


def rows_at_a_time(tile, padded, dt, band=16):
    """The new values take the place of the old ones."""
    for first in range(0, tile.shape[1], band):
        last = min(first + band, tile.shape[1])
        tile[:, first:last] = shallow_water_step(padded[:, first : last + 2], dt)
    return tile


def all_at_once(tile, padded, dt):
    return shallow_water_step(padded, dt)


def without_the_last_rows(tile, padded, dt, band=16):
    """Where 16 does not divide the rows, some keep their old values."""
    for first in range(0, tile.shape[1] - band + 1, band):
        tile[:, first : first + band] = shallow_water_step(padded[:, first : first + band + 2], dt)
    return tile


def from_its_own_values(tile, padded, dt, band=8):
    """Each band reads what the one before it has written."""
    for first in range(0, tile.shape[1], band):
        last = min(first + band, tile.shape[1])
        new = shallow_water_step(padded[:, first : last + 2], dt)
        padded[:, first + 1 : last + 1, 1:-1] = new
    return padded[:, 1:-1, 1:-1].clone()


def ran(setting, mesh=best, step=rows_at_a_time, boundary="periodic", steps=0, exchange=None):
    y, x = mesh(setting)
    made = make_mesh(y=y, x=x)
    height, width = setting["rows"] // y, setting["columns"] // x
    row, column = height * made.get_local_rank("y"), width * made.get_local_rank("x")
    tile = start_of(setting, range(row, row + height), range(column, column + width))
    for _ in range(setting["steps"] + steps):
        padded = (exchange or halo_exchange)(tile, made, 1, boundary)
        tile = step(tile, padded, setting["dt"])
    return tile, (row, column)


# Wrong -------------------------------------------------------------------------------------------


def not_written(setting):
    raise NotImplementedError()


def a_tile_alone(setting):
    return ran(setting)[0]


def places_by_number(setting):
    """The place as coordinates in the mesh, not in the field."""
    tile, (row, column) = ran(setting)
    return tile, (row // tile.shape[1], column // tile.shape[2])


def the_same_tile(setting):
    """Every rank has the tile at the origin."""
    tile = start_of(setting, range(12), range(12))
    return tile, (0, 0)


def a_part_of_each_tile(setting):
    tile, place = ran(setting)
    return tile[:, :-1], place


def the_first_tile_everywhere(setting):
    """Right as it is, on every rank."""
    tile, _ = ran(setting)
    dist.broadcast(tile, 0)
    return tile, (0, 0)


def walls(setting):
    """No water outside, and so NaN."""
    return ran(setting, boundary="zero")


def one_step_less(setting):
    return ran(setting, steps=-1)


def one_step_more(setting):
    return ran(setting, steps=1)


def each_tile_alone(setting):
    def exchange(tile, mesh, width, boundary):
        return F.pad(tile[None], (1, 1, 1, 1), "circular")[0]

    return ran(setting, exchange=exchange)


def rows_left_out(setting):
    return ran(setting, step=without_the_last_rows)


def written_too_early(setting):
    return ran(setting, step=from_its_own_values)


def always_strips(setting):
    return ran(setting, mesh=strips_of_rows)


def strips_the_longer_way(setting):
    return ran(setting, mesh=along_the_longer_side)


def always_two_axes(setting):
    return ran(setting, mesh=squares)


def smallest_perimeter(setting):
    return ran(setting, mesh=squarest_tiles)


def halos_twice(setting):
    """Once to see that it works."""

    def exchange(tile, mesh, width, boundary):
        halo_exchange(tile, mesh, width, boundary)
        return halo_exchange(tile, mesh, width, boundary)

    return ran(setting, exchange=exchange)


def wider_than_needed(setting):
    def exchange(tile, mesh, width, boundary):
        return halo_exchange(tile, mesh, 2, boundary)[:, 1:-1, 1:-1]

    return ran(setting, exchange=exchange)


def its_total_too(setting):
    """An all-reduce in which nobody is interested."""
    tile, place = ran(setting)
    dist.all_reduce(tile[0].sum())
    return tile, place


def a_step_of_the_whole_tile(setting):
    return ran(setting, step=all_at_once)


def the_whole_start(setting):
    """Makes the whole field, and cuts its tile out."""
    whole = start_of(setting, range(setting["rows"]), range(setting["columns"]))
    own, (row, column) = ran(setting)
    return own + 0 * whole[:, : own.shape[1], : own.shape[2]], (row, column)


# Right -------------------------------------------------------------------------------------------


def rows_in_place(setting):
    return ran(setting)


def rows_joined(setting):
    """The new rows in a list, while the old tile is gone already."""
    y, x = best(setting)
    mesh = make_mesh(y=y, x=x)
    height, width = setting["rows"] // y, setting["columns"] // x
    row, column = height * mesh.get_local_rank("y"), width * mesh.get_local_rank("x")
    tile = start_of(setting, range(row, row + height), range(column, column + width))
    for _ in range(setting["steps"]):
        padded = halo_exchange(tile, mesh, 1, "periodic")
        del tile
        parts = [
            shallow_water_step(padded[:, first : first + 10], setting["dt"])
            for first in range(0, height, 8)
        ]
        parts[-1] = parts[-1][:, : height - 8 * (len(parts) - 1)]
        tile = torch.cat(parts, 1)
    return tile, (row, column)


def columns_at_a_time(setting):
    def step(tile, padded, dt):
        new = torch.empty_like(tile)
        for first in range(0, tile.shape[2], 32):
            last = min(first + 32, tile.shape[2])
            new[:, :, first:last] = shallow_water_step(padded[:, :, first : last + 2], dt)
        return new

    return ran(setting, step=step)


RIGHT = [rows_in_place, rows_joined, columns_at_a_time]

WRONG = {
    not_written: {"result": "not written yet"},
    a_tile_alone: {"result": ""},
    places_by_number: {"result": "in one process it is"},
    the_same_tile: {"result": "in one process it is"},
    a_part_of_each_tile: {"result": "is in 0 tiles"},
    the_first_tile_everywhere: {"result": "is in 6 tiles"},
    walls: {"result": "in one process it is"},
    one_step_less: {"result": "in one process it is"},
    one_step_more: {"result": "in one process it is"},
    each_tile_alone: {"result": "in one process it is"},
    rows_left_out: {"result": "in one process it is"},
    written_too_early: {"result": "in one process it is"},
    always_strips: {"bytes": "On the best mesh"},
    strips_the_longer_way: {"bytes": "On the best mesh"},
    always_two_axes: {"bytes": "On the best mesh"},
    smallest_perimeter: {"bytes": "On the best mesh"},
    halos_twice: {"bytes": "On the best mesh"},
    wider_than_needed: {"bytes": "On the best mesh"},
    its_total_too: {"bytes": "all_reduce"},
    a_step_of_the_whole_tile: {"memory": "Which tensors exist"},
    the_whole_start: {"memory": "Which tensors exist"},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_CORNERS = "the corners decide about no mesh"
_DIVIDES = "no number above the ranks divides them"
_COUNT = "the number of a step is not used"
_ROWS = "each row of the result is computed from the padded tile, once or twice"
_SENT = "return (y > 1) * wide + (x > 1) * (tall + 2) -> return (y > 1) * wide + (x > 1) * "
_MESHES = "... y) for y in range(1, ranks + 1) if ranks % y == 0], key=sent) -> ... y) for y in "
_FIRST, _LAST = (
    "for first in range(0, tall, 16): -> for first in ",
    "last = min(first + 16, tall) -> ",
)

EQUIVALENT = {
    **{_SENT + other: _CORNERS for other in ("(tall + 3)", "(tall + 1)", "(tall - 2)", "tall")},
    _MESHES + "range(1, ranks + 2) if ranks % y == 0], key=sent)": _DIVIDES,
    _MESHES + "range(1, ranks + 1 + 1) if ranks % y == 0], key=sent)": _DIVIDES,
    "... min([(y, ranks // y) for y in range(1, ranks + 1) if ranks % y == 0], key=sent) -> "
    "... min([(y, ranks // y) for y in reversed(range(1, ranks + 1)) if ranks % y == 0], "
    "key=sent)": "of two that send equally much, either will do",
    "for _ in range(setting['steps']): -> for _ in reversed(range(setting['steps'])):": _COUNT,
    _FIRST + "range(0, tall, 15):": _ROWS,
    _FIRST + "range(0, tall + 1, 16):": "a step of no rows",
    _FIRST + "range(0, tall - 1, 16):": "no tile has 16 n + 1 rows",
    _FIRST + "reversed(range(0, tall, 16)):": _ROWS,
    "... first:last + 2], setting['dt']) -> ... first:last + 2], setting['dt']); "
    "for first in range(0, tall, 16):; ...": _ROWS,
    _LAST + "last = min(first + 17, tall)": _ROWS,
    _LAST + "last = min(tall, first + 16)": "the smaller of the two",
}
