"""Answers to 04/update_scale: mistakes people make, and right answers written differently."""

# Wrong ------------------------------------------------------------------------------------------


def untouched(scale, good_steps, overflow, growth_interval):
    raise NotImplementedError()


def never_goes_down(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale, 0
    return right(scale, good_steps, overflow, growth_interval)


def grows_on_overflow(scale, good_steps, overflow, growth_interval):
    if overflow:
        return 2 * scale, 0
    return right(scale, good_steps, overflow, growth_interval)


def a_quarter(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 4, 0
    return right(scale, good_steps, overflow, growth_interval)


def back_to_the_start(scale, good_steps, overflow, growth_interval):
    if overflow:
        return 2.0**16, 0
    return right(scale, good_steps, overflow, growth_interval)


def never_below_one(scale, good_steps, overflow, growth_interval):
    if overflow:
        return max(scale / 2, 1.0), 0
    return right(scale, good_steps, overflow, growth_interval)


def growth_is_asked_first(scale, good_steps, overflow, growth_interval):
    """An overflow in the step that would have been the last of a row."""
    if good_steps + 1 == growth_interval:
        return 2 * scale, 0
    return (scale / 2, 0) if overflow else (scale, good_steps + 1)


def the_other_way_round(scale, good_steps, overflow, growth_interval):
    return right(scale, good_steps, not overflow, growth_interval)


def forgets_to_reset(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 2, good_steps
    return right(scale, good_steps, overflow, growth_interval)


def counts_the_overflow(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 2, good_steps + 1
    return right(scale, good_steps, overflow, growth_interval)


def begins_at_one_after_an_overflow(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 2, 1
    return right(scale, good_steps, overflow, growth_interval)


def one_good_step_less(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 2, good_steps - 1 if good_steps else 0
    return right(scale, good_steps, overflow, growth_interval)


def one_step_too_early(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 2, 0
    if good_steps + 1 >= growth_interval - 1:
        return 2 * scale, 0
    return scale, good_steps + 1


def one_step_too_late(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 2, 0
    if good_steps == growth_interval:
        return 2 * scale, 0
    return scale, good_steps + 1


def grows_in_every_step(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 2, 0
    return 2 * scale, right(scale, good_steps, False, growth_interval)[1]


def never_grows(scale, good_steps, overflow, growth_interval):
    new_scale, good_steps = right(scale, good_steps, overflow, growth_interval)
    return min(new_scale, scale), good_steps


def one_more_instead_of_twice(scale, good_steps, overflow, growth_interval):
    new_scale, good_steps = right(scale, good_steps, overflow, growth_interval)
    return (scale + 1 if new_scale > scale else new_scale), good_steps


def counts_on_after_a_growth(scale, good_steps, overflow, growth_interval):
    """Grows every time that a multiple is reached."""
    if overflow:
        return scale / 2, 0
    good_steps += 1
    return (2 * scale if good_steps % growth_interval == 0 else scale), good_steps


def begins_at_one_after_a_growth(scale, good_steps, overflow, growth_interval):
    new_scale, good_steps = right(scale, good_steps, overflow, growth_interval)
    return new_scale, 1 if new_scale > scale else good_steps


def does_not_count(scale, good_steps, overflow, growth_interval):
    new_scale, good_after = right(scale, good_steps, overflow, growth_interval)
    return new_scale, min(good_after, good_steps)


def returns_the_scale_alone(scale, good_steps, overflow, growth_interval):
    return right(scale, good_steps, overflow, growth_interval)[0]


def returns_nothing(scale, good_steps, overflow, growth_interval):
    scale, good_steps = right(scale, good_steps, overflow, growth_interval)


def the_order_is_changed(scale, good_steps, overflow, growth_interval):
    scale, good_steps = right(scale, good_steps, overflow, growth_interval)
    return good_steps, scale


# Right, written differently ---------------------------------------------------------------------


def right(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale * 0.5, 0
    good_steps += 1
    if good_steps == growth_interval:
        return scale * 2, 0
    return scale, good_steps


def in_one_line(scale, good_steps, overflow, growth_interval):
    grows = not overflow and good_steps == growth_interval - 1
    keeps = not overflow and not grows
    return [scale * (0.5 if overflow else 2 if grows else 1), (good_steps + 1) * keeps]


def by_the_remainder(scale, good_steps, overflow, growth_interval):
    if overflow:
        return scale / 2, 0
    rows, left = divmod(good_steps + 1, growth_interval)
    return scale * 2**rows, left


RIGHT = [right, in_one_line, by_the_remainder]

WRONG = {
    untouched: {"backoff": "update_scale is not written yet"},
    never_goes_down: {"backoff": "the next step would overflow too"},
    grows_on_overflow: {"backoff": "the scale is too large already"},
    a_quarter: {"backoff": "Halve it"},
    back_to_the_start: {"backoff": "gives a scale of 65536, not"},
    never_below_one: {"backoff": "gives a scale of 1, not 0.25"},
    growth_is_asked_first: {"backoff": "the scale is too large already"},
    the_other_way_round: {
        "backoff": "the next step would overflow too",
        "reset": "an overflow ends the row",
        "growth": "good ones in a row",
        "count": "This step was good, too",
    },
    forgets_to_reset: {"reset": "an overflow ends the row"},
    counts_the_overflow: {"reset": "an overflow ends the row"},
    begins_at_one_after_an_overflow: {"reset": "a count of 1 good steps, not 0"},
    one_good_step_less: {"reset": "an overflow ends the row"},
    one_step_too_early: {
        "growth": "good ones in a row; ",
        "count": "This step was good, too",
    },
    one_step_too_late: {"growth": "good ones in a row", "count": "has just grown"},
    grows_in_every_step: {"growth": "good ones in a row; "},
    never_grows: {"growth": "good ones in a row."},
    one_more_instead_of_twice: {"growth": "Double it"},
    counts_on_after_a_growth: {"count": "The scale has just grown"},
    begins_at_one_after_a_growth: {"count": "a count of 1 good steps, not 0"},
    does_not_count: {"count": "This step was good, too"},
    returns_the_scale_alone: {"backoff": "returns a float, not a pair"},
    returns_nothing: {"backoff": "returns None, not a pair"},
    the_order_is_changed: {
        "backoff": "return the scale first, then the count",
        "reset": "return the scale first",
        "growth": "return the scale first",
        "count": "return the scale first",
    },
}

EQUIVALENT = {
    "if overflow:; return (scale / 2, 0); good_steps += 1 -> "
    "good_steps += 1; if overflow:; return (scale / 2, 0)": (
        "after an overflow the count is 0, whatever it was"
    ),
}
