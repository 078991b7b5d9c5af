def fused_bytes(operators: list[tuple[str, list[str]]], size: dict[str, int], wanted: set[str]) -> int:
    """Bytes that one kernel for all these operators reads and writes."""
    made = {output for output, _ in operators}
    read = {name for _, inputs in operators for name in inputs} - made
    return sum(size[name] for name in read) + sum(size[name] for name in wanted)
