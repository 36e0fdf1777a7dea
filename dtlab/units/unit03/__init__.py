"""Unit 03, batch size, accumulation and learning rate."""

# Its parts in course order, Level I first: each is `PART` of the module with its name.
PARTS = (
    "effective_batch", "micro_gradients", "scaled_rate", "noise_scale",
    "accumulate", "accumulate_over_ranks", "warmup_then_decay", "measure_noise_scale",
    "run_1", "run_2", "run_3", "run_4", "reach",
)  # fmt: skip
