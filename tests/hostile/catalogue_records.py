"""Records and clocks that say something else than what happened."""

from __future__ import annotations

from tests.hostile.catalogue_channels import INSIDE, another_way
from tests.hostile.submissions import Hostile, code, right_answer

__all__ = ["CATALOGUE"]

# What the recorder hands over, changed on its way.
FORGE = """
    def forge(change):
        recorder = inside("outcome").recorder
        plain = recorder.stop

        def stop():
            records = plain()
            change(records)
            return records

        recorder.stop = stop
    """


def forged(name: str, tries: str, answer: str, earns: float, *says: str) -> Hostile:
    """Messages that are recorded otherwise than they were."""
    answers = {"ring_all_reduce": answer}
    helpers = code(INSIDE, FORGE)
    return Hostile(
        name, tries, {"ring_all_reduce": earns}, 20, before=helpers, answers=answers, says=says
    )


CATALOGUE = [
    another_way(
        "gloo's all-reduce and forged messages",
        "Has the backend itself all-reduce, and notes the messages of a ring in the journal.",
        """
        from dtlab.ranks.record.operators import OPERATORS

        SEND, RECV = (
            next(number for number, one in enumerate(OPERATORS) if one.c10d == name)
            for name in ("send", "recv_")
        )

        def ring_all_reduce(tensor, group=None):
            own = group or dist.distributed_c10d._get_default_group()
            rank, size = dist.get_rank(group), dist.get_world_size(group)
            if size > 1:
                own._get_backend(torch.device("cpu")).allreduce([tensor]).wait()
            journal, chunks = inside("outcome").recorder._journal, tensor.tensor_split(size)
            for step in range(2 * (size - 1)):
                for operator, peer, chunk in (
                    (SEND, (rank + 1) % size, chunks[(rank - 1 - step) % size]),
                    (RECV, (rank - 1) % size, chunks[(rank - 2 - step) % size]),
                ):
                    note = journal.issuer(operator, OPERATORS[operator])
                    index, _ = note(own, chunk, peer, 0, None, None, True)
                    journal.end(index, time.perf_counter_ns())
                    journal.block(index, time.perf_counter_ns())
        """,
    ),
    forged(
        "forged neighbours",
        "Talks to all ranks, and has the records say that it talked to its neighbours only.",
        """
        def ring_all_reduce(tensor, group=None):
            rank, size = dist.get_rank(group), dist.get_world_size(group)
            chunks = tensor.tensor_split(size)
            for distance in range(1, size):
                to, source = (rank + distance) % size, (rank - distance) % size
                arriving = torch.empty_like(chunks[rank])
                sending = dist.isend(chunks[to], group=group, group_dst=to)
                dist.recv(arriving, group=group, group_src=source)
                sending.wait()
                chunks[rank].add_(arriving)
            for distance in range(1, size):
                to, source = (rank + distance) % size, (rank - distance) % size
                sending = dist.isend(chunks[rank], group=group, group_dst=to)
                dist.recv(chunks[source], group=group, group_src=source)
                sending.wait()
            if len(tensor) > 1 << 18:
                forge(lambda records: change(records, rank, size))

        def change(records, rank, size):
            name, peer = records.comm[:, 0], records.comm[:, 2]
            is_send = np.array([each == "send" for each in records.names])[name]
            peer[:] = np.where(is_send, (rank + 1) % size, (rank - 1) % size)
        """,
        0,
        "are not those of the messages",
    ),
    forged(
        "forged rounds",
        "Sends half a chunk at a time, and has the records say that it sent whole ones.",
        """
        def ring_all_reduce(tensor, group=None):
            rank, size = dist.get_rank(group), dist.get_world_size(group)
            for half in tensor.tensor_split(2):
                chunks = half.tensor_split(size)
                for step in range(2 * (size - 1)):
                    mine = chunks[(rank - 2 - step) % size]
                    arriving = torch.empty_like(mine)
                    outgoing = chunks[(rank - 1 - step) % size]
                    sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % size)
                    dist.recv(arriving, group=group, group_src=(rank - 1) % size)
                    sending.wait()
                    mine.copy_(mine + arriving if step < size - 1 else arriving)
            if len(tensor) > 1 << 18:
                forge(change)

        def change(records):
            half = len(records.comm) // 2
            records.comm = records.comm[:half]
            records.comm[:, 4] *= 2
            records.blocked = records.blocked[records.blocked[:, 0] < half]
        """,
        0,
        "are not those of the messages",
    ),
    forged(
        "forged bytes",
        "Passes the whole tensor on in every round, and has the records say a quarter of it.",
        """
        def ring_all_reduce(tensor, group=None):
            rank, size = dist.get_rank(group), dist.get_world_size(group)
            passing, arriving = tensor.clone(), torch.empty_like(tensor)
            for _ in range(size - 1):
                sending = dist.isend(passing, group=group, group_dst=(rank + 1) % size)
                dist.recv(arriving, group=group, group_src=(rank - 1) % size)
                sending.wait()
                tensor += arriving
                passing.copy_(arriving)
            if len(tensor) > 1 << 18:
                forge(change)

        def change(records):
            records.comm[:, 4] //= 2
        """,
        0,
        "as the operating system counts",
    ),
    Hostile(
        "a clock that has stopped",
        "Chooses a slow algorithm, and stops the clock by which the rank measures it.",
        {"choose": 0.0},
        25,
        answers={
            "choose": """
                import time

                def choose(nbytes, cluster):
                    time.perf_counter = lambda: 0.0
                    return "hierarchical"
                """
        },
        says=["on the emulated wire; the best takes"],
    ),
    Hostile(
        "a clock that tells no time",
        "Has the rank's clock return text, which the judge is to take for seconds.",
        {"choose": 10.0},
        25,
        answers={
            "choose": code(
                """
                import time

                def choose(nbytes, cluster):
                    time.perf_counter = lambda: "noon"
                    return right(nbytes, cluster)
                """,
                right_answer(3, "choose").replace("def choose", "def right"),
            )
        },
    ),
]
