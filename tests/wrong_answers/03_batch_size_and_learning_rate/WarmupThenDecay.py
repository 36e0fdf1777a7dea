"""Answers to 03/warmup_then_decay: mistakes people make, and right answers written differently."""

import itertools
import math

from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)

import dtlab.training.learning_rate


def factor_at(step, warmup, total, start):
    """What is asked for."""
    if step < warmup:
        return start + (1 - start) * step / warmup
    if step >= total:
        return 0.0
    return (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


class Right(LRScheduler):
    """What others change a method of."""

    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        self.plan = warmup_steps, total_steps, start_factor
        super().__init__(optimizer)

    def factor(self, step):
        return factor_at(step, *self.plan)

    def get_lr(self):
        return [rate * self.factor(self.last_epoch) for rate in self.base_lrs]


# Wrong ------------------------------------------------------------------------------


class StartsAtZero(Right):
    def factor(self, step):
        warmup, total, _ = self.plan
        return factor_at(step, warmup, total, 0.0)


class OneStepAhead(Right):
    """Full rate with the last step of the warm-up."""

    def factor(self, step):
        warmup, _, start = self.plan
        if step < warmup:
            return start + (1 - start) * (step + 1) / warmup
        return super().factor(step)


class StartAddedToTheLine(Right):
    """start + step / warmup: above the full rate before the end."""

    def factor(self, step):
        warmup, _, start = self.plan
        return start + step / warmup if step < warmup else super().factor(step)


class WarmupOneStepShort(Right):
    def factor(self, step):
        warmup, _, start = self.plan
        if step < warmup - 1:
            return start + (1 - start) * step / (warmup - 1)
        return 1.0 if step < warmup else super().factor(step)


class ConstantWarmup(Right):
    def factor(self, step):
        warmup, _, start = self.plan
        return start if step < warmup else super().factor(step)


class GeometricWarmup(Right):
    def factor(self, step):
        warmup, _, start = self.plan
        return start ** (1 - step / warmup) if step < warmup else super().factor(step)


class FactorsMultiplied(Right):
    """Takes the last rate for the base rate."""

    def get_lr(self):
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return [rate * self.factor(self.last_epoch) for rate in rates]


class FullRateAtFirst(Right):
    """Nothing is done before the first `step()`."""

    def get_lr(self):
        if self.last_epoch == 0:
            return list(self.base_lrs)
        return super().get_lr()


class GoesOnByItself(Right):
    """The optimizer's step moves it, and so does its own."""

    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        super().__init__(optimizer, warmup_steps, total_steps, start_factor)
        plain = optimizer.step

        def step(*args, **keywords):
            plain(*args, **keywords)
            self.step()

        optimizer.step = step


class CosineFromStepZero(Right):
    def factor(self, step):
        warmup, total, _ = self.plan
        if step < warmup:
            return super().factor(step)
        return (1 + math.cos(math.pi * min(step, total) / total)) / 2


class CosineOverTheWholeLength(Right):
    """As many steps as all together, begun after the warm-up."""

    def factor(self, step):
        warmup, total, _ = self.plan
        if not warmup <= step < total:
            return super().factor(step)
        return (1 + math.cos(math.pi * (step - warmup) / total)) / 2


class QuarterOfACosine(Right):
    def factor(self, step):
        warmup, total, _ = self.plan
        if not warmup <= step < total:
            return super().factor(step)
        return math.cos(math.pi / 2 * (step - warmup) / (total - warmup))


class StraightDown(Right):
    def factor(self, step):
        warmup, total, _ = self.plan
        if not warmup <= step < total:
            return super().factor(step)
        return (total - step) / (total - warmup)


class ZeroOneStepEarly(Right):
    def factor(self, step):
        warmup, total, _ = self.plan
        if not warmup <= step < total:
            return super().factor(step)
        return (1 + math.cos(math.pi * (step - warmup) / (total - 1 - warmup))) / 2


class GoesUpAgain(Right):
    def factor(self, step):
        warmup, total, _ = self.plan
        if step < total:
            return super().factor(step)
        return (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup))) / 2


class StaysAtTheLastRate(Right):
    """One step before the end."""

    def factor(self, step):
        return super().factor(min(step, max(self.plan[1] - 1, 0)))


class BackToFullRate(Right):
    def factor(self, step):
        return super().factor(step) if step <= self.plan[1] else 1.0


class NoWarmupOfNoSteps(Right):
    def factor(self, step):
        warmup, _, start = self.plan
        if step <= warmup:
            return start + (1 - start) * step / warmup
        return super().factor(step)


class NothingButWarmup(Right):
    """Divides by zero where no step is left for the decay."""

    def factor(self, step):
        warmup, total, _ = self.plan
        if step < warmup:
            return super().factor(step)
        return (1 + math.cos(math.pi * min(1, (step - warmup) / (total - warmup)))) / 2


class StillFullAtTheEndOfNothingButWarmup(Right):
    def factor(self, step):
        warmup, total, _ = self.plan
        if warmup == total <= step:
            return 1.0
        return super().factor(step)


class RateOfTheFirstGroup(Right):
    def get_lr(self):
        return [self.base_lrs[0] * self.factor(self.last_epoch)] * len(self.base_lrs)


class RateOfTheDefaults(Right):
    def get_lr(self):
        rate = self.optimizer.defaults["lr"] * self.factor(self.last_epoch)
        return [rate for _ in self.base_lrs]


class OnlyTheFirstGroupMoves(Right):
    def get_lr(self):
        return [self.base_lrs[0] * self.factor(self.last_epoch), *self.base_lrs[1:]]


class TheSameForAllFromTheLargest(Right):
    """Warm-up up to the largest rate of all groups."""

    def get_lr(self):
        return [max(self.base_lrs) * self.factor(self.last_epoch) for _ in self.base_lrs]


class CountsForItself(Right):
    """A count that no state holds."""

    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        optimizer.count = itertools.count()
        super().__init__(optimizer, warmup_steps, total_steps, start_factor)

    def get_lr(self):
        now = next(self.optimizer.count)
        return [rate * self.factor(now) for rate in self.base_lrs]


class StateOfNothing(Right):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        return None


class StateWithoutThePlace(Right):
    def state_dict(self):
        return {"plan": self.plan}


class FunctionInTheState(Right):
    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        self.curve = lambda step: factor_at(step, warmup_steps, total_steps, start_factor)
        super().__init__(optimizer, warmup_steps, total_steps, start_factor)

    def factor(self, step):
        return self.curve(step)


class KeepsTheOldOptimizersGroups(Right):
    """A reference to what belongs to the optimizer: in the state it is a copy."""

    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        self.own = optimizer.param_groups
        super().__init__(optimizer, warmup_steps, total_steps, start_factor)

    def step(self, epoch=None):
        super().step()
        rates = self.get_lr()
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        for group, rate in zip(self.own, rates, strict=True):
            group["lr"] = rate


class BeginsAgain(Right):
    """The place that was loaded is not that from which it goes on."""

    def load_state_dict(self, state):
        super().load_state_dict({**state, "last_epoch": 0})


class WithoutTheSuperclass(Right):
    """What `LRScheduler.__init__` does is left out."""

    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        self.plan = warmup_steps, total_steps, start_factor


class ARateForAll(Right):
    """A number where a list is needed."""

    def get_lr(self):
        return self.base_lrs[0] * self.factor(self.last_epoch)


class OnlyTheFirstRate(Right):
    def get_lr(self):
        return [self.base_lrs[0] * self.factor(self.last_epoch)]


class FactorForRate(Right):
    def get_lr(self):
        return [self.factor(self.last_epoch) for _ in self.base_lrs]


class OneCountForAllSchedules(Right):
    """As with a global variable: a second schedule goes on where the first one stopped."""

    calls = -1

    def get_lr(self):
        OneCountForAllSchedules.calls += 1
        return [rate * self.factor(self.calls) for rate in self.base_lrs]


class NoScheduler:
    """Sets rates by itself."""

    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        self.optimizer, self.plan, self.now = optimizer, (warmup_steps, total_steps), -1
        self.start = start_factor
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.step()

    def step(self):
        self.now += 1
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor_at(self.now, *self.plan, self.start)


class StepThatTellsNobody(Right):
    """Overrides `step`, and `get_last_lr` stays behind."""

    def step(self, epoch=None):
        if self.last_epoch < 0:
            super().step()
        else:
            self.last_epoch += 1
            for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
                group["lr"] = rate


class Untouched(LRScheduler):
    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        raise NotImplementedError()


def returns_nothing(optimizer, warmup_steps, total_steps, start_factor):
    Right(optimizer, warmup_steps, total_steps, start_factor)


def pytorchs_own(optimizer, warmup_steps, total_steps, start_factor):
    warmup = LinearLR(optimizer, start_factor, total_iters=warmup_steps)
    decay = CosineAnnealingLR(optimizer, total_steps - warmup_steps)
    return SequentialLR(optimizer, [warmup, decay], [warmup_steps])


def of_the_library(optimizer, warmup_steps, total_steps, start_factor):
    return dtlab.training.learning_rate.WarmupThenDecay(
        optimizer, warmup_steps, total_steps, start_factor=start_factor
    )


class BuiltOnTheLibrary(dtlab.training.learning_rate.WarmupThenDecay):
    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        super().__init__(optimizer, warmup_steps, total_steps, start_factor=start_factor)


# Right, written differently --------------------------------------------------------------------


class InOneExpression(LRScheduler):
    """The smaller of line and cosine would do for a straight decay; here a place on the curve."""

    def __init__(self, optimizer, warmup_steps, total_steps, start_factor, last_epoch=-1):
        self.warmup_steps, self.total_steps = warmup_steps, total_steps
        self.start_factor = start_factor
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        now, warm, end = self.last_epoch, self.warmup_steps, self.total_steps
        if now < warm:
            up = now / warm
            factor = up + self.start_factor * (1 - up)
        else:
            down = min(now - warm, end - warm) / (end - warm) if end > warm else 1
            factor = math.cos(math.pi / 2 * down) ** 2
        return [factor * group["initial_lr"] for group in self.optimizer.param_groups]


def with_a_function(optimizer, warmup_steps, total_steps, start_factor):
    """PyTorch's scheduler of a function: the curve is one's own."""

    def factor(step):
        if step >= total_steps:
            return 0
        if step >= warmup_steps:
            angle = (step - warmup_steps) * math.pi / (total_steps - warmup_steps)
            return 0.5 + 0.5 * math.cos(angle)
        return (step + start_factor * (warmup_steps - step)) / warmup_steps

    return LambdaLR(optimizer, factor)


class FromATable(LRScheduler):
    """All factors beforehand."""

    def __init__(self, optimizer, warmup_steps, total_steps, start_factor):
        rise = (1 - start_factor) / max(1, warmup_steps)
        decay = max(1, total_steps - warmup_steps)
        self.factors = [start_factor + rise * step for step in range(warmup_steps)]
        self.factors += [(1 + math.cos(k * math.pi / decay)) / 2 for k in range(decay)]
        self.factors = [*self.factors[:total_steps], 0.0]
        super().__init__(optimizer)

    def get_lr(self):
        factor = self.factors[min(self.last_epoch, len(self.factors) - 1)]
        return [rate * factor for rate in self.base_lrs]


RIGHT = [InOneExpression, with_a_function, FromATable]

WRONG = {
    StartsAtZero: {"warmup": "The first step already has the rate times start_factor"},
    OneStepAhead: {"warmup": "one step too early"},
    StartAddedToTheLine: {"warmup": "in a straight line from start_factor to 1"},
    WarmupOneStepShort: {"warmup": "in a straight line from start_factor to 1"},
    ConstantWarmup: {"warmup": "in a straight line from start_factor to 1"},
    GeometricWarmup: {"warmup": "in a straight line from start_factor to 1"},
    FactorsMultiplied: {"warmup": "multiplies the previous rate"},
    FullRateAtFirst: {"warmup": "The first step already has the rate times start_factor"},
    GoesOnByItself: {"warmup": "two steps at a time"},
    CosineFromStepZero: {"decay": "begins at step 0"},
    CosineOverTheWholeLength: {"decay": "after the warm-up"},
    QuarterOfACosine: {"decay": "half a cosine"},
    StraightDown: {"decay": "half a cosine"},
    ZeroOneStepEarly: {"decay": "one step too early"},
    GoesUpAgain: {"end": "rises again"},
    StaysAtTheLastRate: {"end": "is zero"},
    BackToFullRate: {"end": "rises again"},
    NoWarmupOfNoSteps: {"edges": "division by zero"},
    NothingButWarmup: {"edges": "division by zero"},
    StillFullAtTheEndOfNothingButWarmup: {"edges": "warm-up"},
    RateOfTheFirstGroup: {"groups": "base rate of another group"},
    RateOfTheDefaults: {"groups": "base rate"},
    OnlyTheFirstGroupMoves: {"groups": "base rate"},
    TheSameForAllFromTheLargest: {"groups": "base rate of another group"},
    CountsForItself: {"resume": "begins from the start again"},
    StateOfNothing: {"resume": "begins from the start again"},
    StateWithoutThePlace: {"resume": "begins from the start again"},
    FunctionInTheState: {"resume": "plain numbers"},
    KeepsTheOldOptimizersGroups: {"resume": "the rate is 0"},
    BeginsAgain: {"resume": "begins from the start again"},
    WithoutTheSuperclass: {"warmup": "did not call super().__init__(optimizer)"},
    ARateForAll: {"warmup": "get_lr() must return a list"},
    OnlyTheFirstRate: {"groups": "get_lr() must return a list"},
    FactorForRate: {"warmup": "Multiply self.base_lrs by it"},
    OneCountForAllSchedules: {"warmup": "goes on where an earlier schedule stopped"},
    NoScheduler: {"warmup": "not an LRScheduler"},
    StepThatTellsNobody: {"groups": "get_last_lr()"},
    Untouched: {"warmup": "WarmupThenDecay is not written yet"},
    returns_nothing: {"warmup": "None, not an LRScheduler"},
    pytorchs_own: {"warmup": "torch.optim.lr_scheduler.LinearLR does the work for you"},
    of_the_library: {"warmup": "WarmupThenDecay does the work for you"},
    BuiltOnTheLibrary: {"warmup": "WarmupThenDecay does the work for you"},
}

EQUIVALENT = {
    "super().__init__(optimizer) -> super().__init__(optimizer); super().__init__(optimizer)": (
        "it begins twice, at the same place"
    ),
}
