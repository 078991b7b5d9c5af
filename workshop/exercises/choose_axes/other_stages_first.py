import math


def choose_axes(gpus, gpus_per_node, pieces):
    stages = math.ceil(pieces / gpus_per_node)
    inside = min(gpus_per_node, pieces)
    return [inside, stages, gpus // stages // inside]
