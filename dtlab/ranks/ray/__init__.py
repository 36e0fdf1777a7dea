"""Ray: a private cluster on this machine, and ranks in its actors (`launch(engine="ray")`)."""

from dtlab.ranks.ray.cluster import connected as connected
from dtlab.ranks.ray.cluster import local_ray as local_ray
