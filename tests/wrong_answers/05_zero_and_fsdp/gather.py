"""Answers to 05/gather: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
from torch import nn

from dtlab.collectives import ring_all_gather


def grow(flat):
    flat.untyped_storage().resize_(flat.nbytes)


def lay(block, flat):
    start = 0
    for parameter in block.parameters():
        end = start + parameter.numel()
        parameter.data = flat[start:end].view(parameter.shape)
        start = end


def right(block, flat, piece):
    grow(flat)
    dist.all_gather_single(flat, piece.detach())
    lay(block, flat)


# Wrong ------------------------------------------------------------------------------------------


def untouched(block, flat, piece):
    raise NotImplementedError()


def does_not_grow(block, flat, piece):
    dist.all_gather_single(flat, piece.detach())
    lay(block, flat)


def piece_with_a_graph(block, flat, piece):
    grow(flat)
    flat.view(dist.get_world_size(), -1)[dist.get_rank()] = piece
    dist.all_gather_single(flat, piece.detach())
    lay(block, flat)


def own_piece_only(block, flat, piece):
    grow(flat)
    flat.zero_()
    flat.view(dist.get_world_size(), -1)[dist.get_rank()].copy_(piece.detach())
    lay(block, flat)


def flat_alone(block, flat, piece):
    """The block still has what it had."""
    grow(flat)
    dist.all_gather_single(flat, piece.detach())


def summed(block, flat, piece):
    grow(flat)
    flat.zero_()
    flat[: len(piece)] = piece.detach()
    dist.all_reduce(flat)
    lay(block, flat)


def in_another_order(block, flat, piece):
    grow(flat)
    dist.all_gather_single(flat, piece.detach())
    start = 0
    for parameter in reversed(list(block.parameters())):
        end = start + parameter.numel()
        parameter.data = flat[start:end].view(parameter.shape)
        start = end


def every_parameter_from_the_front(block, flat, piece):
    grow(flat)
    dist.all_gather_single(flat, piece.detach())
    for parameter in block.parameters():
        parameter.data = flat[: parameter.numel()].view(parameter.shape)


def transposed(block, flat, piece):
    grow(flat)
    dist.all_gather_single(flat, piece.detach())
    start = 0
    for parameter in block.parameters():
        end = start + parameter.numel()
        shape = parameter.shape[::-1]
        parameter.data = flat[start:end].view(shape).t() if len(shape) > 1 else flat[start:end]
        start = end


def copies(block, flat, piece):
    """As numbers they are right."""
    grow(flat)
    dist.all_gather_single(flat, piece.detach())
    start = 0
    for parameter in block.parameters():
        end = start + parameter.numel()
        parameter.data = flat[start:end].view(parameter.shape).clone()
        start = end


def into_the_old_parameters(block, flat, piece):
    """What autograd has saved is changed in place."""
    grow(flat)
    dist.all_gather_single(flat, piece.detach())
    start = 0
    with torch.no_grad():
        for parameter in block.parameters():
            end = start + parameter.numel()
            parameter.copy_(flat[start:end].view(parameter.shape))
            start = end


def a_flat_of_its_own(block, flat, piece):
    """The freed one stays freed."""
    new = torch.empty(flat.shape)
    dist.all_gather_single(new, piece.detach())
    lay(block, new)


def new_parameters(block, flat, piece):
    grow(flat)
    dist.all_gather_single(flat, piece.detach())
    start, made = 0, {}
    for parameter in list(block.parameters()):
        end = start + parameter.numel()
        made[parameter] = nn.Parameter(flat[start:end].view(parameter.shape))
        start = end
    for module in block.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, made[parameter])


def lays_only_the_first_time(block, flat, piece):
    """Filled by an operation that autograd sees: the saved views have changed."""
    grow(flat)
    parts = list(flat.chunk(dist.get_world_size()))
    dist.all_gather(parts, piece.detach())
    if not hasattr(block, "laid"):
        block.laid = True
        start = 0
        for parameter in block.parameters():
            end = start + parameter.numel()
            parameter.data = flat[start:end].view(parameter.shape)
            start = end
    for parameter in block.parameters():
        with torch.no_grad():
            parameter.mul_(1.0)


def only_once(block, flat, piece):
    """The second time there are numbers of somebody else."""
    grow(flat)
    if not hasattr(block, "gathered"):
        block.gathered = True
        dist.all_gather_single(flat, piece.detach())
        lay(block, flat)
    else:
        flat.data.zero_()


def everybody_broadcasts_flat(block, flat, piece):
    grow(flat)
    size = dist.get_world_size()
    rows = flat.view(size, -1)
    rows[dist.get_rank()].copy_(piece.detach())
    for rank in range(size):
        whole = flat.clone()
        dist.broadcast(whole, src=rank)
        rows[rank].copy_(whole.view(size, -1)[rank])
    lay(block, flat)


def all_reduce_of_zeros(block, flat, piece):
    grow(flat)
    flat.zero_()
    flat.view(dist.get_world_size(), -1)[dist.get_rank()].copy_(piece.detach())
    dist.all_reduce(flat)
    lay(block, flat)


def gathers_twice(block, flat, piece):
    right(block, flat, piece)
    dist.all_gather_single(flat.data, piece.detach())


# Right ------------------------------------------------------------------------------------------


def by_a_ring(block, flat, piece):
    flat.untyped_storage().resize_(4 * len(flat))
    with torch.no_grad():
        ring_all_gather(flat, piece)
    places = flat.split([*(one.numel() for one in block.parameters()), _rest(block, flat)])
    for parameter, place in zip(block.parameters(), places, strict=False):
        parameter.data = place.view_as(parameter)


def _rest(block, flat):
    return len(flat) - sum(one.numel() for one in block.parameters())


def in_a_list(block, flat, piece):
    grow(flat)
    dist.all_gather(list(flat.chunk(dist.get_world_size())), piece.data)
    offset = 0
    for parameter in block.parameters():
        parameter.data = flat.narrow(0, offset, parameter.numel()).reshape(parameter.shape)
        offset += parameter.numel()


RIGHT = [right, by_a_ring, in_a_list]

WRONG = {
    untouched: {"values": "is not written yet"},
    does_not_grow: {"values": "the storage of this tensor has 0 bytes"},
    piece_with_a_graph: {"values": "A collective needs tensors without a graph"},
    own_piece_only: {"values": "at the place of rank 1's piece, are zeros"},
    flat_alone: {"values": "still has its old values"},
    summed: {"values": "is the sum of all pieces: gather them"},
    in_another_order: {"values": "the parameters one after another"},
    every_parameter_from_the_front: {"values": "is off by"},
    transposed: {"values": "is off by"},
    copies: {"views": "is not a view of flat"},
    into_the_old_parameters: {"views": "is not a view of flat", "backward": ""},
    a_flat_of_its_own: {"views": "is not a view of flat"},
    new_parameters: {"views": "other parameter objects", "backward": ""},
    lays_only_the_first_time: {"backward": "modified by an inplace operation"},
    only_once: {"backward": "not those of the gathered block"},
    everybody_broadcasts_flat: {"bytes": "left rank"},
    all_reduce_of_zeros: {"bytes": "left rank"},
    gathers_twice: {"bytes": "left rank"},
}

TWICE = "what is done twice is the same"
FREE = "neither needs the other"
EQUIVALENT = {
    "flat.untyped_storage().resize_(flat.nbytes) -> "
    "flat.untyped_storage().resize_(flat.nbytes); "
    "flat.untyped_storage().resize_(flat.nbytes)": TWICE,
    "dist.all_gather_single(flat, piece.detach()); start = 0 -> start = 0; "
    "dist.all_gather_single(flat, piece.detach())": FREE,
}
