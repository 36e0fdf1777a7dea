# Right answers to the tasks of lesson 04: the blank cells by their ids.

# %% spacing-blank
def smallest_change(x, mantissa_bits):
    _, e = math.frexp(x)
    return 2.0 ** (e - 1 - mantissa_bits)


# %% window-blank
def scale_window(low, high):
    smallest = math.ceil(math.log2(2**-14 / low))
    largest = math.floor(math.log2(65_504 / high))
    return smallest, largest


# %% flag-blank
def any_rank_overflows(gradient):
    flag = torch.tensor(0 if gradient.isfinite().all() else 1)
    dist.all_reduce(flag)
    return flag.item() > 0


# %% order-blank
def two_orders(norm, max_norm, scale):
    unscale_first = min(norm, max_norm)
    clip_first = min(norm * scale, max_norm) / scale
    return unscale_first, clip_first


# %% master-blank
def is_lost(weight, rate, mantissa_bits=7):
    spacing = smallest_change(weight, mantissa_bits)
    return rate < spacing / 2


# %% cast-blank
def mean_in_16_bits(gradient):
    sent = gradient.to(torch.bfloat16)
    dist.all_reduce(sent)
    return sent.float() / dist.get_world_size()


# %% gated-blank
def gated_bytes(tokens, h, f):
    kept_per_token = h + 4 * f  # x, and the inputs of silu, of * (two) and of down
    return 2 * tokens * kept_per_token


# %% fit-blank
def largest_microbatch(room, s, h, a, layers, fused):
    attention = 0 if fused else 5 * a * s / h
    one_sequence = layers * s * h * (34 + attention)
    return int(room // one_sequence)


# %% again-blank
def more_operations(n, k):
    last = n % k or k
    return 100 * (n - last) / (3 * n)
