"""Answers to 04/scaler_steps: a dynamic loss scaler, followed by hand."""

# Right ----------------------------------------------------------------------------------------


def scales_of(given, interval=None, cleared=True):
    """Exponents in each step, and after the last one."""
    interval = interval or given["interval"]
    scale, good, found = given["start"], 0, []
    for overflow in given["overflows"]:
        found.append(scale)
        good = good + 1 if not overflow else 0 if cleared else good
        if overflow:
            scale -= 1
        elif good >= interval:
            scale, good = scale + 1, 0
    return [*found, scale]


def by_hand(given):
    return {
        "scales": scales_of(given)[:-1],
        "updates": sum(not overflow for overflow in given["overflows"]),
        "settles": 15 + given["gradient"],
        "skipped": 100 / (given["interval"] + 1),
    }


def by_torch(given):
    """As PyTorch's own scaler does it; exponents as text, and a share for per cent."""
    import math

    import torch

    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.125)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0 ** given["start"], growth_interval=given["interval"]
    )
    scales, updates = [], 0
    for overflow in given["overflows"]:
        before = weight.item()
        scales.append(f"{math.log2(scaler.get_scale()):.0f}")
        scaler.scale(weight.sum()).backward()
        if overflow:
            weight.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        updates += weight.item() != before
    largest = torch.finfo(torch.float16).max
    return {
        "scales": scales,
        "updates": updates,
        "settles": math.floor(math.log2(largest * 2.0 ** given["gradient"])),
        "skipped": f"{100 / (given['interval'] + 1):.2f} %",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def scales_after_each_step(given):
    return instead(given, scales=scales_of(given)[1:])


def count_goes_on_after_an_overflow(given):
    return instead(given, scales=scales_of(given, cleared=False)[:-1])


def growth_goes_on(given):
    scale, good, scales = given["start"], 0, []
    for overflow in given["overflows"]:
        scales.append(scale)
        good = 0 if overflow else good + 1
        scale += -1 if overflow else good >= given["interval"]
    return instead(given, scales=scales)


def growth_comes_late(given):
    return instead(given, scales=scales_of(given, given["interval"] + 1)[:-1])


def never_grows(given):
    return instead(given, scales=scales_of(given, 100)[:-1])


def never_falls(given):
    return instead(given, scales=[given["start"]] * len(given["overflows"]))


def every_step_is_an_update(given):
    return instead(given, updates=len(given["overflows"]))


def overflows_are_updates(given):
    return instead(given, updates=sum(given["overflows"]))


def one_update_too_few(given):
    return instead(given, updates=by_hand(given)["updates"] - 1)


def up_to_65536(given):
    return instead(given, settles=16 + given["gradient"])


def down_with_the_gradient(given):
    return instead(given, settles=15 - given["gradient"])


def exponent_of_the_product(given):
    return instead(given, settles=15)


def far_above_the_end(given):
    return instead(given, settles=20 + given["gradient"])


def one_in_the_interval(given):
    return instead(given, skipped=100 / given["interval"])


def one_good_step_too_many(given):
    return instead(given, skipped=100 / (given["interval"] + 2))


def every_other_step(given):
    return instead(given, skipped=50)


def none_any_more(given):
    return instead(given, skipped=0)


def most_of_them(given):
    return instead(given, skipped=90)


RIGHT = [by_hand, by_torch]

WRONG = {
    scales_after_each_step: {"scales": "these are the scales after each step"},
    count_goes_on_after_an_overflow: {"scales": "still count after it"},
    growth_goes_on: {"scales": "keeps growing with each good step"},
    growth_comes_late: {"scales": "grows one good step late"},
    never_grows: {"scales": "here the scale never grows"},
    never_falls: {"scales": "is not it. Keep two numbers"},
    every_step_is_an_update: {"updates": "would ruin the weights"},
    overflows_are_updates: {"updates": "in which gradients overflow"},
    one_update_too_few: {"updates": "is not it. What does `scaler.step(optimizer)` do"},
    up_to_65536: {"settles": "the gradient is 2^16 = 65536"},
    down_with_the_gradient: {"settles": "the gradient is smaller than 1"},
    exponent_of_the_product: {"settles": "the exponent of the scaled gradient"},
    far_above_the_end: {"settles": "is not it. The largest number of fp16"},
    one_in_the_interval: {"skipped": "this counts the good steps between two overflows"},
    one_good_step_too_many: {"skipped": "how many good steps are there"},
    every_other_step: {"skipped": "after each good step"},
    none_any_more: {"skipped": "does not store the limit of fp16"},
    most_of_them: {"skipped": "is not it. Follow the scale"},
}
