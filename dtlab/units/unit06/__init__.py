"""Unit 06, tensor parallelism."""

# Names of the parts in course order, Level I first. The module of that name defines `PART`.
PARTS = (
    "shapes", "holds", "volume", "kept",
    "f", "g", "column_linear", "row_linear", "parallel_mlp", "parallel_attention",
    "program_1", "program_2", "program_3", "shard_plan",
)  # fmt: skip
