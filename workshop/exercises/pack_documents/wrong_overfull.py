def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows, left = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        for row in range(len(rows)):
            if left[row] > 0:
                break
        else:
            row = len(rows)
            rows.append([])
            left.append(room)
        rows[row].append(number)
        left[row] -= lengths[number]
    return rows
