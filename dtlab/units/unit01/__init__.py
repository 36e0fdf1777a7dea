"""Unit 01: ranks and collectives."""

# Names of the parts in course order, Level I first. The module of that name defines `PART`.
PARTS = (
    "results", "bytes_sent", "averages", "step",
    "reduce_scatter", "ring_all_reduce", "tree_broadcast", "hierarchical_all_reduce",
    "mend_1", "mend_2", "mend_3", "mend_4", "mend_5", "choose",
)  # fmt: skip
