"""Unit 06, tensor parallelism."""

# Its parts in course order, Level I first: each is `PART` of the module with its name.
PARTS = (
    "shapes", "holds", "volume", "kept",
    "f", "g", "column_linear", "row_linear", "parallel_mlp", "parallel_attention",
    "gather_between", "many_biases", "drift", "shard_plan",
)  # fmt: skip
