# Right answers to the tasks of lesson 07: the blank cells by their ids.

# %% boundary-blank
def megabytes_sent(b, s, h):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    neighbours = (rank > 0) + (rank < world_size - 1)
    return neighbours * 2 * b * s * h / 1e6


# %% bubble-blank
def bubble_shares(p, m):
    return [100 * (p - 1) / m, 100 * (p - 1) / (m + p - 1)]


# %% exchange-blank
def exchange(mine, other):
    arrived = torch.empty_like(mine)
    message = dist.isend(mine, dst=other)
    dist.recv(arrived, src=other)
    message.wait()
    return arrived


# %% warm-up-blank
def warm_up_and_peak(stage, p, m):
    return [min(p - 1 - stage, m), min(p - stage, m)]


# %% layers-blank
def my_layers(layers, v):
    rank, p = dist.get_rank(), dist.get_world_size()
    size = layers // (p * v)
    return [layer for layer in range(layers) if layer // size % p == rank]


# %% halves-blank
def two_halves(x, w, g):
    return [g @ w.T, x.T @ g]


# %% copies-blank
def sum_of_copies(gradient):
    total = torch.zeros(()) if gradient is None else gradient.clone()
    dist.all_reduce(total)
    return None if gradient is None else total


# %% stash-blank
def stashed_gb(stage, p, gb):
    return (p - stage) * gb


# %% makespan-blank
def makespan_and_limit(times, m):
    return [sum(times) + (m - 1) * max(times), sum(times) / max(times)]


# %% late-blank
def gpipe_longer_ms(p, megabytes, gigabytes_per_second, latency_ms):
    message = latency_ms + megabytes / gigabytes_per_second  # MB / (GB/s) = ms
    return 2 * (p - 1) * message
