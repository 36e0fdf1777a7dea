# Right answers to the tasks of lesson 06: the blank cells by their ids.

# %% shard-blank
def my_shard(weight, kind):
    dim = 0 if kind == "column" else 1
    return weight.chunk(dist.get_world_size(), dim)[dist.get_rank()]


# %% f-blank
def backward_of_f(gradient):
    total = gradient.clone()
    dist.all_reduce(total)
    return total


# %% row-blank
def my_row_linear(x, weight, bias):
    return reduce_from_region(F.linear(x, weight)) + bias


# %% whole-blank
def make_whole(tensor, kind):
    if kind == "a shard":
        shards = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(shards, tensor)
        return torch.cat(shards, dim=-1)
    if kind == "a part of a sum":
        total = tensor.clone()
        dist.all_reduce(total)
        return total
    return tensor


# %% volume-blank
def elements_passed(b, s, h, t, layers, count):
    return 8 * b * s * h * (t - 1) / t * layers * count


# %% groups-blank
def my_groups(t):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = rank - rank % t
    tensor_group = list(range(first, first + t))
    data_group = list(range(rank % t, ranks, t))
    return [tensor_group, data_group]


# %% mask-blank
def my_mask(seed, kind):
    # Each step has a seed for a whole tensor, and one more for each rank's shard.
    mine = 0 if kind == "whole" else 1 + dist.get_rank()
    generator = torch.Generator().manual_seed(seed * (1 + dist.get_world_size()) + mine)
    return torch.randint(2, (20,), generator=generator)


# %% tokens-blank
def sum_for_my_tokens(product):
    total = product.clone()
    dist.all_reduce(total)
    return total.chunk(dist.get_world_size())[dist.get_rank()]


# %% clip-blank
def global_norm(shard, whole):
    square = shard.square().sum()
    dist.all_reduce(square)
    return (square + whole.square().sum()).sqrt()
