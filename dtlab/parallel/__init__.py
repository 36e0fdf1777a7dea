"""Forms of parallel training. They use only torch.distributed, so they also run under torchrun.

data/        every rank has the whole model; gradients are averaged
zero/        ZeRO: optimizer state, gradients and parameters are divided among the ranks
tensor/      each rank has a part of every layer's weights
pipeline/    each rank has some of the layers
context/     the tokens of a sequence are split over ranks, in attention too
domain/      each rank has a tile of a field, such as an image or a grid of weather
expert/      the experts of a layer are spread over ranks, and tokens travel to them
server/      some ranks keep the parameters, the other ranks compute gradients
reduce_scatter.py    sends no more than a ring on every backend
mesh.py      arranges ranks along several axes, with one process group per axis
determinism.py       the same bits on any number of ranks, and the step of a changed bit
recovery.py  data parallelism that goes on when a replica dies
job.py       one specification of a training job, which two back ends execute
"""
