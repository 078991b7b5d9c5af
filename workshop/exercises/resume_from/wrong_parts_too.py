from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [folder for folder in room.glob("step-*") if (folder / ".metadata").exists()]
    if not whole:
        return None, 0, 0
    newest = max(whole, key=lambda folder: int(folder.name.removeprefix("step-").removesuffix(".part")))
    step = int(newest.name.removeprefix("step-").removesuffix(".part"))
    return newest, step, step * batch
