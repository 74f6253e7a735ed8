"""Words that the hub and its sites share on NVIDIA FLARE."""

WORK = "pfedsim"  # the task
PACKET = "packet"  # what it holds
ALIVE = "pfedsim.alive"  # a site's beat
