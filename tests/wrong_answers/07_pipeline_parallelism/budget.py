"""Answers to 07/budget: a schedule within a step's time and a rank's memory.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

from dtlab.predict import peak_in_flight
from dtlab.schedules import gpipe, interleaved, naive, one_f_one_b, zb_h1, zb_h2
from dtlab.units.unit07.budget import needs_of

MAKES = (naive, gpipe, one_f_one_b, zb_h1, zb_h2)


def counts(setting):
    return [m for m in range(1, setting["samples"] + 1) if setting["samples"] % m == 0]


def library(setting, makes=MAKES, chunks=(2, 3, 4)):
    for m in counts(setting):
        yield from (make(setting["ranks"], m) for make in makes)
        yield from (interleaved(setting["ranks"], m, v) for v in chunks)


def ahead_by(ranks, m, held, lag=0):
    """Zero bubble with so many in flight: a rank goes ahead as far as that allows."""
    rows = []
    for rank in range(ranks):
        behind = ranks - 1 - rank
        ahead = min(2 * behind, behind + held - ranks)
        row = [f"{rank}F{k}" for k in range(min(ahead, m))]
        late = held - 1 - ahead + lag
        for k in range(m):
            row += [f"{rank}F{k + ahead}"] if k + ahead < m else []
            row += [f"{rank}I{k}"] + ([f"{rank}W{k - late}"] if k >= late else [])
        rows.append(row + [f"{rank}W{k}" for k in range(max(0, m - late), m)])
    return rows


def parsed(rows):
    from dtlab.schedules import as_schedule

    return as_schedule(rows)


def held_back(setting, lag=0, makes=ahead_by):
    p = setting["ranks"]
    for m in counts(setting):
        for held in range(p, 2 * p):
            yield parsed(makes(p, m, held, lag))


def first_within(setting, schedules, memory=None, step=None):
    for schedule in schedules:
        seconds, held = needs_of(setting, schedule)
        fits = held <= setting["memory"] if memory is None else memory(schedule, held)
        if fits and seconds <= (setting["step"] if step is None else step):
            return schedule
    return None


def of_library(setting):
    return first_within(setting, library(setting))


# Right, written differently -------------------------------------------------------------------


def searched(setting):
    return of_library(setting) or first_within(setting, held_back(setting))


def renumbered_text(setting):
    """The last microbatch first, as text."""
    schedule = searched(setting)
    last = max(one.microbatch for row in schedule for one in row)
    return [[f"{one.stage}{one.kind}{last - one.microbatch}" for one in row] for row in schedule]


def measured_as_text(setting):
    """`needs_of` reads text too."""
    for m in counts(setting):
        for held in range(setting["ranks"], 2 * setting["ranks"]):
            written = ahead_by(setting["ranks"], m, held)
            if first_within(setting, [written]):
                return written
    return [[str(action) for action in row] for row in of_library(setting)]


def whatever_is_ready(setting):
    """No generator at all: a rank does what it can, I before F before W, within its memory."""
    p = setting["ranks"]
    for m in counts(setting):
        each = setting["samples"] / m
        most = int(setting["memory"] / each)
        for more in range(p) if most >= p else ():
            schedule = ready(setting, m, each, most, more)
            if schedule and first_within(setting, [parsed(schedule)]):
                return schedule
    return searched(setting)


def ready(setting, m, each, most, more):
    """In order of time. Rank r goes ahead by as many as it has behind it, and at most `more`."""
    p, message, never = setting["ranks"], setting["message"], float("inf")
    takes = {
        "F": setting["fixed"] + each * setting["forward"],
        "I": setting["fixed"] + each * setting["backward_input"],
        "W": each * setting["backward_weight"],
    }
    rows, end, free = [[] for _ in range(p)], {}, [0.0] * p
    done = [dict.fromkeys("FIW", 0) for _ in range(p)]

    def comes(rank, kind):
        own, behind = done[rank], p - 1 - rank
        k = own[kind]
        if kind == "W":
            return free[rank] if k < own["I"] else never
        if kind == "F":
            if k == m or k - own["W"] == most or k - own["I"] > behind + min(behind, more):
                return never
            return end.get((rank - 1, "F", k), never) + message if rank else 0.0
        if k == own["F"]:
            return never
        return end.get((rank + 1, "I", k), never) + message if behind else 0.0

    while sum(map(len, rows)) < 3 * m * p:
        at, _, rank, kind = min(
            (max(free[r], comes(r, kind)), "IFW".index(kind), r, kind)
            for r in range(p)
            for kind in "IFW"
        )
        if at == never:
            return None
        k = done[rank][kind]
        rows[rank].append(f"{rank}{kind}{k}")
        free[rank] = end[rank, kind, k] = at + takes[kind]
        done[rank][kind] += 1
    return rows


# Wrong ------------------------------------------------------------------------------------------


def gpipe_always(setting):
    return gpipe(setting["ranks"], setting["samples"])


def one_f_one_b_always(setting):
    """As many microbatches as there are samples."""
    return one_f_one_b(setting["ranks"], setting["samples"])


def four_times_as_many_as_ranks(setting):
    m = next(m for m in reversed(counts(setting)) if m <= 4 * setting["ranks"])
    return zb_h1(setting["ranks"], m)


def zb_h2_always(setting):
    return zb_h2(setting["ranks"], setting["samples"])


def the_fastest(setting):
    """Whatever it holds."""
    return min(library(setting), key=lambda one: needs_of(setting, one)[0])


def the_thriftiest(setting):
    """Whatever it takes."""
    return min(library(setting), key=lambda one: needs_of(setting, one)[::-1])


def no_memory_where_time_is_met(setting):
    if of_library(setting) is None:
        return searched(setting)
    return the_fastest(setting)


def no_time_where_memory_is_met(setting):
    if of_library(setting) is None:
        return searched(setting)
    return the_thriftiest(setting)


def microbatches_for_samples(setting):
    """As if the limit were of microbatches."""

    def memory(schedule, held):
        return max(peak_in_flight(schedule)) <= setting["memory"]

    return first_within(setting, library(setting), memory) or the_fastest(setting)


def below_the_limit(setting):
    """And not at it."""

    def memory(schedule, held):
        return held < setting["memory"]

    return first_within(setting, library(setting), memory) or the_thriftiest(setting)


def messages_for_nothing(setting):
    free = {**setting, "message": 0.0}
    fitting = [one for one in library(setting) if needs_of(free, one)[1] <= setting["memory"]]
    return min(fitting, key=lambda one: needs_of(free, one)[0])


def nothing_fixed(setting):
    """So the smallest microbatches are best."""
    free = {**setting, "fixed": 0.0}
    fitting = [one for one in library(setting) if needs_of(free, one)[1] <= setting["memory"]]
    return min(fitting, key=lambda one: needs_of(free, one)[0])


def without_chunks(setting):
    found = first_within(setting, library(setting, chunks=()))
    return found or zb_h1(setting["ranks"], setting["samples"])


def library_alone(setting):
    fitting = [one for one in library(setting) if needs_of(setting, one)[1] <= setting["memory"]]
    return min(fitting, key=lambda one: needs_of(setting, one)[0])


def library_alone_in_time(setting):
    fast = [one for one in library(setting) if needs_of(setting, one)[0] <= setting["step"]]
    return min(fast, key=lambda one: needs_of(setting, one)[1])


def one_w_too_late(setting):
    """Every W a microbatch later: one more is in flight."""
    if of_library(setting):
        return of_library(setting)

    def memory(schedule, held):
        m = 1 + max(one.microbatch for row in schedule for one in row)
        return held - setting["samples"] / m <= setting["memory"]

    return first_within(setting, held_back(setting, lag=1), memory)


def a_slot_too_slow(setting):
    """One rank goes ahead by one less than it may."""
    if of_library(setting):
        return of_library(setting)
    schedule = searched(setting)
    p, held = setting["ranks"], max(peak_in_flight(schedule))
    m = len(schedule[0]) // 3
    return [parsed(ahead_by(p, m, held - 1))[0], *schedule[1:]]


def uneven_microbatches(setting):
    m = next(m for m in range(4, 30) if setting["samples"] % m)
    return zb_h1(setting["ranks"], m)


def without_w(setting):
    return [[one for one in row if one.kind != "W"] for row in zb_h1(setting["ranks"], 4)]


def in_a_circle(setting):
    thrifty = [one for k in range(4) for one in (f"0F{k}", f"0B{k}")]
    return [thrifty, *gpipe(setting["ranks"], 4)[1:]]


def for_another_number_of_ranks(setting):
    return zb_h1(setting["ranks"] + 1, setting["samples"])


def two_stages_on_one_rank(setting):
    p = setting["ranks"]
    last = [f"{stage}F{k}" for k in range(4) for stage in (p - 1, p)]
    last += [f"{stage}B{k}" for k in range(4) for stage in (p, p - 1)]
    return [*gpipe(p + 1, 4)[: p - 1], last]


def its_name(setting):
    return "zb_h1"


def nothing(setting):
    return None


def actions_and_numbers(setting):
    schedule = searched(setting)
    return schedule, 4, 1


def not_written(setting):
    raise NotImplementedError()


RIGHT = [searched, renumbered_text, measured_as_text, whatever_is_ready]

HOLDS, TAKES = "at its peak", "a step takes"
WRONG = {
    gpipe_always: {"memory": HOLDS, "step": TAKES, "between": HOLDS},
    one_f_one_b_always: {"step": TAKES, "between": TAKES},
    four_times_as_many_as_ranks: {"step": TAKES, "between": ""},
    zb_h2_always: {"memory": HOLDS, "step": TAKES, "between": TAKES},
    the_fastest: {"memory": HOLDS, "between": HOLDS},
    the_thriftiest: {"step": TAKES, "between": TAKES},
    no_memory_where_time_is_met: {"memory": HOLDS},
    no_time_where_memory_is_met: {"step": TAKES},
    microbatches_for_samples: {"memory": HOLDS, "between": HOLDS},
    below_the_limit: {"step": TAKES, "between": TAKES},
    messages_for_nothing: {"step": TAKES, "between": TAKES},
    nothing_fixed: {"step": TAKES, "between": TAKES},
    without_chunks: {"step": TAKES, "between": TAKES},
    library_alone: {"between": TAKES},
    library_alone_in_time: {"between": HOLDS},
    one_w_too_late: {"between": HOLDS},
    a_slot_too_slow: {"between": TAKES},
    uneven_microbatches: {"runs": "cannot be divided evenly"},
    without_w: {"runs": "missing"},
    in_a_circle: {"runs": "wait: "},
    for_another_number_of_ranks: {"runs": "rows, but there are"},
    two_stages_on_one_rank: {"runs": "the same number of stages"},
    its_name: {"runs": "is no schedule"},
    nothing: {"runs": "NoneType"},
    actions_and_numbers: {"runs": "is no schedule"},
    not_written: {"runs": "budget is not written yet"},
}

_HOME = "which rank has which stage is free"
_EITHER = "the smaller or the larger of two, in any order"
_LAST = "what is left of W may come in any order"
_NEVER = "one microbatch is within no limits, and what does not divide is left out"
_ORDER = "whatever fits is right, whichever comes first"
_CHUNKS = "the second setting is met between H1 and H2 too"
_MORE = "more than H2 holds is within no limits, or is right as well"
_LESS = "where H2 fits, in the settings of this seed, one less in flight does as well"
_NEVER_REACHED = "nothing is done after a return"
_EXACT = "no step takes what it may to the last digit"

EQUIVALENT = {
    "for rank in range(p): -> for rank in reversed(range(p)):": _HOME,
    "ahead = behind + min(behind, held - p) -> ahead = behind + min(held - p, behind)": _EITHER,
    "row = [f'{rank}F{k}' for k in range(min(ahead, m))] -> row = [f'{rank}F{k}' "
    "for k in range(min(m, ahead))]": _EITHER,
    "rows.append(row + [f'{rank}W{k}' for k in range(max(0, m - late), m)]) -> ro"
    "ws.append(row + [f'{rank}W{k}' for k in reversed(range(max(0, m - late), m))"
    "])": _LAST,
    "rows.append(row + [f'{rank}W{k}' for k in range(max(0, m - late), m)]) -> ro"
    "ws.append(row + [f'{rank}W{k}' for k in range(max(m - late, 0), m)])": _EITHER,
    "for m in range(1, samples + 1): -> for m in range(2, samples + 1):": _NEVER,
    "for m in range(1, samples + 1): -> for m in range(1, samples + 2):": _NEVER,
    "for m in range(1, samples + 1): -> for m in range(1, samples + 1 + 1):": _NEVER,
    "for m in range(1, samples + 1): -> for m in range(1 + 1, samples + 1):": _NEVER,
    "for m in range(1, samples + 1): -> for m in reversed(range(1, samples + 1)):": _ORDER,
    "... held) for held in range(p, 2 * p)) -> ... held) for held in range(p, 2 *"
    " p)); for m in range(1, samples + 1):; ...": _ORDER,
    "yield interleaved(p, m, 2) -> yield interleaved(p, m, 3)": _CHUNKS,
    "yield interleaved(p, m, 2) -> yield interleaved(p, m, 1)": _CHUNKS,
    "yield interleaved(p, m, 2) -> yield interleaved(p, 2, m)": _CHUNKS,
    "yield interleaved(p, m, 2) -> nothing": _CHUNKS,
    "yield interleaved(p, m, 2); yield from (between(m, held) for held in range(p"
    ", 2 * p)) -> yield from (between(m, held) for held in range(p, 2 * p)); yiel"
    "d interleaved(p, m, 2)": _CHUNKS,
    "yield from (between(m, held) for held in range(p, 2 * p)) -> yield from (bet"
    "ween(m, held) for held in range(p, 3 * p))": _MORE,
    "yield from (between(m, held) for held in range(p, 2 * p)) -> yield from (bet"
    "ween(m, held) for held in range(p, 2 ** p))": _MORE,
    "yield from (between(m, held) for held in range(p, 2 * p)) -> yield from (bet"
    "ween(m, held) for held in range(p, 2 * p + 1))": _MORE,
    "yield from (between(m, held) for held in range(p, 2 * p)) -> yield from (bet"
    "ween(m, held) for held in range(p, 2 * p - 1))": _LESS,
    "yield from (between(m, held) for held in range(p, 2 * p)) -> yield from (bet"
    "ween(m, held) for held in reversed(range(p, 2 * p)))": _ORDER,
    "yield interleaved(p, m, 2) -> yield interleaved(p, m, 2); yield interleaved("
    "p, m, 2)": _CHUNKS,
    "... held) for ... -> ... held) for held in range(p, 2 * p)); yield from (bet"
    "ween(m, held) for ...": _ORDER,
    "return schedule -> return schedule; for schedule in candidates():; ...": _NEVER_REACHED,
    "if held <= setting['memory'] and seconds <= setting['step']: -> if held <= s"
    "etting['memory'] and seconds < setting['step']:": _EXACT,
}
