"""Every mechanism of the course in its shortest honest form: read this file first, top to bottom.

Training is divided among N ranks: processes without common memory, which run the same code and
know by their number, `dist.get_rank()`, which part of the work is theirs. A value reaches another
rank only in a message, so a function that sends some says in its docstring what moves and how much
of it. The file needs torch alone. It begins with a sum over ranks and ends with a job that
continues after a rank has died. The other modules of the library compute the same at full speed,
for any group, size and dtype; their first lines say what they add. Start ranks with `launch`, at
the end of the file:

    def total():
        x = torch.full((5,), float(dist.get_rank()))
        ring_all_reduce(x)
        return x

    launch(total, 4)      # one result for each rank: all are [6, 6, 6, 6, 6]
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import multiprocessing
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

# ----------------------------------------------------------------------- 1. The sum over all ranks
#
# An operation that all ranks call together is a collective. A broadcast copies one rank's tensor
# to all; a reduce brings the sum of all tensors to one rank. If every rank needs this sum, the
# operation is called all-reduce, and training needs it more than any other. The obvious way is
# through one rank. Every tensor that is sent or received must be contiguous, and both sides must
# agree on its size and dtype.


def root_all_reduce(tensor: Tensor) -> None:
    """Sum a tensor over all ranks, in place: rank 0 receives all tensors and sends back their sum.

    Rank 0 receives and sends N-1 times the tensor, the others once each: time grows with N.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(tensor, dst=0)
        dist.recv(tensor, src=0)
        return
    received = torch.empty_like(tensor)
    for source in range(1, n):
        dist.recv(received, src=source)
        tensor += received
    for target in range(1, n):
        dist.send(tensor, dst=target)


# All links but those of rank 0 are idle most of that time. In a ring every rank sends to its right
# neighbour in every round, a different N-th of the tensor each, so all links work at once.


def ring_all_reduce(tensor: Tensor) -> None:
    """Sum a contiguous tensor over all ranks, in place: N chunks travel around a ring, twice.

    In round k, rank r sends chunk r-1-k (mod N) to the right and receives chunk r-2-k, which it
    sends next. For N-1 rounds it adds what it receives, after which chunk r is complete on rank r;
    for N-1 more it overwrites. A rank sends 2(N-1)/N times the tensor: less than twice, for any N.

        chunks that are sent    rank 0    rank 1    rank 2
        round 0, add              2         0         1       rank 1 receives chunk 2, ...
        round 1, add              1         2         0       now rank r has all of chunk r
        round 2, overwrite        0         1         2
        round 3, overwrite        2         0         1       now every rank has all chunks
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(n)
    for k in range(2 * (n - 1)):
        outgoing, incoming = chunks[(rank - 1 - k) % n], chunks[(rank - 2 - k) % n]
        received = torch.empty_like(incoming)
        # `isend` returns at once, but `send` may wait for the receiver: if all ranks waited in
        # `send`, none would reach its `recv`.
        sending: Any = dist.isend(outgoing, dst=(rank + 1) % n)
        dist.recv(received, src=(rank - 1) % n)
        if k < n - 1:
            incoming += received
        else:
            incoming.copy_(received)
        sending.wait()  # only now may the chunk change, or this process end


# ----------------------------------------------------------------------------- 2. Data parallelism
#
# From here on torch's own all-reduce is used, which moves the same bytes. In data parallelism each
# rank has the whole model and its own part of the batch. If these parts are equally large, and the
# loss is a mean over samples, the mean of the ranks' gradients is the gradient of the whole batch.
# So equal models that take equal steps remain equal.


def average_by_hooks(module: nn.Module) -> None:
    """Make `loss.backward()` average gradients: a hook all-reduces each as soon as it is complete.

    A hook is a function that autograd calls, here when it has added up all of a gradient. A rank
    sends 2(N-1)/N times the gradients, in one all-reduce for each parameter. All ranks begin with
    rank 0's parameters. In each step they must use all parameters and compute their gradients in
    the same order, since the first all-reduce of one rank meets the first of another.
    """

    def average(parameter: Any) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
        parameter.register_post_accumulate_grad_hook(average)  # called when `.grad` is complete


# The time of a small all-reduce is nearly all latency, and above, backward waits for each of them.
# So we collect gradients in buckets, send each bucket as soon as it is full, and wait for all of
# them only at the end.


def average_in_buckets(module: nn.Module, elements: int) -> Callable[[], None]:
    """As `average_by_hooks`, with an all-reduce whenever `elements` numbers or more are waiting.

    The bytes are the same, but the messages are fewer, and they travel while backward computes the
    next gradients. This returns a function, `finish`: call it after each backward, before the
    step.
    """
    bucket: list[Any] = []  # parameters whose gradients are complete but not yet sent
    travelling: list[tuple[Any, Tensor, list[Any]]] = []

    def send() -> None:
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
        travelling.append((dist.all_reduce(flat, async_op=True), flat, list(bucket)))
        bucket.clear()

    def collect(parameter: Tensor) -> None:
        bucket.append(parameter)
        if sum(each.numel() for each in bucket) >= elements:
            send()

    def finish() -> None:
        if bucket:
            send()
        for all_reduce, flat, parameters in travelling:
            all_reduce.wait()
            sums = flat.split([parameter.numel() for parameter in parameters])
            for parameter, total in zip(parameters, sums, strict=True):
                parameter.grad = total.view_as(parameter) / dist.get_world_size()
        travelling.clear()

    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
        parameter.register_post_accumulate_grad_hook(collect)
    return finish


# A batch may be too large for the memory of the ranks. `.grad` adds up, so a rank can run the
# batch in microbatches, one after the other, and all-reduce once.

Loss = Callable[[Tensor, Tensor], Tensor]  # from outputs and targets to one number


def accumulate(
    module: nn.Module, microbatches: Sequence[tuple[Tensor, Tensor]], loss_sum: Loss
) -> None:
    """Set `.grad` to the gradient of the mean loss over the samples of all microbatches and ranks.

    `loss_sum` returns the sum of the samples' losses, as with `reduction="sum"`. The sums are
    divided by the number of all samples, since a mean of means is wrong if the microbatches differ
    in size. Activations are in memory for one microbatch at a time, and the all-reduces are those
    of a single batch. Before, `.grad` must be None, because backward adds to it, and all ranks
    must have equal parameters. Each rank needs one microbatch at least, and all parameters must be
    used.
    """
    samples = torch.tensor(sum(len(inputs) for inputs, _ in microbatches))
    dist.all_reduce(samples)
    for inputs, targets in microbatches:
        (loss_sum(module(inputs), targets) / samples).backward()
    for parameter in module.parameters():
        dist.all_reduce(parameter.grad)


# --------------------------------------------------------------- 3. ZeRO: one copy for all ranks
#
# Data parallelism keeps everything N times: parameters, gradients, and the optimizer's state,
# which is twice as large as the parameters for Adam. ZeRO stage 1 gives each parameter one owner,
# and only the owner has its state.


class Zero1:
    """Data parallelism, optimizer state divided: `Zero1(model.parameters(), Adam, lr=0.01)`.

    `step` reduces each gradient to its owner, and the owner broadcasts the new parameter. Together
    these move as many bytes as an all-reduce of the gradients. Every parameter needs a gradient.
    """

    def __init__(self, params: Iterable[nn.Parameter], make: Any, **options: Any) -> None:
        self.params: list[Any] = list(params)
        for parameter in self.params:
            dist.broadcast(parameter.data, src=0)
        n = dist.get_world_size()
        self.owner = {parameter: number % n for number, parameter in enumerate(self.params)}
        owned = [each for each in self.params if self.owner[each] == dist.get_rank()]
        self.optimizer = make(owned, **options) if owned else None

    def reduce(self, parameter: Any) -> None:
        """Give the mean gradient to the owner; the other ranks free theirs."""
        dist.reduce(parameter.grad, dst=self.owner[parameter])
        mine = self.owner[parameter] == dist.get_rank()
        parameter.grad = parameter.grad / dist.get_world_size() if mine else None

    def update(self) -> None:
        """Step the owned parameters and send them to all ranks."""
        if self.optimizer:
            self.optimizer.step()
        for parameter in self.params:
            dist.broadcast(parameter.data, src=self.owner[parameter])
            parameter.grad = None

    def step(self) -> None:
        for parameter in self.params:
            self.reduce(parameter)
        self.update()


# Stage 1 keeps all gradients until the step. Stage 2 does not: it reduces each one in backward.


class Zero2(Zero1):
    """As `Zero1`, but a hook reduces each gradient as soon as it is complete.

    So a rank keeps about 1/N of the gradients too, and the bytes that move are the same. As with
    `average_by_hooks`, all ranks must compute their gradients in the same order. Call `step` after
    each backward: a second backward would divide the owner's mean by N again.
    """

    def __init__(self, params: Iterable[nn.Parameter], make: Any, **options: Any) -> None:
        super().__init__(params, make, **options)
        for parameter in self.params:
            parameter.register_post_accumulate_grad_hook(self.reduce)

    def step(self) -> None:
        self.update()


# Now the parameters themselves are left. Stage 3 keeps 1/N of each weight on a rank and gathers
# the rest for the moment in which a layer computes. Autograd alone would keep the gathered weight
# from forward to backward, so this layer defines its own backward, which gathers again.


class ShardedLinear(torch.autograd.Function):
    """y = x @ weight.T, where each rank keeps 1/N of the weight's rows: `apply(x, shard)`.

    Each rank passes its own part of the batch, x [samples, in], and its shard [out / N, in]. The
    ranks gather the weight in forward and again in backward. The weight's gradient is summed over
    the ranks such that each rank gets the sum for its own rows only, which is called
    reduce-scatter. Each of these three collectives moves (N-1)/N of the weight; the all-reduce of
    data parallelism moves twice that.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Tensor) -> Tensor:
        ctx.save_for_backward(x, shard)
        return x @ gather_rows(shard).T  # the gathered weight is freed after this line

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, Tensor]:
        x, shard = ctx.saved_tensors
        grad_x = grad_y @ gather_rows(shard)  # freed after this line again
        grad_weight, grad_shard = grad_y.T @ x, torch.empty_like(shard)
        # Older releases of PyTorch say reduce_scatter_tensor, and all_gather_into_tensor below.
        dist.reduce_scatter_single(grad_shard, grad_weight)  # the sum of this rank's rows
        return grad_x, grad_shard / dist.get_world_size()  # a rank's loss is its own part's mean


def gather_rows(shard: Tensor) -> Tensor:
    """Return the shards of all ranks as one weight [out, in]: (N-1)/N of it arrives here."""
    weight = shard.new_empty(len(shard) * dist.get_world_size(), shard.shape[1])
    dist.all_gather_single(weight, shard)
    return weight


# --------------------------------------------------------------------------- 4. Tensor parallelism
#
# ZeRO still computes each layer whole on every rank. Tensor parallelism divides the computation:
# all ranks have the same input, and each computes with its part of the weight. Autograd must then
# know what a collective means in backward. Two functions suffice; Megatron-LM calls them f and g.


class CopyToRanks(torch.autograd.Function):
    """f: each rank uses x in its own way, so x's gradient is the sum of theirs: an all-reduce."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)  # the same values: only backward differs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # A copy, since autograd may use `gradient` elsewhere and the all-reduce works in place.
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class SumOverRanks(torch.autograd.Function):
    """g: y is the sum of the ranks' parts, an all-reduce, so each part gets y's gradient.

    This is not summed: all ranks compute the same loss from y, and each has the whole gradient.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


# The Megatron-LM paper calls a layer "column parallel" if each rank has some of its outputs, and
# "row parallel" if each rank has some of its inputs. The paper's weight is the transpose of
# PyTorch's, so its columns are the rows of a weight [out, in] here. A row parallel layer takes
# just what a column parallel one leaves on each rank. So such a pair, with any function of single
# elements between them, needs one all-reduce in forward (g, after the second layer) and one in
# backward (f, before the first).


def column_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return this rank's outputs [..., out / N] for the whole input; `weight` is [out / N, in].

    Forward moves nothing; backward all-reduces a gradient of the size of x.
    """
    return F.linear(CopyToRanks.apply(x), weight, bias)


def row_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return all outputs for this rank's inputs [..., in / N], as `column_linear` leaves them.

    `weight` is [out, in / N]. Forward all-reduces a tensor of y's size; backward moves nothing.
    """
    y: Tensor = SumOverRanks.apply(F.linear(x, weight))
    return y if bias is None else y + bias  # before the sum, the bias would count N times


# The largest weights of a small language model are the tables of its vocabulary. They are divided
# by rows. An embedding sums what the ranks find, and the loss needs no rank to have all logits.


def vocab_embedding(tokens: Tensor, table: Tensor) -> Tensor:
    """Return the embeddings of tokens from a table of which this rank has V/N rows.

    Each rank has zeros for the tokens of other ranks, and an all-reduce adds. So the output moves,
    and never the table.
    """
    row = tokens - dist.get_rank() * len(table)
    here = (row >= 0) & (row < len(table))
    found = F.embedding(row.where(here, 0), table).where(here.unsqueeze(-1), 0)
    return SumOverRanks.apply(found)


def vocab_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of log(sum(exp(z))) - z[target] over tokens; this rank has logits [t, V/N].

    The logits come from `column_linear`, whose backward adds up the gradients of its input. In z
    the largest logit is subtracted from all, so that exp does not overflow; the loss is the same.
    Three numbers per token are all-reduced: the largest logit, the sum of exp, and the target's z,
    which one rank has and the others count as zero. Backward moves nothing here, because every
    rank has the same loss.
    """
    largest = logits.detach().amax(-1)  # it changes no loss, so it needs no gradient
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    z = logits - largest.unsqueeze(-1)
    column = targets - dist.get_rank() * z.shape[-1]
    here = (column >= 0) & (column < z.shape[-1])
    at_target = z.gather(-1, column.where(here, 0).unsqueeze(-1)).squeeze(-1).where(here, 0)
    sums = SumOverRanks.apply(torch.stack([z.exp().sum(-1), at_target]))
    return (sums[0].log() - sums[1]).mean()


# ------------------------------------------------------------------------------------ 5. Pipelines
#
# Tensor parallelism communicates in every layer, and so needs fast links. A pipeline divides the
# layers instead: rank r runs stage r, and only what lies between two stages is sent. Ranks would
# wait for each other most of the time, so the batch is cut into microbatches that follow each
# other. A schedule has the order of forwards and backwards: for each rank, a list of actions such
# as (2, "F", 0), which is stage 2, forward, microbatch 0. `run_schedule` gives rank r stage r; an
# action names the stage because `simulate` also takes schedules where a rank has several.

Action = tuple[int, str, int]
Schedule = Sequence[Sequence[Action]]  # for each rank, its actions in order


def one_f_one_b(stages: int, microbatches: int) -> list[list[Action]]:
    """Return the schedule 1F1B: some forwards, then backward and forward in turn, then backwards.

    Stage s runs at most `stages` - s forwards ahead of its backwards, so it keeps the activations
    of that many microbatches and not of all.
    """
    schedule = []
    for stage in range(stages):
        ahead = min(stages - stage, microbatches)
        actions = [(stage, "F", m) for m in range(ahead)]
        for m in range(microbatches):
            actions.append((stage, "B", m))
            if m + ahead < microbatches:
                actions.append((stage, "F", m + ahead))
        schedule.append(actions)
    return schedule


def run_schedule(
    schedule: Schedule,
    module: nn.Module,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Loss,
) -> None:
    """Run this rank's actions, with stage r on rank r: receive, compute, send.

    It runs schedules of F and B in which no ranks wait for each other in a circle, such as 1F1B,
    or GPipe, in which all forwards come first. `loss` is a mean over samples, and microbatches
    have equal sizes, so the mean of their losses is right. Outputs go to the next stage and
    gradients of inputs to the previous one, one microbatch of activations each. All stages take
    and return tensors of the shape and floating dtype of `inputs`, a list of microbatches. Only
    rank 0 reads their values, and only the last rank reads `targets`. Gradients are added to
    `.grad` of this rank's parameters. A message and its receive have the same tag: 2m for the
    output of microbatch m, and 2m + 1 for its gradient.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pending: dict[int, tuple[Tensor, Tensor, Any]] = {}  # input, output, message; from F to B
    sending: list[Any] = []  # not waited for here: the neighbour may be sending to us, too
    for _, kind, m in schedule[rank]:
        if kind == "F":
            # A copy: rank 0 must not change the caller's tensor, and the others overwrite it.
            x = inputs[m].clone(memory_format=torch.contiguous_format)
            if rank > 0:
                dist.recv(x, src=rank - 1, tag=2 * m)
            y = module(x.requires_grad_())
            sent: Any = None
            if rank < last:
                sent = dist.isend(y.detach().contiguous(), dst=rank + 1, tag=2 * m)
            pending[m] = x, y, sent
        else:
            x, y, sent = pending.pop(m)
            if rank < last:
                gradient = torch.empty_like(y, memory_format=torch.contiguous_format)
                dist.recv(gradient, src=rank + 1, tag=2 * m + 1)
                # This takes no time: the next stage has received y, or it could not have sent a
                # gradient. Kept until the end, the message would keep y in memory.
                sent.wait()
                y.backward(gradient)
            else:
                (loss(y, targets[m]) / len(targets)).backward()
            if rank > 0:
                grad_x: Any = x.grad
                sending.append(dist.isend(grad_x.contiguous(), dst=rank - 1, tag=2 * m + 1))
    for message in sending:
        message.wait()


# How long would a schedule take on more ranks than we have? Nothing needs to run to find out. A
# backward may also be split: "I" computes the input's gradient, which the previous stage needs,
# and "W" the weights' gradient, which may wait until the rank has nothing better to do.


def simulate(
    schedule: Schedule, seconds: Mapping[str, float], delay: float
) -> list[list[tuple[float, float]]]:
    """Return when each action of each rank starts and ends; `seconds` has the time of each kind.

    An action starts when its rank has ended the action before and what it needs has arrived, which
    takes `delay` seconds from another rank. Raises: ValueError if no rank can proceed.
    """
    rank_of = {action: rank for rank, row in enumerate(schedule) for action in row}
    last = max((stage for stage, _, _ in rank_of), default=0)
    end: dict[Action, float] = {}
    times: list[list[tuple[float, float]]] = [[] for _ in schedule]

    def needed(stage: int, kind: str, m: int) -> list[Action]:
        if kind == "F":
            return [(stage - 1, "F", m)] if stage > 0 else []
        if kind == "W":
            return [(stage, "I", m)]
        if stage == last:
            return [(stage, "F", m)]
        # B of the next stage comes after its F, which comes after F of this stage.
        return [(stage + 1, "I" if (stage + 1, "I", m) in rank_of else "B", m)]

    while len(end) < len(rank_of):
        before = len(end)
        for rank, row in enumerate(schedule):
            for action in row[len(times[rank]) :]:
                needs = needed(*action)
                if any(need not in end for need in needs):
                    break
                arrivals = [end[need] + delay * (rank_of[need] != rank) for need in needs]
                start = max([times[rank][-1][1] if times[rank] else 0.0, *arrivals])
                end[action] = start + seconds[action[1]]
                times[rank].append((start, end[action]))
        if len(end) == before:
            raise ValueError("no rank can proceed: actions need others that do not run.")
    return times


# ---------------------------------------------- 6. Long sequences and large grids: divide the data
#
# A single sequence may be too long for one rank. Every layer but attention treats tokens one by
# one, so each rank can keep a run of tokens. Attention needs them all, but each head by itself.


def ulysses_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over all ranks' tokens, forward only; q, k, v [b, heads, tokens / N, d].

    Rank r has the r-th run of tokens, and the number of heads is a multiple of N. In an
    all-to-all, part r of each rank goes to rank r. One each for q, k and v exchanges a split of
    the tokens for a split of the heads, and a fourth brings the output back. A rank sends (N-1)/N
    of its q, k, v and output, so the bytes per rank fall as N grows.
    """

    def exchange(parts: Sequence[Tensor]) -> list[Tensor]:
        """Send part r to rank r, and return what each rank sent here."""
        sent = torch.stack(list(parts))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return list(received)

    n = dist.get_world_size()  # give away the heads of other ranks, and get the tokens of ours
    q, k, v = (torch.cat(exchange(x.chunk(n, dim=1)), dim=2) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [b, heads / N, tokens, d]
    return torch.cat(exchange(mixed.chunk(n, dim=2)), dim=1)


# That needs a number of heads that is a multiple of N. Ring attention does not: each rank keeps
# its queries, and the keys and values travel. The softmax divides by a sum over all keys. We carry
# the sum along, and when it grows, we scale down the output so far.


def ring_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without a mask over all ranks' tokens, forward only; [..., tokens / N, d].

    In each of N-1 rounds a rank sends a block of keys and values, 1/N of them all, to the right.
    A causal mask would set the scores of later keys to -inf; it is left out to be short. `lse` is
    log(sum(exp(scores))) over the blocks so far: exp(lse) is the sum in the softmax. We carry its
    logarithm because the sum itself may overflow.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    output, lse = torch.zeros_like(q), q.new_full((*q.shape[:-1], 1), -math.inf)
    for round_ in range(n):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        new_lse = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))
        output = output * (lse - new_lse).exp() + (scores - new_lse).exp() @ v
        lse = new_lse
        if round_ < n - 1:
            block = torch.stack([k, v])
            arriving = torch.empty_like(block)
            sending: Any = dist.isend(block, dst=(rank + 1) % n)
            dist.recv(arriving, src=(rank - 1) % n)
            sending.wait()
            k, v = arriving
    return output


# A simulated field, such as the weather on a grid of cells, is divided in the same way, and cells
# need even less than tokens: the next value of a cell depends on its neighbours only, so a rank
# needs one row from either side.


def halo_exchange(tile: Tensor) -> Tensor:
    """Return this rank's rows with one more above and one below, from the neighbours; or zeros.

    A rank sends two rows at most, however many it has: large tiles are cheap. At the ends of the
    field there is no neighbour, and the row is zeros. Forward only.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    padded = torch.cat([torch.zeros_like(tile[:1]), tile, torch.zeros_like(tile[:1])])
    messages: list[Any] = []
    above, below = (rank - 1, tile[:1], padded[:1]), (rank + 1, tile[-1:], padded[-1:])
    for neighbour, edge, halo in (above, below):
        if 0 <= neighbour < n:
            messages.append(dist.isend(edge.contiguous(), dst=neighbour))
            messages.append(dist.irecv(halo, src=neighbour))
    for message in messages:
        message.wait()
    return padded


# -------------------------------------------------------------------- 7. Experts: route the tokens
#
# So far it was known in advance what moves where. A mixture of experts decides it for each token:
# a router chooses one of many MLPs, which are divided over the ranks, and the token travels there.


class Exchange(torch.autograd.Function):
    """An all-to-all of rows: the first `sent[0]` go to rank 0, and so on; gradients go back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sent, ctx.received = sent, received
        arrived = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
        return arrived

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Exchange.apply(gradient, ctx.received, ctx.sent), None, None


def routed_experts(tokens: Tensor, router: nn.Module, experts: Sequence[nn.Module]) -> Tensor:
    """Compute each token [t, h] by the best of N * len(experts) experts, times its probability.

    Most tokens travel to another rank and back, h elements each. How many go to each expert is
    sent first, so that each rank has room for what arrives. The router's gradients are of this
    rank's tokens, so they must be averaged as in data parallelism. An expert's gradients are
    already summed over the losses of all ranks, so they must only be divided by N.
    """
    n, local = dist.get_world_size(), len(experts)
    probability, choice = router(tokens).softmax(-1).max(-1)
    order = choice.argsort(stable=True)  # tokens for the experts of rank 0 come first
    counts = choice.bincount(minlength=n * local)
    arriving = torch.empty_like(counts)  # from rank 0 for each expert here, from rank 1, ...
    dist.all_to_all_single(arriving, counts)
    sent, received = (c.view(n, local).sum(1).tolist() for c in (counts, arriving))

    rows = Exchange.apply(tokens[order], sent, received)  # sorted by rank, then by expert
    expert_of_row = torch.arange(local).repeat(n).repeat_interleave(arriving)
    computed = torch.zeros_like(rows)
    for number, expert in enumerate(experts):
        mine = expert_of_row == number
        # Also without rows: so backward reaches both exchanges on all ranks, or some would wait.
        computed[mine] = expert(rows[mine])
    back = Exchange.apply(computed, received, sent)
    return torch.zeros_like(tokens).index_copy(0, order, back) * probability.unsqueeze(-1)


# --------------------------------------------------------------------- 8. Slow networks: send less
#
# If the network is the limit, ranks can send an approximation of each gradient. What it leaves out
# must not be lost: every rank keeps its error and adds it to the gradient of the next step.


def top_k_mean(gradient: Tensor, error: Tensor, k: int) -> Tensor:
    """Return the mean over ranks of each rank's k elements of largest absolute value.

    They are those of `gradient` plus `error`. What is not sent remains in `error`, a contiguous
    tensor that begins as zeros and is updated in place. A rank sends 8 bytes for each of its k
    elements, a place and a value, to every other rank.
    """
    error += gradient
    flat = error.flatten()
    places = flat.abs().topk(k).indices.int()
    n, values = dist.get_world_size(), flat[places]
    all_places, all_values = places.new_empty(n * k), values.new_empty(n * k)
    dist.all_gather_single(all_places, places)
    dist.all_gather_single(all_values, values)
    error.view(-1)[places] = 0  # these were sent; the rest waits for the next step
    return torch.zeros_like(flat).index_add_(0, all_places, all_values).view_as(error) / n


def power_sgd_mean(matrix: Tensor, q: Tensor, error: Tensor) -> Tensor:
    """Return the mean of `matrix` [a, b], roughly; update the factor q [b, r] and `error`.

    The mean is taken to be p @ q.T, so r (a + b) elements are all-reduced, not a * b. To compute p
    from q and then q from p, again and again, would lead to the best such p and q. Here it is done
    once, because gradients change slowly and q from the last step is almost right. All ranks begin
    with the same q, and with zeros in `error`. The error of a rank also holds its difference from
    the mean. These differences add up to zero over the ranks, so they do not change a later mean.
    """
    whole = matrix + error
    p = whole @ q
    dist.all_reduce(p)
    p = torch.linalg.qr(p).Q  # columns of length 1 at right angles: only their space matters
    q.copy_(whole.T @ p)
    dist.all_reduce(q)
    q /= dist.get_world_size()
    mean = p @ q.T
    error.copy_(whole - mean)
    return mean


# --------------------------------------------------------------------------- 9. A parameter server
#
# An all-reduce needs all ranks at the same time. A parameter server does not: one rank keeps the
# parameters, and each worker talks to it alone. Here the server still waits for all workers in
# every step, so the result is that of data parallelism. It could step after each gradient instead.


def serve(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Rank 0: in each step, send the parameters to each worker and step with their mean gradient.

    In the end only rank 0 has the parameters of the last step.
    All traffic passes through this rank: N-1 times the parameters out, and N-1 times in.
    """
    workers = range(1, dist.get_world_size())
    for _ in range(steps):
        for parameter in module.parameters():
            for worker in workers:
                dist.send(parameter.data, dst=worker)
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
            received = torch.empty_like(parameter)
            for worker in workers:
                dist.recv(received, src=worker)
                parameter.grad += received / len(workers)
        optimizer.step()


def work(module: nn.Module, losses: Iterable[Callable[[], Tensor]]) -> None:
    """Every other rank: in each step, pull the parameters, compute a loss, and push gradients.

    There must be as many `losses` as the server has steps.
    """
    for loss in losses:
        for parameter in module.parameters():
            dist.recv(parameter.data, src=0)
            parameter.grad = None
        loss().backward()
        for parameter in module.parameters():
            dist.send(parameter.grad, dst=0)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------- 10. Checkpoints
#
# A long run will be interrupted. It continues as if nothing had happened if we save all that the
# next step reads: parameters, the optimizer's state, the step, which here also tells the next
# batch, and the state of torch's random numbers on the CPU, the only ones that are used here.
# If all ranks hold the same state, also of random numbers, one of them saves it for all. Otherwise
# each rank saves to its own path, for example if ranks have different seeds for dropout.


def save(path: Path, step: int, **parts: Any) -> None:
    """Save the state of each part after `step` steps; if this process dies, the old file stays."""
    state = {name: part.state_dict() for name, part in parts.items()}
    unfinished = path.with_name(path.name + ".partial")
    torch.save({"step": step, "random": torch.get_rng_state(), "parts": state}, unfinished)
    os.replace(unfinished, path)  # the system renames at once: there is no file that is half new


def load(path: Path, **parts: Any) -> int:
    """Load what `save` saved into the same parts and return its steps; 0 without a file."""
    if not path.exists():
        return 0
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved["parts"][name])
    torch.set_rng_state(saved["random"])
    return int(saved["step"])


# ------------------------------------------------------------------ 11. A deadlock, and its reason
#
# Ranks that wait for each other wait forever, and no exception tells why. But the reason is in
# what they have begun. Suppose that each rank keeps a log of what it begins: "recv 1" to receive
# from rank 1, "send 1", or "all_reduce". Around an operation in which it waits, the log has two
# more entries: "block" before it and "end" after it. The last entry of a rank that has returned is
# "finished", which the launcher adds. If rank 0 has ["block", "recv 1"] and rank 1 has ["block",
# "recv 0"], neither has sent, so neither will ever receive. A collective waits for all ranks,
# except that "broadcast 0", from rank 0, waits for rank 0 only. Left out are reduce and gather, in
# which one rank waits and the others go on, and scatter.

COLLECTIVES = (
    "all_reduce", "broadcast", "barrier", "all_gather", "all_gather_single", "reduce_scatter",
    "reduce_scatter_single", "all_to_all", "all_to_all_single",
)  # fmt: skip


def find_deadlock(logs: Sequence[Sequence[str]]) -> str:
    """Return a chain of ranks that can never proceed, and why; "" if all may, as far as logs tell.

    A rank waits for the ranks that have not begun what its operation needs. If that leads in a
    circle or to a rank that has finished, no rank on the way can proceed, however long we wait.
    """
    # In `blocked` are operations that have begun and not ended.
    blocked = {rank: log[-1] for rank, log in enumerate(logs) if log[-2:-1] == ["block"]}
    collectives = [[one for one in log if one.split()[0] in COLLECTIVES] for log in logs]

    def waits_for(rank: int) -> list[int]:
        name, _, rest = blocked[rank].partition(" ")
        if name in COLLECTIVES:  # for the ranks whose k-th collective is not this one
            k = len(collectives[rank]) - 1
            others = [int(rest)] if rest else range(len(logs))  # a broadcast: for its root
            return [r for r in others if collectives[r][k : k + 1] != [blocked[rank]]]
        peer, _, suffix = rest.partition(" ")  # such as "tag 3", or nothing
        if peer == "any":
            return []  # which rank will send is unknown
        # The k-th receive needs the k-th send, and a send that waits needs a receive.
        needed = [f"send {rank}"] if name == "recv" else [f"recv {rank}", "recv any"]
        entries = [f"{each} {suffix}".strip() for each in needed]
        answers = sum(logs[int(peer)].count(entry) for entry in entries)
        return [int(peer)] if answers < logs[rank].count(blocked[rank]) else []

    def follow(path: list[int]) -> list[int]:
        for rank in waits_for(path[-1]):
            if rank in path or logs[rank][-1:] == ["finished"]:
                return [*path, rank]
            if rank in blocked and (found := follow([*path, rank])):
                return found
        return []

    for path in filter(None, (follow([rank]) for rank in blocked)):
        pairs = list(itertools.pairwise(path))
        reason = "; ".join(f"rank {a} is blocked in {blocked[a]}, for rank {b}" for a, b in pairs)
        if path[-1] not in blocked:
            return f"{reason}, which has finished."
        if any({blocked[r].split()[0] for r in pair} <= set(COLLECTIVES) for pair in pairs):
            reason += "; all ranks must call the same collectives in the same order"
        return f"{reason}."
    return ""


# The ranks write these logs by themselves if we replace the functions of torch.distributed.


def report_operations(tell: Callable[[str], object]) -> None:
    """Make torch.distributed `tell` each operation, as `find_deadlock` reads it.

    Operations on a part of the ranks are left out, and so is every `wait()`, as after `isend` or
    with `async_op=True`: a deadlock there is not found. None is invented where each rank has one
    thread, calls these functions as `dist.name(...)`, and catches no error of theirs.
    """

    def replace(name: str) -> None:
        operation = getattr(dist, name)
        signature = inspect.signature(operation)

        def call(*args: Any, **options: Any) -> Any:
            given = signature.bind(*args, **options).arguments
            if given.get("group") not in (None, dist.group.WORLD):
                return operation(*args, **options)
            if name in ("isend", "irecv"):  # `send` and `recv` call them
                peers = [given[key] for key in given if key.endswith(("dst", "src"))]
                peer = next((peer for peer in peers if peer is not None), "any")
                tell(f"{name[1:]} {peer}" + (f" tag {given['tag']}" if given.get("tag") else ""))
                return operation(*args, **options)
            tell("block")  # a call of `send` tells block, then send as above, then end
            if name in COLLECTIVES:
                roots = [given[key] for key in ("src", "group_src") if given.get(key) is not None]
                tell(" ".join([name, *map(str, roots)]))  # a broadcast has a root
            result = operation(*args, **options)
            tell("end")
            return result

        setattr(dist, name, call)
        setattr(dist.distributed_c10d, name, call)  # torch has each function in two modules

    for name in ("isend", "irecv", "send", "recv", *COLLECTIVES):
        replace(name)


# ------------------------------------------------------------------ 12. The launcher, and recovery
#
# What remains is to start the ranks. A fork copies this process with everything that is imported,
# in milliseconds. The copies find each other through a store, a small server for keys and values,
# and a pipe from each rank brings us its log and in the end its result.


def launch(fn: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """Run `fn(*args)` on forked ranks and return their results; if one fails, end them all.

    Raises: RuntimeError with the traceback of the rank that failed, or that says which rank has
    died or why none can proceed. When this returns or raises, no rank, port or file is left.
    """
    store: Any = None
    fork = multiprocessing.get_context("fork")
    processes, pipes, results = [], list[Connection](), dict[int, Any]()
    logs: list[list[str]] = [[] for _ in range(ranks)]
    try:
        for rank in range(ranks):
            ours, theirs = fork.Pipe()
            pipes.append(ours)
            about = (rank, ranks, theirs, pipes, fn, args)
            processes.append(fork.Process(target=run_rank, args=about, name=f"rank {rank}"))
            processes[-1].start()
            theirs.close()  # only the rank has this end now, so the pipe ends when the rank dies
        # The store has a thread. A fork copies the locks that it holds, but not the thread that
        # would release them, so a rank that was forked while the store runs could wait forever.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore
        for pipe in pipes:
            pipe.send(store.port)
        while len(results) < ranks:
            ready = wait(pipes, timeout=0.1)
            # We look only while no entry is on its way. A rank tells of each operation before it
            # begins, so what is in no log has not begun.
            if not ready and (reason := find_deadlock(logs)):
                raise RuntimeError(f"deadlock: {reason}")
            for rank in [rank for rank in range(ranks) if pipes[rank] in ready]:
                try:
                    kind, value = pipes[rank].recv()
                except (EOFError, OSError):  # the other end is closed: the rank has died
                    kind, value = "died", ""
                if kind in ("error", "died"):  # errors may come before the death that caused them
                    ended = wait([each.sentinel for each in processes], timeout=1.0)
                    dead = [each for each in processes if each.sentinel in ended]
                    for each in dead:
                        each.join()  # connections close a moment before there is an exit code
                    causes = [f"{each.name} died, exit code {each.exitcode}" for each in dead]
                    raise RuntimeError("; ".join(causes) or f"rank {rank} failed:\n{value}")
                if kind == "result":
                    results[rank] = pickle.loads(value)
                logs[rank].append("finished" if kind == "result" else value)
        return [results[rank] for rank in range(ranks)]
    finally:
        for process, pipe in zip(processes, pipes, strict=False):
            process.kill()
            process.join()
            process.close()
            pipe.close()
        # Close the store and its port now, although an exception's traceback keeps this frame.
        store = None


def run_rank(
    rank: int, ranks: int, pipe: Connection, launcher_ends: Any, fn: Any, args: Any
) -> None:
    """Be one rank: join the group, run the function, send the result or the error to the launcher.

    Then wait to be ended: if a rank closed its connections, slower ranks would take it for dead.
    """
    for end in launcher_ends:
        end.close()  # only the launcher has these ends now, so pipes end when the launcher dies
    try:
        torch.set_num_threads(1)  # a fork has none of the threads that this process had started
        # Loopback, so that gloo neither looks up this machine's name nor listens to others.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
        store = dist.TCPStore("127.0.0.1", pipe.recv())  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        report_operations(lambda entry: pipe.send(("operation", entry)))
        # Pickled here, so that a result that cannot be pickled is this rank's error.
        report: tuple[str, Any] = "result", pickle.dumps(fn(*args))
    except BaseException:  # noqa: BLE001  also SystemExit: the launcher must hear of it
        report = "error", traceback.format_exc()
    sys.stdout.flush()  # the launcher kills this process, and with it what waits in its memory
    with contextlib.suppress(OSError, EOFError):  # they mean that the launcher has ended
        pipe.send(report)
        pipe.recv()


# With the launcher and a checkpoint, recovery is a loop.


def launch_until_done(fn: Callable[..., Any], ranks: int, restarts: int, *args: Any) -> list[Any]:
    """Launch a job that begins with `load`, again after each failure, up to `restarts` times.

    The work since the last checkpoint is lost, and no more, if all ranks continue with the same
    step. If each rank saves its own file, one may die when another has already saved. So
    `training/checkpoint.py` gives a checkpoint its name only when all ranks have saved.
    """
    for _ in range(restarts):
        with contextlib.suppress(RuntimeError):
            return launch(fn, ranks, *args)
    return launch(fn, ranks, *args)
