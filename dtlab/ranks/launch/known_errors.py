"""Plain sentences for errors of torch.distributed that learners meet often."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from traceback import walk_tb

from torch.nn.parallel import DistributedDataParallel

from dtlab.ranks.protocol import Frame
from dtlab.ranks.watch.locate import is_learners
from dtlab.torch_internals import CHECKPOINT_FILE, ddp_buckets, own_modules


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
        "a rank sends to itself, or receives from itself. If you mean another rank, check how "
        "you compute its number. If you mean this rank's own part, copy it without a message: "
        "buffer.copy_(part).",
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
    (
        re.compile(r"\[enforce fail at \S*/gloo/transport/\S*\] op\.preamble\.length <= "
                   r"op\.nbytes\. (\d+) vs (\d+)\. Received data size doesn't match expected "
                   r"size\. Is there a distributed collective mismatch in your code\?\s*"),
        r"this rank received \1 bytes where it expected \2: the ranks passed tensors of "
        "different size, or called different collectives.",
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
    for pattern, explain in _PARAGRAPHS:
        if match := pattern.search(text):
            theirs = " ".join(_HOW_TO_GET_NAMES.sub("", text[match.start() :]).split())
            theirs = re.sub(r"for rank \d+:", "for this rank:", theirs)  # equal on all ranks
            return f"{text[: match.start()]}{explain(error, match)} PyTorch's text: {theirs}"
    return text


# Long texts of DDP ---------------------------------------------------------------------------
# A sentence with the names and the remedy comes first, and PyTorch's own text follows.


_HOW_TO_GET_NAMES = re.compile(r"\s+In addition, .*?as part of this error\.?", re.DOTALL)


def _ddp(error: BaseException) -> DistributedDataParallel | None:
    """The DDP module that raised the exception, if one did."""
    wrapped = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    return next((each for each in wrapped if isinstance(each, DistributedDataParallel)), None)


def _named(error: BaseException, indices: Sequence[int]) -> str:
    """The names of parameters, or their numbers if DDP is not found.

    `indices` are the numbers of the parameters among those that DDP averages: those that required
    a gradient when it wrapped the module.
    """
    ddp, names = _ddp(error), []
    if ddp is not None:
        buckets = ddp_buckets(ddp)
        averaged = {id(parameter) for bucket in buckets for parameter in bucket.parameters()}
        frozen = " (frozen after you wrapped the module)"
        names = [
            f"{name}{frozen * (not parameter.requires_grad)}"
            for name, parameter in ddp.module.named_parameters()
            if id(parameter) in averaged
        ]
    return ", ".join(names[n] if n < len(names) else f"number {n}" for n in indices)


def _unused(error: BaseException, match: re.Match[str]) -> str:
    missing = _named(error, [*map(int, match[1].split())])
    return (
        f"these parameters got no gradient in the last backward: {missing}. DDP waits for the "
        "gradient of each parameter that required one when you wrapped the module. Use them in "
        "the loss, freeze them with requires_grad_(False) on every rank before you wrap the "
        "module, or pass find_unused_parameters=True."
    )


def _changed(error: BaseException, match: re.Match[str]) -> str:
    indices = re.search(r"for rank \d+: ([\d ]+)", match[0])
    missing = _named(error, [*map(int, indices[1].split())]) if indices else ""
    which = f", here without a gradient for {missing}" if missing else ""
    return (
        f"static_graph=True promises that every step uses the same parameters, but this one uses "
        f"others than the first{which}: leave out static_graph=True, and pass "
        "find_unused_parameters=True if a step does not use all parameters."
    )


def _twice(error: BaseException, match: re.Match[str]) -> str:
    found = re.search(r"Parameter at index (\d+)(?: with name (\S+))?", match[0])
    name = "a parameter"
    if found is not None:
        name = found[2] or _named(error, [int(found[1])])
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    if any(file.endswith(CHECKPOINT_FILE) for file in files):
        return (
            f"{name} got two gradients in one backward pass, because re-entrant checkpoints run a "
            "backward pass each: pass use_reentrant=False to checkpoint."
        )
    return (
        f"{name} got two gradients in one backward pass: use it only in the forward of the module "
        "that DDP wraps, and if checkpoint runs its layer, pass use_reentrant=False to checkpoint."
    )


def _other_parameters(error: BaseException, match: re.Match[str]) -> str:
    ddp, frozen = _ddp(error), ""
    if ddp is not None:
        module = own_modules(ddp).get("module")
        parameters = module.named_parameters() if module is not None else ()
        names = [name for name, parameter in parameters if not parameter.requires_grad]
        frozen = f" Frozen on this rank: {', '.join(names)}." if names else " None is frozen here."
    return (
        f"DDP would average {match[2]} parameters on rank {match[1]}, but {match[4]} on rank "
        f"{match[3]}: build the same module and freeze the same parameters on every rank before "
        f"you wrap it.{frozen}"
    )


_PARAGRAPHS: tuple[
    tuple[re.Pattern[str], Callable[[BaseException, re.Match[str]], str]], ...
] = (
    (
        re.compile(r"(Expected to have finished reduction in the prior iteration|Your training "
                   r"graph has changed in this iteration).*?not\s+compatible with static_graph"
                   r".*", re.DOTALL),
        _changed,
    ),
    (
        re.compile(r"Expected to have finished reduction in the prior iteration.*?for rank \d+: "
                   r"([\d ]+)", re.DOTALL),
        _unused,
    ),
    (re.compile(r"Expected to mark a variable ready only once.*", re.DOTALL), _twice),
    (
        re.compile(r"DDP expects same model across all ranks, but Rank (\d+) has (\d+) params, "
                   r"while rank (\d+) has inconsistent (\d+) params"),
        _other_parameters,
    ),
)  # fmt: skip
