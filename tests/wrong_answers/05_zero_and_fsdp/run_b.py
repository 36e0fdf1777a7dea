"""Answers to 05/run_b: layers that do not have the policy of the root.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import SGD

from dtlab.parallel.zero import Zero3
from dtlab.units.unit05.runs_scripts import Layer, train_b
from tests.wrong_answers.diagnoses import numbers_near
from tests.wrong_answers.sharded_runs import changes_alike

SAID = {"number": 8384, "line": 6}
HALF, SINGLE = torch.bfloat16, torch.float32


def trained(
    model, batches, layers=(HALF, SINGLE), root=(HALF, SINGLE, SINGLE), rate=0.1, cut=True
):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers if cut else ():
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(*layers))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(*root))
    return stepped(model, batches, rate)


def stepped(model, batches, rate=0.1):
    optimizer = SGD(model.parameters(), lr=rate)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": trained}


# Wrong ------------------------------------------------------------------------------------------


def a_whole_step():
    return said(number=50304)


def the_whole_run():
    return said(number=4 * 50304)


def as_in_float32():
    return said(number=16768)


def a_ranks_part():
    return said(number=4192)


def the_root():
    return said(number=9640)


def the_line_of_the_root():
    return said(line=7)


def the_line_of_the_wrapper():
    return said(line="fully_shard(model, mesh=mesh, mp_policy=for_all)")


def a_function_alone():
    return trained


@fixed
def not_written(model, batches):
    raise NotImplementedError()


@fixed
def still_broken(model, batches):
    return train_b(model, batches)


@fixed
def without_it_at_the_root(model, batches):
    return trained(model, batches, root=(HALF, None, SINGLE))


@fixed
def the_other_one_for_both(model, batches):
    return trained(model, batches, (HALF, None), (HALF, None, SINGLE))


@fixed
def the_roots_policy_for_all(model, batches):
    """Layers then give float32 to what is in no layer, and that has its weights in bfloat16."""
    return trained(model, batches, (HALF, SINGLE, SINGLE))


@fixed
def reduced_in_float16(model, batches):
    return trained(model, batches, (HALF, torch.float16))


@fixed
def nothing_is_added_up(model, batches):
    return stepped(model, batches)


@fixed
def all_in_float32(model, batches):
    return trained(model, batches, (SINGLE, SINGLE, SINGLE), (SINGLE, SINGLE, SINGLE))


@fixed
def losses_rounded(model, batches):
    return trained(model, batches, root=(HALF, SINGLE, HALF))


@fixed
def the_root_alone(model, batches):
    """As in FSDP1, but there were wrapped layers there."""
    return trained(model, batches, cut=False)


@fixed
def never_steps(model, batches):
    return trained(model, batches, rate=0.0)


@fixed
def another_rate(model, batches):
    return trained(model, batches, rate=5.0)


# Right ------------------------------------------------------------------------------------------


@fixed
def reduce_dtype_in_layers(model, batches):
    return trained(model, batches)


@fixed
def outputs_by_hand(model, batches):
    """One policy for all, without output_dtype."""

    def in_float32(module, inputs, output):
        return output.float()

    model.leave.register_forward_hook(in_float32)
    return trained(model, batches, root=(HALF, SINGLE))


@fixed
def by_our_own(model, batches):
    class Wide(Zero3):
        def forward(self, *inputs):
            return super().forward(*inputs).float()

    return stepped(Wide(model, blocks=Layer, dtype=HALF, reduce_dtype=SINGLE), batches)


def said_by_text():
    return said(number="8384", line="fully_shard(layer, mesh=mesh, mp_policy=in_layers)")


RIGHT = [reduce_dtype_in_layers, outputs_by_hand, by_our_own, said_by_text]

WRONG = {
    a_whole_step: {"number": "that is all layers of a step"},
    the_whole_run: {"number": "that is the whole run"},
    as_in_float32: {"number": "the bytes in float32"},
    a_ranks_part: {"number": "the part that one rank keeps"},
    the_root: {"number": "which is right"},
    the_line_of_the_root: {"line": "does what it should here"},
    the_line_of_the_wrapper: {"line": "does what it should here"},
    a_function_alone: {"number": "run_b must be a dict"},
    not_written: {"gradients": "not_written is not written yet"},
    still_broken: {"gradients": "are sent in 16 bits"},
    without_it_at_the_root: {"gradients": "are sent in 16 bits"},
    the_other_one_for_both: {"gradients": "are sent in 16 bits"},
    the_roots_policy_for_all: {"gradients": "which modules need it"},
    reduced_in_float16: {"gradients": "are sent in 16 bits"},
    nothing_is_added_up: {"gradients": "not all gradients", "training": "layers compute in"},
    all_in_float32: {"training": "layers compute in float32"},
    losses_rounded: {"training": "no more digits than bfloat16"},
    the_root_alone: {"training": "still a separate block"},
    another_rate: {"training": "Change only what is broken"},
}

_IMPORT = "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard"
_MESH = "mesh = init_device_mesh('cpu', (dist.get_world_size(),))"
_FORMATS = "torch.bfloat16, torch.float32, output_dtype=torch.float32"
_FOR_ALL = f"for_all = MixedPrecisionPolicy({_FORMATS})"
_LAYERS = "for layer in model.layers:"
_SHARDED = f"{_LAYERS}; fully_shard(layer, mesh=mesh, mp_policy=in_layers)"
_NOTED = "losses.append(loss.item())"
EQUIVALENT = {
    **numbers_near("diagnosis_b = {'number': 8384, 'line': 6}", 8384),
    **changes_alike("model"),
    f"{_IMPORT}; {_MESH} -> {_MESH}; {_IMPORT}": "neither needs the other",
    f"{_FOR_ALL}; {_SHARDED} -> {_SHARDED}; {_FOR_ALL}": "neither needs the other",
    f"{_LAYERS} -> for layer in reversed(model.layers):": "layers are wrapped in any order",
    f"{_NOTED} -> {_NOTED}; for images, labels in batches:; ...": "batches come once only",
}
