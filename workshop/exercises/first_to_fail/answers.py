# %% other: sorted
def first_to_fail(records: list[dict]) -> int:
    """Sort by what counts: failed by itself, then how early; among those that wait, who is behind."""

    def blame(record: dict) -> tuple:
        waits = record["ended"] == "waiting"
        effect = "connection" in record["message"].lower()
        return (waits or effect, record["calls"] if waits or effect else record["seconds"])

    return min(records, key=blame)["rank"]


# %% wrong: the_earliest
# message: That is an effect
def first_to_fail(records: list[dict]) -> int:
    """The rank that failed by itself; if none did, the one that the others wait for."""
    return min(records, key=lambda record: record["seconds"])["rank"]


# %% wrong: only_failures
# message: has entered fewer collectives
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


# %% wrong: the_latest
# message: later than another rank
def first_to_fail(records: list[dict]) -> int:
    """The rank that failed by itself; if none did, the one that the others wait for."""
    by_themselves = [
        record
        for record in records
        if record["ended"] != "waiting" and "connection" not in record["message"].lower()
    ]
    if by_themselves:
        return max(by_themselves, key=lambda record: record["seconds"])["rank"]
    return min(records, key=lambda record: record["calls"])["rank"]


# %% wrong: who_is_behind
# message: It only waits
def first_to_fail(records: list[dict]) -> int:
    """The rank that failed by itself; if none did, the one that the others wait for."""
    by_themselves = [
        record
        for record in records
        if record["ended"] != "waiting" and "connection" not in record["message"].lower()
    ]
    waiting = [record for record in records if record["ended"] == "waiting"]
    if waiting:
        return waiting[0]["rank"]
    if by_themselves:
        return min(by_themselves, key=lambda record: record["seconds"])["rank"]
    return min(records, key=lambda record: record["calls"])["rank"]
