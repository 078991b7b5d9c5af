import bisect


def pack_documents(lengths, room):
    rows: dict[int, list[int]] = {}
    free: list[tuple[int, int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        place = bisect.bisect_left(free, (lengths[number], -1))
        left, row = free.pop(place) if place < len(free) else (room, len(rows))
        rows.setdefault(row, []).append(number)
        bisect.insort(free, (left - lengths[number], row))
    return list(rows.values())
