"""Answers to 04/keep_random_state: mistakes people make, and right ones written differently."""

from contextlib import ExitStack, contextmanager, suppress

import torch


def states(generators):
    return [each.get_state() for each in generators]


def put_back(generators, kept):
    for generator, state in zip(generators, kept, strict=True):
        generator.set_state(state)


# Wrong ------------------------------------------------------------------------------


def a_seed_instead(*generators):
    """The same in both runs, and the program's own numbers are gone."""
    torch.manual_seed(0)

    @contextmanager
    def again():
        torch.manual_seed(0)
        yield

    return again


def the_first_seed(*generators):
    @contextmanager
    def again():
        before = torch.get_rng_state()
        torch.manual_seed(torch.initial_seed())
        yield
        torch.set_rng_state(before)

    return again


def kept_too_late(*generators):
    """At the second run."""

    @contextmanager
    def again():
        before = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(before)

    return again


def kept_at_the_first_use(*generators):
    kept = []

    @contextmanager
    def again():
        if not kept:
            kept.append(torch.get_rng_state())
        before = torch.get_rng_state()
        torch.set_rng_state(kept[0])
        try:
            yield
        finally:
            torch.set_rng_state(before)

    return again


def never_put_back(*generators):
    every = [torch.default_generator, *generators]
    kept = states(every)

    @contextmanager
    def again():
        put_back(every, kept)
        yield

    return again


def the_kept_state_afterwards(*generators):
    every = [torch.default_generator, *generators]
    kept = states(every)

    @contextmanager
    def again():
        put_back(every, kept)
        try:
            yield
        finally:
            put_back(every, kept)

    return again


def the_state_of_the_end_is_kept(*generators):
    """Looks at the program's state once the second run has drawn."""
    every = [torch.default_generator, *generators]
    kept = states(every)

    @contextmanager
    def again():
        put_back(every, kept)
        before = states(every)
        try:
            yield
        finally:
            put_back(every, before)

    return again


def draws_a_number_to_see(*generators):
    every = [torch.default_generator, *generators]
    torch.rand(1)
    kept = states(every)

    @contextmanager
    def again():
        before = states(every)
        put_back(every, kept)
        try:
            yield
        finally:
            put_back(every, before)

    return again


def no_finally(*generators):
    every = [torch.default_generator, *generators]
    kept = states(every)

    @contextmanager
    def again():
        before = states(every)
        put_back(every, kept)
        yield
        put_back(every, before)

    return again


def errors_swallowed(*generators):
    every = [torch.default_generator, *generators]
    kept = states(every)

    @contextmanager
    def again():
        before = states(every)
        put_back(every, kept)
        with suppress(Exception):
            yield
        put_back(every, before)

    return again


def generators_forgotten(*generators):
    kept = torch.get_rng_state()

    @contextmanager
    def again():
        before = torch.get_rng_state()
        torch.set_rng_state(kept)
        try:
            yield
        finally:
            torch.set_rng_state(before)

    return again


def own_generator_forgotten_beside_others(*generators):
    every = list(generators) or [torch.default_generator]
    kept = states(every)

    @contextmanager
    def again():
        before = states(every)
        put_back(every, kept)
        try:
            yield
        finally:
            put_back(every, before)

    return again


def generators_never_put_back(*generators):
    every = [torch.default_generator, *generators]
    kept = states(every)

    @contextmanager
    def again():
        before = torch.get_rng_state()
        put_back(every, kept)
        try:
            yield
        finally:
            torch.set_rng_state(before)

    return again


def one_state_for_all(*generators):
    every = [torch.default_generator, *generators]
    kept = torch.get_rng_state()

    @contextmanager
    def again():
        before = states(every)
        put_back(every, [kept] * len(every))
        try:
            yield
        finally:
            put_back(every, before)

    return again


def states_used_up(*generators):
    """An iterator goes through its values once."""
    every = [torch.default_generator, *generators]
    kept = iter([(each, each.get_state()) for each in every])

    @contextmanager
    def again():
        before = states(every)
        for generator, state in kept:
            generator.set_state(state)
        try:
            yield
        finally:
            put_back(every, before)

    return again


def states_popped(*generators):
    every = [torch.default_generator, *generators]
    kept = states(every)

    @contextmanager
    def again():
        before = states(every)
        for generator in reversed(every):
            generator.set_state(kept.pop())
        try:
            yield
        finally:
            put_back(every, before)

    return again


def for_one_use(*generators):
    """Gives what comes of calling it."""
    return right_with_lists(*generators)()


def no_context(*generators):
    every = [torch.default_generator, *generators]
    kept = states(every)

    def again():
        put_back(every, kept)

    return again


def returns_nothing(*generators):
    right_with_lists(*generators)


def not_written(*generators):
    raise NotImplementedError()


# Right, written differently ---------------------------------------------------------


def right_with_lists(*generators):
    every = [torch.default_generator, *generators]
    kept = [each.get_state() for each in every]

    @contextmanager
    def again():
        before = [each.get_state() for each in every]
        for generator, state in zip(every, kept, strict=True):
            generator.set_state(state)
        try:
            yield
        finally:
            for generator, state in zip(every, before, strict=True):
                generator.set_state(state)

    return again


def right_with_fork_rng(*generators):
    kept = torch.get_rng_state(), {each: each.get_state() for each in generators}

    @contextmanager
    def again():
        with torch.random.fork_rng(devices=[]), ExitStack() as stack:
            for each, state in kept[1].items():
                stack.callback(each.set_state, each.get_state())
                each.set_state(state)
            torch.set_rng_state(kept[0])
            yield

    return again


def right_with_a_class(*generators):
    every = (torch.default_generator, *generators)
    kept = tuple(each.get_state() for each in every)

    class Again:
        def __enter__(self):
            self.before = states(every)
            put_back(every, kept)

        def __exit__(self, *_):
            put_back(every, self.before)

    return Again


RIGHT = [right_with_lists, right_with_fork_rng, right_with_a_class]

WRONG = {
    a_seed_instead: {"after": "draws other numbers than it would without you"},
    the_first_seed: {"same": "restore it before the second one draws"},
    kept_too_late: {"same": "The program would draw these next"},
    kept_at_the_first_use: {"same": "the second run and the first draw"},
    never_put_back: {"after": "They repeat the numbers that came after the first run"},
    the_kept_state_afterwards: {"after": "the program draws other numbers"},
    the_state_of_the_end_is_kept: {"after": "the state from just before it"},
    draws_a_number_to_see: {"after": "Saving a state must not change it"},
    no_finally: {"error": "Restore the state in `finally`"},
    errors_swallowed: {"error": "the error does not reach the caller"},
    generators_forgotten: {"generators": "generator 1 draws other numbers"},
    own_generator_forgotten_beside_others: {"generators": "PyTorch's own generator draws other"},
    generators_never_put_back: {"generators": "generator 1 continues with other numbers"},
    one_state_for_all: {"generators": "generator 1 draws other numbers"},
    states_used_up: {"often": "for the next run"},
    states_popped: {"often": "for the next run"},
    for_one_use: {"same": "each call of it must return a context manager"},
    no_context: {"same": "each call of it must return a context manager"},
    returns_nothing: {"same": "each call of it must return a context manager"},
    not_written: {"same": "keep_random_state is not written yet"},
}

_ORDER = "states of different generators may be set in any order"
_TWICE = "a state that is set twice is the same state"

EQUIVALENT = {
    "line 10: for place in range(len(every)): -> "
    "for place in reversed(range(len(every))):": _ORDER,
    "line 15: for place in range(len(every)): -> "
    "for place in reversed(range(len(every))):": _ORDER,
    "every[place].set_state(kept[place]) -> "
    "every[place].set_state(kept[place]); every[place].set_state(kept[place])": _TWICE,
    "every[place].set_state(kept[place]) -> every[place].set_state(kept[place]); "
    "for place in range(len(every)):; every[place].set_state(kept[place])": _TWICE,
    "every[place].set_state(before[place]) -> every[place].set_state(before[place]); "
    "for place in range(len(every)):; every[place].set_state(before[place])": _TWICE,
    "every[place].set_state(before[place]) -> "
    "every[place].set_state(before[place]); every[place].set_state(before[place])": _TWICE,
}
