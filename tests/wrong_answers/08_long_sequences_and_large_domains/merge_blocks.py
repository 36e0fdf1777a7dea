"""Answers to 08/merge_blocks: mistakes people make, and right answers written differently."""

import math

import torch


def scores_of(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def right(out, total, q, k, v):
    scores = scores_of(q, k)
    after = torch.logaddexp(total, scores.logsumexp(-1))
    old = (total - after).exp().unsqueeze(-1)
    return out * old + (scores - after.unsqueeze(-1)).exp() @ v, after


# Wrong ------------------------------------------------------------------------------------------


def untouched(out, total, q, k, v):
    raise NotImplementedError()


def merged(out, total, q, k, v, weights, scores=None):
    """The right total; the output with the weights of a mistake for the old and the new one."""
    scores = scores_of(q, k) if scores is None else scores
    here = scores.logsumexp(-1)
    after = torch.logaddexp(total, here)
    old, new = weights(total, here, after)
    return old.unsqueeze(-1) * out + new.unsqueeze(-1) * (scores.softmax(-1) @ v), after


def added(out, total, q, k, v):
    return merged(out, total, q, k, v, lambda t, h, a: (torch.ones_like(t), torch.ones_like(t)))


def mean(out, total, q, k, v):
    halves = torch.full_like(total, 0.5)
    return merged(out, total, q, k, v, lambda t, h, a: (halves, halves))


def new_only(out, total, q, k, v):
    zeros = torch.zeros_like(total)
    return merged(out, total, q, k, v, lambda t, h, a: (zeros, zeros + 1))


def old_is_not_rescaled(out, total, q, k, v):
    return merged(out, total, q, k, v, lambda t, h, a: (torch.ones_like(t), (h - a).exp()))


def weights_do_not_add_up(out, total, q, k, v):
    """exp of each total, which is not divided by the sum."""
    return merged(out, total, q, k, v, lambda t, h, a: (t.exp(), h.exp()))


def weights_of_logarithms(out, total, q, k, v):
    return merged(out, total, q, k, v, lambda t, h, a: (t / (t + h), h / (t + h)))


def swapped_weights(out, total, q, k, v):
    return merged(out, total, q, k, v, lambda t, h, a: ((h - a).exp(), (t - a).exp()))


def forgets_to_return(out, total, q, k, v):
    right(out, total, q, k, v)


def not_divided(out, total, q, k, v):
    scores = q @ k.transpose(-2, -1)
    after = torch.logaddexp(total, scores.logsumexp(-1))
    old = (total - after).exp().unsqueeze(-1)
    return out * old + (scores - after.unsqueeze(-1)).exp() @ v, after


def total_of_the_new_block(out, total, q, k, v):
    return right(out, total, q, k, v)[0], scores_of(q, k).logsumexp(-1)


def old_total(out, total, q, k, v):
    return right(out, total, q, k, v)[0], total


def total_is_a_sum(out, total, q, k, v):
    out, after = right(out, total, q, k, v)
    return out, after.exp()


def totals_added(out, total, q, k, v):
    return right(out, total, q, k, v)[0], total + scores_of(q, k).logsumexp(-1)


def total_keeps_a_dim(out, total, q, k, v):
    out, after = right(out, total, q, k, v)
    return out, after.unsqueeze(-1)


def scales_the_keys_in_place(out, total, q, k, v):
    k /= math.sqrt(q.shape[-1])
    scores = q @ k.transpose(-2, -1)
    after = torch.logaddexp(total, scores.logsumexp(-1))
    old = (total - after).exp().unsqueeze(-1)
    return out * old + (scores - after.unsqueeze(-1)).exp() @ v, after


def scales_the_queries_in_place(out, total, q, k, v):
    q /= q.shape[-1] ** 0.5
    scores = q @ k.transpose(-2, -1)
    after = torch.logaddexp(total, scores.logsumexp(-1))
    old = (total - after).exp().unsqueeze(-1)
    return out * old + (scores - after.unsqueeze(-1)).exp() @ v, after


def sums_without_a_maximum(out, total, q, k, v):
    """Right as long as exp does not overflow."""
    weights = scores_of(q, k).exp()
    old = total.exp()
    both = old + weights.sum(-1)
    out = (out * old.unsqueeze(-1) + weights @ v) / both.unsqueeze(-1)
    return out, both.log()


def shifted_by_the_new_block(out, total, q, k, v):
    """Overflows if the old scores are much larger."""
    scores = scores_of(q, k)
    here = scores.logsumexp(-1)
    after = here + (1 + (total - here).exp()).log()
    old = (total - after).exp().unsqueeze(-1)
    return out * old + (scores - after.unsqueeze(-1)).exp() @ v, after


def grows_from_the_old_total(out, total, q, k, v):
    """-inf + inf at the beginning."""
    scores = scores_of(q, k)
    here = scores.logsumexp(-1)
    after = total + torch.nn.functional.softplus(here - total)
    old = (total - after).exp().unsqueeze(-1)
    return out * old + (scores - after.unsqueeze(-1)).exp() @ v, after


def begins_with_zero(out, total, q, k, v):
    """Takes -inf for "no sum yet", and continues from log(1)."""
    return right(out, total.clamp(min=-50.0).where(total > -1e30, torch.zeros(())), q, k, v)


# Right ------------------------------------------------------------------------------------------


def by_a_running_maximum(out, total, q, k, v):
    """As in FlashAttention: sums relative to the largest score."""
    scores = scores_of(q, k)
    most = torch.maximum(total, scores.amax(-1))
    old = (total - most).exp()
    weights = (scores - most.unsqueeze(-1)).exp()
    both = old + weights.sum(-1)
    out = (out * old.unsqueeze(-1) + weights @ v) / both.unsqueeze(-1)
    return out, most + both.log()


def by_a_sigmoid(out, total, q, k, v):
    """A step from the old output towards that of the block."""
    scores = scores_of(q, k)
    here = scores.logsumexp(-1)
    share = torch.sigmoid(here - total).unsqueeze(-1)
    return out + share * (scores.softmax(-1) @ v - out), torch.logaddexp(total, here)


def by_one_softmax(out, total, q, k, v):
    """The blocks so far are one more key, whose score is total and whose value is out."""
    scores = torch.cat([total.unsqueeze(-1), scores_of(q, k)], -1)
    weights = scores.softmax(-1)
    return weights[..., :1] * out + weights[..., 1:] @ v, scores.logsumexp(-1)


RIGHT = [right, by_a_running_maximum, by_a_sigmoid, by_one_softmax]

WRONG = {
    untouched: {"out": "is not written yet"},
    added: {"out": "added without weights"},
    mean: {"out": "this is the mean of both outputs"},
    new_only: {"out": "the output over the new block alone"},
    old_is_not_rescaled: {"out": "the old output is not rescaled"},
    weights_do_not_add_up: {"out": "which share has each block?"},
    weights_of_logarithms: {"out": "which share has each block?"},
    swapped_weights: {"out": "which share has each block?"},
    forgets_to_return: {"out": "returned is NoneType"},
    not_divided: {"out": "not divided by sqrt(head size)", "total": "off by"},
    total_of_the_new_block: {"total": "the total of the new block alone"},
    old_total: {"total": "from before the block"},
    total_is_a_sum: {"total": "Return its logarithm"},
    totals_added: {"total": "two logarithms added up"},
    total_keeps_a_dim: {"total": "total has shape"},
    scales_the_keys_in_place: {"inputs": "k is changed"},
    scales_the_queries_in_place: {"inputs": "q is changed"},
    sums_without_a_maximum: {"large": "exp overflows above 88"},
    shifted_by_the_new_block: {"large": "exp overflows above 88"},
    grows_from_the_old_total: {"rounds": "At the beginning total is -inf"},
    begins_with_zero: {"rounds": "At the beginning total is -inf"},
}

_SCORES = "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) -> scores = q @ "
EQUIVALENT = {
    _SCORES + "k.transpose(2, -1) / math.sqrt(q.shape[-1])": "the third of four dims is dim 2",
    _SCORES + "k.transpose(-1, -2) / math.sqrt(q.shape[-1])": "both dims swap places",
    "after = torch.logaddexp(total, scores.logsumexp(-1)) -> "
    "after = torch.logaddexp(scores.logsumexp(-1), total)": "a sum",
}
