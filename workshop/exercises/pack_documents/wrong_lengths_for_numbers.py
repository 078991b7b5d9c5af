def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows, left = [], []
    for length in sorted(lengths, reverse=True):
        for row in range(len(rows)):
            if left[row] >= length:
                break
        else:
            row = len(rows)
            rows.append([])
            left.append(room)
        rows[row].append(length)
        left[row] -= length
    return rows
