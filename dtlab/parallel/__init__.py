"""Forms of parallel training. They use only torch.distributed, so they also run under torchrun.

data/        every rank has the whole model; gradients are averaged
zero/        ZeRO: optimizer state, gradients and parameters are divided among the ranks
tensor/      each rank has a part of every layer's weights
pipeline/    each rank has some of the layers
server/      some ranks keep the parameters, the other ranks compute gradients
mesh.py      arranges ranks along several axes, with one process group per axis
"""
