# Right answers to the tasks of lesson 00: the blank cells by their ids.

# %% efficiency-blank
def needed_efficiency(days, due, gpus):
    return 100 * days / due / gpus


# %% uneven-blank
def sum_of_all(batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = torch.zeros(())
    for first in range(0, batches, n):
        batch = first + rank
        gradient = torch.tensor(float(batch) if batch < batches else 0.0)
        dist.all_reduce(gradient)
        total += gradient
    return total


# %% rows-blank
def my_rows(count):
    rank, n = dist.get_rank(), dist.get_world_size()
    rows, left = divmod(count, n)
    first = rank * rows + min(rank, left)
    return first, first + rows + (rank < left)


# %% cure-blank
def add_up(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts):
        tensor.copy_(part.view_as(tensor))


# %% formula-blank
def step_microseconds(num_ranks, compute, nbytes, latency, bandwidth):
    rounds = 2 * (num_ranks - 1)
    seconds = compute / num_ranks + rounds * (latency + nbytes / num_ranks / bandwidth)
    return round(1e6 * seconds)


# %% best-blank
def best_number(most, compute, nbytes, latency, bandwidth):
    def seconds(n):
        return step_microseconds(n, compute, nbytes, latency, bandwidth)

    return min(range(1, most + 1), key=seconds)


# %% waiting-blank
def waiting(called, end):
    last = max(called)
    return [(last - each, end - last) for each in called]


# %% peak-blank
def peak_gb(billions, activations_gb):
    return max(16 * billions, 12 * billions + activations_gb)


# %% gpus-blank
def gpus_needed(billions, activations, card=80):
    room = card - activations
    return -(-16 * billions // room) if room > 0 else 0
