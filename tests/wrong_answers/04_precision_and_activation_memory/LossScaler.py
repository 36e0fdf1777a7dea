"""Answers to 04/loss_scaler: mistakes people make, and right answers written differently."""

import copy

import torch
import torch.distributed as dist

from dtlab.training.loss_scaling import DynamicLossScaler


def gradients_of(optimizer):
    """All gradients that there are."""
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    return [one.grad for one in parameters if one.grad is not None]


def bad(optimizer):
    return any(not gradient.isfinite().all() for gradient in gradients_of(optimizer))


class Right:
    """What others change a method of."""

    def __init__(self, init_scale, growth_interval):
        self.current, self.interval = init_scale, growth_interval
        self.good = 0
        self.found = {}

    def scale(self, loss):
        return loss * self.current

    def unscale_(self, optimizer):
        self.found[optimizer] = self.looks_bad(optimizer)
        for gradient in gradients_of(optimizer):
            gradient /= self.current

    def looks_bad(self, optimizer):
        return bad(optimizer)

    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)
        if not self.found[optimizer]:
            optimizer.step()

    def update(self):
        if any(self.found.values()):
            self.shrink()
        else:
            self.good += 1
            if self.good == self.interval:
                self.grow()
        self.found = {}

    def shrink(self):
        self.current, self.good = self.current / 2, 0

    def grow(self):
        self.current, self.good = self.current * 2, 0


# Wrong: training --------------------------------------------------------------------------------


class Untouched(Right):
    def __init__(self, init_scale, growth_interval):
        raise NotImplementedError()


class StepDoesNotUnscale(Right):
    def step(self, optimizer):
        if not bad(optimizer):
            optimizer.step()
        self.found[optimizer] = bad(optimizer)


class TheFirstScaleForEver(Right):
    """Divides by the scale of the beginning."""

    def __init__(self, init_scale, growth_interval):
        super().__init__(init_scale, growth_interval)
        self.first = init_scale

    def unscale_(self, optimizer):
        self.found[optimizer] = bad(optimizer)
        for gradient in gradients_of(optimizer):
            gradient /= self.first


class DoesNotMultiply(Right):
    def scale(self, loss):
        return loss


class NeverSteps(Right):
    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)


class StepsTwice(Right):
    def step(self, optimizer):
        super().step(optimizer)
        super().step(optimizer)


class DividesParameters(Right):
    def unscale_(self, optimizer):
        self.found[optimizer] = bad(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data /= self.current


class NotTheLastGroup(Right):
    def unscale_(self, optimizer):
        self.found[optimizer] = bad(optimizer)
        for group in optimizer.param_groups[:-1]:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= self.current


class WithoutAskingForNone(Right):
    def unscale_(self, optimizer):
        self.found[optimizer] = bad(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self.current


class StaysUnscaled(Right):
    """Forgets to forget: from the second step on, gradients count as unscaled."""

    def update(self):
        found = self.found
        super().update()
        self.found = found


class ScaleIsANumber(Right):
    """The number hides the method."""

    def __init__(self, init_scale, growth_interval):
        super().__init__(init_scale, growth_interval)
        self.scale = init_scale


class WithoutAnUpdate(Right):
    update = None


class Library(Right):
    def __init__(self, init_scale, growth_interval):
        self.inner = DynamicLossScaler(init_scale, growth_interval=growth_interval)


class PyTorch(Right):
    def __init__(self, init_scale, growth_interval):
        self.inner = torch.amp.GradScaler(
            "cpu", init_scale=init_scale, growth_interval=growth_interval
        )


# Wrong: skips -----------------------------------------------------------------------------------


class NeverSkips(Right):
    def step(self, optimizer):
        super().step(optimizer)
        if self.found[optimizer]:
            optimizer.step()


class IsNanOnly(Right):
    """inf is missed, and the scale stays too: it is the same question."""

    def looks_bad(self, optimizer):
        return any(gradient.isnan().any() for gradient in gradients_of(optimizer))


class TheFirstGradientOnly(Right):
    def looks_bad(self, optimizer):
        return not gradients_of(optimizer)[0].isfinite().all()


class ZerosInstead(Right):
    """Steps with zeros: the momentum goes on."""

    def step(self, optimizer):
        super().step(optimizer)
        if self.found[optimizer]:
            for gradient in gradients_of(optimizer):
                gradient.zero_()
            optimizer.step()


class WithoutWhatIsBad(Right):
    def step(self, optimizer):
        super().step(optimizer)
        if self.found[optimizer]:
            for gradient in gradients_of(optimizer):
                torch.nan_to_num_(gradient, 0.0, 0.0, 0.0)
            optimizer.step()


class SkipsTheStepAfterToo(Right):
    skipped = False

    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)
        if not self.found[optimizer] and not self.skipped:
            optimizer.step()
        self.skipped = self.found[optimizer]


# Wrong: the scale -------------------------------------------------------------------------------


class GrowsOnOverflow(Right):
    def shrink(self):
        self.current, self.good = self.current * 2, 0


class ForgetsToReset(Right):
    def shrink(self):
        self.current /= 2


class GrowsOnlyOnce(Right):
    """The count goes on after a growth."""

    def grow(self):
        self.current *= 2


class OneStepTooEarly(Right):
    def update(self):
        self.good += not any(self.found.values())
        if self.good == self.interval - 1:
            self.good += 1
            self.found = {}
            return self.grow()
        self.good -= not any(self.found.values())
        return super().update()


class OneStepTooLate(Right):
    def update(self):
        if not any(self.found.values()) and self.good == self.interval:
            self.found = {}
            self.current, self.good = self.current * 2, 0
            return
        interval, self.interval = self.interval, -1
        super().update()
        self.interval = interval


class NeverGrows(Right):
    def grow(self):
        self.good = 0


class NeverShrinks(Right):
    def shrink(self):
        self.good = 0


class ShrinksToAQuarter(Right):
    def shrink(self):
        self.current, self.good = self.current / 4, 0


class BackToTheFirstScale(Right):
    def __init__(self, init_scale, growth_interval):
        super().__init__(init_scale, growth_interval)
        self.first = init_scale

    def shrink(self):
        self.current, self.good = self.first / 2, 0


class NeverBelowOne(Right):
    def shrink(self):
        self.current, self.good = max(1.0, self.current / 2), 0


class UpdatesInStepToo(Right):
    """`update` finds nothing any more, and counts a good step."""

    def step(self, optimizer):
        super().step(optimizer)
        self.update()


# Wrong: clipping --------------------------------------------------------------------------------


class UnscalesTwice(Right):
    def step(self, optimizer):
        self.unscale_(optimizer)
        if not self.found[optimizer]:
            optimizer.step()


class UnscaleDoesNothing(Right):
    """All is left to `step`: what is clipped before it is the scaled gradient."""

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        super().unscale_(optimizer)
        if not self.found[optimizer]:
            optimizer.step()


class SkipsOnlyWhatItHasUnscaled(Right):
    def step(self, optimizer):
        if optimizer in self.found:
            optimizer.step()
        else:
            super().step(optimizer)


class LooksAgainAfterClipping(Right):
    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)
        self.found[optimizer] = bad(optimizer)
        if not self.found[optimizer]:
            optimizer.step()


class RemembersUnscaling(Right):
    """Once somebody has called `unscale_`, step never does it any more."""

    called = False

    def unscale_(self, optimizer):
        self.called = True
        super().unscale_(optimizer)

    def step(self, optimizer):
        if not self.called:
            super().unscale_(optimizer)
        if not self.found.get(optimizer, False):
            optimizer.step()


# Wrong: several optimizers ----------------------------------------------------------------------


class OneForAll(Right):
    """Whatever overflows, both skip that come after."""

    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)
        if not any(self.found.values()):
            optimizer.step()


class TheLastOneCounts(Right):
    """A single flag: of two optimizers, what the second found."""

    def update(self):
        last = list(self.found.values())[-1:]
        self.found = dict(enumerate(last))
        super().update()


class EachUpdates(Right):
    """Counts, and shrinks, once for each of them."""

    def update(self):
        for found in list(self.found.values()):
            self.found = {0: found}
            super().update()


class OneFlagForUnscaled(Right):
    """The second optimizer's gradients count as unscaled with the first one's."""

    unscaled = False

    def unscale_(self, optimizer):
        if not self.unscaled:
            super().unscale_(optimizer)
        self.unscaled = True

    def step(self, optimizer):
        self.unscale_(optimizer)
        if not self.found.get(optimizer, False):
            optimizer.step()

    def update(self):
        super().update()
        self.unscaled = False


# Wrong: what is looked at -----------------------------------------------------------------------


class LooksAtTheLoss(Right):
    """Right where the loss is inf when a gradient is."""

    def __init__(self, init_scale, growth_interval):
        super().__init__(init_scale, growth_interval)
        self.finite = []

    def scale(self, loss):
        self.finite.append(bool(loss.isfinite()))
        return super().scale(loss)

    def looks_bad(self, optimizer):
        return not self.finite[-1]


class OnlyTheFirstRankSkips(Right):
    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)
        if not self.found[optimizer] or (dist.is_initialized() and dist.get_rank() > 0):
            optimizer.step()


# Right, written differently ---------------------------------------------------------------------


class Plain(Right):
    pass


class ByIdentity:
    """Two dicts, and a count that goes down; inf stays inf when it is divided."""

    def __init__(self, init_scale=2.0**16, growth_interval=2000):
        self.number, self.left, self.every = init_scale, growth_interval, growth_interval
        self.unscaled, self.overflow = set(), set()

    def scale(self, loss):
        return self.number * loss

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                parameter.grad = parameter.grad.mul(1 / self.number)
                if not torch.isfinite(parameter.grad.sum()):
                    self.overflow.add(id(optimizer))
        self.unscaled.add(id(optimizer))

    def step(self, optimizer):
        if id(optimizer) not in self.unscaled:
            self.unscale_(optimizer)
        if id(optimizer) in self.overflow:
            return None
        return optimizer.step()

    def update(self):
        self.left -= 1
        if self.overflow:
            self.number, self.left = self.number / 2, self.every
        elif self.left == 0:
            self.number, self.left = self.number * 2, self.every
        self.unscaled, self.overflow = set(), set()


def a_function_that_makes_one(init_scale, growth_interval):
    return copy.copy(Right(init_scale, growth_interval))


RIGHT = [Plain, ByIdentity, a_function_that_makes_one]

WRONG = {
    Untouched: {"training": "LossScaler is not written yet"},
    StepDoesNotUnscale: {"training": "That is the scale: if unscale_ has not been called"},
    TheFirstScaleForEver: {"training": "growth_interval=2: step 2: the parameters move in"},
    DoesNotMultiply: {"training": "parameters hardly move. Is the loss multiplied"},
    NeverSteps: {"training": "the optimizer does not step"},
    StepsTwice: {"training": "the optimizer steps 2 times"},
    DividesParameters: {"training": "step 0: the parameters"},
    NotTheLastGroup: {"training": "the parameters move in a wrong direction"},
    WithoutAskingForNone: {"training": "has None in .grad: leave it out"},
    StaysUnscaled: {"training": "step 1: its gradients were not divided by the scale"},
    ScaleIsANumber: {"training": "self.scale is a value and hides the method scale"},
    WithoutAnUpdate: {"training": "your class has no method update"},
    Library: {"training": "dtlab.training.loss_scaling.DynamicLossScaler does the work"},
    PyTorch: {"training": "torch.amp.grad_scaler.GradScaler does the work"},
    NeverSkips: {"skips": "the optimizer steps, although one of its gradients is inf or NaN"},
    IsNanOnly: {
        "skips": "the optimizer steps, although one of its gradients",
        "scale": "the scale is",
    },
    TheFirstGradientOnly: {
        "skips": "the optimizer steps, although one of its gradients",
        "scale": "the scale",
    },
    ZerosInstead: {"skips": "the optimizer steps, although one of its gradients is inf or NaN"},
    WithoutWhatIsBad: {
        "skips": "the optimizer steps, although one of its gradients is inf or NaN"
    },
    SkipsTheStepAfterToo: {"skips": "Decide in each step again whether to step"},
    GrowsOnOverflow: {"scale": "An overflow halves the scale"},
    ForgetsToReset: {"scale": "the count restarts after each overflow"},
    GrowsOnlyOnce: {"scale": "good steps in a row double it"},
    OneStepTooEarly: {"scale": "The steps before it: "},
    OneStepTooLate: {"scale": "The steps before it: "},
    NeverGrows: {"scale": "good steps in a row double it"},
    NeverShrinks: {"scale": "An overflow halves the scale"},
    ShrinksToAQuarter: {"scale": "An overflow halves the scale"},
    BackToTheFirstScale: {"scale": "An overflow halves the scale"},
    NeverBelowOne: {"scale": "halves the scale, which has no minimum"},
    UpdatesInStepToo: {"scale": "The steps before it: "},
    UnscalesTwice: {"clipping": "step divides only if unscale_ has not"},
    UnscaleDoesNothing: {"clipping": "Between unscale_ and step"},
    SkipsOnlyWhatItHasUnscaled: {"clipping": "skips in both cases"},
    LooksAgainAfterClipping: {"clipping": "gradients are clipped by value"},
    RemembersUnscaling: {"clipping": "step divides only if unscale_ has not"},
    OneForAll: {"optimizers": "Remember for each optimizer"},
    TheLastOneCounts: {"optimizers": "the scale is not halved once"},
    EachUpdates: {"optimizers": "the scale is not halved once"},
    OneFlagForUnscaled: {
        "optimizers": "for each optimizer whether it overflowed and whether it was unscaled"
    },
    LooksAtTheLoss: {"gradients": "Do not judge by the loss"},
    OnlyTheFirstRankSkips: {"gradients": "rank 1, step "},
}

ORDER = "the order in which gradients are divided is free"
EQUIVALENT = {
    "for group in optimizer.param_groups: -> "
    "for group in reversed(optimizer.param_groups):": ORDER,
    "for parameter in group['params']: -> for parameter in reversed(group['params']):": ORDER,
    "line 22: self.overflow[optimizer] = True -> self.overflow[optimizer] = True; break": (
        "the step is skipped: whether the rest is divided makes no difference"
    ),
    "parameter.grad /= self.current; if not parameter.grad.isfinite().all():; "
    "self.overflow[optimizer] = True -> if not parameter.grad.isfinite().all():; "
    "self.overflow[optimizer] = True; parameter.grad /= self.current": (
        "inf and NaN stay what they are when they are divided"
    ),
    "parameter.grad /= self.current -> parameter.grad = parameter.grad / self.current": (
        "the optimizer looks at `.grad` when it steps: any tensor there will do"
    ),
}
