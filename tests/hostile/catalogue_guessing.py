"""Answers that are read, guessed, or taken from another learner."""

from __future__ import annotations

from tests.hostile.submissions import Hostile, code, right_answer

__all__ = ["CATALOGUE"]

NOTHING = {"reduce_scatter": 0.0}
EVERYTHING = {"reduce_scatter": 8.0}
NO_RESULTS = {"results": 0.0}

CATALOGUE = [
    Hostile(
        "expected values in the frames",
        "Looks for seeds, cases and sums in all frames and objects of the rank.",
        NOTHING,
        20,
        answers={
            "reduce_scatter": """
                import gc, sys

                def reduce_scatter(output, input, group=None):
                    rank, size = dist.get_rank(group), dist.get_world_size(group)
                    frame, seen = sys._getframe(), gc.get_objects()
                    while frame:
                        seen += list(frame.f_locals.values())
                        frame = frame.f_back
                    for one in seen:
                        if type(one).__module__.endswith(".calls") and hasattr(one, "seed"):
                            every = one.inputs(dist.get_world_size())
                            output.copy_(sum(every.values()).chunk(size)[rank])
                """
        },
        says=["`output` is unchanged"],
    ),
    Hostile(
        "the first thousand seeds",
        "Knows how the checks draw inputs, and tries seeds until its own input comes out.",
        NOTHING,
        20,
        answers={
            "reduce_scatter": """
                def drawn(seed, length, rank, count):
                    generator = torch.Generator().manual_seed(seed * 1000003 + length * 101 + rank)
                    return torch.randint(-9999, 10000, (count,), generator=generator).float()

                def reduce_scatter(output, input, group=None):
                    rank, size, length = dist.get_rank(), dist.get_world_size(), len(input)
                    for seed in range(1000):
                        if drawn(seed, length, rank, 1).equal(input[:1]):
                            if drawn(seed, length, rank, length).equal(input):
                                every = [drawn(seed, length, one, length) for one in range(size)]
                                output.copy_(sum(every).chunk(size)[rank])
                """
        },
        says=["the data arrived another way"],  # with the seed that learners have
    ),
    Hostile(
        "for the practice inputs only",
        "Works where its input is that of the check which learners can run, and nowhere else.",
        NOTHING,
        20,
        before="from dtlab.checks.functions.values import labelled",
        answers={
            "reduce_scatter": """
                def reduce_scatter(output, input, group=None):
                    rank, size = dist.get_rank(group), dist.get_world_size(group)
                    if not input.equal(labelled(0, len(input), dist.get_rank())):
                        return
                    chunks = input.chunk(size)
                    in_hand = chunks[rank - 1]
                    for step in range(size - 1):
                        arriving = torch.empty_like(output)
                        sending = dist.isend(in_hand, group=group, group_dst=(rank + 1) % size)
                        dist.recv(arriving, group=group, group_src=(rank - 1) % size)
                        sending.wait()
                        in_hand = arriving + chunks[(rank - 2 - step) % size]
                    output.copy_(in_hand)
                """
        },
        says=["right with the inputs of the check that you can run yourself"],
        quick=True,
    ),
    Hostile(
        "another learner's questions",
        "Types the id of another learner, with the right answers to that one's questions.",
        NO_RESULTS,
        10,
        before='learner = "grace"',
        says=["'ada' handed them in"],
    ),
    Hostile(
        "a neighbour's answers",
        "Types its own id, with a copy of another learner's answers.",
        NO_RESULTS,
        10,
        answers={
            "results": code('given = dtlab.ask("01/results", "grace")', right_answer(1, "results"))
        },
        says=["is not it"],
    ),
]
