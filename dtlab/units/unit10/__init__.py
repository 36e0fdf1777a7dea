"""Unit 10, three dimensions: data, tensor and pipeline parallelism over one mesh."""

# The modules of its parts in course order, Level I first: each defines `PART`.
PARTS = (
    "coordinates", "thousand_gpus", "smallest_mesh",
    "mesh_groups", "reduce_gradients", "clip_mesh", "train_step",
    "plan_320", "bottlenecks", "defence", "slightly_wrong",
)  # fmt: skip
