"""Answers that look for their judge: its lists, its recorder, and the calls it is about to make.

The parts of unit 11 call an answer many times, so the calls still to come and the notes on those
that were made are worth more to it than in a part with one call. They are in the judge's process.
"""

from __future__ import annotations

from tests.hostile.submissions import Hostile, code, right_answer

__all__ = ["CATALOGUE"]

# All pulls wait, and at the last call the answer, which has seen all calls, computes the right
# results of all of them. `REPLAY` needs no event loop: a plain loop over the calls that were made.
REPLAY = """
    import gc, sys

    def replayed(parameters, workers, rate, staleness, calls):
        ends, pushed, held = [None] * len(calls), [0] * workers, []
        for number, (kind, worker, step, gradients) in enumerate(calls):
            if kind == "push":
                ends[number] = number, None
                pushed[worker] += 1
                held.append(gradients)
                if staleness is not None or len(held) == workers:
                    parameters = {
                        name: tensor - rate / workers * sum(each[name] for each in held)
                        for name, tensor in parameters.items()
                    }
                    held = []
            for earlier in range(number + 1):
                if ends[earlier] is None and calls[earlier][2] - min(pushed) <= (staleness or 0):
                    ends[earlier] = number, parameters
        return ends

    def notes_for(ends):
        return [
            {"ended": None, "value": None} if end is None else
            {"ended": end[0], "value": end[1], "later": end[1], "tensors": end[1]}
            for end in ends
        ]
    """

SERVER = """
    class ParameterServer:
        def __init__(self, *arguments):
            self.arguments, self.calls = arguments, []
            self.begin()

        def begin(self):
            pass

        async def push(self, worker, step, gradients):
            self.calls.append(("push", worker, step, gradients))
            self.called()

        async def pull(self, worker, step):
            self.calls.append(("pull", worker, step, None))
            self.called()
            await asyncio.Event().wait()

        def called(self):
            notes = self.found()
            if notes is not None:
                right = notes_for(replayed(*self.arguments, self.calls))
                for note, other, call in zip(notes, right, self.calls):
                    note |= other if call[0] == "pull" else {}
    """


def server(name: str, tries: str, begin: str, found: str, earns: float = 0.0) -> Hostile:
    """An answer to 11/server whose pulls never return by themselves."""
    methods = code(begin, found)
    answer = code(REPLAY, SERVER, f"class Found(ParameterServer):\n{_indented(methods)}",
                  "ParameterServer = Found")  # fmt: skip
    return Hostile(name, tries, {"server": earns}, 40, answers={"ParameterServer": answer})


def _indented(source: str) -> str:
    return "\n".join(f"    {line}" if line else line for line in source.splitlines())


def client(name: str, tries: str, methods: str, earns: float, before: str = "") -> Hostile:
    """An answer to 11/sharded with other methods than the right one."""
    answer = code(
        right_answer(2, "sharded", "11"),
        f"class Changed(ShardedServer):\n{_indented(code(methods))}",
        "ShardedServer = Changed",
    )
    answers = {"ShardedServer": answer}
    return Hostile(name, tries, {"sharded": earns}, 40, before=before, answers=answers)


CATALOGUE = [
    server(
        "the script in the caller's frame",
        "Reads all calls in advance where it is made, and fills in the notes at the last call.",
        """
        def begin(self):
            self.frame = sys._getframe(2)
        """,
        """
        def found(self):
            script = self.frame.f_locals.get("calls", [])
            return self.frame.f_locals["notes"] if len(script) == len(self.calls) else None
        """,
    ),
    server(
        "the notes among all objects",
        "Looks for the notes on its calls among all objects of the garbage collector.",
        """
        def begin(self):
            gc.collect()
        """,
        """
        def found(self):
            for each in gc.get_objects():
                if type(each) is list and len(each) == len(self.calls) and all(
                    type(note) is dict and note.keys() == {"ended", "value"} for note in each
                ):
                    return each
        """,
    ),
    server(
        "a report on all calls at the end",
        "Replaces what reports to the judge, to say at the end when each call would have ended.",
        """
        def begin(self):
            frame = sys._getframe(2)
            self.names, self.frame = frame.f_globals, frame
            plain = self.names.get("ask")

            def ask(report):
                command = plain(report)
                if command and command[0] == "later":
                    notes = notes_for(replayed(*self.arguments, self.calls))
                    command = plain([[n, *note.values()] for n, note in enumerate(notes)])
                return command

            if plain is not None:
                self.names["ask"] = ask
        """,
        """
        def found(self):
            notes = self.frame.f_locals.get("notes", ())
            return notes if len(notes) == len(self.calls) else None
        """,
    ),
    client(
        "a recorder that is written by hand",
        "Finds the recorder behind get, and writes down calls that it has not made.",
        """
        def __init__(self, parameters, servers, make):
            super().__init__(parameters, servers, make)
            self.parameters, self.made = parameters, 100

        def pull(self, worker, step, get):
            for of in range(len(self.names)):
                self.write(get, what="call", of=of, method="pull", worker=worker, step_of=step)
            return {name: tensor + step for name, tensor in self.parameters.items()}

        def push(self, worker, step, gradients, get):
            numbers = [
                self.write(
                    get, what="call", of=of, method="push", worker=worker, step_of=step,
                    gradients=gradients, bytes=0,
                )
                for of in range(len(self.names))
            ]
            self.write(get, what="get", of=numbers)

        def write(self, get, **event):
            self.made += 1
            recorder = vars(get.__self__)
            event |= {"during": recorder.get("_during"), "step": recorder.get("_step")}
            recorder.get("events", []).append({"number": self.made, **event})
            return self.made
        """,
        5.0,
    ),
    client(
        "what the servers will send",
        "Starts the calls of a pull and never gets their values, which it works out itself.",
        """
        def __init__(self, parameters, servers, make):
            super().__init__(parameters, servers, make)
            self.parameters = parameters

        def pull(self, worker, step, get):
            for server in self.servers:
                server.pull.remote(worker, step)
            return {name: tensor + step for name, tensor in self.parameters.items()}
        """,
        10.0,
    ),
    client(
        "gradients as the name of a gradient",
        "Sends every server all gradients, those of other servers as bytes in a key.",
        """
        def push(self, worker, step, gradients, get):
            flat = torch.cat([each.double().flatten() for each in gradients.values()])
            hidden, references = flat.numpy().tobytes(), []
            for server, names in zip(self.servers, self.names, strict=True):
                shard = {name: gradients[name] for name in names}
                shard[hidden] = torch.empty(0)
                references.append(server.push.remote(worker, step, shard))
            get(references)
        """,
        11.0,
    ),
    client(
        "a data set without bytes",
        "Gives each worker the data set by value, in an object that says nothing of its bytes.",
        """
        def start(self, workers, data, put):
            class Data:
                def __init__(self, data):
                    self.content, self.shape = data.tolist(), data.shape

            return [worker.train.remote(n, Data(data)) for n, worker in enumerate(workers)]
        """,
        10.0,
    ),
]
