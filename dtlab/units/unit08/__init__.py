"""Unit 08, long sequences and large domains: context and domain parallelism."""

# The modules of its parts in course order, Level I first: each defines `PART`.
PARTS = (
    "volumes", "head_limit", "halos", "hidden",
    "merge_blocks", "ring_forward", "ring_causal",
    "halo_rows", "halo_corners", "tile_conv",
    "field_budget", "choose_split", "run_a", "run_b",
)  # fmt: skip
