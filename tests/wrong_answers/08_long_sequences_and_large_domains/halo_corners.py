"""Answers to 08/halo_corners: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
from torch.nn.functional import pad


def swap(messages):
    """Sends and receives (sent, received, peer); no peer, no message."""
    works = [dist.isend(sent.contiguous(), peer) for sent, _, peer in messages if peer is not None]
    for _, received, peer in messages:
        if peer is not None:
            works.append(dist.irecv(received, peer))
    for work in works:
        work.wait()


def at(grid, row, column):
    """The rank at a place of the grid; None outside."""
    inside = 0 <= row < grid[0] and 0 <= column < grid[1]
    return row * grid[1] + column if inside else None


def along(tile, width, before, after):
    """A halo of rows, between these ranks."""
    first, last = torch.zeros(2, width, tile.shape[1])
    swap([(tile[:width], first, before), (tile[-width:], last, after)])
    return torch.cat([first, tile, last])


def place(grid):
    return divmod(dist.get_rank(), grid[1])


def right(tile, grid, width):
    row, column = place(grid)
    tall = along(tile, width, at(grid, row - 1, column), at(grid, row + 1, column))
    sides = at(grid, row, column - 1), at(grid, row, column + 1)
    return along(tall.t(), width, *sides).t()


# Wrong ------------------------------------------------------------------------------------------


def untouched(tile, grid, width):
    raise NotImplementedError()


def rows_only(tile, grid, width):
    row, column = place(grid)
    tall = along(tile, width, at(grid, row - 1, column), at(grid, row + 1, column))
    return pad(tall, (width, width))


def columns_only(tile, grid, width):
    row, column = place(grid)
    sides = at(grid, row, column - 1), at(grid, row, column + 1)
    return pad(along(tile.t(), width, *sides).t(), (0, 0, width, width))


def one_cell_wide(tile, grid, width):
    return right(tile, grid, 1)


def columns_run_first(tile, grid, width):
    """Takes rank = column * rows + row."""
    column, row = divmod(dist.get_rank(), grid[0])

    def there(row, column):
        inside = 0 <= row < grid[0] and 0 <= column < grid[1]
        return column * grid[0] + row if inside else None

    tall = along(tile, width, there(row - 1, column), there(row + 1, column))
    return along(tall.t(), width, there(row, column - 1), there(row, column + 1)).t()


def neighbours_by_number(tile, grid, width):
    """Left and right are the ranks before and after, also at the end of a row."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    row, column = place(grid)
    tall = along(tile, width, at(grid, row - 1, column), at(grid, row + 1, column))
    sides = rank - 1 if rank else None, rank + 1 if rank < ranks - 1 else None
    if max(grid) == grid[0] and grid[1] == 1:
        sides = None, None
    return along(tall.t(), width, *sides).t()


def transposed_strips(tile, grid, width):
    """Columns arrive upside down."""
    padded = right(tile, grid, width)
    padded[:, :width] = padded[:, :width].flip(0)
    return padded


def returns_nothing(tile, grid, width):
    right(tile, grid, width)


def without_corners(tile, grid, width):
    """Both exchanges take from the tile alone."""
    row, column = place(grid)
    tall = along(tile, width, at(grid, row - 1, column), at(grid, row + 1, column))
    sides = at(grid, row, column - 1), at(grid, row, column + 1)
    wide = pad(along(tile.t(), width, *sides).t(), (0, 0, width, width))
    return wide + pad(tall - pad(tile, (0, 0, width, width)), (width, width))


def corners_of_the_neighbour(tile, grid, width):
    """The corner of the rank beside it, not of the diagonal one."""
    padded = right(tile, grid, width)
    inner = padded[width : 2 * width, :width]
    row, column = place(grid)
    if row and column:
        padded[:width, :width] = inner
    return padded


def two_corners_only(tile, grid, width):
    padded = right(tile, grid, width)
    padded[:width, -width:] = 0
    padded[-width:, :width] = 0
    return padded


def own_cells_at_the_edge(tile, grid, width):
    padded = right(tile, grid, width)
    row, column = place(grid)
    if row == 0:
        padded[:width] = padded[width : 2 * width]
    if column == 0:
        padded[:, :width] = padded[:, width : 2 * width]
    return padded


def a_torus(tile, grid, width):
    """Continues at the other edge of the field."""
    row, column = place(grid)

    def around(row, column):
        return row % grid[0] * grid[1] + column % grid[1]

    def halo(part, before, after):
        if before == dist.get_rank():
            return torch.cat([part[-width:], part, part[:width]])
        last, first = torch.zeros(2, width, part.shape[1])
        works = [
            dist.isend(part[-width:].contiguous(), after, tag=0),
            dist.isend(part[:width].contiguous(), before, tag=1),
            dist.irecv(first, before, tag=0),
            dist.irecv(last, after, tag=1),
        ]
        for work in works:
            work.wait()
        return torch.cat([first, part, last])

    tall = halo(tile, around(row - 1, column), around(row + 1, column))
    return halo(tall.t(), around(row, column - 1), around(row, column + 1)).t()


def ones_outside(tile, grid, width):
    padded = right(tile, grid, width)
    if place(grid)[0] == grid[0] - 1:
        padded[-width:] = 1
    return padded


def diagonal_messages(tile, grid, width):
    """Eight neighbours, eight messages."""
    row, column = place(grid)
    height, breadth = tile.shape
    padded = pad(tile, (width,) * 4)
    cut = {-1: slice(0, width), 0: slice(None), 1: slice(-width, None)}
    into = {-1: slice(0, width), 0: slice(width, -width), 1: slice(-width, None)}
    messages, places = [], []
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            peer = at(grid, row + down, column + across)
            if (down or across) and peer is not None:
                shape = (width if down else height, width if across else breadth)
                arriving = torch.empty(shape)
                messages.append((tile[cut[down], cut[across]], arriving, peer))
                places.append((into[down], into[across], arriving))
    swap(messages)
    for rows, columns, arriving in places:
        padded[rows, columns] = arriving
    return padded


def gathered(tile, grid, width):
    """All tiles on all ranks."""
    tiles = [None] * dist.get_world_size()
    dist.all_gather_object(tiles, tile)
    rows = [
        torch.cat(tiles[first : first + grid[1]], 1) for first in range(0, len(tiles), grid[1])
    ]
    row, column = place(grid)
    top = sum(len(tiles[one * grid[1]]) for one in range(row))
    left = sum(tiles[one].shape[1] for one in range(column))
    field = pad(torch.cat(rows), (width,) * 4)
    return field[top : top + len(tile) + 2 * width, left : left + tile.shape[1] + 2 * width]


def wider_than_asked(tile, grid, width):
    """Sends twice as many cells, and cuts."""
    if min(tile.shape) < 8 * width:
        return right(tile, grid, width)
    padded = right(tile, grid, 2 * width)
    return padded[width:-width, width:-width]


def everything_twice(tile, grid, width):
    right(tile, grid, width)
    return right(tile, grid, width)


# Right ------------------------------------------------------------------------------------------


def columns_first(tile, grid, width):
    row, column = place(grid)
    for down, across in ((0, 1), (1, 0)):
        before, after = (at(grid, row + way * down, column + way * across) for way in (-1, 1))
        tile = along(tile.t() if across else tile, width, before, after)
        if across:
            tile = tile.t()
    return tile


def into_one_tensor(tile, grid, width):
    """Allocates the result, and receives by shifts in four directions."""
    row, column = place(grid)
    padded = pad(tile, (width,) * 4)
    inner, full = slice(width, -width), slice(None)
    for across in (False, True):
        view = padded.t() if across else padded
        free = full if across else inner
        for step in (1, -1):
            peers = [
                at(grid, row, column + way * step)
                if across
                else at(grid, row + way * step, column)
                for way in (1, -1)
            ]
            to, source = peers
            edge = view[-2 * width : -width, free] if step == 1 else view[width : 2 * width, free]
            halo = view[:width, free] if step == 1 else view[-width:, free]
            work = dist.isend(edge.contiguous(), to) if to is not None else None
            if source is not None:
                arriving = torch.empty(halo.shape)
                dist.recv(arriving, source)
                halo.copy_(arriving)
            if work is not None:
                work.wait()
    return padded


def by_a_batch(tile, grid, width):
    row, column = place(grid)
    padded = tile
    for dim, before, after in (
        (0, at(grid, row - 1, column), at(grid, row + 1, column)),
        (1, at(grid, row, column - 1), at(grid, row, column + 1)),
    ):
        size = padded.shape[dim]
        first = padded.narrow(dim, 0, width).contiguous()
        last = padded.narrow(dim, size - width, width).contiguous()
        from_before, from_after = torch.zeros_like(last), torch.zeros_like(first)
        ops = []
        for peer, sent, received in ((before, first, from_before), (after, last, from_after)):
            if peer is not None:
                ops.append(dist.P2POp(dist.isend, sent, peer))
                ops.append(dist.P2POp(dist.irecv, received, peer))
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        padded = torch.cat([from_before, padded, from_after], dim)
    return padded


RIGHT = [right, columns_first, into_one_tensor, by_a_batch]

WRONG = {
    untouched: {"sides": "is not written yet"},
    rows_only: {"sides": "is zero. There belongs row"},
    columns_only: {"sides": "is zero. There belongs row"},
    one_cell_wide: {"sides": "with the halo it is"},
    columns_run_first: {"sides": ""},
    neighbours_by_number: {"sides": ""},
    transposed_strips: {"sides": "There belongs row"},
    returns_nothing: {"sides": "returns None"},
    without_corners: {"corners": "is zero. There belongs row"},
    corners_of_the_neighbour: {"corners": "There belongs row"},
    two_corners_only: {"corners": "is zero. There belongs row"},
    own_cells_at_the_edge: {"edge": "There belongs zero"},
    a_torus: {"edge": "There belongs zero"},
    ones_outside: {"edge": "There belongs zero"},
    diagonal_messages: {"peers": "exchanges messages with rank 3"},
    gathered: {"peers": "calls all_gather", "bytes": "the cells that its neighbours need are"},
    wider_than_asked: {"bytes": "Each side needs a strip"},
    everything_twice: {"bytes": "Each side needs a strip"},
}

ORDER = "nothing depends on this order"
EQUIVALENT = {
    "if has_before:; works.append(dist.isend(part[:width].contiguous(), rank - step)); ... -> "
    "if has_after:; works.append(dist.isend(part[-width:].contiguous(), rank + step)); ...": ORDER,
    "works.append(dist.isend(part[:width].contiguous(), rank - step)); "
    "works.append(dist.irecv(before, rank - step)) -> "
    "works.append(dist.irecv(before, rank - step)); "
    "works.append(dist.isend(part[:width].contiguous(), rank - step))": ORDER,
    "works.append(dist.isend(part[-width:].contiguous(), rank + step)); "
    "works.append(dist.irecv(after, rank + step)) -> "
    "works.append(dist.irecv(after, rank + step)); "
    "works.append(dist.isend(part[-width:].contiguous(), rank + step))": ORDER,
    "for work in works: -> for work in reversed(works):": ORDER,
}
