"""Unit 00, one GPU is not enough."""

# Its parts in course order, Level I first: each is `PART` of the module with its name.
PARTS = (
    "scenarios", "efficiency", "memory_moments", "five_scenarios",
    "eight_gpus", "efficiency_of", "where_time_goes", "scaling_report", "best_ranks",
    "dies", "cure", "train_within",
)  # fmt: skip
