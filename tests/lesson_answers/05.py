# Right answers to the tasks of lesson 05: the blank cells by their ids.

# %% held-blank
def held_gb(billions, stage, ranks):
    optimizer_state = 12 / ranks if stage >= 1 else 12
    gradients = 2 / ranks if stage >= 2 else 2
    parameters = 2 / ranks if stage >= 3 else 2
    return billions * (optimizer_state + gradients + parameters)


# %% flat-blank
def my_part(count):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = ceil(count / ranks)
    return [min(rank * size, count), min((rank + 1) * size, count)]


# %% layer-blank
def layer_output(x, shard):
    rows, features = shard.shape
    whole = shard.new_empty(dist.get_world_size() * rows, features)
    dist.all_gather_single(whole, shard)
    return x @ whole.T


# %% sent-blank
def bytes_sent(collectives_called, ranks):
    trips = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    total = sum(trips[name] * nbytes for name, nbytes in collectives_called)
    return total * (ranks - 1) / ranks


# %% traffic-blank
def elements_sent(psi, stage, ranks, k):
    times = {0: 2, 1: 2, 2: k + 1, 3: 3 * k}
    return times[stage] * psi * (ranks - 1) / ranks


# %% tokens-blank
def tokens_needed(flops, bandwidth, reduced):
    bytes_per_parameter = 2 + 2 + reduced  # two gathers and the reduction
    return ceil(bytes_per_parameter * flops / (6 * bandwidth))


# %% hybrid-blank
def partners(per_node):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = rank - rank % per_node
    node = list(range(first, first + per_node))
    same_shard = list(range(rank % per_node, ranks, per_node))
    return [node, same_shard]


# %% clip-blank
def global_norm(shard):
    square = shard.square().sum()
    dist.all_reduce(square)
    return square.sqrt()


# %% cards-blank
def lowest_stage(billions, ranks, card, activations):
    for stage in range(4):
        if held_gb(billions, stage, ranks) + activations <= card:
            return stage
    return -1
