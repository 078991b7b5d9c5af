from workshop.models.gpt import Layer


def is_unit(module):
    return isinstance(module, Layer)
