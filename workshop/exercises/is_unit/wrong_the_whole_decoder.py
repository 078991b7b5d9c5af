def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    kind = type(module).__name__
    return kind == "Decoder"
