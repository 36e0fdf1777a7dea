"""Answers to 00/train_within: a run that keeps too much, fixed."""

import torch
from torch.nn import functional as F

# Right, written differently -------------------------------------------------------------------


def general(model, optimizer, batches, held_out, *, leak="", graph=False, clear="after"):
    """The fixed script; the keywords leave faults in."""
    sums, counts, losses, kept = [], [], [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        if clear == "before":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clear == "after":
            optimizer.zero_grad()
        sums.append(float(output.sum()))
        counts.append(output.numel())
        if leak == "detached":
            kept.append(output.detach())
        if leak == "whole":
            kept.append(output)
        if leak == "cloned":
            kept.append(output.detach().clone())
        if clear == "after evaluation":
            with torch.no_grad():
                losses.append(float(F.mse_loss(model(held_out[0]), held_out[1])))
            optimizer.zero_grad()
            continue
        with torch.set_grad_enabled(graph):
            losses.append(float(F.mse_loss(model(held_out[0]), held_out[1])))
    return sum(sums) / sum(counts), losses


def running_sums(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out)


@torch.no_grad()
def held_out_loss(model, rows):
    return F.mse_loss(model(rows[0]), rows[1]).item()


def with_functions(model, optimizer, batches, held_out):
    """Names that end with their function; tensors for the mean."""

    def one_step(x, y):
        output = model(x)
        F.mse_loss(output, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.tensor([output.detach().sum(), output.numel()])

    sums, losses = [], []
    for x, y in batches:
        sums.append(one_step(x, y))
        losses.append(held_out_loss(model, held_out))
    total, count = torch.stack(sums).sum(0)
    return total / count, losses


def generator_of_gradients(model, optimizer, batches, held_out):
    """Sets .grad to None itself, and evaluates in inference mode."""
    total, count, losses = 0.0, 0, []
    for x, y in batches:
        output = model(x)
        F.mse_loss(output, y).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
        total, count = total + output.sum().item(), count + output.numel()
        del output
        with torch.inference_mode():
            losses.append(F.mse_loss(model(held_out[0]), held_out[1]).item())
    return total / count, losses


# Wrong ----------------------------------------------------------------------------------------


def as_it_was(model, optimizer, batches, held_out):
    inputs, targets = held_out
    outputs, losses = [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs.append(output)
        losses.append(F.mse_loss(model(inputs), targets).item())
    return torch.cat(outputs).mean().item(), losses


def keeps_outputs(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out, leak="whole")


def keeps_them_detached(model, optimizer, batches, held_out):
    """detach() lets go of the graph, not of the memory."""
    return general(model, optimizer, batches, held_out, leak="detached")


def mean_of_means(model, optimizer, batches, held_out):
    """The last batch is smaller."""
    means, losses = [], []
    for x, y in batches:
        output = model(x)
        means.append(output.detach().mean().item())
        F.mse_loss(output, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        del output
        losses.append(held_out_loss(model, held_out))
    return sum(means) / len(means), losses


def keeps_copies(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out, leak="cloned")


def records_evaluation(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out, graph=True)


def eval_mode(model, optimizer, batches, held_out):
    """model.eval() changes dropout and batch norm, and nothing of what autograd keeps."""
    model.eval()
    return general(model, optimizer, batches, held_out, graph=True)


def clears_before_backward(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out, clear="before")


def clears_after_evaluation(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out, clear="after evaluation")


def two_faults_left(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out, graph=True, clear="before")


def leaks_and_records(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out, leak="whole", graph=True)


def never_cleared(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out, clear="never")


def evaluates_before_the_step(model, optimizer, batches, held_out):
    losses, total, count = [], 0.0, 0
    for x, y in batches:
        losses.append(held_out_loss(model, held_out))
        output = model(x)
        F.mse_loss(output, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        total, count = total + output.sum().item(), count + output.numel()
    return total / count, losses


def evaluates_once(model, optimizer, batches, held_out):
    mean, losses = general(model, optimizer, batches, held_out)
    return mean, losses[-1:]


def mean_of_the_last(model, optimizer, batches, held_out):
    _, losses = general(model, optimizer, batches, held_out)
    with torch.no_grad():
        return model(batches[-1][0]).mean().item(), losses


def no_training(model, optimizer, batches, held_out):
    with torch.no_grad():
        outputs = [model(x).mean().item() for x, _ in batches]
    losses = [held_out_loss(model, held_out) for _ in batches]
    return sum(outputs) / len(outputs), losses


def losses_alone(model, optimizer, batches, held_out):
    return general(model, optimizer, batches, held_out)[1]


RIGHT = [running_sums, with_functions, generator_of_gradients]

WRONG = {
    as_it_was: {"steps": "", "rows": "", "weights": ""},
    keeps_outputs: {"steps": "grows with their number"},
    keeps_them_detached: {"steps": "This run has many steps"},
    keeps_copies: {"steps": "grows with their number"},
    records_evaluation: {"rows": "grows with their activations"},
    eval_mode: {"rows": "the run peaks at"},
    clears_before_backward: {"weights": "twice their bytes"},
    clears_after_evaluation: {"weights": ""},
    two_faults_left: {"rows": "", "weights": ""},
    leaks_and_records: {"steps": "", "rows": ""},
    never_cleared: {"results": "the loss on the held-out rows after step 1"},
    evaluates_before_the_step: {"results": "after step 0"},
    evaluates_once: {"results": "1 loss; there are 24 steps"},
    mean_of_the_last: {"results": "the mean of the outputs"},
    no_training: {"results": "change only its memory use"},
    mean_of_means: {"results": "the mean of the outputs"},
    losses_alone: {"results": ""},
}

_AGAIN = "done once more, with the same outcome"
_APART = "neither needs the other to have been done"
_LOSS = "the loss is the same both ways round"
_NUMBER = "a number either way"

EQUIVALENT = {
    "loss = F.mse_loss(output, y) -> loss = F.mse_loss(y, output)": _LOSS,
    "optimizer.zero_grad(); total += output.sum().item() -> total += output.sum()"
    ".item(); optimizer.zero_grad()": _APART,
    "optimizer.zero_grad() -> optimizer.zero_grad(); optimizer.zero_grad()": _AGAIN,
    "total += output.sum().item(); count += output.numel() -> count += output.num"
    "el(); total += output.sum().item()": _APART,
    "total += output.sum().item() -> total = total + output.sum().item()": _NUMBER,
    "count += output.numel(); with torch.no_grad():; losses.append(F.mse_loss(mod"
    "el(inputs), targets).item()) -> with torch.no_grad():; losses.append(F.mse_l"
    "oss(model(inputs), targets).item()); count += output.numel()": _APART,
    "count += output.numel() -> count = count + output.numel()": _NUMBER,
    "losses.append(F.mse_loss(model(inputs), targets).item()) -> losses.append(F."
    "mse_loss(targets, model(inputs)).item())": _LOSS,
}
