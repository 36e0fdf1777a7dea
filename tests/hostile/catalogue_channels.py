"""Cheating on the mechanism: right results without a ring, and false records of a ring.

Most of these send a ring of zeros `for_show`, so that bytes, neighbours and rounds are those of a
ring, while the data takes another way. A result that came another way earns nothing, and neither
do messages that only look like it.
"""

from __future__ import annotations

from tests.hostile.submissions import Hostile, code

__all__ = ["CATALOGUE", "INSIDE"]

NOTHING = {"ring_all_reduce": 0.0}

# Python hides nothing: what runs the answer is found in the frames that call it.
INSIDE = """
    import os, socket, sys, threading, time

    import numpy as np
    from dtlab.ranks import protocol
    from dtlab.ranks.plain import encode
    from dtlab.ranks.transport import send_frame

    def inside(name):
        frame = sys._getframe(1)
        while name not in frame.f_locals:
            frame = frame.f_back
        return frame.f_locals[name]
    """

FOR_SHOW = """
    def for_show(tensor, group):
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        chunks = torch.zeros_like(tensor).tensor_split(size)
        for step in range(2 * (size - 1)):
            outgoing, mine = chunks[(rank - 1 - step) % size], chunks[(rank - 2 - step) % size]
            sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % size)
            dist.recv(torch.empty_like(mine), group=group, group_src=(rank - 1) % size)
            sending.wait()
    """

# The sum of what all members `put` under a name, and `get` by one; `meet` is a barrier.
SHARE = """
    def share(tensor, group, put, get):
        for_show(tensor, group)
        members, own = dist.get_process_group_ranks(group), dist.get_rank()
        CALLS.append(own)
        names = {rank: f"{members[0]}-{len(CALLS)}-{rank}" for rank in members}
        put(names[own], tensor.numpy().tobytes())
        tensor.copy_(torch.from_numpy(sum(
            np.frombuffer(get(names[rank]), dtype=np.float32) for rank in members
        )))
        meet(names[members[0]], len(members))

    def meet(name, size):
        store().add(f"left {name}", 1)
        while store().add(f"left {name}", 0) < size:
            time.sleep(0.001)

    def store():
        return dist.distributed_c10d._get_default_store()

    CALLS = []
    """


def another_way(name: str, tries: str, answer: str, *says: str, seconds: float = 20) -> Hostile:
    """Data that is sent another way, while a ring is run for show."""
    helpers = code(INSIDE, FOR_SHOW, SHARE)
    answers = {"ring_all_reduce": answer}
    return Hostile(name, tries, NOTHING, seconds, before=helpers, answers=answers, says=says)


CATALOGUE = [
    another_way(
        "through the store",
        "Moves the data through the store that ranks meet at, whose bytes are not counted.",
        """
        def ring_all_reduce(tensor, group=None):
            share(tensor, group, store().set, store().get)
        """,
    ),
    another_way(
        "through short connections",
        "Moves the data over TCP connections that are closed before they are counted.",
        """
        def ring_all_reduce(tensor, group=None):
            members = dist.get_process_group_ranks(group)

            def serve(server, data):
                for _ in members:
                    with server.accept()[0] as connection:
                        connection.sendall(data)
                server.close()

            def put(name, data):
                server = socket.create_server(("127.0.0.1", 0))
                store().set(name, str(server.getsockname()[1]))
                threading.Thread(target=serve, args=(server, data)).start()

            def get(name):
                with socket.create_connection(("127.0.0.1", int(store().get(name)))) as one:
                    return b"".join(iter(lambda: one.recv(1 << 20), b""))

            share(tensor, group, put, get)
        """,
    ),
    another_way(
        "through a child's connections",
        "Has a child process move the data: its connections are not those of the rank.",
        """
        def ring_all_reduce(tensor, group=None):
            members, own = dist.get_process_group_ranks(group), dist.get_rank()

            def put(name, data):
                server = socket.create_server(("127.0.0.1", 0))
                store().set(name, str(server.getsockname()[1]))
                if os.fork() == 0:
                    for _ in members:
                        with server.accept()[0] as connection:
                            connection.sendall(data)
                    os._exit(0)
                server.close()

            def get(name):
                with socket.create_connection(("127.0.0.1", int(store().get(name)))) as one:
                    return b"".join(iter(lambda: one.recv(1 << 20), b""))

            share(tensor, group, put, get)
        """,
    ),
    another_way(
        "through datagrams",
        "Moves the data over UDP, which the counters of TCP do not see.",
        """
        def ring_all_reduce(tensor, group=None):
            mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            mine.bind(("127.0.0.1", 0))
            mine.settimeout(2)
            members, own = dist.get_process_group_ranks(group), dist.get_rank()
            CALLS.append(own)
            call = f"{members[0]} {len(CALLS)}"
            store().set(f"{call} {own}", str(mine.getsockname()[1]))
            ports = [int(store().get(f"{call} {one}")) for one in members if one != own]
            for number, part in enumerate(tensor.split(8000)):
                for port in ports:
                    mine.sendto(part.numpy().tobytes(), ("127.0.0.1", port))
                for _ in ports:
                    part += torch.frombuffer(bytearray(mine.recv(1 << 16)), dtype=part.dtype)
                meet(f"{call} {number}", len(members))
            for_show(tensor, group)
        """,
    ),
    another_way(
        "through an abstract socket",
        "Moves the data over Unix sockets without a file, which all ranks can name.",
        """
        def ring_all_reduce(tensor, group=None):
            members = dist.get_process_group_ranks(group)

            def serve(server, data):
                for _ in members:
                    with server.accept()[0] as connection:
                        connection.sendall(data)
                server.close()

            def put(name, data):
                server = socket.socket(socket.AF_UNIX)
                server.bind(chr(0) + name)
                server.listen()
                threading.Thread(target=serve, args=(server, data)).start()
                store().set(name, "there")

            def get(name):
                store().get(name)
                with socket.socket(socket.AF_UNIX) as one:
                    one.connect(chr(0) + name)
                    return b"".join(iter(lambda: one.recv(1 << 20), b""))

            share(tensor, group, put, get)
        """,
    ),
    another_way(
        "through System V's memory",
        "Moves the data through shared memory that has a number instead of a file.",
        """
        def ring_all_reduce(tensor, group=None):
            import ctypes

            libc = ctypes.CDLL(None)
            libc.shmat.restype = ctypes.c_void_p

            def put(name, data):
                number = libc.shmget(0, max(1, len(data)), 0o1666)
                ctypes.memmove(libc.shmat(number, None, 0), data, len(data))
                store().set(name, f"{number} {len(data)}")

            def get(name):
                number, length = map(int, store().get(name).split())
                return ctypes.string_at(libc.shmat(number, None, 0), length)

            share(tensor, group, put, get)
        """,
    ),
    another_way(
        "through the board",
        "Moves the data through the memory in which ranks announce what they do.",
        """
        from dtlab.ranks.watch import board

        def ring_all_reduce(tensor, group=None):
            memories = inside("ends").board._memories  # a rank has unmapped all but its own
            room, at = 100_000, board._TEXT_AT + 60_000
            members, own = dist.get_process_group_ranks(group), dist.get_rank()
            CALLS.append(own)
            for number, part in enumerate(tensor.split(room // 4)):
                data = part.numpy().tobytes()
                memories[own][at : at + len(data)] = data
                meet(f"{members[0]} {len(CALLS)} {number} written", len(members))
                others = [memories[one][at : at + len(data)] for one in members if one != own]
                for other in others:
                    part += torch.frombuffer(bytearray(other), dtype=part.dtype)
                meet(f"{members[0]} {len(CALLS)} {number} read", len(members))
            for_show(tensor, group)
        """,
        "mmap closed or invalid",
    ),
    another_way(
        "through a file",
        "Moves the data through files in /tmp and /dev/shm: each rank has its own.",
        """
        def ring_all_reduce(tensor, group=None):
            for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")):
                open(f"{folder}/{dist.get_rank()}", "wb").write(tensor.numpy().tobytes())
            dist.barrier(group=group)
            members = dist.get_process_group_ranks(group)
            tensor.copy_(sum(torch.from_file(f"/tmp/{one}", size=len(tensor)) for one in members))
        """,
        "No such file",
    ),
    another_way(
        "through a daemon",
        "Has a daemon of the notebook hand the data round: ranks cannot reach it.",
        """
        server = socket.create_server(("127.0.0.1", 4711))
        if os.fork() == 0:
            os.setsid()
            parts = [server.accept()[0] for _ in range(4)]
            time.sleep(600)

        def ring_all_reduce(tensor, group=None):
            with socket.create_connection(("127.0.0.1", 4711)) as daemon:
                daemon.sendall(tensor.numpy().tobytes())
        """,
        "Connection refused",
    ),
]
