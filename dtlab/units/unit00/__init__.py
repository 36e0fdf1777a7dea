"""Unit 00: one GPU is not enough."""

# Names of the parts in course order, Level I first. The module of that name defines `PART`.
PARTS = (
    "scenarios", "efficiency", "memory_moments", "five_scenarios",
    "eight_gpus", "efficiency_of", "where_time_goes", "scaling_report", "best_ranks",
    "dies", "cure", "train_within",
)  # fmt: skip
