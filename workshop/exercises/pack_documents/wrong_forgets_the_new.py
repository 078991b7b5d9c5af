def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows, left = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        for row in range(len(rows)):
            if left[row] >= lengths[number]:
                rows[row].append(number)
                left[row] -= lengths[number]
                break
        else:
            rows.append([])
            left.append(room)
    return rows
