"""Unit 11, orchestration with Ray: tasks, actors, checkpoints, and who starts what where."""

# The modules of its parts in course order, Level I first: each defines `PART`.
PARTS = (
    "orchestrator", "killed_job",
)  # fmt: skip
