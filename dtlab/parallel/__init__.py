"""Forms of parallel training, built on torch.distributed alone: they run under torchrun too.

data/        every rank has the whole model; gradients are averaged
zero/        ZeRO: optimizer state, gradients and parameters divided among the ranks
tensor/      each rank has a part of every layer's weights
pipeline/    each rank has some of the layers
server/      some ranks keep the parameters, the others compute
mesh.py      ranks on several axes: which group a rank belongs to on each
"""
