"""Unit 10, three dimensions."""

# Its parts in course order, Level I first: each is `PART` of the module with its name.
PARTS = ("mesh_groups", "reduce_gradients", "clip_mesh", "train_step")
