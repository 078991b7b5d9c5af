def fused_bytes(
    operators: list[tuple[str, list[str]]], size: dict[str, int], wanted: set[str]
) -> int:
    """Bytes that one kernel for all these operators reads and writes."""
    made = {output for output, _ in operators}
    ...
    return ...
