"""Answers to 00/cure: the cheapest plan by which a model fits."""

from dtlab.units.unit00.measured import peaks

# Right, written differently -------------------------------------------------------------------


def tried(setting, **plan):
    full = {"clear": "after step", "microbatches": 1, "checkpoint": False} | plan
    return full, max(peaks(setting | full).values()) <= setting["limit"]


def parts_of(setting):
    return [n for n in range(1, setting["samples"] + 1) if setting["samples"] % n == 0]


def one_after_another(setting):
    for again in (False, True):
        for parts in parts_of(setting):
            plan, fits = tried(setting, microbatches=parts, checkpoint=again)
            if fits:
                return plan
    return None


def most_first(setting):
    """Asks first whether the largest plans fit, then takes away what is not needed."""
    largest = setting["samples"]
    again = not tried(setting, microbatches=largest)[1]
    if again and not tried(setting, microbatches=largest, checkpoint=True)[1]:
        return None
    parts = next(
        n for n in parts_of(setting) if tried(setting, microbatches=n, checkpoint=again)[1]
    )
    return {"microbatches": parts, "checkpoint": again, "clear": "after step"}


# Wrong ----------------------------------------------------------------------------------------


def as_it_is(setting):
    return {}


def clears_alone(setting):
    """No other cure."""
    plan, fits = tried(setting)
    return plan if fits else None


def everything(setting):
    plan, fits = tried(setting, microbatches=setting["samples"], checkpoint=True)
    return plan if fits else None


def everything_at_once(setting):
    return tried(setting, microbatches=setting["samples"], checkpoint=True)[0]


def checkpoints_first(setting):
    for parts in parts_of(setting):
        for again in (False, True):
            plan, fits = tried(setting, microbatches=parts, checkpoint=again)
            if fits:
                return plan
    return None


def all_microbatches(setting):
    """As many microbatches as there are samples, where one is too much."""
    for again in (False, True):
        for parts in (1, setting["samples"]):
            plan, fits = tried(setting, microbatches=parts, checkpoint=again)
            if fits:
                return plan
    return None


def halves_alone(setting):
    """Two microbatches at most."""
    for again in (False, True):
        for parts in (1, 2):
            if setting["samples"] % parts == 0:
                plan, fits = tried(setting, microbatches=parts, checkpoint=again)
                if fits:
                    return plan
    return None


def doubled(setting):
    """1, 2, 4, ... microbatches, as long as they divide the samples."""
    for again in (False, True):
        parts = 1
        while setting["samples"] % parts == 0:
            plan, fits = tried(setting, microbatches=parts, checkpoint=again)
            if fits:
                return plan
            parts *= 2
    return None


def in_halves(setting):
    """Half as many microbatches as there are samples, or all."""
    for again in (False, True):
        for parts in sorted({1, -(-setting["samples"] // 4) * 2, setting["samples"]}):
            if setting["samples"] % parts == 0:
                plan, fits = tried(setting, microbatches=parts, checkpoint=again)
                if fits:
                    return plan
    return None


def never_none(setting):
    return one_after_another(setting) or everything_at_once(setting)


def as_it_is_for_none(setting):
    return one_after_another(setting) or {}


def first_iteration(setting):
    """Looks at forward and backward of the first iteration alone."""
    for again in (False, True):
        for parts in parts_of(setting):
            plan = {"clear": "after step", "microbatches": parts, "checkpoint": again}
            sizes = peaks(setting | plan)
            if max(sizes["forward"], sizes["backward"]) <= setting["limit"]:
                return plan
    return None


def late_clearing(setting):
    """Leaves the clearing as it is."""
    for again in (False, True):
        for parts in parts_of(setting):
            plan = {"microbatches": parts, "checkpoint": again, "clear": setting["clear"]}
            plan, fits = tried(setting, **plan)
            if fits:
                return plan
    return None


def no_checkpoints(setting):
    return next(
        (plan for parts in parts_of(setting)
         for plan, fits in [tried(setting, microbatches=parts)] if fits), None
    )  # fmt: skip


def three_parts(setting):
    """A number that does not divide the samples."""
    return {"microbatches": 3}


def words(setting):
    return "checkpoint"


def without_adam(setting):
    """A plan that changes the results."""
    return {"optimizer": "SGD"}


RIGHT = [one_after_another, most_first]

WRONG = {
    as_it_is: {"fits": "a real run peaks at", "never": ""},
    clears_alone: {"fits": "there is a plan that fits"},
    everything: {"cheapest": "a cheaper plan does too"},
    everything_at_once: {"cheapest": "", "never": "Return None"},
    checkpoints_first: {"cheapest": "checkpoints cost most"},
    all_microbatches: {"cheapest": ""},
    halves_alone: {"cheapest": "microbatches cost little"},
    doubled: {"cheapest": "a cheaper plan does too"},
    in_halves: {"cheapest": ""},
    never_none: {"never": "do not shrink the tensors"},
    as_it_is_for_none: {"never": "Return None"},
    first_iteration: {"fits": "in phase", "never": ""},
    late_clearing: {"cheapest": ""},
    no_checkpoints: {"fits": "there is a plan that fits"},
    three_parts: {"fits": "is no valid plan"},
    words: {"fits": "returns a str"},
    without_adam: {"fits": "", "never": ""},
}

_NO_PART = "one more than there are samples divides them in no case"
_LEFT = "what comes after a return is not run"
_NONE = "None is returned at the end anyway"

EQUIVALENT = {
    "for parts in range(1, setting['samples'] + 1): -> for parts in range(1, setting['samples'] "
    "+ 2):": _NO_PART,
    "for parts in range(1, setting['samples'] + 1): -> for parts in range(1, setting['samples'] "
    "+ 1 + 1):": _NO_PART,
    "return plan -> return plan; for parts in range(1, setting['samples'] + 1):; ...": _LEFT,
    "return plan -> return plan; for checkpoint in (False, True):; ...": _LEFT,
    "return None -> nothing": _NONE,
    "return None -> return": _NONE,
}
