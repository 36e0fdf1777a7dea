"""Telling the judge and the supervisor, in a rank's name, what makes no sense or has no end."""

from __future__ import annotations

from tests.hostile.catalogue_ranks import HANGS, rank

__all__ = ["CATALOGUE"]

CATALOGUE = [
    rank(
        "a pickle for the judge",
        "Sends a pickle instead of plain data, which writes a file where it is opened.",
        """
        import pickle

        class Writes:
            def __reduce__(self):
                return os.system, ("touch @course@/written",)

        def reduce_scatter(output, input, group=None):
            outcome = inside("outcome")
            for tag in (protocol.VALUE, protocol.FAILURE, protocol.RECORDS, protocol.TOUCHES):
                send_frame(outcome.channel, tag, pickle.dumps(Writes()))
            output.fill_(1)
        """,
        quick=True,
    ),
    rank(
        "a function that writes where it is opened",
        "Hands in a function whose pickle writes a file where it is opened: on ranks only.",
        """
        import os

        class Writes:
            def __call__(self, *_): pass
            def __reduce__(self):
                return os.system, ("touch @course@/written",)

        reduce_scatter = Writes()
        """,
    ),
    rank(
        "a list of 40 million lists from a rank",
        "Sends 40 MB that become gigabytes where they are opened.",
        r"""
        def reduce_scatter(output, input, group=None):
            alone()
            bomb = b"\xdd" + (40_000_000).to_bytes(4, "big") + b"\x90" * 40_000_000
            send_frame(inside("outcome").channel, protocol.TOUCHES, bomb)
        """,
        seconds=30,
    ),
    rank(
        "records without end",
        "Sends records of 50 MB again and again.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            outcome = inside("outcome")
            fields = list(vars(outcome.recorder.stop()).values())
            fields[9] = ["x" * 50_000_000]
            while True: send_frame(outcome.channel, protocol.RECORDS, encode(tuple(fields)))
        """,
        seconds=30,
    ),
    rank(
        "a long name",
        "Says that it has called a finished collective with a name of 20 MB.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            inside("finished").add("A" * 20_000_000)
            right(output, input, group)
        """,
        seconds=30,
    ),
    rank(
        "a file without a name",
        "Fails in a file without a name, and in one with a name that no file can have.",
        """
        def reduce_scatter(output, input, group=None):
            if dist.get_rank():
                exec(compile("raise ValueError", "", "exec"))
            failure = ("exception", "ValueError", [([("a" + chr(0), 1, "f")], "ValueError")])
            send_frame(inside("outcome").channel, protocol.FAILURE, encode(failure))
            os._exit(1)
        """,
        "ValueError",
        quick=True,
    ),
    rank(
        "a file without a writer",
        "Fails in a file that is a pipe on the judge's machine: reading it never ends.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            failure = ("exception", "ValueError", [([("@pipe@", 1, "f")], "ValueError")])
            send_frame(inside("outcome").channel, protocol.FAILURE, encode(failure))
            os._exit(1)
        """,
        "ValueError",
    ),
    rank(
        "records of no kind",
        "Sends records whose names are lists, and whose groups are numbers.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            outcome = inside("outcome")
            fields = list(vars(outcome.recorder.stop()).values())
            row = np.zeros((1, 11), dtype=np.int64)
            row[0, [2, 5, 9]] = -1
            fields[2], fields[6], fields[7] = row, [["send"]], [("g", [0])]
            send_frame(outcome.channel, protocol.RECORDS, encode(tuple(fields)))
        """,
    ),
    rank(
        "records of no group",
        "Sends records whose groups are numbers, and whose times are beyond all bounds.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            outcome = inside("outcome")
            fields = list(vars(outcome.recorder.stop()).values())
            row = np.full((1, 11), 2**62, dtype=np.int64)
            row[0] = [0, 0, -1, 0, -(2**62), -1, -(2**63), 2**62, 0, -1, 0]
            fields[2], fields[6], fields[7] = row, ["send"], [7]
            send_frame(outcome.channel, protocol.RECORDS, encode(tuple(fields)))
        """,
    ),
    rank(
        "results of no kind",
        "Sends results that are no tensors of numbers.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            odd = [[{"result": torch.ones(2, 2), "returned": "x", "input": {}, "finished": [[]]}]]
            send_frame(inside("outcome").channel, protocol.VALUE, encode(encode(odd)))
            inside("outcome").status.send(protocol.RETURNED + protocol.DELIVERED)
            time.sleep(60)
        """,
    ),
    rank(
        "half a message",
        "Begins a message to the judge, says that all has been delivered, and sleeps.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            outcome = inside("outcome")
            outcome.channel.sendall(protocol.VALUE + bytes(2))
            outcome.status.send(protocol.RETURNED + protocol.DELIVERED)
            time.sleep(60)
        """,
        seconds=40,
    ),
    rank(
        "nonsense on the board",
        "Writes nonsense into the memory in which ranks announce what they do.",
        """
        def reduce_scatter(output, input, group=None):
            import struct
            from dtlab.ranks.watch import board

            memory = inside("ends").board._memories[dist.get_rank()]
            memory[board._TEXT_AT : board._SIZE] = bytes([255]) * board._TEXT_ROOM
            memory[8:16] = struct.pack("<q", 2**40)
            for slot in range(board.CAPACITY):
                fields = (slot % 9, 2**62, slot, 2**62, 3, 4, 5, 2**61, 7, 2**62, slot % 5)
                at = 64 + slot * board._RECORD.size
                board._RECORD.pack_into(memory, at, *fields, board.checksum(slot, *fields))
            time.sleep(1)
        """,
    ),
    rank(
        "a stack without end",
        "Hangs, and writes without end when its stack is requested.",
        """
        def reduce_scatter(output, input, group=None):
            writer = inside("ends").stack_writer

            def write():
                while True: os.write(writer, b"x" * 60_000)

            threading.Thread(target=write, daemon=True).start()
            while True: time.sleep(1)
        """,
        HANGS,
    ),
    rank(
        "letters without end",
        "Sends its supervisor letters without end, and says that it failed and did not.",
        """
        def reduce_scatter(output, input, group=None):
            alone()
            status = inside("outcome").status
            while True: status.send(protocol.RETURNED + protocol.RAISED + b"?" * 1000)
        """,
        seconds=40,
    ),
]
