"""Answers to 11/orchestrator: classes that decide which jobs start where."""

from dtlab.units.unit11.orchestrator import Start

# The right one, with a method for each thing that can be wrong -----------------------------------


class LongestFirst:
    """The longest job first, on the fullest node with room; small jobs may pass large ones."""

    def __init__(self, nodes):
        self.nodes, self.down, self.numbers = nodes, set(), set()
        self.jobs, self.saved = {}, {}  # by name: the message about a job, its last checkpoint
        self.waiting, self.running = [], {}  # names; GPUs by name

    def decide(self, event):
        if event.number in self.numbers:
            return []
        self.numbers.add(event.number)
        getattr(self, event.kind)(event)
        return self.starts()

    def submitted(self, event):
        self.jobs[event.job], self.saved[event.job] = event, 0
        self.waiting.append(event.job)

    def checkpoint(self, event):
        self.saved[event.job] = event.step

    def finished(self, event):
        del self.running[event.job]

    def failed(self, event):
        self.down.add(event.node)
        for job in self.on(event.node):
            del self.running[job]
            self.waiting.append(job)

    def back(self, event):
        self.down.discard(event.node)

    def on(self, node):
        return [job for job, gpus in self.running.items() if node in dict(gpus)]

    def starts(self):
        starts = []
        for job in sorted(self.waiting, key=self.order):
            if gpus := self.place(self.needs(job)):
                starts.append(self.start(job, gpus))
            elif not self.passes:
                break
        return starts

    passes = True

    def start(self, job, gpus):
        self.waiting.remove(job)
        self.running[job] = gpus
        return Start(job, gpus, self.step(job))

    def order(self, job):
        return -self.left(job)

    def left(self, job):
        return self.jobs[job].minutes * (1 - self.saved[job] / self.jobs[job].spec.steps)

    def needs(self, job):
        return self.jobs[job].spec.processes

    def step(self, job):
        return self.saved[job]

    def free(self):
        used = {gpu for gpus in self.running.values() for gpu in gpus}
        return [
            [(node, i) for i in range(count) if (node, i) not in used]
            for node, count in self.nodes.items()
            if node not in self.down
        ]

    def place(self, count):
        room = [gpus for gpus in self.free() if len(gpus) >= count]
        return min(room, key=len)[:count] if room else []


# Wrong ------------------------------------------------------------------------------------------


class NotWritten:
    def __init__(self, nodes):
        raise NotImplementedError()


class NoList(LongestFirst):
    def decide(self, event):
        starts = super().decide(event)
        return starts[0] if starts else None


class NothingStarts(LongestFirst):
    def starts(self):
        return []


class Pairs(LongestFirst):
    def start(self, job, gpus):
        return super().start(job, gpus)[:2]


class OnDownNodes(LongestFirst):
    """Remembers a failure only for the jobs on the node."""

    def free(self):
        self.down.clear()
        return super().free()


class StillRunning(LongestFirst):
    """The GPUs of a job that starts are not taken at once."""

    def starts(self):
        free = self.free()
        self.free = lambda: free
        starts = super().starts()
        del self.free
        return starts


class FreesAllGpus(LongestFirst):
    """A job that ends frees its whole node."""

    def finished(self, event):
        nodes = dict(self.running.pop(event.job))
        self.hidden = getattr(self, "hidden", set())
        for job, gpus in self.running.items():
            if set(dict(gpus)) & set(nodes):
                self.hidden.add(job)

    def free(self):
        kept = self.running
        self.running = {j: g for j, g in kept.items() if j not in getattr(self, "hidden", ())}
        rows = super().free()
        self.running = kept
        return rows


class OneGpuTwice(LongestFirst):
    def place(self, count):
        gpus = super().place(count)
        return [gpus[0]] * count if gpus else []


class FromOne(LongestFirst):
    """Counts the GPUs of a node from 1."""

    def start(self, job, gpus):
        start = super().start(job, gpus)
        return start._replace(gpus=[(node, i + 1) for node, i in gpus])


class NoServer(LongestFirst):
    """The number of ranks, for both back ends."""

    def needs(self, job):
        return self.jobs[job].spec.ranks


class AlwaysAServer(LongestFirst):
    def needs(self, job):
        return min(max(self.nodes.values()), self.jobs[job].spec.ranks + 1)


class WholeNodes(LongestFirst):
    def needs(self, job):
        return max(self.nodes.values())


class SubmittedTwice(LongestFirst):
    """A repeated message submits a job again; its GPUs stay in use."""

    def decide(self, event):
        if event.kind == "submitted" and event.number in self.numbers:
            self.waiting.append(event.job)
        return super().decide(event)

    def start(self, job, gpus):
        others = self.running.get(job, [])
        start = super().start(job, gpus)
        self.running[job] = [*gpus, *others]
        return start

    def finished(self, event):
        self.running.pop(event.job, None)

    def failed(self, event):
        self.waiting = [job for job in self.waiting if job not in self.on(event.node)]
        super().failed(event)


class FinishedJobsAgain(LongestFirst):
    """A job that finished before its node failed is started again."""

    def finished(self, event):
        self.done = {**getattr(self, "done", {}), event.job: self.running.pop(event.job)}

    def failed(self, event):
        super().failed(event)
        for job, gpus in list(getattr(self, "done", {}).items()):
            if event.node in dict(gpus):
                self.waiting.append(job)
                del self.done[job]

    def step(self, job):
        return self.saved[job]


class Forgets(LongestFirst):
    """A job whose node fails does not wait again."""

    def failed(self, event):
        self.down.add(event.node)
        for job in self.on(event.node):
            del self.running[job]


class ForgetsTheSecondTime(LongestFirst):
    def failed(self, event):
        self.again = getattr(self, "again", set())
        waiting = set(self.waiting)
        super().failed(event)
        stopped = set(self.waiting) - waiting
        self.waiting = [job for job in self.waiting if job not in self.again & stopped]
        self.again |= stopped


class OnlyTheFirstOnANode(LongestFirst):
    def on(self, node):
        return super().on(node)[:1]

    def failed(self, event):
        others = super().on(event.node)[1:]
        super().failed(event)
        for job in others:
            del self.running[job]


class NeverBack(LongestFirst):
    """A node that failed is not used again."""

    def back(self, event):
        pass


class StartsOnlyOnSubmission(LongestFirst):
    """Jobs that wait are looked at when another one comes."""

    def decide(self, event):
        starts = super().decide(event)
        for start in starts if event.kind != "submitted" else ():
            del self.running[start.job]
            self.waiting.append(start.job)
        return starts if event.kind == "submitted" else []


class FromTheBeginning(LongestFirst):
    def step(self, job):
        return 0


class LastMessage(LongestFirst):
    """A repeated message about a checkpoint counts as a new one."""

    def decide(self, event):
        if event.kind == "checkpoint" and event.number in self.numbers:
            self.checkpoint(event)
        return super().decide(event)


class StepAfter(LongestFirst):
    def step(self, job):
        return self.saved[job] + bool(self.saved[job])


class InOrder(LongestFirst):
    """No job passes another one."""

    passes = False

    def order(self, job):
        return self.jobs[job].number


class Spread(LongestFirst):
    """The first free GPUs, on whatever nodes."""

    def place(self, count):
        free = [gpu for gpus in self.free() for gpu in gpus]
        return free[:count] if len(free) >= count else []


class OneFromEachNode(LongestFirst):
    def place(self, count):
        rows = self.free()
        free = [row[i] for i in range(4) for row in rows if i < len(row)]
        return free[:count] if len(free) >= count else []


class ShortFirst(LongestFirst):
    def order(self, job):
        return self.jobs[job].minutes


class OneAtATime(LongestFirst):
    def starts(self):
        return [] if self.running else super().starts()[:1]

    def start(self, job, gpus):
        if self.running:
            return None
        return super().start(job, gpus)


# Right, written differently ---------------------------------------------------------------------


class LargestFirst(LongestFirst):
    """The job with the most minutes on all its GPUs first."""

    def order(self, job):
        return -self.left(job) * self.needs(job)


class States:
    """A table of states, in one method, with GPUs as a set; pairs instead of Start."""

    def __init__(self, nodes):
        self.free = {(node, i) for node, count in nodes.items() for i in range(count)}
        self.jobs, self.seen, self.down = {}, set(), set()

    def decide(self, event):
        if event.number in self.seen:
            return ()
        self.seen.add(event.number)
        job = self.jobs.setdefault(event.job, {"gpus": [], "step": 0})
        if event.kind == "submitted":
            job.update(state="waits", needs=event.spec.processes, minutes=event.minutes)
        elif event.kind == "checkpoint":
            job["step"] = event.step
        elif event.kind == "finished":
            self.ended(job, "finished")
        elif event.kind == "failed":
            self.down.add(event.node)
            for each in self.jobs.values():
                if each.get("state") == "runs" and event.node in {n for n, _ in each["gpus"]}:
                    self.ended(each, "waits")
        else:
            self.down.remove(event.node)
        return tuple(self.started())

    def ended(self, job, state):
        self.free |= set(job["gpus"])
        job.update(state=state, gpus=[])

    def started(self):
        waiting = [(job["minutes"], name) for name, job in self.jobs.items()
                   if job.get("state") == "waits"]  # fmt: skip
        for _, name in sorted(waiting, reverse=True):
            job, rooms = self.jobs[name], {}
            for gpu in sorted(self.free):
                if gpu[0] not in self.down:
                    rooms.setdefault(gpu[0], []).append(gpu)
            fitting = [room for room in rooms.values() if len(room) >= job["needs"]]
            if fitting:
                job.update(state="runs", gpus=min(fitting, key=len)[: job["needs"]])
                self.free -= set(job["gpus"])
                yield name, job["gpus"], job["step"]


RIGHT = [LongestFirst, LargestFirst, States]

WRONG = {
    NotWritten: {"gpus": "not written yet"},
    NoList: {"gpus": "Return a list of Start"},
    Pairs: {"gpus": "Write Start(job, gpus, step)"},
    NothingStarts: {"lost": "and never started"},
    OnDownNodes: {"gpus": "has failed and is not back"},
    StillRunning: {"gpus": "on which"},
    FreesAllGpus: {"gpus": "on which"},
    OneGpuTwice: {"gpus": "a GPU twice"},
    FromOne: {"gpus": "which does not exist"},
    NoServer: {"processes": "has 4 processes (backend='parameter_server', ranks=3)"},
    AlwaysAServer: {"processes": "backend='all_reduce'"},
    WholeNodes: {"processes": "but gets"},
    SubmittedTwice: {"once": "is started, but it"},
    FinishedJobsAgain: {"once": "it finished at minute"},
    Forgets: {"lost": "when its node failed, and never went on"},
    ForgetsTheSecondTime: {"lost": "never went on"},
    OnlyTheFirstOnANode: {"lost": "never went on"},
    NeverBack: {"lost": ""},
    StartsOnlyOnSubmission: {"lost": ""},
    FromTheBeginning: {"checkpoint": "is started from step 0, but its last checkpoint is of step"},
    LastMessage: {"checkpoint": "but its last checkpoint"},
    StepAfter: {"checkpoint": "but its last checkpoint"},
    InOrder: {"makespan": "which GPUs are idle while jobs wait"},
    Spread: {"makespan": "put a job on several nodes"},
    OneFromEachNode: {"makespan": "put a job on several nodes"},
    ShortFirst: {"makespan": "Which jobs run last"},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_ORDER = "neither statement reads what the other one changes"
_AGAIN = "the second time changes nothing"
_ANY_ORDER = "the order does not matter"
_IF, _ITEMS = "if event.kind == 'submitted':", "self.running.items()"
_KNOWN = "self.known.add(event.number)"
_NEW = "self.jobs[event.job], self.saved[event.job] = (event, 0)"
_WAITS = "self.waiting.append(event.job)"
_DOWN = "self.down.add(event.node)"
_STOPPED = "stopped = [job for job, gpus in self.running.items() if event.node in dict(gpus)]"
_ENDS, _AGAIN_WAITS = "del self.running[job]", "self.waiting.append(job)"
_REMOVED, _RUNS = "self.waiting.remove(job)", "self.running[job] = gpus"
_YIELD = "yield Start(job, gpus, self.saved[job])"
_USED = "used = {gpu for gpus in self.running.values() for gpu in gpus}"

EQUIVALENT = {
    f"{_KNOWN}; {_IF}; ... -> {_IF}; {_NEW}; ...": _ORDER,
    f"{_KNOWN} -> {_KNOWN}; {_KNOWN}": _AGAIN,
    f"{_NEW}; {_WAITS} -> {_WAITS}; {_NEW}": _ORDER,
    f"{_DOWN}; {_STOPPED} -> {_STOPPED}; {_DOWN}": _ORDER,
    f"{_STOPPED} -> {_STOPPED.replace(_ITEMS, f'reversed({_ITEMS})')}": _ANY_ORDER,
    f"{_DOWN} -> {_DOWN}; {_DOWN}": _AGAIN,
    "for job in stopped: -> for job in reversed(stopped):": _ANY_ORDER,
    f"{_ENDS}; {_AGAIN_WAITS} -> {_AGAIN_WAITS}; {_ENDS}": _ORDER,
    f"{_REMOVED}; {_RUNS} -> {_RUNS}; {_REMOVED}": _ORDER,
    f"{_RUNS}; {_YIELD} -> {_YIELD}; {_RUNS}": "decide makes a list, so the loop goes on at once",
    f"{_YIELD} -> {_YIELD}; break": "the next message starts the next job; most are a minute away",
    f"{_USED} -> {_USED.replace('self.running.values()', 'reversed(self.running.values())')}": (
        _ANY_ORDER
    ),
    "... self.running.values() for gpu in gpus} -> "
    "... self.running.values() for gpu in reversed(gpus)}": _ANY_ORDER,
    "... [(node, number) for number in range(self.nodes[node])] -> "
    "... [(node, number) for number in reversed(range(self.nodes[node]))]": _ANY_ORDER,
    "free = [gpu for gpu in free if gpu not in used] -> "
    "free = [gpu for gpu in reversed(free) if gpu not in used]": _ANY_ORDER,
    "... Start(job, gpus, self.saved[job]) -> ... Start(job, gpus, self.saved[job]); for job in "
    "sorted(self.waiting, key=lambda job: self.jobs[job].minutes, reverse=True):; ...": _AGAIN,
    "rooms.append(free) -> rooms.append(free); rooms.append(free)": _AGAIN,
    "rooms.append(free) -> rooms.append(free); for node in self.nodes.keys() - self.down:; ...": (
        _AGAIN
    ),
}
