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
