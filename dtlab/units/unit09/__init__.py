"""Unit 09, the wire: what limits a data-parallel job, and which lever moves the limit."""

# The modules of its parts in course order, Level I first: each defines `PART`.
PARTS = (
    "three_times_job", "run_a", "run_b",
)  # fmt: skip
