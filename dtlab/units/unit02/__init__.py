"""Unit 02, data parallelism."""

# The parts in course order, Level I first. Each name is a module that defines `PART`.
PARTS = (
    "ddp_step", "all_reduces", "samples", "uneven",
    "average_gradients", "average_by_hooks", "average_in_buckets", "overlap",
    "samples_of_epoch",
    "script_1", "script_2", "script_3", "script_4", "script_5", "script_6", "script_7",
    "script_8",
)  # fmt: skip
