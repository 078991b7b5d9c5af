def first_to_fail(records: list[dict]) -> int:
    """The rank that failed by itself; if none did, the one that the others wait for."""
    return min(records, key=lambda record: record["seconds"])["rank"]
