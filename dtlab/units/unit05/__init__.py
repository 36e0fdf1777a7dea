"""Unit 05, ZeRO and FSDP."""

# Its parts in course order, Level I first: each is `PART` of the module with its name.
PARTS = (
    "states", "four_answers", "wire", "moments",
    "stage_2", "shard", "gather", "free", "reduce", "stage_3", "clip",
    "giant_gather", "policies", "leak", "plans", "defence",
)  # fmt: skip
