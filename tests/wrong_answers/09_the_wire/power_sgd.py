"""Answers to 09/power_sgd: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist


def summed(tensor):
    tensor = tensor.contiguous()
    dist.all_reduce(tensor)
    return tensor


def orthonormal(p):
    return torch.linalg.qr(p).Q


def power(matrix, q, error, basis=orthonormal, sum_p=summed, sum_q=summed):
    """PowerSGD, with a mistake in one of its pieces."""
    ranks, whole = dist.get_world_size(), matrix + error
    p = basis(sum_p(whole @ q))
    q.copy_(sum_q(whole.T @ p) / ranks)
    mean = p @ q.T
    error.copy_(whole - mean)
    return mean


def right(matrix, q, error):
    return power(matrix, q, error)


# Wrong ------------------------------------------------------------------------------------------


def untouched(matrix, q, error):
    raise NotImplementedError()


def sum_over_ranks(matrix, q, error):
    return power(matrix, q, error) * dist.get_world_size()


def columns_as_they_are(matrix, q, error):
    return power(matrix, q, error, basis=lambda p: p)


def columns_of_length_one(matrix, q, error):
    return power(matrix, q, error, basis=lambda p: p / p.norm(dim=0))


def own_p(matrix, q, error):
    """P is not summed, so the ranks have different ones."""
    return power(matrix, q, error, sum_p=lambda p: p)


def p_summed_too_late(matrix, q, error):
    """Orthonormal columns of each rank, added up."""
    return power(matrix, q, error, basis=lambda p: p, sum_p=lambda p: summed(orthonormal(p)))


def own_q(matrix, q, error):
    return power(matrix, q, error, sum_q=lambda q: q * dist.get_world_size())


def own_q_divided(matrix, q, error):
    return power(matrix, q, error, sum_q=lambda q: q)


def its_own_matrix_only(matrix, q, error):
    return power(matrix, q, error, sum_p=lambda p: p, sum_q=lambda q: q * dist.get_world_size())


def old_q(matrix, q, error):
    before = q.clone()
    power(matrix, q, error)
    whole = matrix + error
    return orthonormal(summed(whole @ before)) @ before.T


def whole_matrix(matrix, q, error):
    return summed(matrix + error) / dist.get_world_size()


def error_is_not_changed(matrix, q, error):
    return power(matrix, q, error.clone())


def error_is_everything(matrix, q, error):
    whole = matrix + error
    mean = power(matrix, q, error)
    error.copy_(whole)
    return mean


def error_without_the_old_one(matrix, q, error):
    mean = power(matrix, q, error)
    error.copy_(matrix - mean)
    return mean


def error_against_its_own_part(matrix, q, error):
    """What this rank's part of Q leaves out, not what the mean does."""
    ranks, whole = dist.get_world_size(), matrix + error
    p = orthonormal(summed(whole @ q))
    q.copy_(summed(whole.T @ p) / ranks)
    error.copy_(whole - p @ (p.T @ whole))
    return p @ q.T


def error_is_the_mean(matrix, q, error):
    mean = power(matrix, q, error)
    error.copy_(mean)
    return mean


def without_what_was_kept(matrix, q, error):
    zero = torch.zeros_like(error)
    mean = power(matrix, q, zero)
    error.copy_(matrix + error - mean)
    return mean


def half_of_what_was_kept(matrix, q, error):
    half = error / 2
    mean = power(matrix, q, half)
    error.copy_(matrix + error - mean)
    return mean


def q_is_not_changed(matrix, q, error):
    return power(matrix, q.clone(), error)


def a_random_q(matrix, q, error):
    """A cold start: the next step begins anywhere."""
    mean = power(matrix, q, error)
    q.copy_(torch.randn(q.shape, generator=torch.Generator().manual_seed(3)))
    return mean


def q_of_this_rank(matrix, q, error):
    ranks, whole = dist.get_world_size(), matrix + error
    p = orthonormal(summed(whole @ q))
    q.copy_(whole.T @ p)
    mean = p @ (summed(q.clone()) / ranks).T
    error.copy_(whole - mean)
    return mean


def gram_schmidt(p):
    """Divides by what is left of a column, which may be nothing."""
    columns = []
    for column in p.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, 1)


def by_gram_schmidt(matrix, q, error):
    return power(matrix, q, error, basis=gram_schmidt)


def each_column_alone(matrix, q, error):
    def by_column(tensor):
        return torch.stack([summed(column) for column in tensor.T], 1)

    return power(matrix, q, error, sum_p=by_column)


def gathers_every_p(matrix, q, error):
    def gathered(p):
        parts = [torch.empty_like(p) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, p.contiguous())
        return sum(parts)

    return power(matrix, q, error, sum_p=gathered)


def the_matrix_too(matrix, q, error):
    """Sums the whole matrix, and then uses P and Q."""
    summed(matrix.clone())
    return power(matrix, q, error)


def in_float64(matrix, q, error):
    return power(matrix, q, error, sum_p=lambda p: summed(p.double()).float(),
                 sum_q=lambda q: summed(q.double()).float())  # fmt: skip


# Right ------------------------------------------------------------------------------------------


def averages_everywhere(matrix, q, error):
    """Means in both all-reduces, an orthonormal start, and columns by SVD."""
    ranks = dist.get_world_size()
    error += matrix
    start = torch.linalg.svd(q, full_matrices=False).U
    p = error @ start / ranks
    dist.all_reduce(p)
    p = torch.linalg.svd(p, full_matrices=False).U
    new = error.t() @ p
    dist.all_reduce(new)
    mean = p @ (new / ranks).t()
    error -= mean
    q[:] = new
    return mean


def by_careful_gram_schmidt(matrix, q, error):
    """Columns of which nothing is left become zero."""

    def basis(p):
        columns = []
        for column in p.double().T:
            size = column.norm()
            for _ in range(2):
                for other in columns:
                    column = column - (other @ column) * other
            left = column.norm()
            columns.append(column / left if left > 1e-5 * size else torch.zeros_like(column))
        return torch.stack(columns, 1).float()

    return power(matrix, q, error, basis=basis)


RIGHT = [right, averages_everywhere, by_careful_gram_schmidt]

WRONG = {
    untouched: {"mean": "is not written yet"},
    sum_over_ranks: {"mean": "this is the sum over the ranks"},
    columns_as_they_are: {"mean": "P has no orthonormal columns."},
    columns_of_length_one: {"mean": "not at right angles"},
    own_p: {"mean": "P is this rank's own"},
    p_summed_too_late: {"mean": "has P orthonormal columns"},
    own_q: {"mean": "Q is this rank's own"},
    own_q_divided: {"mean": "and then divide"},
    its_own_matrix_only: {"mean": "this rank's matrix alone"},
    old_q: {"mean": "this is P times the old Q"},
    whole_matrix: {"mean": "the mean of the whole gradients"},
    error_is_not_changed: {"kept": "it is as it was"},
    error_is_everything: {"kept": "this is everything"},
    error_without_the_old_one: {"kept": "from the step before is lost"},
    error_against_its_own_part: {"kept": "it should be matrix + error - mean"},
    error_is_the_mean: {"kept": "what was sent"},
    without_what_was_kept: {"fed_back": "this is without what was kept"},
    half_of_what_was_kept: {"fed_back": "off by up to"},
    q_is_not_changed: {"warm": "it is as it was"},
    a_random_q: {"warm": "is not that of this step"},
    q_of_this_rank: {"warm": "is not that of this step"},
    by_gram_schmidt: {"dependent": "torch.linalg.qr"},
    each_column_alone: {"all_reduces": "Two all-reduces are enough"},
    gathers_every_p: {"all_reduces": "all_gather"},
    the_matrix_too: {"all_reduces": "Two all-reduces are enough"},
    in_float64: {"all_reduces": "left rank 0"},
}
