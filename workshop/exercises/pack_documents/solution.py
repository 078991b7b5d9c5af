def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    """Rows of documents' numbers, none longer than room: first fit decreasing."""
    rows, left = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        for row in range(len(rows)):
            if left[row] >= lengths[number]:
                break
        else:
            row = len(rows)
            rows.append([])
            left.append(room)
        rows[row].append(number)
        left[row] -= lengths[number]
    return rows
