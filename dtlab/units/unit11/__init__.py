"""Unit 11, orchestration with Ray: tasks, their data, failures, and a cluster's schedule."""

# The modules of its parts in course order, Level I first: each defines `PART`.
PARTS = (
    "task_graph", "copies", "interval", "who_does_it",
    "server", "sharded", "resumable",
    "orchestrator", "killed_job",
)  # fmt: skip
