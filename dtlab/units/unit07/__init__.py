"""Unit 07, pipeline parallelism."""

# The parts in course order, Level I first. Each name is a module that defines `PART`.
PARTS = (
    "bubble", "in_flight", "timeline", "zero_bubble",
    "gpipe", "warm_up", "one_f_one_b", "peak_in_flight", "run", "balance_stages",
    "budget", "run_a", "run_b",
)  # fmt: skip
