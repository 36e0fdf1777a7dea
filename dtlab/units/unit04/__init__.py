"""Unit 04, precision and activation memory."""

# Its parts in course order, Level I first: each is `PART` of the module with its name.
PARTS = (
    "representable", "scaler_steps", "sixteen_bytes", "activation_bytes",
    "checkpoint_spacing",
    "scaled_backward", "update_scale", "loss_scaler", "recompute", "keep_random_state",
    "checkpoint_every", "master_step",
    "nan_run", "fit",
)  # fmt: skip
