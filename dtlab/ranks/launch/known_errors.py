"""Plain sentences for errors of torch.distributed that learners meet often."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from traceback import walk_tb

from torch.nn.parallel import DistributedDataParallel

from dtlab.ranks.protocol import Frame
from dtlab.ranks.watch.locate import is_learners

_UNUSED = re.compile(
    r"Expected to have finished reduction in the prior iteration.*?for rank \d+: ([\d ]+)"
    r"(\s+In addition, .*?as part of this error)?",
    re.DOTALL,
)


def _name(match: re.Match[str]) -> str:
    """The name in torch.distributed of a collective that gloo's message calls `match[1]`."""
    names = {"allgather": "all_gather", "alltoall": "all_to_all", "allreduce": "all_reduce"}
    return names.get(match[1], match[1])


_SENTENCES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"module 'torch\._C' has no attribute '_cuda_\w+'"
                   r"|Torch not compiled with CUDA enabled"
                   r"|Cannot access accelerator device when none is available\."
                   r"|torch\.cuda\.Stream requires CUDA support"
                   r"|Tried to instantiate dummy base class (Event|Stream)"),
        'PyTorch finds no GPU here. Write "cpu" as the device, and leave out torch.cuda, '
        "pin_memory and offloading.",
    ),
    (
        re.compile(r"No CUDA GPUs are available|no CUDA-capable device is detected"),
        'The ranks have no GPU: there is none, or there are fewer GPUs than ranks. Write "cpu" as '
        'the device, or start one rank for each GPU; with backend="gloo" ranks share GPUs.',
    ),
    (
        re.compile(r"FSDP needs a non-CPU accelerator device, but no accelerator device is "
                   r"detected\."),
        'FullyShardedDataParallel finds no GPU here. Pass device_id=torch.device("cpu"), or use '
        "fully_shard.",
    ),
    (
        re.compile(r"Global rank (\d+) is not part of group <.*?>"),
        r"Global rank \1 is not part of the group. dst= and src= take global ranks, even with "
        "group=; group_dst= and group_src= take numbers in the group, from dist.get_rank(group).",
    ),
    (
        re.compile(r"Invalid function argument\. Expected parameter `(\w+)` of type (\S+)\s+"
                   r"but got <class 'NoneType'> instead\."),
        r"`\1` is None, and must be a \2. The .grad of a tensor is None before backward, and "
        "always without requires_grad.",
    ),
    (
        re.compile(r"setStorage: sizes .* out of bounds for storage of size 0"),
        "the storage of this tensor has 0 bytes: give it memory again before you use it.",
    ),
    (
        re.compile(r"Output \d+ of \w+ is a view and is being modified inplace\..*", re.DOTALL),
        "autograd records that a view of this tensor is changed in place. A collective needs "
        "tensors without a graph: use detach(), or torch.no_grad().",
    ),
    (
        re.compile(r"Invalid (destination|source) rank: .*the rank of the current process\."),
        "a rank sends to itself. Check how you compute the number of the other rank. With one "
        "rank, send nothing.",
    ),
    (
        re.compile(r"\w*Error: \[enforce fail at \S*\] .*?you tried to allocate (\d+) bytes\. "
                   r"Error code 12 \(Cannot allocate memory\)", re.DOTALL),
        lambda match: f"this line asks for {int(match[1]):,} bytes more",
    ),
    (  # of NumPy
        re.compile(r"\S*MemoryError: Unable to allocate (\S+ \S+) for an array.*", re.DOTALL),
        r"this line asks for \1 more",
    ),
    (re.compile(r"^MemoryError$"), "this line asks for more than is left"),
    (
        re.compile(r"\S*\[\w+ [\d:.]+ ProcessGroupGloo\S+ Check failed: outputShape\[0\] \* "
                   r"worldSize == inputShape\[0\] \((\d+) vs\. (\d+)\)\.\s*"),
        r"the input of reduce_scatter must have world_size times as many rows as the output: "
        r"it has \2, and the output requires \1.",
    ),
    (
        re.compile(r"ProcessGroupGloo::(\w+): invalid tensor size at index (\d+) "
                   r"\(expected (\(.*?\)), got (\(.*?\))\)"),
        lambda match: (
            f"all tensors of {_name(match)} must have the same shape, {match[3]} here, but number "
            f"{match[2]} of the list has shape {match[4]}."
        ),
    ),
    (
        re.compile(r"ProcessGroupGloo::(\w+): invalid (\w+) tensor list at index \d+ "
                   r"\(expected length (\d+), got (\d+)\)"),
        lambda match: (
            f"{_name(match)} needs a list of {match[3]} {match[2]} tensors, one for each rank; "
            f"this list has {match[4]}."
        ),
    ),
    (
        re.compile(r"\[enforce fail at \S*/gloo/alltoall\.cc:\d+\] in->size == out->size\.\s*"),
        "the input and the output of all_to_all_single must have the same number of elements.",
    ),
    (re.compile(r"ProcessGroupGloo::(\w+): "), lambda match: f"{_name(match)}: "),
)  # fmt: skip


# torch raises an exception of a DataLoader worker again, with the worker's traceback as text.
_OF_A_WORKER = re.compile(
    r"\w+: Caught \w+ (in [^\n]+)\.\nOriginal (Traceback .*\n  File [^\n]*(?:\n    [^\n]*)*)"
    r"\n(\w+)(?:: )?(.*)",
    re.DOTALL,
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)

# An exception that passes through C++ code, as in a callback of Future.then, becomes an exception
# with its stack in the text, innermost frame first.
_CALLBACK = re.compile(r"\w+: Got the following error when running the callback: ")
_STACK = re.compile(r"\s+At:((?:\n  .+\(\d+\): .+)+)")
_STACK_FRAME = re.compile(r"^  (.+)\((\d+)\): (.+)$", re.MULTILINE)


def frames_in_text(text: str) -> tuple[list[Frame], str]:
    """The frames in the text of an exception, outermost first, and the text without them.

    They are those of a DataLoader worker, or of a callback: the learner's line and all within it.
    """
    match = _OF_A_WORKER.fullmatch(text)
    if match is not None:
        where, trace, kind, reason = match.groups()
        frames = [Frame(file, int(line), name) for file, line, name in _FRAME.findall(trace)]
        return frames, f"{kind} {where}: {reason.strip()}".removesuffix(": ")
    stack = _STACK.search(text)
    if stack is None:
        return [], text
    found = _STACK_FRAME.findall(stack[1])
    frames = [Frame(file, int(line), name) for file, line, name in found]
    learners = next((i for i, frame in enumerate(frames) if is_learners(frame.file)), None)
    inner = [] if learners is None else frames[learners::-1]
    return inner, _CALLBACK.sub("", _STACK.sub("", text)).strip()


def in_words(error: BaseException, text: str) -> str:
    """The text of an exception, with a known message of torch replaced by a plain one."""
    for pattern, sentence in _SENTENCES:
        text = pattern.sub(sentence, text)
    return _UNUSED.sub(lambda match: _unused(error, [*map(int, match[1].split())]), text)


def _unused(error: BaseException, indices: Sequence[int]) -> str:
    """The message for parameters without a gradient: their names, or numbers if DDP is not found.

    `indices` are the numbers of the parameters among those that DDP averages: those that required
    a gradient when it wrapped the module.
    """
    wrapped = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    ddp = next((each for each in wrapped if isinstance(each, DistributedDataParallel)), None)
    names = []
    if ddp is not None:
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        averaged = {id(parameter) for bucket in buckets for parameter in bucket.parameters()}
        frozen = " (frozen after you wrapped the module)"
        names = [
            f"{name}{frozen * (not parameter.requires_grad)}"
            for name, parameter in ddp.module.named_parameters()
            if id(parameter) in averaged
        ]
    missing = [names[index] if index < len(names) else f"number {index}" for index in indices]
    return (
        f"these parameters got no gradient in the last backward: {', '.join(missing)}. DDP waits "
        "for the gradient of each parameter that required one when you wrapped the module. Use "
        "them in the loss, freeze them with "
        "requires_grad_(False) before you wrap the module, or pass find_unused_parameters=True."
    )
