"""Answers to 07/timeline: one grid to read, and one in which an action cannot run."""

# Right ----------------------------------------------------------------------------------------


def cells(grid):
    return [(step, rank, cell) for rank, row in enumerate(grid) for step, cell in enumerate(row)]


def letters(grid):
    return {cell[1] for _, _, cell in cells(grid) if cell}


def forwards_first(row):
    """Forwards before the first backward."""
    count = 0
    for cell in filter(None, row):
        if cell[1] != "F":
            break
        count += 1
    return count


def name_of(grid):
    microbatches = sum(cell[:2] == "0F" for cell in grid[0])
    if len({cell[0] for cell in grid[0] if cell}) > 1:
        return "interleaved"
    if "W" in letters(grid):
        return "zb_h1" if forwards_first(grid[0]) == len(grid) else "zb_h2"
    return "gpipe" if forwards_first(grid[-1]) == microbatches else "1f1b"


def steps_with(grid, count):
    """Each microbatch adds a cell for each action of rank 0; the bubble stays."""
    each = sum(cell[2:] == "0" for cell in grid[0])
    return each * count + grid[0].count("")


def fullest(row):
    freed = "W" if any(cell[1:2] == "W" for cell in row) else "B"
    signs = [(cell[1] == "F") - (cell[1] == freed) for cell in row if cell]
    return max(sum(signs[: end + 1]) for end in range(len(signs)))


def pauses(row):
    filled = [step for step, cell in enumerate(row) if cell]
    return filled[-1] - filled[0] + 1 - len(filled)


def fault(grid):
    """[rank, step], why, and where what it needs stands."""
    stages = len(grid)
    seen = {}
    for step, rank, cell in sorted(cells(grid)):
        if not cell:
            continue
        stage, kind, microbatch = int(cell[0]), cell[1], cell[2:]
        if cell in seen:
            return [rank, step], "twice", seen[cell]
        wanted = []
        if kind == "F":
            wanted.append((f"{stage - 1}F{microbatch}", "forward") if stage else None)
        elif kind == "W":
            wanted.append((f"{stage}I{microbatch}", "own"))
        else:
            nxt = (f"{stage + 1}{kind}{microbatch}", "backward") if stage < stages - 1 else None
            wanted += [nxt, (f"{stage}F{microbatch}", "own")]
        for needed, why in filter(None, wanted):
            if needed not in seen or seen[needed][1] >= step:
                where = next([r, s] for s, r, one in sorted(cells(grid)) if one == needed)
                return [rank, step], why, where
        seen[cell] = [rank, step]
    raise AssertionError("everything can run")


def by_hand(given):
    grid, (cell, why, _) = given["grid_a"], fault(given["grid_b"])
    return {
        "schedule": name_of(grid),
        "before": [forwards_first(row) for row in grid],
        "peak": fullest(grid[given["rank"]]),
        "idle": [pauses(row) for row in grid],
        "longer": steps_with(grid, given["more"]),
        "cell": cell,
        "reason": why,
    }


def in_other_words(given):
    right = by_hand(given)
    names = {
        "gpipe": "GPipe",
        "1f1b": "1F1B",
        "interleaved": "interleaved  1F1B",
        "zb_h1": "zb-h1",
        "zb_h2": "ZB-H2",
    }
    return {
        "schedule": names[right["schedule"]],
        "before": tuple(float(one) for one in right["before"]),
        "peak": str(right["peak"]),
        "idle": [str(one) for one in right["idle"]],
        "longer": f"{right['longer']} steps",
        "cell": tuple(right["cell"]),
        "reason": right["reason"].upper(),
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def not_that_one(question, *names):
    """The first of these names that is wrong."""

    def answer(given):
        wrong = next(one for one in names if one != by_hand(given)[question])
        return instead(given, **{question: wrong})

    return answer


another_schedule = not_that_one("schedule", "gpipe", "1f1b")
yet_another = not_that_one("schedule", "zb_h2", "zb_h1")
no_schedule_of_these = not_that_one("schedule", "dualpipe")


def plus(question, number):
    def answer(given):
        right = by_hand(given)[question]
        return instead(
            given,
            **{
                question: [one + number for one in right]
                if isinstance(right, list)
                else right + number
            },
        )

    return answer


warm_up_only = plus("before", -1)
far_more = plus("before", 40)
one_under_way_too_many = plus("peak", 1)
one_under_way_too_few = plus("peak", -1)
many_under_way = plus("peak", 50)
fewer_pauses = plus("idle", -1)
many_pauses = plus("idle", 20)
many_steps = plus("longer", 101)
far_away = plus("cell", 100)


def steps_for_forwards(given):
    backward = [
        next(s for s, c in enumerate(row) if c[1:2] in ("B", "I")) for row in given["grid_a"]
    ]
    return instead(given, before=backward)


def one_number(given):
    return instead(given, before=99)


def all_empty_cells(given):
    return instead(given, idle=[row.count("") for row in given["grid_a"]])


def length(given):
    return len(given["grid_a"][0])


def microbatches(given):
    return sum(cell[:2] == "0F" for cell in given["grid_a"][0])


def in_proportion(given):
    return instead(given, longer=length(given) * given["more"] / microbatches(given))


def one_cell_each(given):
    return instead(given, longer=length(given) + given["more"] - microbatches(given))


def without_the_bubble(given):
    return instead(
        given, longer=steps_with(given["grid_a"], given["more"]) - given["grid_a"][0].count("")
    )


def what_it_waits_for(given):
    return instead(given, cell=fault(given["grid_b"])[2])


def step_first(given):
    return instead(given, cell=by_hand(given)["cell"][::-1])


def its_name(given):
    rank, step = by_hand(given)["cell"]
    return instead(given, cell=given["grid_b"][rank][step])


no_input = not_that_one("reason", "forward", "backward")
no_gradient = not_that_one("reason", "backward", "forward")
not_its_turn = not_that_one("reason", "own", "twice")
once_more = not_that_one("reason", "twice", "own")


RIGHT = [by_hand, in_other_words]

WRONG = {
    another_schedule: {"schedule": "there "},
    yet_another: {"schedule": "there backward is in two pieces"},
    no_schedule_of_these: {"schedule": "is none of the options"},
    warm_up_only: {"before": "each is one too few"},
    steps_for_forwards: {"before": "the steps in which the first backwards run"},
    far_more: {"before": "is not it. Count cells"},
    one_number: {"before": "write a list of"},
    one_under_way_too_many: {"peak": "one too many"},
    one_under_way_too_few: {"peak": "one too few"},
    many_under_way: {"peak": "is not it. Go along the row"},
    all_empty_cells: {"idle": "all empty cells of a row"},
    fewer_pauses: {"idle": "one too few in each row"},
    many_pauses: {"idle": "is not it. In each row"},
    in_proportion: {"longer": "makes the bubble grow"},
    one_cell_each: {"longer": "adds more than one cell"},
    without_the_bubble: {"longer": "what about the bubble?"},
    many_steps: {"longer": "is not it. What does each further"},
    what_it_waits_for: {"cell": "this action can run"},
    step_first: {"cell": "write the rank first"},
    its_name: {"cell": "write a list of 2 numbers"},
    far_away: {"cell": "is not it. For each action"},
    no_input: {"reason": "until then?"},
    no_gradient: {"reason": "until then?"},
    not_its_turn: {"reason": "read its own row"},
    once_more: {"reason": "read its own row"},
}
