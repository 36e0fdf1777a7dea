"""Unit 03, batch size, accumulation and learning rate."""

# The parts in course order, Level I first. Each name is a module that defines `PART`.
PARTS = (
    "effective_batch", "micro_gradients", "scaled_rate", "noise_scale",
    "accumulate", "accumulate_over_ranks", "warmup_then_decay", "measure_noise_scale",
    "run_1", "run_2", "run_3", "run_4", "reach",
)  # fmt: skip
