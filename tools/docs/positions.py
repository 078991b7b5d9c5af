"""A few more positions of each slider, drawn once, so that a reader without a kernel can move it.

    python -m tools.docs.positions PICTURES NOTEBOOK...

A slider's cell draws from plain formulas, or from what the cells above measured. The first kind is drawn here
again: of the cells above, what binds a name that the slider uses runs, and nothing else; of an exercise
its reference solution. What comes out must be what the page says. The second kind would
have to be measured again, other than the page says; it keeps the picture that is stored, and `MEASURED` names
what it stands on. So does one that stands on text, where the text is another than the page's (`OF_THE_TEXT`).

From the stored values one control is moved at a time. A page needs no script for it: each position is a radio
button, and the stylesheet shows the picture of the one that is chosen.
"""

from __future__ import annotations

import ast
import html
import json
import re
import subprocess
import symtable
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WIDGET = "application/vnd.jupyter.widget-view+json"
POSITIONS = 5  # of a control, the stored one among them
CONTROLS = 3  # of a slider, the first that have choices
SECONDS = 400  # for all of them together, on a machine with much else to do; they take 20

MEASURED = {
    "14_mixed_precision": "gradients of a model that was trained above",
    "17_profile_and_monitor": "the trace of two steps of two ranks",
    "27_fewer_bytes": "runs that were trained above",
    "36_vision_lab": "layers and layouts, measured on two ranks",
    "42_fp8_training": "gradients of two layers of SmolLM2",
    "43_fp8_inference": "a layer of SmolLM2, and inputs that passed it",
    "74_preferences": "answers of models that were trained above",
    "81_capstone": "seconds of layers, measured on two ranks",
}
OF_THE_TEXT = {
    "16_faster_step": "documents of the running Python's manual (`workshop.models.text`)",
}


@dataclass(frozen=True)
class Position:
    """One picture: the control that was moved, its value as the slider shows it, the file and the words."""

    control: str
    value: str
    file: str
    words: str
    stored: bool = False  # the one that the lesson's page has


def drawn_positions(notebooks: Sequence[Path], pictures: Path) -> dict[str, list[list[Position]]]:
    """For each lesson its sliders in order, each a list of positions; the stored one first. Runs apart.

    Raises:
        RuntimeError: a slider cannot be drawn as it is stored, and its lesson is not in `MEASURED` or
            `OF_THE_TEXT`.
    """
    notebooks = [
        path for path in notebooks if path.stem not in MEASURED and WIDGET in path.read_text("utf-8")
    ]
    words = [sys.executable, "-m", "tools.docs.positions", str(pictures.resolve()), *map(str, notebooks)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"sliders cannot be drawn:\n{done.stderr[-3000:]}")
    drawn = json.loads(done.stdout.splitlines()[-1])
    return {
        name: [[Position(**each) for each in slider] for slider in sliders] for name, sliders in drawn.items()
    }


def slider_html(positions: Sequence[Position], folder: str, number: str) -> str:
    """The element of one slider: radio buttons, and of the pictures the chosen one. ``number`` is unique."""
    parts, control = [], ""
    first = next(place for place, one in enumerate(positions) if one.stored)
    for place, one in enumerate(positions):
        if one.control != control:
            control = one.control
            parts.append(f'<span class="control">{html.escape(control.replace("_", " "))}</span>')
        key, checked = f"{number}-{place}", " checked" if place == first else ""
        parts.append(f'<input type="radio" name="{number}" id="{key}"{checked}>')
        parts.append(f'<label for="{key}">{html.escape(one.value)}</label>')
        alternative = html.escape(one.words, quote=True)
        picture = f'<img src="{folder}/{one.file}" alt="{alternative}" loading="lazy">'
        parts.append(f"<figure>{picture}<figcaption>{html.escape(one.words)}</figcaption></figure>")
    return f'<fieldset class="positions"><legend>{LEGEND}</legend>{"".join(parts)}</fieldset>'


LEGEND = "Some positions of the sliders, one moved at a time; in the lab all of them move."


def sliders_of(notebook: Path) -> Iterator[tuple[str, list[str], str]]:
    """Each slider's cell, the code above it, and the words of its stored picture."""
    from workshop.exercises import find

    above: list[str] = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        for data in (output.get("data", {}) for output in cell["outputs"]):
            if WIDGET in data:
                yield source, list(above), "".join(data["text/plain"])
        match = re.match(r"%%exercise\s+(\w+)", source)
        if match:
            above.append(find(match[1]).solution)
        elif not source.startswith("%%"):
            above.append(source)


def stands_on(source: str, above: Sequence[str]) -> list[ast.stmt]:
    """Of the statements above, those that bind or change a name the cell uses, and what they use in turn."""
    statements = [each for text in above for each in ast.parse(without_magics(text)).body]
    used_and_made = [names_in(ast.unparse(each)) for each in statements]
    wanted, waiting = set[int](), [(name, len(used_and_made)) for name in names_in(without_magics(source))[0]]
    while waiting:
        name, place = waiting.pop()
        for number in _made_by(name, statements[:place], used_and_made):
            if number not in wanted:
                wanted.add(number)
                waiting += [(each, number) for each in used_and_made[number][0]]
    return [statements[number] for number in sorted(wanted)]


def _made_by(
    name: str, statements: Sequence[ast.stmt], used_and_made: Sequence[tuple[set[str], set[str]]]
) -> list[int]:
    """The last statement that binds a name anew, and those after it that add to what it holds."""
    numbers: list[int] = []
    for number, statement in enumerate(statements):
        if name in _added_to(statement):
            numbers.append(number)
        elif name in used_and_made[number][1]:
            numbers = [number]
    return numbers


def _added_to(statement: ast.stmt) -> set[str]:
    """Names whose value a statement changes, itself or in a loop: ``x += 1``, ``x[2] = 1``."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return set()
    names = set()
    for each in ast.walk(statement):
        if isinstance(each, ast.AugAssign):
            names.add(ast.unparse(each.target).partition("[")[0])
        elif isinstance(each, ast.Assign):
            names |= {ast.unparse(one.value) for one in each.targets if isinstance(one, ast.Subscript)}
    return names


def without_magics(text: str) -> str:
    """A cell as plain Python."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines())


def names_in(source: str) -> tuple[set[str], set[str]]:
    """(names that code takes from the notebook, names that it binds there), its functions' own left out."""
    outer = symtable.symtable(source, "cell", "exec")
    used = {each.get_name() for each in outer.get_symbols() if each.is_referenced()}
    inner = list(outer.get_children())
    while inner:
        table = inner.pop()
        used |= {each.get_name() for each in table.get_symbols() if each.is_global()}
        inner += table.get_children()
    bound = (each for each in outer.get_symbols() if each.is_assigned() or each.is_imported())
    return used, {each.get_name() for each in bound}


def explorer_of(source: str, above: Sequence[str]) -> Any:
    """Run what the slider stands on, then its cell; what the last line of that gives."""
    names: dict[str, Any] = {"__name__": "__main__"}
    *before, last = ast.parse(without_magics(source)).body
    run = ast.Module([*stands_on(source, above), *before], [])
    exec(compile(run, "slider", "exec"), names)
    if not isinstance(last, ast.Expr):
        raise ValueError(f"a slider's cell ends in {ast.unparse(last)[:60]!r}, which shows nothing")
    return eval(compile(ast.Expression(last.value), "slider", "eval"), names)


def chosen(options: Sequence[tuple[str, Any]], start: Any) -> list[tuple[str, Any]]:
    """At most five of a control's options, from end to end, with the one it starts at."""
    at = next(place for place, (_, value) in enumerate(options) if value == start)
    count = min(POSITIONS, len(options))
    spread = [round(step * (len(options) - 1) / max(count - 1, 1)) for step in range(count)]
    nearest = min(range(count), key=lambda step: abs(spread[step] - at))
    spread[nearest] = at
    return [options[place] for place in sorted(set(spread))]


def draw(notebook: Path, pictures: Path) -> list[list[Position]]:
    """Draw the positions of a lesson's sliders, none of one that stands on another text; pictures are files.

    Raises:
        ValueError: a slider shows something else now than the page says.
    """
    from workshop.jupyter.explorer import drawn

    sliders_drawn: list[list[Position]] = []
    for number, (source, above, stored) in enumerate(sliders_of(notebook), 1):
        explorer, positions = explorer_of(source, above), list[Position]()
        if repr(explorer) != stored:
            if notebook.stem in OF_THE_TEXT:
                sliders_drawn.append([])
                continue
            raise ValueError(f"{notebook.stem}: the page has {stored!r}, and drawn now it is {explorer!r}")
        moving = [name for name, widget in explorer.controls.items() if hasattr(widget, "options")]
        start = _written(explorer.picture, pictures / f"{notebook.stem}-slider{number}")
        for control in moving[:CONTROLS]:
            began = explorer.values[control]
            for label, value in chosen(explorer.controls[control].options, began):
                if value == began:
                    positions.append(Position(control, label, start, explorer.picture.words, True))
                    continue
                picture = drawn(explorer.draw, explorer.values | {control: value})
                name = f"{notebook.stem}-slider{number}-{len(positions)}"
                file = _written(picture, pictures / name)
                positions.append(Position(control, label, file, picture.words))
        sliders_drawn.append(positions)
    return sliders_drawn


def _written(picture: Any, path: Path) -> str:
    """A picture as PNG, a drawing as SVG; the file's name."""
    content = picture.svg.encode() if hasattr(picture, "svg") else picture._repr_png_()
    file = path.with_name(f"{path.name}.{'svg' if hasattr(picture, 'svg') else 'png'}")
    file.write_bytes(content)
    return file.name


def main(arguments: Sequence[str]) -> int:
    """Draw into the first folder the sliders of the other notebooks; print what there is, as JSON."""
    import matplotlib.pyplot as plt

    pictures, *notebooks = map(Path, arguments)
    drawn = {}
    for notebook in notebooks:
        drawn[notebook.stem] = [[asdict(one) for one in slider] for slider in draw(notebook, pictures)]
        plt.close("all")
    print(json.dumps(drawn))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
