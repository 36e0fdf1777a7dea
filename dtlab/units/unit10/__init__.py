"""Unit 10, three dimensions."""

# Its parts in course order, Level I first: each is `PART` of the module with its name.
PARTS = ("plan_320", "bottlenecks", "defence", "slightly_wrong")
