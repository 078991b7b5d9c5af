def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    """Rows of documents' numbers, none longer than room: first fit decreasing."""
    rows, left = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        ...
    return rows
