"""Answers to 04/recompute: mistakes people make, and right answers written differently."""

import torch
from torch.utils.checkpoint import checkpoint


class Right(torch.autograd.Function):
    """What the wrong ones begin with; it stands among the right ones under another name."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.layer = layer
        ctx.save_for_backward(*inputs)
        return layer(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


# Wrong ------------------------------------------------------------------------------


class NotCutOff(Right):
    """The inputs of the second run hang on the graph of the first."""

    @staticmethod
    def backward(ctx, gradient):
        inputs = ctx.saved_tensors
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class LayerOnTheClass(torch.autograd.Function):
    """Where the next checkpoint finds another one."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        LayerOnTheClass.layer = layer
        ctx.save_for_backward(*inputs)
        return layer(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        with torch.enable_grad():
            output = LayerOnTheClass.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class InputsOnTheClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.layer = layer
        InputsOnTheClass.inputs = inputs
        return layer(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        given = InputsOnTheClass.inputs
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in given]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class AskedOfTheFirstGraph(Right):
    """Right gradients, of inputs that are not cut off: parameters get none."""

    @staticmethod
    def backward(ctx, gradient):
        inputs = ctx.saved_tensors
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        trained = [one for one in inputs if one.requires_grad]
        found = iter(torch.autograd.grad(output, trained, gradient))
        return (None, *(next(found) if one.requires_grad else None for one in inputs))


class CutOffWithoutGradients(Right):
    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach() for one in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class GradientsForAll(Right):
    """Also for whole numbers, which have none."""

    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_() for one in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class NotRecorded(Right):
    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class GradientIgnored(Right):
    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.layer(*inputs).sum()
        output.backward()
        return (None, *(one.grad for one in inputs))


class GradientTwice(Right):
    @staticmethod
    def backward(ctx, gradient):
        found = Right.backward(ctx, gradient)
        return (None, *(one if one is None else one * gradient.mean() for one in found[1:]))


class LayerWithoutNone(Right):
    @staticmethod
    def backward(ctx, gradient):
        return Right.backward(ctx, gradient)[1:]


class NoneLeftOut(Right):
    """Only the inputs that need a gradient get a value."""

    @staticmethod
    def backward(ctx, gradient):
        return (None, *(one for one in Right.backward(ctx, gradient) if one is not None))


class NothingReturned(Right):
    @staticmethod
    def forward(ctx, layer, *inputs):
        Right.forward(ctx, layer, *inputs)


class ListReturned(Right):
    @staticmethod
    def forward(ctx, layer, *inputs):
        return [Right.forward(ctx, layer, *inputs)]


class FirstInputOnly(Right):
    @staticmethod
    def backward(ctx, gradient):
        found = Right.backward(ctx, gradient)
        return (*found[:2], *[None] * (len(found) - 2))


class NothingForInputs(Right):
    @staticmethod
    def backward(ctx, gradient):
        return tuple(None for _ in Right.backward(ctx, gradient))


class ParametersTwice(Right):
    """Goes back once for the inputs and once for the parameters."""

    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient, retain_graph=True)
        found = [one.grad if one.grad is None else one.grad.clone() for one in inputs]
        output.backward(gradient)
        return (None, *found)


class ParametersZeroed(Right):
    @staticmethod
    def backward(ctx, gradient):
        ctx.layer.zero_grad()
        return Right.backward(ctx, gradient)


class GraphKept(torch.autograd.Function):
    """No second run: the first one is recorded, and kept."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.inputs = [one.detach().requires_grad_(one.requires_grad) for one in inputs]
        ctx.save_for_backward(*inputs)
        with torch.enable_grad():
            ctx.output = layer(*ctx.inputs)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.output.backward(gradient, retain_graph=True)
        assert ctx.saved_tensors is not None
        return (None, *(one.grad for one in ctx.inputs))


class GraphKeptForNothing(Right):
    """Recorded and kept, and run again all the same."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.layer = layer
        ctx.save_for_backward(*inputs)
        with torch.enable_grad():
            ctx.output = layer(*inputs)
        return ctx.output.detach()


class OutputSaved(Right):
    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.layer, output = layer, layer(*inputs)
        ctx.save_for_backward(*inputs, output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        *saved, _ = ctx.saved_tensors
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in saved]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class CopiesSaved(Right):
    """Of the inputs, beside them."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.layer, ctx.count = layer, len(inputs)
        ctx.save_for_backward(*inputs, *(one.clone() for one in inputs))
        return layer(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        saved = ctx.saved_tensors[: ctx.count]
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in saved]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class OncePerInput(Right):
    @staticmethod
    def backward(ctx, gradient):
        found = []
        for place, wanted in enumerate(ctx.saved_tensors):
            if not wanted.requires_grad:
                found.append(None)
                continue
            inputs = [one.detach() for one in ctx.saved_tensors]
            inputs[place].requires_grad_()
            with torch.enable_grad():
                output = ctx.layer(*inputs)
            if found:
                found += torch.autograd.grad(output, [inputs[place]], gradient)
            else:
                output.backward(gradient)
                found.append(inputs[place].grad)
        return (None, *found)


class TwiceInForward(Right):
    @staticmethod
    def forward(ctx, layer, *inputs):
        shape = layer(*inputs).shape
        return Right.forward(ctx, layer, *inputs).view(shape)


class InputsOnContext(Right):
    """Nobody notices where one is changed."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.layer, ctx.inputs = layer, inputs
        return layer(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in ctx.inputs]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class FirstInputSaved(Right):
    """The others are taken for whole numbers and the like."""

    @staticmethod
    def forward(ctx, layer, first, *others):
        ctx.layer, ctx.first, ctx.others = layer, first.detach(), others
        ctx.save_for_backward(*others)
        return layer(first, *others)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [ctx.first.requires_grad_()]
        inputs += [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.layer(*inputs)
        output.backward(gradient)
        return (None, *(one.grad for one in inputs))


class OutputOfTheInputs(Right):
    """The layer gets its first input only."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.layer = layer
        ctx.save_for_backward(*inputs)
        return layer(inputs[0])


class ReturnsTheInputs(Right):
    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.layer = layer
        ctx.save_for_backward(*inputs)
        layer(*inputs)
        return inputs[0].clone()


class NotWritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, *inputs):
        raise NotImplementedError()

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError()


class BackwardNotWritten(Right):
    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("later")


class Plain:
    """No checkpoint."""

    @staticmethod
    def apply(layer, *inputs):
        return layer(*inputs)


class OfTorch:
    @staticmethod
    def apply(layer, *inputs):
        return checkpoint(layer, *inputs, use_reentrant=False)


# Right, written differently ---------------------------------------------------------


class WithLists(torch.autograd.Function):
    """Inputs that need no gradient are handed over as they were saved."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        output = layer(*inputs)
        ctx.save_for_backward(*inputs)
        ctx.run = layer
        return output

    @staticmethod
    def backward(ctx, gradient):
        inputs, results = [], [None]
        for saved, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True):
            inputs.append(saved.detach().requires_grad_() if needed else saved)
        torch.set_grad_enabled(True)
        output = ctx.run(*inputs)
        torch.set_grad_enabled(False)
        torch.autograd.backward([output], [gradient])
        for one in inputs:
            results.append(one.grad)
        return tuple(results)


class WithGradientsAskedFor(torch.autograd.Function):
    """By torch.autograd.grad, and added to the parameters' own by hand."""

    @staticmethod
    def forward(ctx, layer, *inputs):
        ctx.save_for_backward(*inputs)
        ctx.layer = layer
        with torch.no_grad():
            return layer(*inputs)

    @staticmethod
    @torch.enable_grad()
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        weighed = (ctx.layer(*inputs) * gradient).sum()
        parameters = list(ctx.layer.parameters())
        trained = [one for one in inputs if one.requires_grad]
        found = list(torch.autograd.grad(weighed, trained + parameters))
        results = [found.pop(0) if one.requires_grad else None for one in inputs]
        for parameter, new in zip(parameters, found, strict=True):
            parameter.grad = new if parameter.grad is None else parameter.grad + new
        return (None, *results)


RIGHT = [Right, WithLists, WithGradientsAskedFor]

WRONG = {
    NotCutOff: {"gradients": "cut the inputs off with detach()"},
    LayerOnTheClass: {"chain": "two checkpoints behind another layer"},
    InputsOnTheClass: {
        "chain": "two checkpoints behind another layer",
        "changed": "backward raises no error",
    },
    AskedOfTheFirstGraph: {"gradients": "torch.autograd.grad adds nothing to .grad"},
    CutOffWithoutGradients: {"gradients": "x has not arrived: it is None"},
    GradientsForAll: {"gradients": "Set requires_grad only on inputs that had it before"},
    NotRecorded: {"gradients": "autograd records only inside torch.enable_grad()"},
    GradientIgnored: {"gradients": "Do you use the gradient of the output"},
    GradientTwice: {"gradients": "the gradient of x is off by"},
    LayerWithoutNone: {"gradients": "None for the layer, and None for each input that needs no"},
    NoneLeftOut: {"gradients": "None for the layer, and None for each input that needs no"},
    NothingReturned: {"result": "forward returns None, not the output, a tensor"},
    ListReturned: {"result": "forward returns a list, not the output, a tensor"},
    FirstInputOnly: {"gradients": "the gradient of scale has not arrived"},
    NothingForInputs: {"gradients": "the gradient of x has not arrived"},
    ParametersTwice: {"gradients": "was added twice"},
    ParametersZeroed: {"gradients": "overwrote what was in .grad before"},
    GraphKept: {
        "kept": "of the tensors that the layer created are still in memory",
        "runs": "what is kept",
    },
    GraphKeptForNothing: {"kept": "stays"},
    OutputSaved: {"kept": ""},
    CopiesSaved: {"kept": "are saved for backward besides the inputs"},
    OncePerInput: {"runs": "2 times in backward"},
    TwiceInForward: {"runs": "2 times in forward"},
    InputsOnContext: {"changed": "backward raises no error"},
    FirstInputSaved: {"changed": "backward raises no error"},
    OutputOfTheInputs: {"result": "the output"},
    ReturnsTheInputs: {"result": "the output differs from that of the layer"},
    NotWritten: {"result": "Recompute is not written yet"},
    BackwardNotWritten: {"gradients": "later"},
    Plain: {"kept": "", "runs": "what is kept instead"},
    OfTorch: {"result": "does the work for you"},
}

EQUIVALENT = {
    "ctx.layer = layer; ctx.save_for_backward(*inputs) -> "
    "ctx.save_for_backward(*inputs); ctx.layer = layer": "both are kept, in any order",
    "ctx.save_for_backward(*inputs) -> "
    "ctx.save_for_backward(*inputs); ctx.save_for_backward(*inputs)": "the last call counts",
    "output.backward(gradient); gradients = [None] -> "
    "gradients = [None]; output.backward(gradient)": "a new list knows nothing of gradients",
}
