"""Answers to 05/stage_3: mistakes people make, and right answers written differently."""

from functools import partial, wraps

from torch import nn

from dtlab.parallel.zero.fully_sharded import NaiveZero3


class Hooks:
    """The hooks of one block; what others change something of."""

    def __init__(self, block, shard, gather, free, reduce):
        self.block = block
        self.flat, self.piece = shard(block)
        self.gather_, self.free_, self.reduce_ = gather, free, reduce
        self.waiting = set()
        self.begin()
        self.register()

    def begin(self):
        self.free()

    def register(self):
        self.block.register_forward_pre_hook(self.before_forward)
        self.block.register_forward_hook(self.after_forward)
        for parameter in self.block.parameters():
            parameter.register_post_accumulate_grad_hook(self.after_gradient)

    def gather(self):
        self.gather_(self.block, self.flat, self.piece)

    def free(self):
        self.free_(self.block, self.flat)

    def reduce(self):
        self.reduce_(self.block, self.piece)

    def before_forward(self, block, inputs):
        self.gather()

    def after_forward(self, block, inputs, output):
        self.free()
        output.register_hook(self.before_backward)

    def before_backward(self, gradient):
        self.gather()
        self.waiting.update(self.block.parameters())

    def after_gradient(self, parameter):
        self.waiting.discard(parameter)
        if not self.waiting:
            self.through()

    def through(self):
        self.free()
        self.reduce()


def right(blocks, *four):
    return [Hooks(block, *four).piece for block in blocks]


def hooked(kind):
    """The answer that hangs these hooks on every block."""
    return wraps(kind, updated=())(
        lambda blocks, *four: [kind(block, *four).piece for block in blocks]
    )


# Wrong ------------------------------------------------------------------------------------------


def untouched(blocks, shard, gather, free, reduce):
    raise NotImplementedError()


def returns_nothing(blocks, *four):
    right(blocks, *four)


def returns_flats(blocks, *four):
    return [Hooks(block, *four).flat for block in blocks]


def pieces_backwards(blocks, *four):
    return right(blocks, *four)[::-1]


def other_pieces(blocks, *four):
    """Copies, which nobody gathers."""
    return [nn.Parameter(one.detach().clone()) for one in right(blocks, *four)]


def the_last_piece_missing(blocks, *four):
    return right(blocks, *four)[:-1]


def shards_twice(blocks, shard, *others):
    right(blocks, shard, *others)
    return [shard(block)[1] for block in blocks]


@hooked
class NotInForward(Hooks):
    def before_forward(self, block, inputs):
        pass


@hooked
class AfterForward(Hooks):
    """One hook for both."""

    def before_forward(self, block, inputs):
        pass

    def after_forward(self, block, inputs, output):
        self.gather()
        super().after_forward(block, inputs, output)


def not_the_first_block(blocks, *four):
    hooks = [Hooks(block, *four) for block in blocks]
    hooks[0].gather = lambda: None
    return [one.piece for one in hooks]


def in_forward_only_once(blocks, *four):
    """By hand, before training."""

    class Once(Hooks):
        def begin(self):
            pass

        def before_forward(self, block, inputs):
            pass

    return [Once(block, *four).piece for block in blocks]


@hooked
class NotInBackward(Hooks):
    def before_backward(self, gradient):
        self.waiting.update(self.block.parameters())


@hooked
class WhenTheFirstGradientIsThere(Hooks):
    """The weights were needed before that."""

    def before_backward(self, gradient):
        self.waiting.update(self.block.parameters())

    def after_gradient(self, parameter):
        self.gather()
        super().after_gradient(parameter)


@hooked
class StaysWhole(Hooks):
    """reshard_after_forward=False, and not freed at all."""

    def after_forward(self, block, inputs, output):
        output.register_hook(self.before_backward)

    def before_backward(self, gradient):
        self.waiting.update(self.block.parameters())

    def free(self):
        pass


@hooked
class WholeBetweenForwardAndBackward(Hooks):
    def after_forward(self, block, inputs, output):
        output.register_hook(self.before_backward)

    def before_backward(self, gradient):
        self.waiting.update(self.block.parameters())


@hooked
class NotFreedAfterBackward(Hooks):
    def through(self):
        self.reduce()


@hooked
class WholeAtFirst(Hooks):
    def begin(self):
        pass


def all_at_once(blocks, *four):
    """One giant gather, at the first block."""
    hooks = [Hooks(block, *four) for block in blocks]

    def gather_all(block, inputs):
        for one in hooks:
            one.gather()

    blocks[0].register_forward_pre_hook(gather_all)
    return [one.piece for one in hooks]


@hooked
class ReducesForEachParameter(Hooks):
    def after_gradient(self, parameter):
        self.reduce()
        self.waiting.discard(parameter)
        if not self.waiting:
            self.free()


@hooked
class NeverReduces(Hooks):
    def through(self):
        self.free()


@hooked
class ReducesTwice(Hooks):
    def through(self):
        self.free()
        self.reduce()
        self.reduce()


@hooked
class ReducesWithTheFirstGradient(Hooks):
    def after_gradient(self, parameter):
        if len(self.waiting) == len(list(self.block.parameters())):
            self.reduce()
        self.waiting.discard(parameter)
        if not self.waiting:
            self.free()


@hooked
class ReducesBeforeBackward(Hooks):
    def before_backward(self, gradient):
        super().before_backward(gradient)
        self.reduce()

    def through(self):
        self.free()


@hooked
class ReducesWhileItIsWhole(Hooks):
    """Its weights and two copies of its gradients are there at a time."""

    def through(self):
        self.reduce()
        self.free()


def by_the_library(blocks, *four):
    NaiveZero3(nn.Sequential(*blocks), blocks=blocks)
    return right(blocks, *four)


# Right ------------------------------------------------------------------------------------------


@hooked
class ByModules(Hooks):
    """Hooks of PyTorch's own for the beginning of backward, and counting."""

    def register(self):
        self.left = self.count = len(list(self.block.parameters()))
        self.block.register_forward_pre_hook(lambda *_: self.gather())
        self.block.register_forward_hook(lambda *_: self.free())
        self.block.register_full_backward_pre_hook(lambda *_: self.gather())
        for parameter in self.block.parameters():
            parameter.register_post_accumulate_grad_hook(self.counted)

    def counted(self, parameter):
        self.left -= 1
        if self.left == 0:
            self.left = self.count
            self.through()


def with_partial(blocks, shard, gather, free, reduce):
    pieces, arrived = [], set()

    def before(block, flat, piece, *_):
        gather(block, flat, piece)

    def after(block, flat, piece, module, inputs, output):
        free(block, flat)
        output.register_hook(partial(before, block, flat, piece))

    def complete(block, flat, piece, parameter):
        arrived.add(id(parameter))
        if all(id(one) in arrived for one in block.parameters()):
            for one in block.parameters():
                arrived.discard(id(one))
            free(block, flat)
            reduce(block, piece)

    for block in blocks:
        flat, piece = shard(block)
        free(block, flat)
        block.register_forward_pre_hook(partial(before, block, flat, piece))
        block.register_forward_hook(partial(after, block, flat, piece))
        for parameter in block.parameters():
            parameter.register_post_accumulate_grad_hook(partial(complete, block, flat, piece))
        pieces.append(piece)
    return pieces


RIGHT = [right, ByModules, with_partial]

ONCE_MORE = "That sends the whole block again"
WRONG = {
    untouched: {"result": "is not written yet"},
    returns_nothing: {"result": "stage_3 returns NoneType"},
    returns_flats: {"result": "Return the pieces of shard"},
    pieces_backwards: {"result": "Return the pieces of shard"},
    other_pieces: {"result": "is off by up to"},
    the_last_piece_missing: {"result": "is missing"},
    shards_twice: {"result": "", "peak": ""},
    NotInForward: {"forward": "computes in forward while it is freed"},
    AfterForward: {"forward": "computes in forward while it is freed"},
    not_the_first_block: {"forward": "block 0 computes in forward", "backward": "block 0"},
    in_forward_only_once: {"forward": "computes in forward while it is freed", "peak": ""},
    NotInBackward: {"backward": "computes in backward while it is freed"},
    WhenTheFirstGradientIsThere: {"backward": "computes in backward while it is freed"},
    StaysWhole: {"peak": "whole at the same time", "forward": ONCE_MORE},
    WholeBetweenForwardAndBackward: {"peak": "whole at the same time"},
    NotFreedAfterBackward: {"peak": "whole at the same time", "forward": ONCE_MORE},
    WholeAtFirst: {"peak": "Free a block before the first step"},
    all_at_once: {"peak": "whole at the same time", "forward": ONCE_MORE},
    ReducesForEachParameter: {"reduce": "before all its gradients exist"},
    NeverReduces: {"reduce": "is reduced 0 times"},
    ReducesTwice: {"reduce": "is reduced"},
    ReducesWithTheFirstGradient: {"reduce": "before all its gradients exist"},
    ReducesBeforeBackward: {"reduce": "before all its gradients exist"},
    ReducesWhileItIsWhole: {"peak": "is reduced while it is whole"},
    by_the_library: {"result": "finished code"},
}

SOON = "the hook is called in backward, long after both"
TWICE = "what is done twice is the same"
FREE = "neither needs the other"
EQUIVALENT = {
    "free(block, flat); output.register_hook(before_backward) -> "
    "output.register_hook(before_backward); free(block, flat)": SOON,
    "line 16: free(block, flat) -> free(block, flat); free(block, flat)": TWICE,
    "gather(block, flat, piece); waiting.update(block.parameters()) -> "
    "waiting.update(block.parameters()); gather(block, flat, piece)": FREE,
    "waiting.update(block.parameters()) -> waiting.update(block.parameters()); "
    "waiting.update(block.parameters())": TWICE,
    "; def after_gradient(parameter):; ... -> free(block, flat); ; ...": FREE,
    "waiting.discard(parameter) -> waiting.discard(parameter); waiting.discard(parameter)": TWICE,
    "line 26: free(block, flat) -> free(block, flat); free(block, flat)": TWICE,
    "free(block, flat); block.register_forward_pre_hook(before_forward) -> "
    "block.register_forward_pre_hook(before_forward); free(block, flat)": FREE,
    "line 29: free(block, flat) -> free(block, flat); free(block, flat)": TWICE,
    "block.register_forward_pre_hook(before_forward); "
    "block.register_forward_hook(after_forward) -> "
    "block.register_forward_hook(after_forward); "
    "block.register_forward_pre_hook(before_forward)": FREE,
    "block.register_forward_hook(after_forward); for parameter in "
    "block.parameters():; "
    "parameter.register_post_accumulate_grad_hook(after_gradient) -> for "
    "parameter in block.parameters():; "
    "parameter.register_post_accumulate_grad_hook(after_gradient); "
    "block.register_forward_hook(after_forward)": FREE,
}
