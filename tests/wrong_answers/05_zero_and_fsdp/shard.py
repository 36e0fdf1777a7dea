"""Answers to 05/shard: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from dtlab.parallel.zero.shards import FlatLayout


def end_to_end(parameters):
    flat = torch.cat([one.detach().flatten() for one in parameters])
    return F.pad(flat, (0, -len(flat) % dist.get_world_size()))


def own(flat):
    return flat.chunk(dist.get_world_size())[dist.get_rank()]


def right(block):
    flat = end_to_end(block.parameters())
    return flat, nn.Parameter(own(flat).clone())


# Wrong ------------------------------------------------------------------------------------------


def keeps_the_bytes_of_all(block):
    flat, piece = right(block)
    piece.kept = flat.numpy().tobytes()
    return flat, piece


def untouched(block):
    raise NotImplementedError()


def the_piece_alone(block):
    return right(block)[1]


def weights_only(block):
    flat = end_to_end([one for one in block.parameters() if one.dim() > 1])
    return flat, nn.Parameter(own(flat).clone())


def the_other_way_round(block):
    flat = end_to_end(list(block.parameters())[::-1])
    return flat, nn.Parameter(own(flat).clone())


def tied_weights_twice(block):
    layers = getattr(block, "layers", block)
    flat = end_to_end([one for layer in layers for one in layer.parameters()])
    return flat, nn.Parameter(own(flat).clone())


def with_a_graph(block):
    flat = parameters_to_vector(block.parameters())
    flat = F.pad(flat, (0, -len(flat) % dist.get_world_size()))
    return flat, nn.Parameter(own(flat).detach().clone())


def empties_the_block(block):
    flat, piece = right(block)
    for parameter in block.parameters():
        parameter.data.zero_()
    return flat, piece


def does_not_pad(block):
    flat = torch.cat([one.detach().flatten() for one in block.parameters()])
    return flat, nn.Parameter(own(flat).clone())


def a_piece_more_than_needed(block):
    flat, size = end_to_end(block.parameters()), dist.get_world_size()
    flat = F.pad(flat, (0, size))
    return flat, nn.Parameter(own(flat).clone())


def pads_where_it_divides(block):
    """size - count % size, which is size where it should be 0."""
    size = dist.get_world_size()
    flat = torch.cat([one.detach().flatten() for one in block.parameters()])
    flat = F.pad(flat, (0, size - len(flat) % size))
    return flat, nn.Parameter(own(flat).clone())


def padding_of_anything(block):
    flat = end_to_end(block.parameters())
    flat[sum(one.numel() for one in block.parameters()) :] = 7.0
    return flat, nn.Parameter(own(flat).clone())


def the_first_piece_for_all(block):
    flat = end_to_end(block.parameters())
    return flat, nn.Parameter(flat.chunk(dist.get_world_size())[0].clone())


def the_next_ranks_piece(block):
    flat, size = end_to_end(block.parameters()), dist.get_world_size()
    return flat, nn.Parameter(flat.chunk(size)[(dist.get_rank() + 1) % size].clone())


def every_nth_element(block):
    flat = end_to_end(block.parameters())
    return flat, nn.Parameter(flat[dist.get_rank() :: dist.get_world_size()].clone())


def all_of_it(block):
    flat = end_to_end(block.parameters())
    return flat, nn.Parameter(flat.clone())


def no_parameter(block):
    flat = end_to_end(block.parameters())
    return flat, own(flat).clone()


def a_frozen_piece(block):
    flat = end_to_end(block.parameters())
    return flat, nn.Parameter(own(flat).clone(), requires_grad=False)


def a_view(block):
    flat = end_to_end(block.parameters())
    return flat, nn.Parameter(own(flat))


def a_detached_view(block):
    flat = end_to_end(block.parameters())
    return flat, nn.Parameter(own(flat).detach().contiguous())


def by_the_library(block):
    layout = FlatLayout(list(block.parameters()), dist.get_world_size())
    flat = layout.pack(block.parameters())
    return flat, nn.Parameter(layout.shard(flat, dist.get_rank()).clone())


# Right ------------------------------------------------------------------------------------------


def by_places(block):
    size, rank = dist.get_world_size(), dist.get_rank()
    count = sum(one.numel() for one in block.parameters())
    length = (count + size - 1) // size
    flat, start = torch.zeros(length * size), 0
    for parameter in block.parameters():
        flat[start : start + parameter.numel()] = parameter.detach().reshape(-1)
        start += parameter.numel()
    piece = torch.empty(length)
    piece.copy_(flat[rank * length : (rank + 1) * length])
    return flat, nn.Parameter(piece)


def of_vectors(block):
    with torch.no_grad():
        flat = parameters_to_vector(block.parameters()).clone()
        missing = -len(flat) % dist.get_world_size()
        flat = torch.cat([flat, flat.new_zeros(missing)])
        rows = flat.view(dist.get_world_size(), -1)
    return [flat, nn.Parameter(rows[dist.get_rank()].clone())]


RIGHT = [right, by_places, of_vectors]

WRONG = {
    untouched: {"flat": "is not written yet"},
    the_piece_alone: {"flat": "shard returns Parameter"},
    weights_only: {"flat": "has the shape"},
    the_other_way_round: {"flat": "in the order of block.parameters()"},
    tied_weights_twice: {"flat": "each of them once"},
    with_a_graph: {"flat": "has an autograd graph"},
    empties_the_block: {"flat": "changed the values"},
    does_not_pad: {"padding": "elements so that each rank"},
    a_piece_more_than_needed: {"padding": "elements so that each rank"},
    pads_where_it_divides: {"padding": "elements so that each rank"},
    padding_of_anything: {"padding": "is not 0"},
    the_first_piece_for_all: {"piece": "rank 1's piece is off"},
    the_next_ranks_piece: {"piece": "piece is off"},
    every_nth_element: {"piece": "piece is off"},
    all_of_it: {"piece": "has the shape"},
    no_parameter: {"piece": "must be an nn.Parameter"},
    a_frozen_piece: {"piece": "must be an nn.Parameter"},
    keeps_the_bytes_of_all: {"memory": "the kernel counts"},
    a_view: {"memory": "is a view of flat"},
    a_detached_view: {"memory": "is a view of flat"},
    by_the_library: {"flat": "finished code"},
}
