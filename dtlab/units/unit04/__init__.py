"""Unit 04, precision and activation memory."""

# The parts in course order, Level I first. Each name is a module that defines `PART`.
PARTS = (
    "representable", "scaler_steps", "sixteen_bytes", "activation_bytes",
    "checkpoint_spacing",
    "scaled_backward", "update_scale", "loss_scaler", "recompute", "keep_random_state",
    "checkpoint_every", "master_step",
    "nan_run", "fit",
)  # fmt: skip
