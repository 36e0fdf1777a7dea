"""Answers to 11/server: mistakes people make, and right answers written differently."""

import asyncio
import time


class Right:
    """What others change a method of."""

    def __init__(self, parameters, workers, learning_rate, staleness=None):
        self.parameters = dict(parameters)
        self.workers, self.rate = workers, learning_rate / workers
        self.staleness = staleness
        self.bound = 0 if staleness is None else staleness
        self.pushed, self.held = [0] * workers, []
        self.changed = asyncio.Condition()

    async def push(self, worker, step, gradients):
        async with self.changed:
            self.take(worker, step, gradients)
            self.changed.notify_all()

    def take(self, worker, step, gradients):
        self.pushed[worker] += 1
        self.held.append(gradients)
        if self.ready():
            for each in self.held:
                self.apply(each)
            self.held = []

    def ready(self):
        return self.staleness is not None or len(self.held) == self.workers

    def apply(self, gradients):
        for name, gradient in gradients.items():
            self.parameters[name] = self.parameters[name] - self.rate * gradient

    async def pull(self, worker, step):
        async with self.changed:
            await self.changed.wait_for(lambda: self.may_go(worker, step))
            return dict(self.parameters)

    def may_go(self, worker, step):
        return step - min(self.pushed) <= self.bound


# Wrong: updates ---------------------------------------------------------------------------------


class Untouched(Right):
    def __init__(self, parameters, workers, learning_rate, staleness=None):
        raise NotImplementedError()


class Sum(Right):
    def __init__(self, parameters, workers, learning_rate, staleness=None):
        super().__init__(parameters, workers, learning_rate * workers, staleness)


class NeverApplied(Right):
    def apply(self, gradients):
        pass


class Ascends(Right):
    def __init__(self, parameters, workers, learning_rate, staleness=None):
        super().__init__(parameters, workers, -learning_rate, staleness)


class OnlyTheLastPush(Right):
    """Keeps one gradient, which the next push overwrites."""

    def take(self, worker, step, gradients):
        self.pushed[worker] += 1
        if self.staleness is not None or min(self.pushed) == max(self.pushed):
            self.apply(gradients)


class WithoutTheLearningRate(Right):
    def __init__(self, parameters, workers, learning_rate, staleness=None):
        super().__init__(parameters, workers, 1.0, staleness)


class FirstParameterOnly(Right):
    def apply(self, gradients):
        name = next(iter(gradients))
        self.parameters[name] = self.parameters[name] - self.rate * gradients[name]


class HeldIsNeverEmptied(Right):
    def take(self, worker, step, gradients):
        self.pushed[worker] += 1
        self.held.append(gradients)
        if self.staleness is not None:
            self.apply(gradients)
        elif min(self.pushed) == max(self.pushed):
            for each in self.held:
                self.apply(each)


class PullReturnsNothing(Right):
    async def pull(self, worker, step):
        await super().pull(worker, step)


class NotCoroutines(Right):
    """Plain methods, as of an actor that handles one call at a time."""

    def push(self, worker, step, gradients):
        self.take(worker, step, gradients)

    def pull(self, worker, step):
        return dict(self.parameters)


# Wrong: snapshot --------------------------------------------------------------------------------


class InPlace(Right):
    """Returns the tensors that later pushes change."""

    def apply(self, gradients):
        for name, gradient in gradients.items():
            self.parameters[name] -= self.rate * gradient


class ItsOwnDict(Right):
    """Returns the dict whose entries later pushes replace."""

    async def pull(self, worker, step):
        await super().pull(worker, step)
        return self.parameters


# Wrong: pushes ----------------------------------------------------------------------------------


class HoldsALock(Right):
    def __init__(self, *args):
        super().__init__(*args)
        self.lock = asyncio.Lock()

    async def push(self, worker, step, gradients):
        async with self.lock:
            await super().push(worker, step, gradients)

    async def pull(self, worker, step):
        async with self.lock:
            return await super().pull(worker, step)


class SleepsInTheLoop(Right):
    """Blocks the event loop: no other call of the actor can run."""

    async def pull(self, worker, step):
        while not self.may_go(worker, step):
            time.sleep(0.01)
        return dict(self.parameters)


class SpinsWithTheLock(Right):
    async def pull(self, worker, step):
        async with self.changed:
            while not self.may_go(worker, step):
                await asyncio.sleep(0)
            return dict(self.parameters)


class PushWaitsForTheStep(Right):
    """A barrier in push, besides that in pull."""

    async def push(self, worker, step, gradients):
        async with self.changed:
            self.take(worker, step, gradients)
            self.changed.notify_all()
            if self.staleness is None:
                await self.changed.wait_for(lambda: min(self.pushed) > step)


# Wrong: waits -----------------------------------------------------------------------------------


class ForgetsAwait(Right):
    async def pull(self, worker, step):
        async with self.changed:
            self.changed.wait_for(lambda: self.may_go(worker, step))
            return dict(self.parameters)


class WakesOne(Right):
    async def push(self, worker, step, gradients):
        async with self.changed:
            self.take(worker, step, gradients)
            self.changed.notify(self.workers if self.staleness is not None else 1)


class NeverWaits(Right):
    def may_go(self, worker, step):
        return self.staleness is not None and super().may_go(worker, step)

    async def pull(self, worker, step):
        if self.staleness is None:
            return dict(self.parameters)
        return await super().pull(worker, step)


class WaitsForOneOther(Right):
    """The fastest of the other workers instead of the slowest."""

    def may_go(self, worker, step):
        if self.staleness is not None:
            return super().may_go(worker, step)
        others = self.pushed[:worker] + self.pushed[worker + 1 :]
        return not others or max(others) >= step


class AStepTooFar(Right):
    def may_go(self, worker, step):
        bound = self.bound if self.staleness is not None else 1
        return step - min(self.pushed) <= bound


class WaitsForTheFirstStepToo(Right):
    """A pull of step 0 waits for pushes of step 0."""

    def may_go(self, worker, step):
        if self.staleness is None and step == 0 and self.workers == 2:
            return min(self.pushed) > 0
        return super().may_go(worker, step)


class AnEventThatStaysSet(Right):
    """One event for all steps: after the first step no pull waits."""

    def __init__(self, *args):
        super().__init__(*args)
        self.event = asyncio.Event()

    def take(self, worker, step, gradients):
        super().take(worker, step, gradients)
        if not self.held:
            self.event.set()

    async def pull(self, worker, step):
        if self.staleness is not None:
            return await super().pull(worker, step)
        if step:
            await self.event.wait()
        return dict(self.parameters)


class WaitsForAnEmptyBuffer(Right):
    """Waits until no gradient is held: then a slow worker waits for itself."""

    def may_go(self, worker, step):
        if self.staleness is None:
            return not self.held
        return super().may_go(worker, step)


# Wrong: version ---------------------------------------------------------------------------------


class AtOnceAlways(Right):
    def ready(self):
        return True


# Wrong: at_once ---------------------------------------------------------------------------------


class ZeroIsSynchronous(Right):
    def ready(self):
        return bool(self.staleness) or len(self.held) == self.workers


class NeverAtOnce(Right):
    def ready(self):
        return len(self.held) >= self.workers


class WholeLearningRate(Right):
    """With a staleness, does not divide by the number of workers."""

    def __init__(self, parameters, workers, learning_rate, staleness=None):
        super().__init__(parameters, workers, learning_rate, staleness)
        if staleness is not None:
            self.rate = learning_rate


# Wrong: bounded ---------------------------------------------------------------------------------


class OneTooMany(Right):
    def may_go(self, worker, step):
        return step - min(self.pushed) <= self.bound + (self.staleness is not None)


class OneTooFew(Right):
    def may_go(self, worker, step):
        return step - min(self.pushed) < self.bound + (self.staleness is None or step == 0)


class NoBound(Right):
    def may_go(self, worker, step):
        return self.staleness is not None or super().may_go(worker, step)


class ZeroIsNoBound(Right):
    """`if staleness` is False for 0 too, and treats it as unbounded."""

    def may_go(self, worker, step):
        return self.staleness == 0 or super().may_go(worker, step)


class AverageWorker(Right):
    """Counts all pushes, not those of the slowest worker."""

    def may_go(self, worker, step):
        if self.staleness is None:
            return super().may_go(worker, step)
        return step - sum(self.pushed) // self.workers <= self.bound


class SynchronousAtTheBound(Right):
    """A worker that has waited once waits until all have caught up."""

    async def pull(self, worker, step):
        if not self.may_go(worker, step) and self.staleness is not None:
            async with self.changed:
                await self.changed.wait_for(lambda: min(self.pushed) >= step)
        return await super().pull(worker, step)


# Right ------------------------------------------------------------------------------------------


class WithPolling:
    """Asks every ten milliseconds, and keeps gradients by step."""

    def __init__(self, parameters, workers, learning_rate, staleness=None):
        self.parameters, self.rate = parameters, learning_rate
        self.workers, self.staleness = workers, staleness
        self.by_step, self.done = {}, [0] * workers

    async def push(self, worker, step, gradients):
        self.by_step.setdefault(step, {})[worker] = gradients
        self.done[worker] = step + 1
        if self.staleness is not None:
            self.move([gradients])
        elif len(self.by_step[step]) == self.workers:
            self.move(self.by_step.pop(step).values())

    def move(self, several):
        for name in self.parameters:
            total = sum(each[name] for each in several)
            self.parameters[name] = self.parameters[name] - self.rate * total / self.workers

    async def pull(self, worker, step):
        while min(self.done) < step - (self.staleness or 0):
            await asyncio.sleep(0.01)
        return {name: tensor.clone() for name, tensor in self.parameters.items()}


class WithFutures:
    """Each waiting pull has a future, and changes tensors in place, of which a pull has copies."""

    def __init__(self, parameters, workers, learning_rate, staleness=None):
        self.parameters = {name: tensor.clone() for name, tensor in parameters.items()}
        self.counts = dict.fromkeys(range(workers), 0)
        self.rate, self.staleness = learning_rate / workers, staleness
        self.sums, self.waiting = None, []

    async def push(self, worker, step, gradients):
        self.counts[worker] += 1
        if self.sums is None:
            self.sums = dict.fromkeys(gradients, 0)
        for name, gradient in gradients.items():
            self.sums[name] = self.sums[name] + gradient
        if self.staleness is not None or len(set(self.counts.values())) == 1:
            for name, total in self.sums.items():
                self.parameters[name] -= self.rate * total
            self.sums = None
        for due, future in self.waiting:
            if self.slowest >= due and not future.done():
                future.set_result(self.copies())

    @property
    def slowest(self):
        return min(self.counts.values())

    def copies(self):
        return {name: tensor.clone() for name, tensor in self.parameters.items()}

    async def pull(self, worker, step):
        due = step if self.staleness is None else step - self.staleness
        if self.slowest >= due:
            return self.copies()
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((due, future))
        return await future


RIGHT = [Right, WithPolling, WithFutures]

WRONG = {
    Untouched: {"updates": "is not written yet"},
    Sum: {"updates": "Divide by the number of workers"},
    NeverApplied: {"updates": "no gradient is applied"},
    Ascends: {"updates": "Subtract"},
    OnlyTheLastPush: {"updates": "only the gradients of the last push are applied"},
    WithoutTheLearningRate: {"updates": "learning_rate / workers times"},
    FirstParameterOnly: {"updates": "the parameters are wrong"},
    HeldIsNeverEmptied: {"updates": "the parameters are wrong"},
    PullReturnsNothing: {"updates": "no dict of tensors"},
    NotCoroutines: {"updates": "async def"},
    InPlace: {"snapshot": "changes the tensors in place"},
    ItsOwnDict: {"snapshot": "return a new dict each time"},
    HoldsALock: {"pushes": "must not hold what a push needs"},
    SleepsInTheLoop: {"pushes": "keeps the event loop to itself"},
    SpinsWithTheLock: {"pushes": "must not hold what a push needs"},
    PushWaitsForTheStep: {"updates": "does not return"},
    WakesOne: {"waits": "Does each push wake all pulls"},
    ForgetsAwait: dict.fromkeys(["waits", "bounded"], "calls Condition.wait_for without await"),
    NeverWaits: {"waits": "has made only"},
    WaitsForOneOther: {"waits": "has made only"},
    AStepTooFar: {"waits": "has made only"},
    WaitsForTheFirstStepToo: {"waits": "still waits"},
    AnEventThatStaysSet: {"waits": "has made only"},
    WaitsForAnEmptyBuffer: {"waits": ""},
    AtOnceAlways: {"version": "not all workers have pushed yet"},
    ZeroIsSynchronous: {"at_once": "lacks gradients that have arrived"},
    NeverAtOnce: {"at_once": "lacks gradients that have arrived"},
    WholeLearningRate: {"at_once": "Divide by the number of workers"},
    OneTooMany: {"bounded": "has made only"},
    OneTooFew: {"bounded": "still waits"},
    NoBound: {"bounded": "has made only"},
    ZeroIsNoBound: {"bounded": "has made only"},
    AverageWorker: {"bounded": "has made only"},
    SynchronousAtTheBound: {"bounded": "still waits"},
}

ORDER = "nothing depends on this order"
TWICE = "the second time changes nothing"
EQUIVALENT = {
    "self.pushes[worker] += 1 -> self.pushes[worker - 1] += 1": (
        "the slowest is the slowest, whichever number it has"
    ),
    "self.pushes[worker] += 1; self.held.append(gradients) -> "
    "self.held.append(gradients); self.pushes[worker] += 1": ORDER,
    "if self.staleness is not None or len(self.held) == self.workers:; for name in "
    "self.parameters:; ... -> self.changed.notify_all(); if self.staleness is not None "
    "or len(self.held) == self.workers:; ...": "the calls that wait go on when the lock is free",
    "for name in self.parameters: -> for name in reversed(self.parameters):": ORDER,
    "total = sum((each[name] for each in self.held)) -> total = sum((each[name] for each "
    "in reversed(self.held)))": ORDER,
    "self.changed.notify_all() -> self.changed.notify_all(); self.changed.notify_all()": TWICE,
    "...  ... -> ... step - min(self.pushes) <= bound); await "
    "self.changed.wait_for(lambda: ...": TWICE,
}
