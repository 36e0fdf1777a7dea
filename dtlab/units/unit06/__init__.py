"""Unit 06, tensor parallelism."""

# Names of the parts in course order, Level I first. The module of that name defines `PART`.
PARTS = (
    "shapes", "holds", "volume", "kept",
    "f", "g", "column_linear", "row_linear", "parallel_mlp", "parallel_attention",
    "gather_between", "many_biases", "drift", "shard_plan",
)  # fmt: skip
