"""Answers to 00/dies: in which phase models peak, and where they are beyond their limit."""

PHASES = ("forward", "backward", "step", "second")

# Right ----------------------------------------------------------------------------------------


def measured(given):
    from dtlab.units.unit00.measured import peaks

    answers = {}
    for name, model in given.items():
        sizes = peaks(model["setting"])
        most = max(sizes.values())
        answers[f"{name}_peak"] = next(p for p in PHASES if sizes[p] > 0.999 * most)
        beyond = [p for p in PHASES if sizes[p] > model["limit"]]
        answers[f"{name}_dies"] = beyond[0] if beyond else "fits"
    return answers


def in_capitals(given):
    return {name: answer.upper() for name, answer in measured(given).items()}


# Wrong ----------------------------------------------------------------------------------------


def instead(name, *values):
    def answer(given):
        right = measured(given)
        return right | {name: next(value for value in values if value != right[name])}

    answer.__name__ = f"{name}_{values[0]}"
    return answer


WRONG = {instead(f"{name}_peak", "forward", "step"): {f"{name}_peak": ""} for name in "abcdef"}
WRONG |= {instead(f"{name}_peak", "second", "step"): {f"{name}_peak": ""} for name in "ab"}
WRONG |= {instead(f"{name}_dies", "fits", "second"): {f"{name}_dies": ""} for name in "abcdef"}
WRONG |= {instead(f"{name}_dies", "forward", "step"): {f"{name}_dies": ""} for name in "cd"}
WRONG |= {instead("a_peak", "fits"): {"a_peak": "is none of the options"}}
WRONG |= {instead("b_dies", "third"): {"b_dies": "is none of the options"}}

RIGHT = [measured, in_capitals]
