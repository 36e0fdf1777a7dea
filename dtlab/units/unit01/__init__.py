"""Unit 01: ranks and collectives."""

# Names of the parts in course order, Level I first. The module of that name defines `PART`.
PARTS = (
    "results", "bytes_sent", "averages", "step",
    "reduce_scatter", "ring_all_reduce", "tree_broadcast", "hierarchical_all_reduce",
    "fix_1", "fix_2", "fix_3", "fix_4", "fix_5", "choose",
)  # fmt: skip
