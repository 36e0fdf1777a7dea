# Right answers to the tasks of lesson 08: the blank cells by their ids.

# %% heads-blank
def to_heads(x):
    parts = x.chunk(dist.get_world_size(), dim=1)
    return torch.cat(exchange(parts), dim=2)


# %% tokens-blank
def to_tokens(x):
    parts = x.chunk(dist.get_world_size(), dim=2)
    return torch.cat(exchange(parts), dim=1)


# %% merge-blank
def merge(o, log_sum, o_new, log_sum_new):
    both = torch.logaddexp(log_sum, log_sum_new)
    return o * torch.exp(log_sum - both) + o_new * torch.exp(log_sum_new - both), both


# %% zigzag-blank
def my_positions(tokens):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    runs = torch.arange(tokens).chunk(2 * ranks)
    return torch.cat([runs[rank], runs[-1 - rank]])


# %% hidden-blank
def least_tokens(tflops, gigabytes, heads, kv_heads, causal):
    without_mask = kv_heads / heads * (tflops * 1e12) / (gigabytes * 1e9)
    return 2 * without_mask if causal else without_mask


# %% dispatch-blank
def dispatch(tokens, experts, per_rank):
    to = experts // per_rank
    leaving = torch.bincount(to, minlength=dist.get_world_size())
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return send_rows(tokens[to.argsort(stable=True)], leaving.tolist(), arriving.tolist())


# %% line-blank
def with_halo(tile):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    left, right = tile.new_zeros(1), tile.new_zeros(1)
    messages = []
    if rank > 0:
        messages += [dist.isend(tile[:1], dst=rank - 1), dist.irecv(left, src=rank - 1)]
    if rank < ranks - 1:
        messages += [dist.isend(tile[-1:], dst=rank + 1), dist.irecv(right, src=rank + 1)]
    for message in messages:
        message.wait()
    return torch.cat([left, tile, right])


# %% back-blank
def halo_backward(gradient):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    from_left, from_right = gradient.new_zeros(1), gradient.new_zeros(1)
    messages = []
    if rank > 0:
        messages += [dist.isend(gradient[:1], dst=rank - 1), dist.irecv(from_left, src=rank - 1)]
    if rank < ranks - 1:
        messages += [dist.isend(gradient[-1:], dst=rank + 1), dist.irecv(from_right, src=rank + 1)]
    for message in messages:
        message.wait()
    mine = gradient[1:-1].clone()
    mine[:1] += from_left
    mine[-1:] += from_right
    return mine


# %% norm-blank
def whole_mean_and_variance(tile):
    sums = torch.stack([tile.sum(), tile.square().sum(), torch.ones_like(tile).sum()])
    dist.all_reduce(sums)
    total, squares, count = sums
    mean = total / count
    return [mean, squares / count - mean**2]
