from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [...]
    if not whole:
        return None, 0, 0
    newest = ...
    step = ...
    return newest, step, ...
