def first_to_fail(records: list[dict]) -> int:
    """The rank that failed by itself; if none did, the one that the others wait for."""
    by_themselves = [
        record
        for record in records
        if record["ended"] != "waiting" and "connection" not in record["message"].lower()
    ]
    if by_themselves:
        return min(by_themselves, key=lambda record: record["seconds"])["rank"]
    return 0
