# %% other: pattern
import re


def resume_from(room, batch):
    """By a pattern of the whole name; the path as a text."""
    found = {}
    for folder in room.iterdir():
        match = re.fullmatch(r"step-(\d+)", folder.name)
        if match and (folder / ".metadata").is_file():
            found[int(match[1])] = str(folder)
    step = max(found, default=0)
    return found.get(step), step, step * batch


# %% wrong: as_texts
# message: compared as texts
from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [
        folder
        for folder in room.glob("step-*")
        if (folder / ".metadata").exists() and not folder.name.endswith(".part")
    ]
    if not whole:
        return None, 0, 0
    newest = max(whole, key=lambda folder: folder.name)
    step = int(newest.name.removeprefix("step-"))
    return newest, step, step * batch


# %% wrong: the_last_written
# message: written last
from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [
        folder
        for folder in room.glob("step-*")
        if (folder / ".metadata").exists() and not folder.name.endswith(".part")
    ]
    if not whole:
        return None, 0, 0
    newest = max(whole, key=lambda folder: folder.stat().st_mtime)
    step = int(newest.name.removeprefix("step-"))
    return newest, step, step * batch


# %% wrong: half_folders_too
# message: without `.metadata`
from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [folder for folder in room.glob("step-*") if not folder.name.endswith(".part")]
    if not whole:
        return None, 0, 0
    newest = max(whole, key=lambda folder: int(folder.name.removeprefix("step-")))
    step = int(newest.name.removeprefix("step-"))
    return newest, step, step * batch


# %% wrong: parts_too
# message: not renamed
from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [folder for folder in room.glob("step-*") if (folder / ".metadata").exists()]
    if not whole:
        return None, 0, 0
    newest = max(whole, key=lambda folder: int(folder.name.removeprefix("step-").removesuffix(".part")))
    step = int(newest.name.removeprefix("step-").removesuffix(".part"))
    return newest, step, step * batch


# %% wrong: a_step_left_out
# message: leaves out a sample
from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [
        folder
        for folder in room.glob("step-*")
        if (folder / ".metadata").exists() and not folder.name.endswith(".part")
    ]
    if not whole:
        return None, 0, 0
    newest = max(whole, key=lambda folder: int(folder.name.removeprefix("step-")))
    step = int(newest.name.removeprefix("step-"))
    return newest, step, (step + 1) * batch


# %% wrong: steps_for_samples
# message: number of the step
from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [
        folder
        for folder in room.glob("step-*")
        if (folder / ".metadata").exists() and not folder.name.endswith(".part")
    ]
    if not whole:
        return None, 0, 0
    newest = max(whole, key=lambda folder: int(folder.name.removeprefix("step-")))
    step = int(newest.name.removeprefix("step-"))
    return newest, step, step


# %% wrong: nothing_there
# message: no whole checkpoint
from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [
        folder
        for folder in room.glob("step-*")
        if (folder / ".metadata").exists() and not folder.name.endswith(".part")
    ]
    newest = max(whole, key=lambda folder: int(folder.name.removeprefix("step-")))
    step = int(newest.name.removeprefix("step-"))
    return newest, step, step * batch
