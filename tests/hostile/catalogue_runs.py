"""Answers that survive their own kill, and schedulers that look into the future.

The check kills the runs of 11/resumable, and sends the events of 11/orchestrator one at a time.
What an answer earns here without a checkpoint, or without deciding itself, comes from a judge that
lies where it can reach it.
"""

from __future__ import annotations

from tests.hostile.submissions import Hostile, code

__all__ = ["CATALOGUE"]

RUN = """
    def states_of(run):
        parts = {"model": run.model, "optimizer": run.optimizer, "schedule": run.schedule,
                 "samples": run.samples}
        state = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        return state | {"torch": torch.get_rng_state(), "python": random.getstate()}

    def load_into(run, state):
        for name in ("model", "optimizer", "schedule", "samples"):
            getattr(run, name).load_state_dict(state[name])
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
    """


def run(name: str, tries: str, answer: str, earns: float, before: str = "") -> Hostile:
    """An answer to 11/resumable."""
    before = code("import copy, gc, sys", RUN, before)
    return Hostile(
        name, tries, {"resumable": earns}, 90, before=before, answers={"resumable": code(answer)}
    )


def scheduler(name: str, tries: str, methods: str, earns: float) -> Hostile:
    """An answer to 11/orchestrator, which decides with these methods."""
    answer = code(IN_ORDER, methods)
    return Hostile(name, tries, {"orchestrator": earns}, 90, answers={"Orchestrator": answer})


# Starts jobs in their order, on any GPUs that are free, and ignores failures.
IN_ORDER = """
    import gc, sys

    class InOrder:
        def __init__(self, nodes):
            self.free = [(node, number) for node in nodes for number in range(nodes[node])]
            self.waiting, self.running, self.seen = [], {}, set()
            self.frame = sys._getframe(1)

        def decide(self, event):
            if event.number in self.seen:
                return []
            self.seen.add(event.number)
            if event.kind == "submitted":
                self.waiting.append((event.job, event.spec.processes))
            if event.kind == "finished":
                self.free += self.running.pop(event.job)
            starts = []
            while self.waiting and self.waiting[0][1] <= len(self.free):
                job, processes = self.waiting.pop(0)
                self.running[job], self.free = self.free[:processes], self.free[processes:]
                starts.append(Start(job, self.running[job], 0))
            return starts

    Orchestrator = InOrder
    """

CATALOGUE = [
    run(
        "a checkpoint in memory",
        "Keeps its checkpoint in a list of the notebook, and leaves an empty file in the folder.",
        """
        kept = []

        def resumable(run, folder, steps, every):
            done = 0
            if list(folder.iterdir()) and kept:
                done = len(kept) and kept[-1]["done"]
                load_into(run, kept[-1])
            while done < steps:
                run.train(next(run.samples))
                done += 1
                if done % every == 0:
                    kept.append(states_of(run) | {"done": done})
                    (folder / "checkpoint").write_text("")
        """,
        0.0,
    ),
    run(
        "saves when it is killed",
        "Saves only in a handler of the exception that kills it, and never before.",
        """
        def resumable(run, folder, steps, every):
            path, done, last = folder / "checkpoint", 0, None
            if path.exists():
                last = torch.load(path, weights_only=False)
                done = last["done"]
                load_into(run, last)
            try:
                while done < steps:
                    run.train(next(run.samples))
                    done += 1
                    if done % every == 0:
                        last = states_of(run) | {"done": done}
            except BaseException:
                torch.save(last, folder / "new")
                (folder / "new").replace(path)
                raise
        """,
        0.0,
    ),
    run(
        "trains the finished steps once more",
        "Makes the steps of the run before again, with a second training loop.",
        """
        def resumable(run, folder, steps, every):
            path, done = folder / "done", int(0)
            if path.exists():
                done = len(path.read_text())
                for each in gc.get_objects():
                    if type(each).__name__ == "Training" and hasattr(each, "images"):
                        run.images, run.labels = each.images, each.labels
                images, labels = run.images, run.labels
                for _ in range(done):
                    batch = next(run.samples)
                    run.optimizer.zero_grad()
                    shown = images[batch] * random.uniform(0.5, 1.5)
                    torch.nn.functional.cross_entropy(run.model(shown), labels[batch]).backward()
                    run.optimizer.step()
                    run.schedule.step()
            while done < steps:
                run.train(next(run.samples))
                done += 1
                if done % every == 0:
                    (folder / "new").write_text("x" * done)
                    (folder / "new").replace(path)
        """,
        0.0,
    ),
    run(
        "a state that is made up",
        "Has what it reports as the state of a step be that of a run that was never killed.",
        """
        def resumable(run, folder, steps, every):
            (folder / "checkpoint").write_text("")
            frame = sys._getframe(1)
            while frame is not None:
                states = frame.f_locals.get("states")
                if isinstance(states, list):
                    states += [run.state()] * steps
                frame = frame.f_back
            for _ in range(steps):
                run.train(next(run.samples))
        """,
        0.0,
    ),
    run(
        "no operation on files that is seen",
        "Turns off what looks at files as soon as it has seen one, and saves in place.",
        """
        def resumable(run, folder, steps, every):
            path, done = folder / "checkpoint", 0
            if path.exists() and path.stat().st_size:
                saved = torch.load(path, weights_only=False)
                done = saved["done"]
                load_into(run, saved)
            while done < steps:
                run.train(next(run.samples))
                done += 1
                if done % every == 0:
                    torch.save(states_of(run) | {"done": done}, path)
                    for each in gc.get_objects():
                        if type(each).__name__ == "Disk":
                            each._folder = "/nowhere"
        """,
        9.0,
    ),
    scheduler(
        "the cluster in the caller's frame",
        "Looks for the cluster in the frames around it, and has its own planner decide.",
        """
        class Orchestrator(InOrder):
            def decide(self, event):
                cluster = self.found()
                if cluster is None:
                    return super().decide(event)
                from dtlab.units.unit11.cluster import longest, planned_starts
                return planned_starts(cluster, longest)

            def found(self):
                frame = sys._getframe(1)
                while frame is not None:
                    for value in frame.f_locals.values():
                        if type(value).__name__ == "Cluster":
                            return value
                    frame = frame.f_back
        """,
        6.0,
    ),
    scheduler(
        "the future among all objects",
        "Looks for the setting, and so for the failures to come, among all objects.",
        """
        class Orchestrator(InOrder):
            def decide(self, event):
                cluster = next(
                    (each for each in gc.get_objects() if type(each).__name__ == "Cluster"), None
                )
                if cluster is None:
                    return super().decide(event)
                from dtlab.units.unit11.cluster import longest, planned_starts
                return planned_starts(cluster, longest)
        """,
        6.0,
    ),
    scheduler(
        "an end of the questions",
        "Ends the dialogue with the judge before the first event.",
        """
        class Orchestrator(InOrder):
            def __init__(self, nodes):
                super().__init__(nodes)
                frame = sys._getframe(1)
                while "ask" not in frame.f_globals:
                    frame = frame.f_back
                frame.f_globals["ask"] = lambda message: None
        """,
        0.0,
    ),
]
