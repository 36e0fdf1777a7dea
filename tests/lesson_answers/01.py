# Right answers to the tasks of lesson 01: the blank cells by their ids.

# %% share-blank
def my_examples(count):
    return list(range(dist.get_rank(), count, dist.get_world_size()))


# %% swap-blank
def swap(mine):
    other = 1 - dist.get_rank()
    theirs = torch.empty_like(mine)
    sending = dist.isend(mine, dst=other)
    dist.recv(theirs, src=other)
    sending.wait()
    return theirs


# %% your-turn-1-blank
def average(gradient):
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


# %% mini-challenge-blank
def train_step(learning_rate):
    weights = torch.tensor([0.5, 0.5])
    gradient = torch.full((2,), dist.get_rank() + 1.0)
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()
    weights -= learning_rate * gradient
    return [gradient.tolist(), weights.tolist()]


# %% server-blank
def sum_on_rank_0(mine):
    if dist.get_rank() > 0:
        dist.send(mine, dst=0)
        return mine
    total, theirs = mine.clone(), torch.empty_like(mine)
    for source in range(1, dist.get_world_size()):
        dist.recv(theirs, src=source)
        total += theirs
    return total


# %% around-blank
def sum_around_ring(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    total, passed_on = mine.clone(), mine
    for _ in range(n - 1):
        received = torch.empty_like(mine)
        sending = dist.isend(passed_on, dst=right)
        dist.recv(received, src=left)
        sending.wait()
        total += received
        passed_on = received
    return total


# %% second-blank
def chunks_of_second_half():
    rank, n = dist.get_rank(), dist.get_world_size()
    return [(rank - k) % n for k in range(n - 1)]


# %% doubling-blank
def sum_by_doubling(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, distance = mine, 1
    while distance < n:
        total = total + exchange(total, rank ^ distance)
        distance *= 2
    return total


# %% cost-blank
def fastest_us(n, nbytes):
    latency, bandwidth = 5, 25_000  # µs, and bytes per µs
    whole = nbytes / bandwidth
    ring = 2 * (n - 1) * (latency + whole / n)
    doubling = math.log2(n) * (latency + whole)
    return round(min(ring, doubling))


# %% pairs-blank
def sum_on_my_machine(mine):
    total = mine.clone()
    for first in range(0, dist.get_world_size(), 2):
        members = [first, first + 1]
        group = dist.new_group(members)
        if dist.get_rank() in members:
            dist.all_reduce(total, group=group)
    return total
