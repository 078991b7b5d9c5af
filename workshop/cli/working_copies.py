"""Working copies of the lessons: the learner's own files, never overwritten.

``notebooks/`` holds the lessons as published, executed. The learner works in copies with the outputs
cleared. When a lesson changes, its copy is replaced only if the learner has not written in it; otherwise
the copy stays and the new version is laid beside it as ``NAME.new.ipynb``.

"Written in" means that the text of the cells differs from what was laid. A copy that was only run is still
untouched: JupyterLab saves outputs and counters of its own accord.

What was laid is recorded in ``.workshop.json``, one entry a file: ``laid`` is the digest of the copy,
``offered`` the digest of the lesson last laid beside it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat

RECORD_NAME = ".workshop.json"
SOURCE_FOLDER = "source"  # the .py halves of the pairs: for authors

# As the kernel will say it. JupyterLab writes into the notebook what differs, and shows it as unsaved before
# anybody has touched it.
LANGUAGE_INFO = {
    "codemirror_mode": {"name": "ipython", "version": sys.version_info.major},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": platform.python_version(),
}


@dataclass(frozen=True)
class Laid:
    """What happened to one file: ``new``, ``refreshed``, ``kept`` (touched, nothing new) or ``beside``."""

    path: Path
    what: str


def lay_working_copies(lessons: Path, folder: Path) -> list[Laid]:
    """Bring ``folder`` up to date with ``lessons`` and return what was done, one entry a file.

    Raises:
        ValueError: ``folder`` is the folder of the lessons, or inside it, or is a file.
    """
    lessons, folder = lessons.resolve(), folder.resolve()
    if folder == lessons or lessons in folder.parents:
        raise ValueError(
            f"{folder} is where the lessons are published: choose another folder for working copies"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: choose a folder for the working copies")
    folder.mkdir(parents=True, exist_ok=True)
    records = _read_records(folder)
    done = []
    for lesson in _published(lessons):
        name = lesson.relative_to(lessons).as_posix()
        done.append(_lay_one(lesson, folder / name, records.setdefault(name, {})))
    _write_text(folder / RECORD_NAME, json.dumps(records, indent=1, sort_keys=True) + "\n")
    return done


def is_untouched(folder: Path, name: str) -> bool:
    """Whether the copy ``name`` in ``folder`` still has the text that was laid."""
    copy = folder / name
    return copy.exists() and _read_records(folder).get(name, {}).get("laid") == digest(copy)


def _published(lessons: Path) -> list[Path]:
    files = [path for path in lessons.rglob("*") if path.is_file()]
    inside = [(path, path.relative_to(lessons).parts) for path in files]
    return sorted(
        p for p, parts in inside if parts[0] != SOURCE_FOLDER and not any(_hidden(x) for x in parts)
    )


def _hidden(part: str) -> bool:
    return part.startswith(".") or part == "__pycache__"


def _lay_one(lesson: Path, copy: Path, record: dict[str, str]) -> Laid:
    published = digest(lesson)
    if not copy.exists():
        return _lay(lesson, copy, record, "new")
    present = digest(copy)
    if present == published:  # the same text, whoever wrote it
        record["laid"] = published
        return Laid(copy, "kept")
    if record.get("laid") == present:
        return _lay(lesson, copy, record, "refreshed")
    if record.get("laid") == published or record.get("offered") == published:
        return Laid(copy, "kept")  # touched, but there is nothing new to offer
    beside = copy.with_suffix(".new" + copy.suffix)
    if beside.exists() and digest(beside) not in (record.get("offered"), published):
        return Laid(copy, "kept")  # the learner writes in the earlier offer too
    _copy_cleared(lesson, beside)
    record["offered"] = published
    return Laid(beside, "beside")


def _lay(lesson: Path, copy: Path, record: dict[str, str], what: str) -> Laid:
    _copy_cleared(lesson, copy)
    record["laid"] = digest(copy)
    return Laid(copy, what)


def _copy_cleared(lesson: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    if lesson.suffix != ".ipynb":
        shutil.copyfile(lesson, copy)
        return
    notebook = nbformat.read(lesson, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.pop("execution", None)
    notebook.metadata["language_info"] = LANGUAGE_INFO
    _write_text(copy, nbformat.writes(notebook) + "\n")


def digest(path: Path) -> str:
    """Digest of what was written in a file: the text of a notebook's cells, the bytes of anything else."""
    data = path.read_bytes()
    if path.suffix == ".ipynb":
        try:
            cells = json.loads(data)["cells"]
            data = json.dumps([[cell["cell_type"], _text(cell["source"])] for cell in cells]).encode()
        except (ValueError, KeyError, TypeError):
            pass  # not a notebook (any more): its bytes speak for it
    return hashlib.sha256(data).hexdigest()


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _read_records(folder: Path) -> dict[str, dict[str, str]]:
    """The records; none where the file is missing or damaged: then every differing copy counts as touched."""
    try:
        records = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(records, dict):
        return {}
    return {name: record for name, record in records.items() if isinstance(record, dict)}


def _write_text(path: Path, text: str) -> None:
    """Write all or nothing: a full disk must not leave half a notebook."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
