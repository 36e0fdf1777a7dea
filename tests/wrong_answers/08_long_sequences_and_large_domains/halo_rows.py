"""Answers to 08/halo_rows: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist


def beside(boundary):
    """The ranks above and below; None at the edge of the field."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if boundary == "periodic":
        return (rank - 1) % ranks, (rank + 1) % ranks
    return rank - 1 if rank else None, rank + 1 if rank < ranks - 1 else None


def exchange(to_above, to_below, above, below):
    """What comes from above and from below; zeros where there is no rank."""
    from_above, from_below = torch.zeros_like(to_below), torch.zeros_like(to_above)
    if above == dist.get_rank():
        return to_below.clone(), to_above.clone()
    works = [dist.isend(to_below.contiguous(), below)] if below is not None else []
    works += [dist.isend(to_above.contiguous(), above)] if above is not None else []
    works += [dist.irecv(from_above, above)] if above is not None else []
    works += [dist.irecv(from_below, below)] if below is not None else []
    for work in works:
        work.wait()
    return from_above, from_below


def right(tile, width, boundary):
    above, below = exchange(tile[:width], tile[-width:], *beside(boundary))
    return torch.cat([above, tile, below])


# Wrong ------------------------------------------------------------------------------------------


def untouched(tile, width, boundary):
    raise NotImplementedError()


def returns_nothing(tile, width, boundary):
    right(tile, width, boundary)


def one_row_only(tile, width, boundary):
    return right(tile, 1, boundary)


def zeros_everywhere(tile, width, boundary):
    zeros = torch.zeros(width, tile.shape[1])
    return torch.cat([zeros, tile, zeros])


def above_is_below(tile, width, boundary):
    """Swaps what arrives."""
    above, below = exchange(tile[:width], tile[-width:], *beside(boundary))
    return torch.cat([below, tile, above])


def far_rows_are_sent(tile, width, boundary):
    """To the rank above goes the end of the tile."""
    above, below = exchange(tile[-width:], tile[:width], *beside(boundary))
    return torch.cat([above, tile, below])


def one_row_off(tile, width, boundary):
    above, below = exchange(tile[1 : width + 1], tile[-width:], *beside(boundary))
    return torch.cat([above, tile, below])


def upside_down(tile, width, boundary):
    above, below = exchange(tile[:width], tile[-width:], *beside(boundary))
    return torch.cat([above.flip(0), tile, below.flip(0)])


def from_above_only(tile, width, boundary):
    above, _ = exchange(tile[:width], tile[-width:], *beside(boundary))
    return torch.cat([above, tile, torch.zeros_like(above)])


def overwrites_the_tile(tile, width, boundary):
    """The first and last rows make room for the halo."""
    padded = right(tile, width, boundary)
    return padded[width:-width]


def receives_first(tile, width, boundary):
    above, below = beside(boundary)
    from_above, from_below = torch.zeros_like(tile[:width]), torch.zeros_like(tile[:width])
    if above is not None:
        dist.recv(from_above, above)
    if below is not None:
        dist.recv(from_below, below)
    return torch.cat([from_above, tile, from_below])


def uninitialised_edge(tile, width, boundary):
    padded, (above, below) = right(tile, width, boundary), beside(boundary)
    if above is None:
        padded[:width] = 7.0
    if below is None:
        padded[-width:] = 7.0
    return padded


def edge_is_repeated(tile, width, boundary):
    padded, (above, below) = right(tile, width, boundary), beside(boundary)
    if above is None:
        padded[:width] = tile[0]
    if below is None:
        padded[-width:] = tile[-1]
    return padded


def always_periodic(tile, width, boundary):
    return right(tile, width, "periodic")


def never_periodic(tile, width, boundary):
    return right(tile, width, "zero")


def periodic_within_the_tile(tile, width, boundary):
    """At the edge the tile's own other end."""
    padded, (above, below) = right(tile, width, "zero"), beside("zero")
    if boundary == "periodic" and above is None:
        padded[:width] = tile[-width:]
    if boundary == "periodic" and below is None:
        padded[-width:] = tile[:width]
    return padded


def whole_tiles_travel(tile, width, boundary):
    """Sends everything, and cuts afterwards."""
    rows = torch.tensor([len(tile)])
    most = rows.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    room = torch.zeros(int(most), tile.shape[1])
    room[: len(tile)] = tile
    above, below = exchange(room, room, *beside(boundary))
    count, _ = exchange(rows, rows, *beside(boundary))
    last = int(count)
    first = above[last - width : last] if last else above[:width]
    return torch.cat([first, tile, below[:width]])


def all_tiles_are_gathered(tile, width, boundary):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tiles = [None] * ranks
    dist.all_gather_object(tiles, tile)
    zeros = torch.zeros(width, tile.shape[1])
    above, below = beside(boundary)
    return torch.cat(
        [
            zeros if above is None else tiles[above][-width:],
            tiles[rank],
            zeros if below is None else tiles[below][:width],
        ]
    )


def two_ranks_are_mixed_up(tile, width, boundary):
    """Both messages of a pair of ranks, in the wrong order."""
    above, below = beside(boundary)
    rank = dist.get_rank()
    if above is None or above != below or above == rank:
        return right(tile, width, boundary)
    from_above, from_below = torch.zeros(2, width, tile.shape[1])
    works = [dist.isend(tile[:width].contiguous(), above)]
    works += [dist.isend(tile[-width:].contiguous(), below)]
    works += [dist.irecv(from_above, above), dist.irecv(from_below, below)]
    for work in works:
        work.wait()
    return torch.cat([from_above, tile, from_below])


def alone_it_stays_zero(tile, width, boundary):
    return right(tile, width, "zero" if dist.get_world_size() == 1 else boundary)


# Right ------------------------------------------------------------------------------------------


def by_two_shifts(tile, width, boundary):
    """First all rows go down, then all go up."""
    padded = torch.zeros(len(tile) + 2 * width, tile.shape[1])
    padded[width:-width] = tile
    above, below = beside(boundary)
    for to, source, sent, halo in (
        (below, above, tile[-width:], padded[:width]),
        (above, below, tile[:width], padded[-width:]),
    ):
        if to == dist.get_rank():
            halo.copy_(sent)
            continue
        work = dist.isend(sent.clone(), to) if to is not None else None
        if source is not None:
            dist.recv(halo, source)
        if work is not None:
            work.wait()
    return padded


def by_a_batch(tile, width, boundary):
    above, below = beside(boundary)
    from_above, from_below = torch.zeros(2, width, tile.shape[1])
    if above == dist.get_rank():
        return torch.cat([tile[-width:], tile, tile[:width]])
    ops = [
        dist.P2POp(call, tensor, peer)
        for call, tensor, peer in (
            (dist.isend, tile[-width:].contiguous(), below),
            (dist.irecv, from_above, above),
            (dist.isend, tile[:width].contiguous(), above),
            (dist.irecv, from_below, below),
        )
        if peer is not None
    ]
    for work in dist.batch_isend_irecv(ops) if ops else ():
        work.wait()
    return torch.cat([from_above, tile, from_below])


def by_tags(tile, width, boundary):
    """A tag says in which direction a message goes."""
    above, below = beside(boundary)
    if above == dist.get_rank():
        return torch.cat([tile[-width:], tile, tile[:width]])
    halo = torch.zeros(2, width, tile.shape[1])
    works = []
    for tag, (peer, sent) in enumerate([(below, tile[-width:]), (above, tile[:width])]):
        if peer is not None:
            works.append(dist.isend(sent.clone(), peer, tag=tag))
    for tag, peer in enumerate([above, below]):
        if peer is not None:
            works.append(dist.irecv(halo[tag], peer, tag=tag))
    for work in works:
        work.wait()
    return torch.cat([halo[0], tile, halo[1]])


RIGHT = [right, by_two_shifts, by_a_batch, by_tags]

WRONG = {
    untouched: {"halo": "is not written yet"},
    returns_nothing: {"halo": "returns None"},
    one_row_only: {"halo": "with the halo it is"},
    zeros_everywhere: {"halo": "is zero. There belongs row"},
    above_is_below: {"halo": "There belongs row"},
    far_rows_are_sent: {"halo": "There belongs row"},
    one_row_off: {"halo": "There belongs row"},
    upside_down: {"halo": "There belongs row"},
    from_above_only: {"halo": "is zero. There belongs row 0, column 0 of rank 1's tile"},
    overwrites_the_tile: {"halo": "with the halo it is"},
    receives_first: {"halo": "post all that it sends before it waits"},
    uninitialised_edge: {"edge": "There belongs zero"},
    edge_is_repeated: {"edge": "There belongs zero"},
    always_periodic: {"edge": "There belongs zero"},
    never_periodic: {"periodic": "is zero. There belongs row"},
    periodic_within_the_tile: {"periodic": "of rank 0's tile. There belongs row"},
    whole_tiles_travel: {"bytes": "the cells that its neighbours need are"},
    all_tiles_are_gathered: {"bytes": "and no others"},
    two_ranks_are_mixed_up: {"few": "2 ranks"},
    alone_it_stays_zero: {"few": "1 rank"},
}

CONTIGUOUS = "whole rows are contiguous already"
ORDER = "nothing depends on this order"
SHAPE = "both have the same shape"
EQUIVALENT = {
    "first, last = (tile[:width].contiguous(), tile[-width:].contiguous()) -> "
    "first, last = (tile[:width], tile[-width:].contiguous())": CONTIGUOUS,
    "first, last = (tile[:width].contiguous(), tile[-width:].contiguous()) -> "
    "first, last = (tile[:width].contiguous(), tile[-width:])": CONTIGUOUS,
    "if ranks == 1 and periodic:; return torch.cat([last, tile, first]); above, below = "
    "(torch.zeros_like(last), torch.zeros_like(first)) -> "
    "above, below = (torch.zeros_like(last), torch.zeros_like(first)); if ranks == 1 and "
    "periodic:; return torch.cat([last, tile, first])": ORDER,
    "above, below = (torch.zeros_like(last), torch.zeros_like(first)) -> "
    "above, below = (torch.zeros_like(first), torch.zeros_like(first))": SHAPE,
    "above, below = (torch.zeros_like(last), torch.zeros_like(first)) -> "
    "above, below = (torch.zeros_like(last), torch.zeros_like(last))": SHAPE,
    "above, below = (torch.zeros_like(last), torch.zeros_like(first)) -> "
    "above, below = (torch.zeros_like(first), torch.zeros_like(last))": SHAPE,
    "works.append(dist.isend(first, (rank - 1) % ranks)); works.append(dist.irecv(above, "
    "(rank - 1) % ranks)) -> "
    "works.append(dist.irecv(above, (rank - 1) % ranks)); works.append(dist.isend(first, "
    "(rank - 1) % ranks))": ORDER,
    "for work in works: -> for work in reversed(works):": ORDER,
}
