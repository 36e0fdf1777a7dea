"""Answers to 07/run: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist

from dtlab.parallel.pipeline import PipelineStage, run_schedule


def right(schedule, module, sizes, width, inputs, targets, loss):
    rank, last = dist.get_rank(), len(schedule) - 1
    held, sent = {}, []

    def send(tensor, peer, k):
        sent.append(dist.isend(tensor, peer, tag=k))

    def receive(peer, k):
        tensor = torch.empty(sizes[k], width)
        dist.recv(tensor, peer, tag=k)
        return tensor

    for _, kind, k in schedule[rank]:
        if kind == "F":
            x = inputs[k] if rank == 0 else receive(rank - 1, k).requires_grad_()
            y = module(x)
            if rank < last:
                send(y.detach(), rank + 1, k)
            else:
                y = loss(y, targets[k]) * sizes[k] / sum(sizes)
            held[k] = x, y
        else:
            x, y = held.pop(k)
            y.backward(receive(rank + 1, k) if rank < last else None)
            if rank > 0:
                send(x.grad, rank - 1, k)
    for work in sent:
        work.wait()


class Executor:
    """The right one in pieces; each mistake is another piece."""

    tagged = True

    def __init__(self, schedule, module, sizes, width, inputs, targets, loss):
        self.schedule, self.module, self.sizes, self.width = schedule, module, sizes, width
        self.inputs, self.targets, self.loss = inputs, targets, loss
        self.rank, self.last = dist.get_rank(), len(schedule) - 1
        self.held, self.sent = {}, []

    def run(self):
        for _, kind, k in self.schedule[self.rank]:
            self.forward(k) if kind == "F" else self.backward(k)
        self.finish()

    def forward(self, k):
        x = self.input_of(k)
        y = self.module(x)
        if self.rank < self.last:
            self.send(self.to_send(y), self.rank + 1, k)
        else:
            y = self.share_of(self.loss(y, self.targets[k]), k)
        self.held[k] = x, y

    def backward(self, k):
        x, y = self.take(k)
        if self.rank < self.last:
            self.back(y, self.receive(self.rank + 1, k))
        else:
            self.back(y, None)
        if self.rank > 0:
            self.send(x.grad, self.rank - 1, k)

    def finish(self):
        for work in self.sent:
            work.wait()

    def input_of(self, k):
        if self.rank == 0:
            return self.inputs[k]
        return self.receive(self.rank - 1, k).requires_grad_()

    def to_send(self, y):
        return y.detach()

    def share_of(self, loss, k):
        return loss * self.sizes[k] / sum(self.sizes)

    def take(self, k):
        return self.held.pop(k)

    def back(self, y, gradient):
        y.backward(gradient)

    def send(self, tensor, peer, k):
        self.sent.append(dist.isend(tensor, peer, tag=k if self.tagged else 0))

    def receive(self, peer, k):
        tensor = torch.empty(self.sizes[k], self.width)
        dist.recv(tensor, peer, tag=k if self.tagged else 0)
        return tensor


# Wrong ------------------------------------------------------------------------------------------


def untouched(schedule, module, sizes, width, inputs, targets, loss):
    raise NotImplementedError()


def nothing(schedule, module, sizes, width, inputs, targets, loss):
    pass


def by_the_library(schedule, module, sizes, width, inputs, targets, loss):
    run_schedule(schedule, PipelineStage(module), inputs, targets, loss)


def forwards_only(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def backward(self, k):
            pass

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def no_graph_begins_at_what_came(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def input_of(self, k):
            return self.inputs[k] if self.rank == 0 else self.receive(self.rank - 1, k)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def gradient_of_the_output_sent_back(schedule, module, sizes, width, inputs, targets, loss):
    """What came goes on as it is, without this stage's backward in it."""

    class Mine(Executor):
        def backward(self, k):
            x, y = self.take(k)
            gradient = self.receive(self.rank + 1, k) if self.rank < self.last else None
            self.back(y, gradient)
            if self.rank > 0:
                self.send(x.grad if gradient is None else gradient, self.rank - 1, k)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def without_the_last_action(schedule, module, sizes, width, inputs, targets, loss):
    shorter = [row[:-1] for row in schedule]
    Executor(shorter, module, sizes, width, inputs, targets, loss).run()


def gradients_from_the_previous_stage(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def backward(self, k):
            x, y = self.take(k)
            self.back(y, self.receive(self.rank - 1, k) if self.rank < self.last else None)
            if self.rank > 0:
                self.send(x.grad, self.rank + 1, k)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def ones_in_place_of_the_gradient(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def back(self, y, gradient):
            y.sum().backward()

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def the_sum_over_microbatches(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def share_of(self, loss, k):
            return loss

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def gradients_of_the_last_microbatch(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def back(self, y, gradient):
            self.module.zero_grad()
            y.backward(gradient)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def one_microbatch_is_kept(schedule, module, sizes, width, inputs, targets, loss):
    """The one that came last."""

    class Mine(Executor):
        def take(self, k):
            return self.held[max(self.held)]

        def back(self, y, gradient):
            y.backward(gradient, retain_graph=True)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def every_rank_averages_again(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def finish(self):
            super().finish()
            for parameter in self.module.parameters():
                parameter.grad /= len(self.sizes)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def scaled_by_every_rank(schedule, module, sizes, width, inputs, targets, loss):
    """What comes back is made a mean once more, at each stage."""

    class Mine(Executor):
        def back(self, y, gradient):
            y.backward(gradient if gradient is None else gradient / len(self.sizes))

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def another_loss(schedule, module, sizes, width, inputs, targets, loss):
    """That of the notebook, in place of what is given."""
    mse_loss = torch.nn.functional.mse_loss
    Executor(schedule, module, sizes, width, inputs, targets, mse_loss).run()


def the_mean_of_the_means(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def share_of(self, loss, k):
            return loss / len(self.sizes)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def room_for_the_first_size(schedule, module, sizes, width, inputs, targets, loss):
    """A short microbatch arrives in a buffer that is too long."""

    class Mine(Executor):
        def receive(self, peer, k):
            tensor = torch.zeros(self.sizes[0], self.width)
            dist.recv(tensor, peer, tag=k)
            return tensor

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def blocking_sends(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def send(self, tensor, peer, k):
            dist.send(tensor, peer, tag=k)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def waits_at_once(schedule, module, sizes, width, inputs, targets, loss):
    """That is a blocking send in two lines."""

    class Mine(Executor):
        def send(self, tensor, peer, k):
            dist.isend(tensor, peer, tag=k).wait()

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def sent_before_the_next_is_received(schedule, module, sizes, width, inputs, targets, loss):
    """Waits a little later, but before anything else is done."""

    class Mine(Executor):
        def receive(self, peer, k):
            self.finish()
            self.sent = []
            return super().receive(peer, k)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def all_forwards_first(schedule, module, sizes, width, inputs, targets, loss):
    """Not what the list says: as GPipe has it."""

    class Mine(Executor):
        def run(self):
            row = self.schedule[self.rank]
            for _, _, k in [one for one in row if one.kind == "F"]:
                self.forward(k)
            for _, _, k in [one for one in row if one.kind != "F"]:
                self.backward(k)
            self.finish()

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def waits_for_no_send(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def finish(self):
            pass

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def waits_for_the_last_send(schedule, module, sizes, width, inputs, targets, loss):
    """It says nothing of those before: they went to another rank."""

    class Mine(Executor):
        def finish(self):
            for work in self.sent[-1:]:
                work.wait()

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def runs_forward_again(schedule, module, sizes, width, inputs, targets, loss):
    """In backward, as with a checkpoint."""

    class Mine(Executor):
        def backward(self, k):
            x, _ = self.held[k]
            y = self.module(x)
            if self.rank == self.last:
                y = self.share_of(self.loss(y, self.targets[k]), k)
            self.held[k] = x, y
            super().backward(k)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def keeps_all_graphs(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def take(self, k):
            return self.held[k]

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def retains_graphs(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        def take(self, k):
            return self.held[k]

        def back(self, y, gradient):
            y.backward(gradient, retain_graph=True)

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def keeps_outputs_for_later(schedule, module, sizes, width, inputs, targets, loss):
    """To look at them when the step is over."""
    outputs = []

    class Mine(Executor):
        def take(self, k):
            found = self.held.pop(k)
            outputs.append(found[1])
            return found

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def messages_without_a_number(schedule, module, sizes, width, inputs, targets, loss):
    class Mine(Executor):
        tagged = False

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


def first_in_first_out(schedule, module, sizes, width, inputs, targets, loss):
    """Backward takes what has waited longest."""

    class Mine(Executor):
        def take(self, k):
            return self.held.pop(next(iter(self.held)))

    Mine(schedule, module, sizes, width, inputs, targets, loss).run()


# Right ------------------------------------------------------------------------------------------


def in_pieces(schedule, module, sizes, width, inputs, targets, loss):
    Executor(schedule, module, sizes, width, inputs, targets, loss).run()


def received_ahead(schedule, module, sizes, width, inputs, targets, loss):
    """All receives are posted at the start; sends are let go when the other side has answered."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    room, sent, held = {}, {}, {}
    for _, kind, k in schedule[rank]:
        source = rank - 1 if kind == "F" else rank + 1
        if 0 <= source <= last:
            tensor = torch.zeros((sizes[k], width))
            room[kind, k] = tensor, dist.irecv(tensor, src=source, tag=k)
    for _, kind, k in schedule[rank]:
        came = None
        if (kind, k) in room:
            came, work = room.pop((kind, k))
            work.wait()
        if kind == "F":
            x = inputs[k] if came is None else came.requires_grad_(True)
            y = module(x)
            if rank == last:
                y = loss(y, targets[k]) * (sizes[k] / sum(sizes))
            else:
                sent[k] = dist.isend(y.detach().clone(), dst=rank + 1, tag=k)
            held[k] = (x, y)
            del x, y
        else:
            x, y = held.pop(k)
            torch.autograd.backward([y], [came])
            if k in sent:
                sent.pop(k).wait()
            if rank:
                sent["back", k] = dist.isend(x.grad.contiguous(), dst=rank - 1, tag=k)
            del x, y
    for work in sent.values():
        work.wait()


RIGHT = [right, in_pieces, received_ahead]

WRONG = {
    untouched: {"result": "is not written yet"},
    nothing: {"result": "no gradient"},
    by_the_library: {"result": "finished code"},
    forwards_only: {"result": "no gradient"},
    no_graph_begins_at_what_came: {"result": "`tensor` is None, and must be a torch.Tensor"},
    gradient_of_the_output_sent_back: {"result": "Those of rank 1 are right: does it send back"},
    ones_in_place_of_the_gradient: {"result": "not those of one process"},
    the_sum_over_microbatches: {"result": "of the sum over the microbatches"},
    gradients_of_the_last_microbatch: {"result": "are those of microbatch 3 alone"},
    one_microbatch_is_kept: {"result": ""},
    every_rank_averages_again: {"result": "scaled already"},
    scaled_by_every_rank: {"result": "scaled already"},
    without_the_last_action: {"result": "but its list is FFF"},
    gradients_from_the_previous_stage: {"result": "receive it from rank + 1"},
    another_loss: {"result": "rank 2, which computes the loss"},
    the_mean_of_the_means: {"uneven": "mean over all samples"},
    room_for_the_first_size: {"uneven": ""},
    blocking_sends: {"turns": "did not finish"},
    waits_at_once: {"turns": "did not finish"},
    sent_before_the_next_is_received: {"turns": "did not finish"},
    all_forwards_first: {"order": "its list is"},
    runs_forward_again: {"order": "its list is"},
    waits_for_no_send: {"waits": "does not wait for a send"},
    waits_for_the_last_send: {"waits": "does not wait for a send"},
    keeps_all_graphs: {"memory": "are still alive"},
    retains_graphs: {"memory": "are still alive"},
    keeps_outputs_for_later: {"memory": "are still alive"},
    messages_without_a_number: {"any": "which microbatch is in each message"},
    first_in_first_out: {"any": ""},
}

EQUIVALENT = {
    "dist.recv(came, rank - 1, tag=k); came.requires_grad_() -> "
    "came.requires_grad_(); dist.recv(came, rank - 1, tag=k)": "autograd does not see a receive",
    "came.requires_grad_() -> came.requires_grad_(); came.requires_grad_()": "it is set already",
    "for work in sent: -> for work in reversed(sent):": "all of them are over in the end",
}
