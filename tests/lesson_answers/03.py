# Right answers to the tasks of lesson 03: the blank cells by their ids.

# %% micro-blank
def micro_batches_in_a_step(batch, micro_batch, gpus, gpus_per_replica):
    replicas = gpus // gpus_per_replica
    return batch // replicas // micro_batch


# %% exact-blank
def exact_gradient(pairs):
    weighted = sum(count * gradient for count, gradient in pairs)
    samples = sum(count for count, _ in pairs)
    sums = torch.tensor([weighted, samples])
    dist.all_reduce(sums)
    return sums[0] / sums[1]


# %% leftover-blank
def gradients_of_steps(gradients, k):
    steps = [gradients[first : first + k] for first in range(0, len(gradients), k)]
    return [sum(step) / len(step) for step in steps]


# %% tokens-blank
def loss_for_backward(total, count):
    tokens = torch.tensor(count)
    dist.all_reduce(tokens)
    return total * dist.get_world_size() / tokens


# %% once-blank
def average_once(gradients):
    total = torch.tensor(sum(gradients))
    dist.all_reduce(total)
    return total / (len(gradients) * dist.get_world_size())


# %% both-blank
def both_ways(w, samples, rate):
    small = w
    for sample in samples:
        small -= rate * (small - sample)
    n = dist.get_world_size()
    gradient = torch.tensor(w - samples[dist.get_rank()])
    dist.all_reduce(gradient)
    gradient /= n
    large = w - n * rate * gradient
    return [small, large]


# %% your-turn-2-blank
def accumulation(micro_batch, effective_batch, gradients, rate):
    count = effective_batch // micro_batch
    accumulated = sum(gradient / count for gradient in gradients)
    return [count, accumulated, rate * count]


# %% room-blank
def growth_of_best_rate(noise_scale, small, large):
    return (1 + noise_scale / small) / (1 + noise_scale / large)


# %% adam-blank
def growth_of_adams_step(gradients, k):
    def mean(numbers):
        return sum(numbers) / len(numbers)

    def step(numbers):
        return mean(numbers) / math.sqrt(mean([number**2 for number in numbers]))

    joined = [mean(gradients[first : first + k]) for first in range(0, len(gradients), k)]
    return step(joined) / step(gradients)


# %% steps-blank
def optimizer_steps(samples, epochs, micro_batch, micro_batches, replicas):
    batch = micro_batch * micro_batches * replicas
    return epochs * math.ceil(samples / batch)
