"""Answers to 10/train_step: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist

from dtlab.parallel.pipeline import run_schedule
from dtlab.schedules import gpipe, interleaved, one_f_one_b


class Step:
    """The right one in pieces; each mistake is another piece."""

    def __init__(self, parts):
        self.parts, self.groups = parts, parts.groups
        self.parameters = list(parts.stage.module.parameters())
        self.schedule = one_f_one_b(
            dist.get_world_size(self.groups["pipeline"]), parts.microbatches
        )

    def run(self, inputs, targets):
        inputs, targets = self.own(inputs), self.own(targets)
        loss = self.forward_backward(inputs, targets)
        self.update()
        return self.mean(loss)

    def own(self, batch):
        data = self.groups["data"]
        return batch.chunk(dist.get_world_size(data))[dist.get_rank(data)]

    def forward_backward(self, inputs, targets):
        stage, loss = self.parts.stage, self.parts.loss
        return run_schedule(self.schedule, stage, inputs, targets, loss).loss

    def update(self):
        self.reduce()
        self.clip()
        self.step()
        self.zero_grad()

    def reduce(self):
        self.parts.reduce_gradients(self.parameters, self.groups)

    def clip(self):
        self.parts.clip_mesh(self.parameters, self.parts.max_norm, self.groups)

    def step(self):
        self.parts.optimizer.step()

    def zero_grad(self):
        self.parts.optimizer.zero_grad()

    def mean(self, loss):
        if loss is None:
            return None
        dist.all_reduce(loss, group=self.groups["data"])
        return loss / dist.get_world_size(self.groups["data"])


def right(parts, inputs, targets):
    return Step(parts).run(inputs, targets)


# Wrong ------------------------------------------------------------------------------------------


def untouched(parts, inputs, targets):
    raise NotImplementedError()


def whole_batch_on_every_data_rank(parts, inputs, targets):
    """The gradients come out right: every rank does the work of all."""

    class Mine(Step):
        def own(self, batch):
            return batch

    return Mine(parts).run(inputs, targets)


def a_part_for_every_rank(parts, inputs, targets):
    """A rank of the world is no data coordinate."""

    class Mine(Step):
        def own(self, batch):
            return batch.tensor_split(dist.get_world_size())[dist.get_rank()]

    return Mine(parts).run(inputs, targets)


def one_microbatch(parts, inputs, targets):
    parts.microbatches = 1
    return right(parts, inputs, targets)


def reduces_each_microbatch(parts, inputs, targets):
    """A pipeline that is empty between microbatches, with as many reductions."""

    class Mine(Step):
        def forward_backward(self, inputs, targets):
            count, losses = self.parts.microbatches, []
            self.schedule = one_f_one_b(dist.get_world_size(self.groups["pipeline"]), 1)
            pairs = zip(inputs.chunk(count), targets.chunk(count), strict=True)
            for number, (each, target) in enumerate(pairs):

                def scaled(output, wanted):
                    return self.parts.loss(output, wanted) / count

                result = run_schedule(self.schedule, self.parts.stage, each, target, scaled)
                losses.append(result.loss)
                if number < count - 1:
                    self.reduce()
            return None if losses[0] is None else sum(losses)

    return Mine(parts).run(inputs, targets)


def no_reduction(parts, inputs, targets):
    class Mine(Step):
        def reduce(self):
            pass

    return Mine(parts).run(inputs, targets)


def reduces_twice(parts, inputs, targets):
    """A mean of means is the mean: only the calls tell."""

    class Mine(Step):
        def reduce(self):
            super().reduce()
            super().reduce()

    return Mine(parts).run(inputs, targets)


def reduces_before_backward(parts, inputs, targets):
    class Mine(Step):
        def forward_backward(self, inputs, targets):
            self.parts.reduce_gradients(self.parameters, self.groups)
            return super().forward_backward(inputs, targets)

        def reduce(self):
            pass

    return Mine(parts).run(inputs, targets)


def clips_before_reducing(parts, inputs, targets):
    class Mine(Step):
        def update(self):
            self.clip()
            self.reduce()
            self.step()
            self.zero_grad()

    return Mine(parts).run(inputs, targets)


def steps_before_clipping(parts, inputs, targets):
    class Mine(Step):
        def update(self):
            self.reduce()
            self.step()
            self.clip()
            self.zero_grad()

    return Mine(parts).run(inputs, targets)


def no_clipping(parts, inputs, targets):
    class Mine(Step):
        def clip(self):
            pass

    return Mine(parts).run(inputs, targets)


def clips_by_pytorch(parts, inputs, targets):
    class Mine(Step):
        def clip(self):
            torch.nn.utils.clip_grad_norm_(self.parameters, self.parts.max_norm)

    return Mine(parts).run(inputs, targets)


def no_step(parts, inputs, targets):
    class Mine(Step):
        def step(self):
            pass

    return Mine(parts).run(inputs, targets)


def forgets_gradients_before_the_step(parts, inputs, targets):
    class Mine(Step):
        def update(self):
            self.reduce()
            self.clip()
            self.zero_grad()
            self.step()

    return Mine(parts).run(inputs, targets)


def reduces_some_parameters(parts, inputs, targets):
    """The first ones of the stage only."""

    class Mine(Step):
        def reduce(self):
            self.parts.reduce_gradients(self.parameters[:1], self.groups)

    return Mine(parts).run(inputs, targets)


def schedule_over_the_world(parts, inputs, targets):
    step = Step(parts)
    step.schedule = one_f_one_b(dist.get_world_size(), parts.microbatches)
    return step.run(inputs, targets)


def loss_over_the_world(parts, inputs, targets):
    """Hangs: ranks of the other stages have no loss."""

    class Mine(Step):
        def mean(self, loss):
            if loss is not None:
                dist.all_reduce(loss)
                loss /= dist.get_world_size()
            return loss

    return Mine(parts).run(inputs, targets)


def never_forgets_gradients(parts, inputs, targets):
    class Mine(Step):
        def zero_grad(self):
            pass

    return Mine(parts).run(inputs, targets)


def forgets_gradients_of_shards_only(parts, inputs, targets):
    class Mine(Step):
        def zero_grad(self):
            for one in self.parameters:
                if one.kind == "sharded":
                    one.grad = None

    return Mine(parts).run(inputs, targets)


def loss_of_its_own_samples(parts, inputs, targets):
    class Mine(Step):
        def mean(self, loss):
            return loss

    return Mine(parts).run(inputs, targets)


def sum_of_the_losses(parts, inputs, targets):
    class Mine(Step):
        def mean(self, loss):
            if loss is not None:
                dist.all_reduce(loss, group=self.groups["data"])
            return loss

    return Mine(parts).run(inputs, targets)


def zero_on_other_stages(parts, inputs, targets):
    class Mine(Step):
        def mean(self, loss):
            return super().mean(torch.zeros(()) if loss is None else loss)

    return Mine(parts).run(inputs, targets)


def returns_no_loss(parts, inputs, targets):
    right(parts, inputs, targets)


# Right ------------------------------------------------------------------------------------------


def in_one_go(parts, inputs, targets):
    data, pipeline = parts.groups["data"], parts.groups["pipeline"]
    replicas, replica = dist.get_world_size(data), dist.get_rank(data)
    parts.optimizer.zero_grad()
    found = run_schedule(
        gpipe(dist.get_world_size(pipeline), parts.microbatches),
        [parts.stage],
        inputs.chunk(replicas)[replica],
        targets.chunk(replicas)[replica],
        parts.loss,
    )
    trained = list(parts.stage.module.parameters())
    parts.reduce_gradients(trained, parts.groups)
    parts.clip_mesh(trained, parts.max_norm, parts.groups)
    parts.optimizer.step()
    if found.loss is None:
        return None
    loss = found.loss / replicas
    dist.all_reduce(loss, group=data)
    return loss.item()


def microbatches_by_hand(parts, inputs, targets):
    """Takes every n-th sample, and hands lists of microbatches over."""

    class Mine(Step):
        def own(self, batch):
            data = self.groups["data"]
            mine = batch[dist.get_rank(data) :: dist.get_world_size(data)]
            return list(mine.chunk(self.parts.microbatches))

        def update(self):
            self.reduce()
            self.clip()
            self.step()
            for one in self.parameters:
                one.grad = None

    step = Mine(parts)
    step.schedule = interleaved(
        dist.get_world_size(parts.groups["pipeline"]), parts.microbatches, 1
    )
    return step.run(inputs, targets)


RIGHT = [right, in_one_go, microbatches_by_hand]

WRONG = {
    untouched: {"share": "is not written yet"},
    whole_batch_on_every_data_rank: {"share": "Its data coordinate has"},
    one_microbatch: {"share": "in 1 forward passes"},
    a_part_for_every_rank: {"first": "microbatches"},
    reduces_each_microbatch: {"order": "reduce, forward and backward, reduce"},
    no_reduction: {"order": "backward, clip, step"},
    reduces_twice: {"order": "reduce, reduce, clip, step"},
    reduces_before_backward: {"order": "it runs reduce, forward"},
    clips_before_reducing: {"order": "clip, reduce, step"},
    steps_before_clipping: {"order": "reduce, step, clip"},
    no_clipping: {"order": "reduce, step"},
    clips_by_pytorch: {"order": "reduce, step"},
    no_step: {"order": "reduce, clip."},
    forgets_gradients_before_the_step: {"first": "Which gradients"},
    reduces_some_parameters: {"first": "step 1: its parameters"},
    schedule_over_the_world: {"first": "The schedule has 4 ranks"},
    loss_over_the_world: {"first": "all_reduce"},
    never_forgets_gradients: {"steps": "left over from the previous step"},
    forgets_gradients_of_shards_only: {"steps": "step 2: its parameters"},
    loss_of_its_own_samples: {"loss": "average over the data group"},
    sum_of_the_losses: {"loss": "not the mean"},
    zero_on_other_stages: {"loss": "Return None"},
    returns_no_loss: {"loss": "return the loss"},
}

ORDER = "neither depends on the other"
AGAIN = "gradients that are forgotten already are forgotten again"
ALSO = "the same numbers under the same name"
EQUIVALENT = {
    "parts.optimizer.zero_grad(); if loss is not None:; ... -> if loss is not None:; "
    "dist.all_reduce(loss, group=groups['data']); ...": ORDER,
    "parts.optimizer.zero_grad() -> "
    "parts.optimizer.zero_grad(); parts.optimizer.zero_grad()": AGAIN,
    "dist.all_reduce(loss, group=groups['data']); loss /= replicas -> loss /= replicas; "
    "dist.all_reduce(loss, group=groups['data'])": ORDER,
    "loss /= replicas -> loss = loss / replicas": ALSO,
}
