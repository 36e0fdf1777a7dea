"""Unit 05, ZeRO and FSDP."""

# Names of the parts in course order, Level I first. The module of that name defines `PART`.
PARTS = (
    "states", "four_answers", "wire", "moments",
    "stage_2", "shard", "gather", "free", "reduce", "stage_3", "clip",
    "run_a", "run_b", "run_c", "plans", "defence",
)  # fmt: skip
