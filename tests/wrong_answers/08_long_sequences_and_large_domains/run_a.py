"""Answers to 08/run_a: halos that arrive in the other order, and corners that are never sent.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.parallel.domain import halo_exchange
from dtlab.units.unit08.runs_scripts import advance, smooth

SAID = {"number": -0.3742, "line": 9}


def swap(group, first, last, before, after, tags=False):
    """What comes from the rank before and from the one after, on axes of any size."""
    from_before, from_after = torch.empty_like(last), torch.empty_like(first)
    peer = {"group": group}
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, last, group_peer=after, **peer),
        dist.P2POp(dist.isend, first, group_peer=before, **peer),
        dist.P2POp(dist.irecv, from_before, group_peer=before, **peer),
        dist.P2POp(dist.irecv, from_after, group_peer=after, **peer),
    ])  # fmt: skip
    for work in works:
        work.wait()
    return from_before, from_after


def as_sent(group, first, last, before, after):
    """The order of the broken program."""
    if before == after:
        first, last = last, first
    return swap(group, first, last, before, after)


def always_the_other(group, first, last, before, after):
    """Right with two ranks on an axis only."""
    from_before, from_after = as_sent(group, first, last, before, after)
    return from_after, from_before


def halo(tile, mesh, exchange=swap, corners=True, fill=0.0, axes=(("y", 0), ("x", 1))):
    """The tile with its halo; `corners` sends the second axis with the halo of the first."""
    padded = F.pad(tile, (1, 1, 1, 1), value=fill)
    for axis, dim in axes:
        group, size = mesh.get_group(axis), tile.shape[dim]
        rank, ranks = group.rank(), group.size()
        lines = padded if corners else padded.narrow(1 - dim, 1, tile.shape[1 - dim])
        first, last = (lines.narrow(dim, at, 1).contiguous() for at in (1, size))
        ends = exchange(group, first, last, (rank - 1) % ranks, (rank + 1) % ranks)
        for at, line in zip((0, size + 1), ends, strict=True):
            lines.narrow(dim, at, 1).copy_(line)
    return padded


def stepped(tile, mesh, steps, **options):
    for _ in range(steps):
        tile = smooth(halo(tile, mesh, **options))
    return tile


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": stepped}


# Wrong ------------------------------------------------------------------------------------------


def nothing_is_lost():
    return said(number=0)


def without_its_sign():
    return said(number=0.3742)


def of_one_rank():
    return said(number=-0.0624)


def a_share():
    return said(number=-0.00262)


def the_line_of_the_padding():
    return said(line="padded = F.pad(tile, (1, 1, 1, 1))")


def the_line_of_the_neighbours():
    return said(line=8)


def a_function_alone():
    return stepped


@fixed
def not_written(tile, mesh, steps):
    raise NotImplementedError()


@fixed
def still_broken(tile, mesh, steps):
    return advance(tile, mesh, steps)


@fixed
def only_the_order(tile, mesh, steps):
    return stepped(tile, mesh, steps, corners=False)


@fixed
def only_the_corners(tile, mesh, steps):
    return stepped(tile, mesh, steps, exchange=as_sent)


@fixed
def exchanged_on_every_axis(tile, mesh, steps):
    return stepped(tile, mesh, steps, exchange=always_the_other)


@fixed
def corners_of_the_mean(tile, mesh, steps):
    """The total looks better, and the corners are wrong still."""
    return stepped(tile, mesh, steps, corners=False, fill=0.5)


@fixed
def corners_of_its_own(tile, mesh, steps):
    """Each corner of the halo repeats the cell beside it."""
    for _ in range(steps):
        padded = halo(tile, mesh, corners=False)
        padded[:: len(padded) - 1, 0] = padded[:: len(padded) - 1, 1]
        padded[:: len(padded) - 1, -1] = padded[:: len(padded) - 1, -2]
        tile = smooth(padded)
    return tile


@fixed
def the_total_made_up(tile, mesh, steps):
    """What is lost is spread over all cells."""
    for _ in range(steps):
        new = stepped(tile, mesh, 1, corners=False)
        tile = new + (tile.sum() - new.sum()) / new.numel()
    return tile


@fixed
def its_own_edges(tile, mesh, steps):
    """As if each tile were the whole field."""
    for _ in range(steps):
        padded = F.pad(tile[None, None], (1, 1, 1, 1), "circular")[0, 0]
        tile = smooth(padded)
    return tile


@fixed
def finished_code(tile, mesh, steps):
    for _ in range(steps):
        tile = smooth(halo_exchange(tile, mesh, 1, "periodic"))
    return tile


@fixed
def with_its_halo(tile, mesh, steps):
    return halo(stepped(tile, mesh, steps), mesh)


@fixed
def halos_of_the_start(tile, mesh, steps):
    """Exchanged once; later steps use the old halo."""
    padded = halo(tile, mesh)
    for _ in range(steps):
        tile = smooth(padded)
        padded[1:-1, 1:-1] = tile
    return tile


@fixed
def one_step(tile, mesh, steps):
    return stepped(tile, mesh, 1)


@fixed
def halos_of_every_second_step(tile, mesh, steps):
    padded = halo(tile, mesh)
    for step in range(steps):
        padded = padded if step % 2 else halo(tile, mesh)
        padded[1:-1, 1:-1] = tile
        tile = smooth(padded)
    return tile


@fixed
def the_whole_field(tile, mesh, steps):
    """All tiles on every rank."""
    tiles = [torch.empty_like(tile) for _ in range(dist.get_world_size())]
    dist.all_gather(tiles, tile)
    across = mesh.get_group("x").size()
    rows = [torch.cat(tiles[at : at + across], 1) for at in range(0, len(tiles), across)]
    field = torch.cat(rows)
    for _ in range(steps):
        field = smooth(F.pad(field[None, None], (1, 1, 1, 1), "circular")[0, 0])
    y, x = mesh.get_local_rank("y"), mesh.get_local_rank("x")
    size = tile.shape
    return field[y * size[0] : (y + 1) * size[0], x * size[1] : (x + 1) * size[1]]


@fixed
def the_whole_tile(tile, mesh, steps):
    """Every message is a tile, of which one line is used."""

    def exchange(group, first, last, before, after):
        dim = 0 if first.shape[0] == 1 else 1
        wide = [each.repeat_interleave(tile.shape[dim], dim) for each in (first, last)]
        return tuple(each.narrow(dim, 0, 1) for each in swap(group, *wide, before, after))

    return stepped(tile, mesh, steps, exchange=exchange)


# Right, written differently ---------------------------------------------------------------------


@fixed
def both(tile, mesh, steps):
    return stepped(tile, mesh, steps)


@fixed
def columns_first(tile, mesh, steps):
    return stepped(tile, mesh, steps, axes=(("x", 1), ("y", 0)))


@fixed
def one_direction_after_the_other(tile, mesh, steps):
    """All lines go up, and when they have arrived, all lines go down."""

    def exchange(group, first, last, before, after):
        arrived = []
        for line, to, source in ((first, before, after), (last, after, before)):
            line_there = torch.empty_like(line)
            send = dist.isend(line, group=group, group_dst=to)
            dist.recv(line_there, group=group, group_src=source)
            send.wait()
            arrived.append(line_there)
        return arrived[1], arrived[0]

    return stepped(tile, mesh, steps, exchange=exchange)


@fixed
def with_tags(tile, mesh, steps):
    """A tag says which end of a tile a message is."""

    def exchange(group, first, last, before, after):
        from_before, from_after = torch.empty_like(last), torch.empty_like(first)
        works = [
            dist.isend(first, group=group, group_dst=before, tag=1),
            dist.isend(last, group=group, group_dst=after, tag=2),
            dist.irecv(from_before, group=group, group_src=before, tag=2),
            dist.irecv(from_after, group=group, group_src=after, tag=1),
        ]
        for work in works:
            work.wait()
        return from_before, from_after

    return stepped(tile, mesh, steps, exchange=exchange)


@fixed
def corners_from_the_diagonal(tile, mesh, steps):
    """A message to each of the eight neighbours, in an order that both ends know."""
    sizes = [mesh.get_group(axis).size() for axis in "yx"]
    place = [mesh.get_local_rank(axis) for axis in "yx"]
    own, edges = slice(1, -1), {-1: slice(0, 1), 0: slice(None), 1: slice(-1, None)}
    halos = {-1: slice(0, 1), 0: own, 1: slice(-1, None)}
    sides = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]

    def rank_at(y, x):
        return (place[0] + y) % sizes[0] * sizes[1] + (place[1] + x) % sizes[1]

    for _ in range(steps):
        padded, works, arriving = F.pad(tile, (1, 1, 1, 1)), [], {}
        for number, (y, x) in enumerate(sides):
            line = tile[edges[y], edges[x]].contiguous()
            works.append(dist.isend(line, rank_at(y, x), tag=number))
            arriving[y, x] = torch.empty_like(line)
            works.append(dist.irecv(arriving[y, x], rank_at(y, x), tag=7 - number))
        for work in works:
            work.wait()
        for (y, x), line in arriving.items():
            padded[halos[y], halos[x]] = line
        tile = smooth(padded)
    return tile


def text_of_a_line():
    return said(line="dist.P2POp(dist.irecv, from_after, group=group, group_peer=after),")


RIGHT = [
    both, columns_first, one_direction_after_the_other, with_tags, corners_from_the_diagonal,
    text_of_a_line,
]  # fmt: skip

WRONG = {
    nothing_is_lost: {"number": "the change in one process"},
    without_its_sign: {"number": "the sign of a loss"},
    of_one_rank: {"number": "the mean of a rank"},
    a_share: {"number": "a share of the total"},
    the_line_of_the_padding: {"line": "does what it should here"},
    the_line_of_the_neighbours: {"line": "does what it should here"},
    a_function_alone: {"number": "must be a dict"},
    not_written: {"most": "not written yet"},
    still_broken: {"most": "in rows 0 and"},
    only_the_order: {"all": ": 4 of the "},
    only_the_corners: {"most": "in rows 0 and"},
    exchanged_on_every_axis: {"most": "columns 0 and"},
    corners_of_the_mean: {"all": ": 4 of the "},
    corners_of_its_own: {"all": ": 4 of the "},
    the_total_made_up: {"most": "differ from one process"},
    its_own_edges: {"most": "differ from one process"},
    finished_code: {"most": "does the work for you"},
    with_its_halo: {"most": "not what is asked for"},
    halos_of_the_start: {"steps": "after one step, it has none"},
    one_step: {"steps": "after one step, it has none"},
    halos_of_every_second_step: {"steps": "after one step, it has none"},
    the_whole_field: {"traffic": "all_gather"},
    the_whole_tile: {"traffic": "the halos of all steps are"},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_COUNT = "the number of a step is not used"
_AXES = "the corners come with the axis that is second"
_LIKE = "the first and the last line have one shape and one dtype, float64"
_ORDER = "neither needs the other"
_ZERO = "the halo is zero before"

EQUIVALENT = {
    "for _ in range(steps): -> for _ in reversed(range(steps)):": _COUNT,
    "for axis, dim in (('y', 0), ('x', 1)): -> "
    "for axis, dim in reversed((('y', 0), ('x', 1))):": _AXES,
    "... from_after = (torch.empty_like(last), torch.empty_like(first)) -> "
    "... from_after = (torch.empty_like(last).double(), torch.empty_like(first))": _LIKE,
    "... (torch.empty_like(last), torch.empty_like(first)) -> "
    "... (torch.empty_like(last), torch.empty_like(first).double())": _LIKE,
    "... from_after = (torch.empty_like(last), torch.empty_like(first)) -> "
    "... from_after = (torch.empty_like(first), torch.empty_like(first))": _LIKE,
    "... (torch.empty_like(last), torch.empty_like(first)) -> "
    "... (torch.empty_like(last), torch.empty_like(last))": _LIKE,
    "... from_after = (torch.empty_like(last), torch.empty_like(first)) -> "
    "... from_after = (torch.empty_like(first), torch.empty_like(last))": _LIKE,
    "for work in works: -> for work in reversed(works):": _ORDER,
    "padded.narrow(dim, 0, 1).copy_(from_before) -> "
    "padded.narrow(dim, 0, 1).add_(from_before)": _ZERO,
    "padded.narrow(dim, size + 1, 1).copy_(from_after) -> "
    "padded.narrow(dim, size + 1, 1).add_(from_after)": _ZERO,
    "padded.narrow(dim, 0, 1).copy_(from_before); "
    "padded.narrow(dim, size + 1, 1).copy_(from_after) -> "
    "padded.narrow(dim, size + 1, 1).copy_(from_after); "
    "padded.narrow(dim, 0, 1).copy_(from_before)": _ORDER,
}
