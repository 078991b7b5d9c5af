def first_to_fail(records: list[dict]) -> int:
    """Sort by what counts: failed by itself, then how early; among those that wait, who is behind."""

    def blame(record: dict) -> tuple:
        waits = record["ended"] == "waiting"
        effect = "connection" in record["message"].lower()
        return (waits or effect, record["calls"] if waits or effect else record["seconds"])

    return min(records, key=blame)["rank"]
