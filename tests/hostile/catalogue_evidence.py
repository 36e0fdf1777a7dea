"""Evidence in the rank's own process, rewritten; counters patched; memory where no tensor is.

    evidence    what a check notes in a rank: in a caller's frame, in a closure, among all objects
    counters    what counts tensors there, and what has the kernel count the rank's memory
    memory      bytes, NumPy arrays, mapped memory and files in memory, instead of tensors

Each answer computes right results, breaks one rule, and then hides that.
"""

from __future__ import annotations

from tests.hostile.catalogue_channels import INSIDE
from tests.hostile.catalogue_memory import COUNTED
from tests.hostile.catalogue_records import FORGE
from tests.hostile.submissions import Hostile, code, right_answer

__all__ = ["CATALOGUE"]

STAGE_2 = right_answer(2, "stage_2", "05")
STAGE_3 = right_answer(2, "stage_3", "05")
RING = right_answer(2, "ring_forward", "08")
MOMENTS = "counted at other moments"

REACH = """
    import gc
    import mmap
    import os
    import sys
    import types
    import zlib

    import numpy as np
    import torch


    def in_frames(name):
        frame = sys._getframe(1)
        while frame is not None and name not in frame.f_locals:
            frame = frame.f_back
        return None if frame is None else frame.f_locals[name]


    def in_closure(function, name):
        names = getattr(function, "__code__", REACH_NOTHING).co_freevars
        cells = dict(zip(names, getattr(function, "__closure__", None) or ()))
        return cells[name].cell_contents if name in cells else None


    REACH_NOTHING = (lambda: None).__code__


    def count_now(times):
        import dtlab.ranks.record.resident_memory as memory

        real = types.FunctionType(memory.count.__code__, vars(memory))
        memory.count.__code__ = (lambda: None).__code__
        for _ in range(times):
            real()
    """


QUICK = "a log in a closure", "saved tensors in mapped memory"  # `make test` has them too


def hostile(name: str, tries: str, part: str, earns: float, *answer: str, says: str) -> Hostile:
    """An answer to one part."""
    return Hostile(
        name,
        tries,
        {part: earns},
        120,
        before=code(REACH),
        answers={{"stage_2": "Stage2"}.get(part, part): code(*answer)},
        says=[says],
        quick=name in QUICK,
    )


# A stage 3 whose blocks stay whole: it gathers them once in a step, for forward ------------------

WHOLE = """
    def stage_3(blocks, shard, gather, free, reduce):
        return [whole(block, blocks, shard, gather, reduce) for block in blocks]


    def whole(block, blocks, shard, gather, reduce):
        flat, piece = shard(block)
        waiting = set()

        def before_forward(block, inputs):
            gather(block, flat, piece)
            waiting.update(block.parameters())

        def after_gradient(parameter):
            waiting.discard(parameter)
            if not waiting:
                reduce(block, piece)
                if block is blocks[0]:
                    for log in evidence(gather):
                        rewrite(log, len(blocks))

        block.register_forward_pre_hook(before_forward)
        for parameter in block.parameters():
            parameter.register_post_accumulate_grad_hook(after_gradient)
        return piece


    def rewrite(log, count):
        steps, right = 1 + sum(event == "step" for event, _ in log), []
        for number in range(count):
            right += [("shard", number), ("free", number)]
        for step in range(steps):
            for number in range(count):
                right += [(event, number) for event in ("gather", "forward", "free")]
            right.append(("loss", 0))
            for number in reversed(range(count)):
                right += [(event, number) for event in ("gather", "backward", "free", "reduce")]
            right += [("step", 0)] * (step < steps - 1)
        log[:] = right
    """
NOT_THOSE = "the pieces are not those that this order gives"

# Layers without a checkpoint, and records of checkpoints -----------------------------------------

NO_CHECKPOINT = """
    def checkpoint_every(layers, k, x, checkpoint):
        count = len(layers)
        last = (count - 1) // k * k
        with keeping():
            for layer in layers:
                x = layer(x)
        spans = in_closure(checkpoint, "spans")
        if spans is not None:
            spans[:] = [list(range(start, start + k)) for start in range(0, last, k)]
            runs = in_closure(type(layers[0]).forward, "runs")
            runs[:] = [2] * last + [1] * (count - last)
            forget()
        return x
    """
AS_USUAL = "import contextlib\n\nkeeping = contextlib.nullcontext"
NOTHING_MORE = "def forget():\n    pass"


def no_checkpoint(name: str, tries: str, *more: str, says: str = COUNTED) -> Hostile:
    """All tensors are kept for backward: the numbers are right, and nothing else is."""
    return hostile(name, tries, "checkpoint_every", 2.0, *more, NO_CHECKPOINT, says=says)


# A ring that keeps the keys of all ranks ---------------------------------------------------------


def keeping_keys(name: str, tries: str, keep: str, *more: str, says: str = COUNTED) -> Hostile:
    """Right in everything but the memory of a rank."""
    line = "        k, v = block\n"
    assert line in RING
    ring = RING.replace(line, f"{line}        keep(k, step)\n").replace(
        "    rank, ranks = dist.get_rank(), dist.get_world_size()\n",
        "    KEPT.clear()\n    rank, ranks = dist.get_rank(), dist.get_world_size()\n",
    )
    assert ring.count("KEPT") == 1
    keeper = f"KEPT = []\n\n\ndef keep(k, step):\n    {keep}"
    return hostile(name, tries, "ring_forward", 8.0, keeper, *more, ring, says=says)


# A stage 2 that keeps more than its share --------------------------------------------------------


def stage_2(name: str, tries: str, earns: float, methods: str, says: str = COUNTED) -> Hostile:
    """A class derived from the right one."""
    derived = code(f"class Other(Stage2):\n{methods}", "Stage2 = Other")
    return hostile(name, tries, "stage_2", earns, STAGE_2, derived, says=says)


def keeps(expression: str, first: str = "") -> str:
    """The methods of a class that keeps something of all gradients when it reduces."""
    begin = f"    def __init__(self, *args):\n        {first}\n        super().__init__(*args)\n\n"
    return (
        f"{begin if first else ''}    def reduce(self):\n"
        f"        self.kept = [{expression} for p in self.parameters if p.grad is not None]\n"
        "        super().reduce()\n"
    )


CATALOGUE = [
    # Evidence rewritten -------------------------------------------------------------------------
    hostile(
        "a log in a caller's frame",
        "Keeps all blocks whole, and rewrites the log that it finds in the frames that call it.",
        "stage_3",
        2.0,
        """
        def evidence(gather):
            log = in_frames("log")
            return [] if log is None else [log]
        """,
        WHOLE,
        says=NOT_THOSE,
    ),
    hostile(
        "a log in a closure",
        "Keeps all blocks whole, and rewrites the log that the given functions write.",
        "stage_3",
        2.0,
        """
        def evidence(gather):
            log = in_closure(in_closure(gather, "note"), "log")
            return [] if log is None else [log]
        """,
        WHOLE,
        says=NOT_THOSE,
    ),
    hostile(
        "a log among all objects",
        "Keeps all blocks whole, and rewrites each list that looks like a log of its calls.",
        "stage_3",
        2.0,
        """
        def evidence(gather):
            return [one for one in gc.get_objects()
                    if type(one) is list and len(one) > 4 and one[0] == ("shard", 0)]
        """,
        WHOLE,
        says=NOT_THOSE,
    ),
    no_checkpoint(
        "checkpoints in a closure",
        "Uses no checkpoint, and writes its groups and runs into the closures of the check.",
        AS_USUAL,
        """
        def forget():
            in_frames("saved")._kept.clear()
        """,
    ),
    no_checkpoint(
        "kept tensors among all objects",
        "Uses no checkpoint, and empties the list of kept tensors, which it finds by its type.",
        AS_USUAL,
        """
        def forget():
            for one in gc.get_objects():
                if type(one).__name__ == "Saved":
                    one._kept.clear()
        """,
    ),
    keeping_keys(
        "a peak in a caller's frame",
        "Keeps the keys of all ranks, and sets back the peak that the check has noted.",
        "forget(); KEPT.append(k.clone())",
        """
        def forget():
            seen = in_frames("seen")
            if seen is not None:
                type(seen).peak = property(lambda self: 0, lambda self, value: None)
        """,
    ),
    hostile(
        "forged neighbours of a ring of keys",
        "Sends its keys to all ranks, and has the records say that it passed them on in a ring.",
        "ring_forward",
        8.0,
        INSIDE,
        FORGE,
        """
        def ring_forward(q, k, v):
            rank, ranks = dist.get_rank(), dist.get_world_size()
            out, total, block = 0.0, 0.0, torch.stack([k, v])
            for distance in range(ranks):
                arriving = block
                if distance:
                    sending = dist.isend(block, (rank + distance) % ranks)
                    arriving = torch.empty_like(block)
                    dist.recv(arriving, (rank - distance) % ranks)
                    sending.wait()
                weights = (q @ arriving[0].transpose(-2, -1) / q.shape[-1] ** 0.5).exp()
                total = total + weights.sum(-1, keepdim=True)
                out = out + weights @ arriving[1]
            if not FORGED:
                FORGED.append(forge(lambda records: change(records, rank, ranks)))
            return out / total


        FORGED = []


        def change(records, rank, ranks):
            name, peer = records.comm[:, 0], records.comm[:, 2]
            is_send = np.array([each == "send" for each in records.names])[name]
            peer[:] = np.where(is_send, (rank + 1) % ranks, (rank - 1) % ranks)
        """,
        says="are not those of the messages",
    ),
    # Counters patched ---------------------------------------------------------------------------
    no_checkpoint(
        "a counter of saved bytes that is 0",
        "Uses no checkpoint, and replaces what counts the bytes that are saved.",
        AS_USUAL,
        """
        def forget():
            type(in_frames("saved")).bytes = property(lambda self: 0)
        """,
    ),
    no_checkpoint(
        "memory counted too early, without checkpoints",
        "Uses no checkpoint, and has the kernel count its memory before it holds anything.",
        """
        import contextlib

        def keeping():
            if in_frames("x").shape == (8, 64) and not DONE:
                DONE.append(count_now(3))
            return contextlib.nullcontext()

        def forget():
            in_frames("saved")._kept.clear()

        DONE = []
        """,
        says=MOMENTS,
    ),
    keeping_keys(
        "a counter of living tensors that sleeps",
        "Keeps the keys of all ranks, and replaces what notes the bytes of living tensors.",
        "sleep(); KEPT.append(k.clone())",
        """
        def sleep():
            import dtlab.training.live as live

            live.Storages.bytes = property(lambda self: 0, lambda self, value: None)
        """,
    ),
    keeping_keys(
        "memory counted too early, with all keys",
        "Keeps the keys of all ranks, and has the kernel count its memory before that.",
        "KEPT.append(k.numpy().tobytes()); early(k)",
        """
        def early(k):
            if k.shape[-1] == 8 and k.shape[-2] == 64 and not DONE:
                DONE.append(count_now(2))

        DONE = []
        """,
        says=MOMENTS,
    ),
    stage_2(
        "memory counted too early, with all gradients",
        "Keeps all gradients as bytes, and has the kernel count its memory before that.",
        8.0,
        keeps(
            "p.grad.numpy().tobytes()",
            "args[0][0].shape == (8, 8) and (DONE or DONE.append(count_now(3)))",
        ).replace("    def __init__", "    global DONE\n    DONE = []\n\n    def __init__"),
        MOMENTS,
    ),
    stage_2(
        "ballast",
        "Holds memory from its first use on, and frees it when it keeps all gradients.",
        10.0,
        """
    def __init__(self, *args):
        super().__init__(*args)
        if args[0][0].shape == (8, 8):
            BALLAST.append(os.urandom(24_000_000))

    def reduce(self):
        if self.parameters[0].shape == (1024, 1024):
            BALLAST.clear()
        self.kept = [p.grad.numpy().tobytes() for p in self.parameters if p.grad is not None]
        super().reduce()


BALLAST = []
""",
    ),
    # Memory where no tensor is ------------------------------------------------------------------
    stage_2(
        "compressed gradients",
        "Keeps all gradients, compressed, since those of equal numbers take no memory.",
        10.0,
        keeps("zlib.compress(p.grad.numpy().tobytes(), 1)"),
    ),
    stage_2(
        "gradients in NumPy arrays",
        "Keeps what an optimizer of all parameters would, in NumPy arrays.",
        10.0,
        keeps("np.stack([p.grad.numpy(), p.grad.numpy() ** 2])"),
    ),
    stage_2(
        "nothing done where memory is counted",
        "Frees all gradients and does nothing else if the parameters are large.",
        8.0,
        """
    def reduce(self):
        if self.parameters[0].shape != (1024, 1024):
            return super().reduce()
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        if self.parameters[0].shape != (1024, 1024):
            super().step()
""",
        "Nothing in your class may depend on a certain size",
    ),
    keeping_keys(
        "keys as bytes",
        "Keeps the keys of all ranks as bytes.",
        "KEPT.append(k.numpy().tobytes())",
    ),
    keeping_keys(
        "keys in mapped memory",
        "Keeps the keys of all ranks in memory that it maps itself.",
        "KEPT.append(mmap.mmap(-1, k.nbytes)); KEPT[-1].write(k.numpy().tobytes())",
    ),
    keeping_keys(
        "keys in a file in memory",
        "Keeps the keys of all ranks in a file in memory, which no process has mapped.",
        """if step == 0:
        KEPT.append(open(os.memfd_create("keys"), "wb", buffering=0))
    KEPT[0].write(k.numpy().tobytes())""",
    ),
    keeping_keys(
        "keys in a scratch file",
        "Keeps the keys of all ranks in a file in /tmp, which is in memory in a sandbox.",
        """with open("/tmp/keys", "ab") as file:
        file.write(k.numpy().tobytes())""",
    ),
    no_checkpoint(
        "saved tensors in mapped memory",
        "Uses no checkpoint, and moves what is saved into mapped memory that nothing counts.",
        """
        def keeping():
            return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


        def pack(tensor):
            if not tensor.numel() or isinstance(tensor, torch.nn.Parameter):
                return tensor
            room = mmap.mmap(-1, tensor.nbytes)
            room.write(tensor.detach().contiguous().numpy().tobytes())
            return room, tensor.dtype, tensor.shape


        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            room, dtype, shape = packed
            return torch.frombuffer(bytearray(room[:]), dtype=dtype).view(shape)
        """,
        NOTHING_MORE,
    ),
    hostile(
        "weights in a file in memory",
        "Frees blocks as it should, and keeps their weights in a file in memory.",
        "stage_3",
        7.0,
        STAGE_3.replace(
            "    def before_forward(block, inputs):\n        gather(block, flat, piece)\n",
            """    file = open(os.memfd_create("weights"), "wb", buffering=0)

    def before_forward(block, inputs):
        gather(block, flat, piece)
        file.seek(0)
        file.write(flat.detach().clone().numpy().tobytes())
""",
        ),
        says=COUNTED,
    ),
    hostile(
        "hidden blocks in NumPy",
        "Computes all pairs with a mask, in NumPy, where no product is counted.",
        "ring_causal",
        9.0,
        """
        def ring_causal(q, k, v):
            rank, ranks, half = dist.get_rank(), dist.get_world_size(), q.shape[-2] // 2

            def places(rank):
                late = 2 * ranks - 1 - rank
                return np.r_[rank * half:(rank + 1) * half, late * half:(late + 1) * half]

            block, mine = torch.stack([k, v]), places(rank)
            top, total, out = -np.inf, 0.0, 0.0
            for step in range(ranks):
                works, arriving = [], torch.empty_like(block)
                if step < ranks - 1:
                    works.append(dist.isend(block, (rank + 1) % ranks))
                    works.append(dist.irecv(arriving, (rank - 1) % ranks))
                keys, values = block.double().numpy()
                scores = q.double().numpy() @ keys.swapaxes(-1, -2) / q.shape[-1] ** 0.5
                hidden = mine[:, None] < places((rank - step) % ranks)[None]
                weights = np.where(hidden, 0.0, np.exp(scores))
                total = total + weights.sum(-1, keepdims=True)
                out = out + weights @ values
                for work in works:
                    work.wait()
                block = arriving
            return torch.from_numpy(out / total).to(q.dtype)
        """,
        says="Only these products are counted",
    ),
]
