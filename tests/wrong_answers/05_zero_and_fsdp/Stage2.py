"""Answers to 05/stage_2: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.collectives import ring_all_gather, ring_reduce_scatter
from dtlab.parallel.zero import Zero2
from dtlab.training.live import Storages


class Right:
    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.share = self.first_share()
        self.optimizer = make_optimizer([self.share])

    def first_share(self):
        return self.end_to_end(self.parameters).chunk(self.size)[self.rank].clone()

    def end_to_end(self, tensors):
        flat = torch.cat([one.detach().flatten() for one in tensors])
        return F.pad(flat, (0, -len(flat) % self.size))

    def gradients(self):
        every = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        return self.end_to_end(every)

    def mean(self):
        mine = torch.empty_like(self.share)
        ring_reduce_scatter(mine, self.gradients())
        return mine / self.size

    def forget(self):
        for parameter in self.parameters:
            parameter.grad = None

    def reduce(self):
        self.share.grad = self.mean()
        self.forget()

    def gathered(self):
        flat = torch.empty(len(self.share) * self.size)
        dist.all_gather_single(flat, self.share.detach())
        return flat

    def write(self, flat):
        start = 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            parameter.data.copy_(flat[start:end].view_as(parameter))
            start = end

    def step(self):
        self.optimizer.step()
        self.share.grad = None
        self.write(self.gathered())


def change(**methods):
    """The right one, but for these methods."""
    return type("Changed", (Right,), methods)


# Wrong ------------------------------------------------------------------------------------------


def untouched(parameters, make_optimizer):
    raise NotImplementedError()


class WithoutReduce:
    def __init__(self, parameters, make_optimizer):
        pass


class NeverSteps(Right):
    def step(self):
        self.write(self.gathered())


class NeverGathers(Right):
    """Each rank steps its share of its own parameters."""

    def step(self):
        self.optimizer.step()
        self.share.grad = None
        flat = self.end_to_end(self.parameters)
        flat.chunk(self.size)[self.rank].copy_(self.share)
        self.write(flat)


class NeverWrites(Right):
    def step(self):
        self.optimizer.step()
        self.share.grad = None
        self.gathered()


class WithTheSum(Right):
    def mean(self):
        return super().mean() * self.size


class OwnGradients(Right):
    def mean(self):
        return self.gradients().chunk(self.size)[self.rank].clone()


class TheNextShare(Right):
    """Gradients of one share, parameters of another."""

    def mean(self):
        flat = self.gradients()
        dist.all_reduce(flat)
        return flat.chunk(self.size)[(self.rank + 1) % self.size].clone() / self.size


class TheFirstShare(Right):
    def first_share(self):
        return self.end_to_end(self.parameters).chunk(self.size)[0].clone()


class WithoutPadding(Right):
    def end_to_end(self, tensors):
        return torch.cat([one.detach().flatten() for one in tensors])


class BeginsAtZero(Right):
    def first_share(self):
        return torch.zeros_like(super().first_share())


class WritesBackwards(Right):
    def write(self, flat):
        start = 0
        for parameter in reversed(self.parameters):
            end = start + parameter.numel()
            parameter.data.copy_(flat[start:end].view_as(parameter))
            start = end


class StepsTwice(Right):
    def step(self):
        self.optimizer.step()
        super().step()


class AllReduces(Right):
    """Stage 1."""

    def mean(self):
        flat = self.gradients()
        dist.all_reduce(flat)
        return flat.chunk(self.size)[self.rank].clone() / self.size


class ByGloosOwn(Right):
    def mean(self):
        mine = torch.empty_like(self.share)
        dist.reduce_scatter_single(mine, self.gradients())
        return mine / self.size


class ReducesToRank0(Right):
    """The other ranks read their share of a tensor that PyTorch leaves undefined there."""

    def mean(self):
        flat = self.gradients()
        dist.reduce(flat, dst=0)
        return flat.chunk(self.size)[self.rank].clone() / self.size


class BroadcastsShares(Right):
    """Gloo's broadcast forwards: right, and not what it takes."""

    def gathered(self):
        flat = torch.zeros(len(self.share) * self.size)
        flat.chunk(self.size)[self.rank].copy_(self.share)
        dist.all_reduce(flat)
        return flat


class KeepsGradients(Right):
    def forget(self):
        pass


class KeepsGradientsAsBytes(Right):
    def forget(self):
        self.kept = [one.grad.numpy().tobytes() for one in self.parameters if one.grad is not None]
        super().forget()


class KeepsStateAsBytes(Right):
    """The parameters once more, where no count of tensors finds them."""

    def step(self):
        super().step()
        self.kept = [one.detach().numpy().tobytes() for one in self.parameters]


class PatchesTheCount(Right):
    """Keeps all gradients, and sets aside what counts tensors."""

    def forget(self):
        Storages.bytes = property(lambda self: 0)
        self.kept = [one.grad for one in self.parameters]
        super().forget()


class KeepsZeros(Right):
    def forget(self):
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()


class AViewOfAll(Right):
    def mean(self):
        flat = self.gradients()
        mine = flat.chunk(self.size)[self.rank]
        ring_reduce_scatter(mine, flat)
        mine /= self.size
        return mine


class KeepsAViewOfAll(AViewOfAll):
    """Also between steps: the next reduce replaces it, so that it adds no bytes."""

    def step(self):
        self.optimizer.step()
        self.write(self.gathered())


class KeepsABucket(Right):
    """For the next step: memory that a step needs and gives back."""

    def mean(self):
        self.bucket = self.gradients()
        mine = torch.empty_like(self.share)
        ring_reduce_scatter(mine, self.bucket)
        return mine / self.size

    def step(self):
        super().step()
        self.bucket = None


class StateOfAll(Right):
    """All ranks have the state of all, and step all."""

    def first_share(self):
        return self.end_to_end(self.parameters)

    def mean(self):
        flat = self.gradients()
        mine = torch.empty(len(flat) // self.size)
        ring_reduce_scatter(mine, flat)
        return mine / self.size

    def reduce(self):
        self.piece = self.mean()
        self.forget()

    def step(self):
        self.share.grad = torch.empty_like(self.share)
        dist.all_gather_single(self.share.grad, self.piece)
        self.piece = None
        self.optimizer.step()
        self.share.grad = None
        self.write(self.share)


class AViewOfTheParameters(Right):
    """A share that keeps all of them."""

    def first_share(self):
        return self.end_to_end(self.parameters).chunk(self.size)[self.rank]


class ForFewElements(Right):
    """Falls over where there are more of them than in the notebook's own try."""

    def mean(self):
        rows = torch.zeros(self.size, 3000)
        rows.view(-1)[: len(self.share) * self.size] = self.gradients()
        return super().mean()


class ExpectsAll(Right):
    def gradients(self):
        return self.end_to_end([one.grad for one in self.parameters])


class SkipsWhatIsMissing(Right):
    def gradients(self):
        flat = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        return F.pad(flat, (0, len(self.share) * self.size - len(flat)))


class ByTheLibrary:
    def __init__(self, parameters, make_optimizer):
        self.optimizer = Zero2(parameters, torch.optim.Adam, lr=0.05, eps=0.02)

    def reduce(self):
        pass

    def step(self):
        self.optimizer.step()


# Right ------------------------------------------------------------------------------------------


class InOneFlatTensor:
    """The parameters are views of it, and so is the share."""

    def __init__(self, parameters, make_optimizer):
        self.parameters, size = parameters, dist.get_world_size()
        count = sum(one.numel() for one in parameters)
        self.flat = torch.zeros(-(-count // size) * size)
        start = 0
        for parameter in parameters:
            place = self.flat[start : start + parameter.numel()].view(parameter.shape)
            place.copy_(parameter.detach())
            parameter.data = place
            start += parameter.numel()
        self.share = self.flat.chunk(size)[dist.get_rank()]
        self.optimizer = make_optimizer([self.share])

    def reduce(self):
        flat, start = torch.zeros_like(self.flat), 0
        for parameter in self.parameters:
            if parameter.grad is not None:
                flat[start : start + parameter.numel()] = parameter.grad.view(-1)
                parameter.grad = None
            start += parameter.numel()
        flat /= dist.get_world_size()
        self.share.grad = torch.empty(len(self.share))
        ring_reduce_scatter(self.share.grad, flat)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        ring_all_gather(self.flat, self.share)


class ByMessages(Right):
    def mean(self):
        rows = self.gradients().view(self.size, -1)
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows)
        return received.mean(0)


RIGHT = [Right, InOneFlatTensor, ByMessages]

WRONG = {
    untouched: {"result": "is not written yet"},
    WithoutReduce: {"result": "has no attribute 'reduce'"},
    NeverSteps: {"result": "have not changed"},
    NeverGathers: {"result": "is as at the start: do you all-gather the shares?"},
    NeverWrites: {"result": "have not changed"},
    WithTheSum: {"result": "with the sum of the gradients"},
    OwnGradients: {"result": "steps with its own gradients of its share"},
    TheNextShare: {"result": "with the gradients of the next rank's share"},
    TheFirstShare: {"result": "The share of rank 1 holds values of the share of rank 0"},
    WithoutPadding: {"result": ""},
    BeginsAtZero: {"result": "The share of rank 0 began at 0"},
    WritesBackwards: {"result": ""},
    StepsTwice: {"result": "of the distance that Adam"},
    ReducesToRank0: {"result": "You call dist.reduce: only rank dst gets the sum"},
    AllReduces: {"bytes": "left rank"},
    ByGloosOwn: {"bytes": "left rank"},
    BroadcastsShares: {"bytes": "left rank"},
    KeepsGradients: {"gradients": "keep no view of all"},
    KeepsGradientsAsBytes: {"optimizer": "the kernel counts"},
    KeepsStateAsBytes: {"optimizer": "the kernel counts"},
    PatchesTheCount: {"optimizer": "the kernel counts"},
    KeepsZeros: {"gradients": "keep no view of all"},
    AViewOfAll: {"gradients": "keep no view of all"},
    KeepsAViewOfAll: {"gradients": "keep no view of all", "optimizer": "between steps"},
    KeepsABucket: {"gradients": "keep no view of all"},
    StateOfAll: {"optimizer": "between steps"},
    AViewOfTheParameters: {"optimizer": "between steps"},
    ForFewElements: {"result": "The expanded size of the tensor"},
    ExpectsAll: {"missing": "NoneType"},
    SkipsWhatIsMissing: {"missing": ""},
    ByTheLibrary: {"result": "finished code"},
}

FREE = "neither needs the other"
ALSO = "another tensor with the same numbers, as good"
ORDER = "the order makes no difference to a sum, or to what is set one by one"
TWICE = "what is done twice is the same"
EQUIVALENT = {
    "self.share.grad /= self.size; for parameter in self.parameters:; "
    "parameter.grad = None -> for parameter in self.parameters:; parameter.grad "
    "= None; self.share.grad /= self.size": FREE,
    "self.share.grad /= self.size -> self.share.grad = self.share.grad / self.size": ALSO,
    "line 20: for parameter in self.parameters: -> for parameter in "
    "reversed(self.parameters):": ORDER,
    "parameter.grad = None -> parameter.grad = None; for parameter in "
    "self.parameters:; parameter.grad = None": TWICE,
    "dist.all_gather_single(flat, self.share); start = 0 -> start = 0; "
    "dist.all_gather_single(flat, self.share)": FREE,
    "parameter.data.copy_(flat[start:end].view_as(parameter)) -> parameter.data "
    "= flat[start:end].view_as(parameter)": ALSO,
}
