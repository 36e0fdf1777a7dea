"""Answers to 02/ddp_step: which event of a trace belongs to which line."""

# Right ----------------------------------------------------------------------------------------


def by_time(given):
    events = given["events"]
    order = sorted(events, key=lambda letter: events[letter]["start"])
    computing = [letter for letter in order if events[letter]["bytes"] is None]
    talking = [letter for letter in order if events[letter]["bytes"] is not None]
    names = ("constructor", "buffers", "last_layers", "first_layers", "loss")
    found = dict(zip(("forward", "backward", "step"), computing, strict=True))
    found |= dict(zip(names, talking, strict=True))
    begin, end = events[found["backward"]]["end"], events[found["first_layers"]]["end"]
    return found | {"exposed": end - begin}


def by_bytes(given):
    """Lower case, and a time in seconds with its unit."""
    size = {event["bytes"]: letter for letter, event in given["events"].items()}
    found = by_time(given)
    found |= {
        "constructor": size[4 * (given["first"] + given["last"]) + 8 * given["channels"]],
        "buffers": size[8 * given["channels"]],
        "last_layers": size[4 * given["last"]],
        "first_layers": size[4 * given["first"]].lower(),
        "loss": size[4],
    }
    return found | {"exposed": f"{found['exposed'] / 1000} s"}


# Wrong ----------------------------------------------------------------------------------------


def crossed(given, one, other):
    """Two events taken for each other."""
    right = by_time(given)
    return right | {one: right[other], other: right[one]}


def buckets_crossed(given):
    return crossed(given, "last_layers", "first_layers")


def forward_and_backward_crossed(given):
    return crossed(given, "forward", "backward")


def instead(given, name, other):
    right = by_time(given)
    return right | {name: right[other]}


def constructor_sends_one_bucket(given):
    return instead(given, "constructor", "first_layers")


def loss_for_the_buffers(given):
    return instead(given, "buffers", "loss")


def step_for_the_forward_pass(given):
    return instead(given, "forward", "step")


def forward_for_the_backward_pass(given):
    return instead(given, "backward", "forward")


def constructor_for_the_last_layers(given):
    return instead(given, "last_layers", "constructor")


def constructor_for_the_first_layers(given):
    return instead(given, "first_layers", "constructor")


def backward_for_the_step(given):
    return instead(given, "step", "backward")


def a_bucket_for_the_loss(given):
    return instead(given, "loss", "first_layers")


def between(given, start, end):
    right, events = by_time(given), given["events"]
    return right | {"exposed": events[right[end[0]]][end[1]] - events[right[start[0]]][start[1]]}


def all_of_the_last_all_reduce(given):
    return between(given, ("first_layers", "start"), ("first_layers", "end"))


def from_the_first_all_reduce_on(given):
    return between(given, ("last_layers", "start"), ("first_layers", "end"))


RIGHT = [by_time, by_bytes]

WRONG = {
    buckets_crossed: {
        "last_layers": "starts when backward is nearly over",
        "first_layers": "starts in the middle of backward",
    },
    forward_and_backward_crossed: {
        "forward": "another compute event comes before",
        "backward": "gradients are sent during the backward pass",
    },
    constructor_sends_one_bucket: {"constructor": "the first layers alone"},
    loss_for_the_buffers: {"buffers": "four bytes are one number"},
    step_for_the_forward_pass: {"forward": "this is the last of the compute events"},
    forward_for_the_backward_pass: {"backward": "gradients are sent during the backward pass"},
    constructor_for_the_last_layers: {"last_layers": "before there were any gradients"},
    constructor_for_the_first_layers: {"first_layers": "before there were any gradients"},
    backward_for_the_step: {"step": "gradients are still being sent during this event"},
    a_bucket_for_the_loss: {"loss": "a whole bucket of gradients"},
    all_of_the_last_all_reduce: {"exposed": "this is the whole last all-reduce"},
    from_the_first_all_reduce_on: {"exposed": "this begins with the first all-reduce"},
}
