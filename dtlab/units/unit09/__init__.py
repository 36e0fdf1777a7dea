"""Unit 09, the wire: what limits a data-parallel job, and which lever moves the limit."""

# The modules of its parts in course order, Level I first: each defines `PART`.
PARTS = (
    "links", "six_of_eight", "break_even", "utilisation",
    "top_k", "power_sgd", "overlap",
    "three_times_job", "run_a", "run_b",
)  # fmt: skip
