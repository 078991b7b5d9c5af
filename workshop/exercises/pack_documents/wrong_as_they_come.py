def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows, left = [], []
    for number, length in enumerate(lengths):
        for row in range(len(rows)):
            if left[row] >= length:
                break
        else:
            row = len(rows)
            rows.append([])
            left.append(room)
        rows[row].append(number)
        left[row] -= length
    return rows
