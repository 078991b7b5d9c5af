"""Make the lessons' notebooks from their sources: pair, execute, clean, write.

People edit ``notebooks/source/dayN_topic/NN_name.py`` (jupytext's py:percent). This tool writes
``notebooks/dayN_topic/NN_name.ipynb`` from it, executed, so that the lesson can be read on a web page and
nbval has outputs to compare. Two runs of the tool on the same source give the same file as far as the
outputs allow: cell ids are kept from the notebook that stands there (new cells get one from their text),
and what changes from run to run or from machine to machine without being a result (times, the kernel's
patch version) is dropped.

    python tools/notebooks.py                   every lesson
    python tools/notebooks.py 21_collectives    the lessons whose name contains this
    python tools/notebooks.py --records         the cells that show a lesson's run on a GPU, and no others
    python tools/notebooks.py --prose           only text and comments; of the code only guesses are executed
    python tools/notebooks.py --check           say whether the pairs agree; changes nothing
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import os
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `python tools/notebooks.py` puts only tools/ there
    sys.path.insert(0, str(ROOT))

from tools.rules import Problem, pairing_problems  # noqa: E402 - needs the line above
from workshop.cli.notebook_run import run_notebook  # noqa: E402
from workshop.show.recorded import code_digest  # noqa: E402

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LIKE_ENOUGH = 0.6
CELL_SECONDS = 300  # as long as CI gives a cell: a busy machine takes several times as long as a quiet one
RECORD = "gpu-record"  # the tag of a cell that shows `show.recorded_run`, and needs no other
LANGUAGE = {
    "name": "python",
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "pygments_lexer": "ipython3",
}


def sources(lessons: Path) -> list[Path]:
    """The .py halves under ``lessons/source``, in the order of the days."""
    return sorted((lessons / "source").rglob("*.py"))


def notebook_of(source: Path, lessons: Path) -> Path:
    """Where the notebook of ``source`` stands."""
    return (lessons / source.relative_to(lessons / "source")).with_suffix(".ipynb")


def paired(source: Path, present: NotebookNode | None) -> NotebookNode:
    """The notebook that ``source`` describes; ids and outputs of equal cells come from ``present``."""
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    old = present.cells if present else []
    for cell, before in zip(notebook.cells, _matches(notebook.cells, old), strict=True):
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k == "tags"})
        if before is not None:
            cell.id = before.id
            if cell.cell_type == "code" and code_digest(cell.source) == code_digest(before.source):
                cell.outputs, cell.execution_count = before.outputs, before.execution_count
    _give_ids(notebook.cells, {before.id for before in old})
    notebook.metadata = NotebookNode(kernelspec=NotebookNode(KERNEL), language_info=NotebookNode(LANGUAGE))
    return notebook


def _matches(new: list[NotebookNode], old: list[NotebookNode]) -> list[NotebookNode | None]:
    """For each new cell the old one it continues: one of equal text, or the most similar at its place."""
    continued: list[NotebookNode | None] = [None] * len(new)
    before_keys, keys = ([(cell.cell_type, cell.source) for cell in cells] for cells in (old, new))
    matcher = difflib.SequenceMatcher(None, before_keys, keys, autojunk=False)
    for what, was, was_stop, now, now_stop in matcher.get_opcodes():
        if what == "equal":
            continued[now:now_stop] = old[was:was_stop]
        for before in old[was:was_stop] if what == "replace" else ():
            likeness = {place: _likeness(before, new[place]) for place in range(now, now_stop)}
            best = max(likeness, key=likeness.__getitem__, default=None)
            if best is not None and likeness[best] >= LIKE_ENOUGH:
                continued[best], now = before, best + 1
    return continued


def _likeness(before: NotebookNode, cell: NotebookNode) -> float:
    """From 0, another cell, to 1, the same text."""
    if before.cell_type != cell.cell_type:
        return 0.0
    return difflib.SequenceMatcher(None, before.source, cell.source, autojunk=False).ratio()


def _give_ids(cells: list[NotebookNode], taken: set[str]) -> None:
    """An id from its text for each cell that kept none; a repeated text is numbered."""
    kept = set(taken)
    for cell in cells:
        if cell.get("id") in taken:
            continue
        number = 0
        while True:
            text = f"{cell.cell_type}\0{cell.source}\0{number}"
            cell.id = hashlib.sha256(text.encode()).hexdigest()[:8]
            if cell.id not in kept:
                break
            number += 1
        kept.add(cell.id)


def clean(notebook: NotebookNode) -> None:
    """Drop what differs between two runs without being a result."""
    notebook.metadata = NotebookNode(kernelspec=NotebookNode(KERNEL), language_info=NotebookNode(LANGUAGE))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            output.get("metadata", {}).pop("execution", None)
        if "outputs" in cell:
            cell.outputs = joined(cell.outputs)


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs with what was printed in one go in one piece; a busy machine sends it in several."""
    result: list[NotebookNode] = []
    for output in outputs:
        last = result[-1] if result else None
        if last and last.output_type == output.output_type == "stream" and last.name == output.name:
            last.text += output.text
        else:
            result.append(output)
    return result


def make(source: Path, lessons: Path) -> float:
    """Write the executed notebook of ``source``; the seconds it took."""
    target, _, notebook = _pair(source, lessons)
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    run_notebook(notebook, target.parent, seconds=CELL_SECONDS)
    took = time.monotonic() - started
    _write(notebook, target)
    return took


def _pair(source: Path, lessons: Path) -> tuple[Path, NotebookNode | None, NotebookNode]:
    """Where the notebook of ``source`` stands, what stands there, and what shall."""
    target = notebook_of(source, lessons)
    present = nbformat.read(target, as_version=4) if target.exists() else None
    return target, present, paired(source, present)


def renew_records(chosen: list[Path], lessons: Path) -> list[str]:
    """Execute the cells with the tag `RECORD`, in one new kernel, and store what they show.

    Their outputs change when a record comes, while nothing else of a lesson does. All other cells of code
    keep their outputs, so they must stand as they were executed.

    Returns:
        What keeps a lesson from it, a sentence each; then nothing is written at all.
    """
    pairs, problems = [], []
    for source in chosen:
        target, present, notebook = _pair(source, lessons)
        pairs.append((target, notebook))
        if present is None or _others(notebook) != _others(present):
            problems.append(f"{source.stem}: other cells are not as they were executed; execute the lesson")
        more = {name for cell in _records(notebook) for name in _names(cell.source)} - {"show"}
        if more:
            problems.append(f"{source.stem}: its record needs {', '.join(sorted(more))} of other cells")
    if problems:
        return problems
    cells = [cell for _, notebook in pairs for cell in _records(notebook)]
    if not cells:
        return []
    _execute_alone(cells, "from workshop import show", lessons)
    for target, notebook in pairs:
        _number(notebook)
        _write(notebook, target)
    return []


def _execute_alone(cells: list[NotebookNode], after: str, folder: Path) -> None:
    """Give these cells the outputs that they have in a new kernel, in which only `after` ran before."""
    alone = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(after)])
    alone.cells += [nbformat.v4.new_code_cell(cell.source) for cell in cells]
    run_notebook(alone, folder, seconds=CELL_SECONDS)
    for cell, done in zip(cells, alone.cells[1:], strict=True):
        cell.outputs = done.outputs


def renew_prose(chosen: list[Path], lessons: Path) -> list[str]:
    """Take over what changed between the cells of code, and their comments, without executing the lesson.

    The question of a guess is a comment that its cell shows: those cells are executed, by themselves.

    Returns:
        What keeps a lesson from it, a sentence each; then nothing is written at all.
    """
    pairs, problems, guesses = [], [], []
    for source in chosen:
        target, present, notebook = _pair(source, lessons)
        pairs.append((target, notebook))
        if present is None or _code(notebook) != _code(present):
            problems.append(f"{source.stem}: its code is not as it was executed; execute the lesson")
        else:
            guesses += _changed_guesses(notebook, present)
    if not problems:
        if guesses:
            _execute_alone(guesses, "%load_ext workshop", lessons)
        for target, notebook in pairs:
            _number(notebook)
            _write(notebook, target)
    return problems


def _records(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if RECORD in cell.metadata.get("tags", ())]


def _changed_guesses(notebook: NotebookNode, present: NotebookNode) -> list[NotebookNode]:
    as_executed = {cell.source for cell in present.cells}
    return [
        cell
        for cell in notebook.cells
        if cell.source.startswith("%%guess") and cell.source not in as_executed
    ]


def _code(notebook: NotebookNode) -> list[tuple[str, list[str]]]:
    """What the cells of code do, whatever their comments say, and their tags."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(code_digest(cell.source), list(cell.metadata.get("tags", ()))) for cell in code]


def _others(notebook: NotebookNode) -> list[tuple[str, list[str]]]:
    """Text and tags of the cells of code that are no records."""
    return [(text, tags) for text, tags in _code(notebook) if RECORD not in tags]


def _names(source: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def _number(notebook: NotebookNode) -> None:
    """Count the cells of code as a run from top to bottom does."""
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def _write(notebook: NotebookNode, target: Path) -> None:
    clean(notebook)
    nbformat.validate(notebook)
    target.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code is 1 when a pair disagrees."""
    parser = argparse.ArgumentParser(description="Pair and execute the lessons.")
    parser.add_argument("names", nargs="*", help="parts of lesson names (default: every lesson)")
    parser.add_argument("--check", action="store_true", help="only say whether the pairs agree")
    parser.add_argument("--records", action="store_true", help="only the cells that show a run on a GPU")
    parser.add_argument("--prose", action="store_true", help="only text, and comments of code")
    parser.add_argument("--lessons", type=Path, default=ROOT / "notebooks", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.check:
        return say_problems(pairing_problems(options.lessons), len(sources(options.lessons)))
    chosen = [
        s for s in sources(options.lessons) if not options.names or any(n in s.stem for n in options.names)
    ]
    if not chosen:
        known = ", ".join(s.stem for s in sources(options.lessons)) or "none yet"
        print(
            f"notebooks: no lesson is called {' or '.join(options.names)}; there are: {known}",
            file=sys.stderr,
        )
        return 2
    os.environ["WORKSHOP_PROGRESS"] = "off"  # a committed lesson shows the first hint, not the author's third
    if options.records or options.prose:
        renew = renew_records if options.records else renew_prose
        return _refused(renew(chosen, options.lessons))
    for source in chosen:
        print(f"notebooks: {source.stem} ...", end=" ", flush=True)
        print(f"{make(source, options.lessons):.1f} s", flush=True)
    # A record is compared with the page that is stored, which was the one before.
    return _refused(renew_records(chosen, options.lessons))


def _refused(lessons: list[str]) -> int:
    """Print why lessons were left as they are; the exit code."""
    print("".join(f"notebooks: {problem}\n" for problem in lessons), end="", file=sys.stderr)
    return 1 if lessons else 0


def say_problems(problems: list[Problem], num_pairs: int) -> int:
    """Print the problems; the exit code."""
    for problem in problems:
        print(f"notebooks: {problem}", file=sys.stderr)
    if not problems:
        print(f"notebooks: {num_pairs} pairs agree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
