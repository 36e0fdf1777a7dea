"""Answers to 11/resumable: mistakes people make, and right answers written differently."""

import os
import pickle
import random
from pathlib import Path

import torch


def parts_of(run):
    """What has a state."""
    return {
        "model": run.model,
        "optimizer": run.optimizer,
        "schedule": run.schedule,
        "samples": run.samples,
    }


def state_of(run, step, without=()):
    """All that a checkpoint needs, but for some parts."""
    saved = {name: part.state_dict() for name, part in parts_of(run).items()}
    saved |= {"step": step, "torch": torch.get_rng_state(), "python": random.getstate()}
    return {name: value for name, value in saved.items() if name not in without}


def load_into(run, saved):
    for name, part in parts_of(run).items():
        if name in saved:
            part.load_state_dict(saved[name])
    if "torch" in saved:
        torch.set_rng_state(saved["torch"])
    if "python" in saved:
        random.setstate(saved["python"])
    return saved["step"]


def save(run, path, step, without=()):
    torch.save(state_of(run, step, without), path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def resume(run, path):
    return load_into(run, torch.load(path)) if path.exists() else 0


def train(run, folder, steps, every, save=save, resume=resume, begin=lambda step: step):
    """The whole loop, with other ways to save and to resume."""
    path = folder / "checkpoint.pt"
    for step in range(begin(resume(run, path)), steps):
        run.train(next(run.samples))
        if (step + 1) % every == 0:
            save(run, path, step + 1)


def right(run, folder, steps, every):
    train(run, folder, steps, every)


def untouched(run, folder, steps, every):
    raise NotImplementedError()


# Wrong: goes_on ---------------------------------------------------------------------------------


def never_loads(run, folder, steps, every):
    train(run, folder, steps, every, resume=lambda run, path: 0)


def from_the_start(run, folder, steps, every):
    """Loads, and begins to count again."""
    train(run, folder, steps, every, begin=lambda step: 0)


def a_step_too_far(run, folder, steps, every):
    """Begins with the step after the next."""
    train(run, folder, steps, every, begin=lambda step: step + (step > 0))


def trains_the_last_step_again(run, folder, steps, every):
    def save_it(run, path, step):
        save(run, path, step - 1)

    train(run, folder, steps, every, save=save_it)


def after_every_step(run, folder, steps, every):
    train(run, folder, steps, 1)


def one_step_late(run, folder, steps, every):
    """Saves when `step` is a multiple, one step after it was due."""
    path = folder / "checkpoint.pt"
    for step in range(resume(run, path), steps):
        run.train(next(run.samples))
        if step % every == 0 and step:
            save(run, path, step + 1)


def at_the_end(run, folder, steps, every):
    train(run, folder, steps, steps)


def last_by_name(run, folder, steps, every):
    """One file for each checkpoint: step_9 comes after step_12 as a text."""
    files = sorted(folder.glob("step_*.pt"))
    start = load_into(run, torch.load(files[-1])) if files else 0
    for step in range(start, steps):
        run.train(next(run.samples))
        if (step + 1) % every == 0:
            save(run, folder / f"step_{step + 1}.pt", step + 1)


def remaining_steps(run, folder, steps, every):
    """Trains `steps` steps more after each start."""
    start = resume(run, folder / "checkpoint.pt")
    for step in range(start, start + steps):
        run.train(next(run.samples))
        if (step + 1) % every == 0:
            save(run, folder / "checkpoint.pt", step + 1)


# Wrong: what is saved ---------------------------------------------------------------------------


def lacking(*names):
    def save_without(run, path, step):
        save(run, path, step, without=names)

    return save_without


def without_the_model(run, folder, steps, every):
    train(run, folder, steps, every, save=lacking("model"))


def without_the_optimizer(run, folder, steps, every):
    train(run, folder, steps, every, save=lacking("optimizer"))


def only_trainable_tensors(run, folder, steps, every):
    """The weights alone, as for inference."""
    train(run, folder, steps, every, save=lacking("optimizer", "schedule", "samples"))


def without_the_schedule(run, folder, steps, every):
    train(run, folder, steps, every, save=lacking("schedule"))


def without_the_samples(run, folder, steps, every):
    train(run, folder, steps, every, save=lacking("samples"))


def without_random_states(run, folder, steps, every):
    train(run, folder, steps, every, save=lacking("torch", "python"))


def without_pythons(run, folder, steps, every):
    train(run, folder, steps, every, save=lacking("python"))


def without_torchs(run, folder, steps, every):
    train(run, folder, steps, every, save=lacking("torch"))


def seeded_again(run, folder, steps, every):
    """The seed is saved, not the state."""

    def load(run, path):
        step = resume(run, path)
        if step:
            torch.manual_seed(torch.initial_seed())
        return step

    train(run, folder, steps, every, resume=load)


def state_of_the_beginning(run, folder, steps, every):
    """Takes the random states once, before the loop."""
    states = torch.get_rng_state(), random.getstate()

    def save_with(run, path, step):
        now = torch.get_rng_state(), random.getstate()
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        save(run, path, step)
        torch.set_rng_state(now[0])
        random.setstate(now[1])

    train(run, folder, steps, every, save=save_with)


def draws_before_it_saves(run, folder, steps, every):
    """The batch of the next step is already drawn when the position is saved."""
    path = folder / "checkpoint.pt"
    start, batch = resume(run, path), None
    for step in range(start, steps):
        batch = next(run.samples) if batch is None else batch
        run.train(batch)
        batch = None
        if (step + 1) % every == 0:
            batch = next(run.samples)
            save(run, path, step + 1)


def counts_epochs(run, folder, steps, every):
    """Goes on with the epoch, not with the batch."""

    def load(run, path):
        step = resume(run, path)
        run.samples.drawn -= run.samples.drawn % run.samples.num_samples
        return step

    train(run, folder, steps, every, resume=load)


# Wrong: atomic ----------------------------------------------------------------------------------


def in_place(run, folder, steps, every):
    def save_there(run, path, step):
        torch.save(state_of(run, step), path)

    train(run, folder, steps, every, save=save_there)


def removes_first(run, folder, steps, every):
    def save_then(run, path, step):
        path.unlink(missing_ok=True)
        save(run, path, step)

    train(run, folder, steps, every, save=save_then)


def removes_before_the_rename(run, folder, steps, every):
    """As on systems where a rename does not replace a file."""

    def save_then(run, path, step):
        torch.save(state_of(run, step), path.with_suffix(".new"))
        if path.exists():
            path.unlink()
        path.with_suffix(".new").rename(path)

    train(run, folder, steps, every, save=save_then)


def keeps_an_older_one_unused(run, folder, steps, every):
    """There is a second file, but nothing falls back to it."""

    def save_both(run, path, step):
        if path.exists():
            os.replace(path, path.with_suffix(".old"))
        torch.save(state_of(run, step), path)

    train(run, folder, steps, every, save=save_both)


def two_files(run, folder, steps, every):
    """The step is in a file apart, which can be of another save."""

    def save_two(run, path, step):
        save(run, path, step)
        path.with_suffix(".txt.new").write_text(str(step))
        os.replace(path.with_suffix(".txt.new"), path.with_suffix(".txt"))

    def load_two(run, path):
        if not path.with_suffix(".txt").exists():
            return 0
        resume(run, path)
        return int(path.with_suffix(".txt").read_text())

    train(run, folder, steps, every, save=save_two, resume=load_two)


def pointer_in_place(run, folder, steps, every):
    """Files are complete, but the name of the newest is written in place."""

    def save_one(run, path, step):
        save(run, path.with_name(f"step_{step}.pt"), step)
        path.with_suffix(".newest").write_text(f"step_{step}.pt")

    def load_newest(run, path):
        newest = path.with_suffix(".newest")
        return resume(run, path.with_name(newest.read_text())) if newest.exists() else 0

    train(run, folder, steps, every, save=save_one, resume=load_newest)


def glob_finds_unfinished_files(run, folder, steps, every):
    """The name of an unfinished file looks like that of a checkpoint."""
    files = {int(path.name.split("_")[1]): path for path in folder.glob("step_*")}
    start = load_into(run, torch.load(files[max(files)])) if files else 0
    for step in range(start, steps):
        run.train(next(run.samples))
        if (step + 1) % every == 0:
            path = folder / f"step_{step + 1}_"
            torch.save(state_of(run, step + 1), path.with_name(f"{path.name}new"))
            os.replace(path.with_name(f"{path.name}new"), path)


# Right ------------------------------------------------------------------------------------------


def a_file_for_each_step(run, folder, steps, every):
    """Keeps all, and finds the newest by its number; skips samples up to its position."""
    numbers = [int(path.stem) for path in Path(folder).glob("*.ckpt")]
    done = max(numbers, default=0)
    if done:
        with open(folder / f"{done}.ckpt", "rb") as file:
            saved = pickle.load(file)
        run.model.load_state_dict(saved[0])
        run.optimizer.load_state_dict(saved[1])
        run.schedule.load_state_dict(saved[2])
        for _ in range(done):
            next(run.samples)
        torch.set_rng_state(saved[3])
        random.setstate(saved[4])
    while done < steps:
        run.train(next(run.samples))
        done += 1
        if done % every == 0:
            states = [part.state_dict() for part in (run.model, run.optimizer, run.schedule)]
            with open(folder / "unfinished", "wb") as file:
                pickle.dump([*states, torch.get_rng_state(), random.getstate()], file)
            os.rename(folder / "unfinished", folder / f"{done}.ckpt")


def two_in_turn(run, folder, steps, every):
    """Writes two files in turn, in place, and loads the newest one that can be read."""
    found = []
    for path in folder.glob("*.pt"):
        try:
            found.append(torch.load(path))
        except Exception:  # noqa: BLE001  a file that is half written
            continue
    newest = max(found, key=lambda saved: saved["step"], default=None)
    start = load_into(run, newest) if newest else 0
    for step in range(start, steps):
        run.train(next(run.samples))
        if (step + 1) % every == 0:
            turn = (step + 1) // every % 2
            torch.save(state_of(run, step + 1), folder / f"{turn}.pt")


RIGHT = [right, a_file_for_each_step, two_in_turn]

WRONG = {
    untouched: {"goes_on": "is not written yet"},
    never_loads: {"goes_on": "Is the newest one loaded"},
    from_the_start: {"goes_on": "does the loop begin with its step"},
    a_step_too_far: {"goes_on": "as if it began with"},
    trains_the_last_step_again: {"goes_on": "as if it began with"},
    after_every_step: {"goes_on": "as if it began with"},
    one_step_late: {"goes_on": ""},
    at_the_end: {"goes_on": "as if it began with 0"},
    last_by_name: {"goes_on": "as if it began with 9"},
    remaining_steps: {"goes_on": "trains"},
    without_the_model: {"parameters": "the model's parameters"},
    without_the_optimizer: {"parameters": "the optimizer's momentum"},
    only_trainable_tensors: {"parameters": "the optimizer's momentum"},
    without_the_schedule: {"schedule": "the number of steps of the schedule"},
    without_the_samples: {"data": "the number of samples drawn"},
    without_random_states: {"random": "torch's random numbers"},
    without_pythons: {"random": "Python's random numbers"},
    without_torchs: {"random": "torch's random numbers"},
    seeded_again: {"random": "torch's random numbers"},
    state_of_the_beginning: {"random": "torch's random numbers"},
    draws_before_it_saves: {"data": "the number of samples drawn"},
    counts_epochs: {"data": "the number of samples drawn"},
    in_place: {"atomic": "the old one must stay"},
    removes_first: {"atomic": "begins with step 0"},
    removes_before_the_rename: {"atomic": "begins with step"},
    keeps_an_older_one_unused: {"atomic": "fails with"},
    two_files: {"atomic": "The next run"},
    pointer_in_place: {"atomic": "The next run"},
    glob_finds_unfinished_files: {"atomic": "fails with"},
}

ORDER = "nothing depends on this order"
TWICE = "the second time changes nothing"
EQUIVALENT = {
    "done = saved['done']; for name, part in parts.items():; "
    "part.load_state_dict(saved[name]) -> for name, part in parts.items():; "
    "part.load_state_dict(saved[name]); done = saved['done']": ORDER,
    "for name, part in parts.items(): -> for name, part in reversed(parts.items()):": ORDER,
    "for name, part in parts.items():; part.load_state_dict(saved[name]); "
    "torch.set_rng_state(saved['torch']) -> torch.set_rng_state(saved['torch']); for "
    "name, part in parts.items():; part.load_state_dict(saved[name])": ORDER,
    "part.load_state_dict(saved[name]) -> part.load_state_dict(saved[name]); "
    "part.load_state_dict(saved[name])": TWICE,
    "part.load_state_dict(saved[name]) -> part.load_state_dict(saved[name]); for name, "
    "part in parts.items():; part.load_state_dict(saved[name])": TWICE,
    "torch.set_rng_state(saved['torch']); random.setstate(saved['python']) -> "
    "random.setstate(saved['python']); torch.set_rng_state(saved['torch'])": ORDER,
    "torch.set_rng_state(saved['torch']) -> torch.set_rng_state(saved['torch']); "
    "torch.set_rng_state(saved['torch'])": TWICE,
    "random.setstate(saved['python']) -> random.setstate(saved['python']); "
    "random.setstate(saved['python'])": TWICE,
    "run.train(next(run.samples)); done += 1 -> done += 1; run.train(next(run.samples))": ORDER,
    "... part.state_dict() for name, part in parts.items()} -> ... part.state_dict() for "
    "name, part in reversed(parts.items())}": ORDER,
    "state |= {'torch': torch.get_rng_state(), ... -> state = state | {'torch': "
    "torch.get_rng_state(), ...": "the same values",
    "...  ... -> ... random.getstate(), 'done': done}; state |= {'torch': "
    "torch.get_rng_state(), ...": TWICE,
    "torch.save(state, folder / 'checkpoint.new') -> torch.save(state, folder / "
    "'checkpoint.new'); torch.save(state, folder / 'checkpoint.new')": TWICE,
}
