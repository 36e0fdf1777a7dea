# Right answers to the tasks of lesson 02: the blank cells by their ids.

# %% average-blank
def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


# %% same-blank
def same_on_all_ranks(tensor):
    copy = tensor.clone()
    dist.broadcast(copy, src=0)
    same = torch.tensor(int(torch.equal(copy, tensor)))
    dist.all_reduce(same, op=dist.ReduceOp.MIN)
    return bool(same)


# %% buckets-blank
def buckets_of(sizes, cap):
    buckets, bucket = [], []
    for size in reversed(sizes):
        bucket.append(size)
        if sum(bucket) >= cap:
            buckets.append(bucket)
            bucket = []
    if bucket:
        buckets.append(bucket)
    return buckets


# %% queue-blank
def exposed_after(ready, takes):
    end = 0
    for bucket_ready, duration in zip(ready, takes):
        end = max(bucket_ready, end) + duration
    return end - ready[-1]


# %% start-blank
def start_together(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


# %% sampler-blank
def my_samples(count, epoch, seed=0):
    generator = torch.Generator().manual_seed(seed + epoch)
    shuffled = torch.randperm(count, generator=generator)
    return shuffled[dist.get_rank() :: dist.get_world_size()].tolist()


# %% common-blank
def common_batches(mine):
    fewest = torch.tensor(mine)
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    return fewest.item()


# %% means-blank
def accuracy(right, count):
    sums = torch.tensor([right, count])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


# %% epoch-blank
def all_reduces_in_epoch(samples, ranks, size, per_step, buckets):
    def divided_up(number, by):
        return -(-number // by)

    of_rank = divided_up(samples, ranks)
    steps = divided_up(divided_up(of_rank, size), per_step)
    return steps * buckets
