"""The design of each room on one page, and of the house: read from the import graph and the contracts.

A room is a folder of the package. Which may import which, ``pyproject.toml`` says; what they do
import, `grimp` finds, as import-linter does.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grimp

from tools.docs.import_picture import draw, rows_of
from tools.docs.reference import body_of, names_of

PACKAGE = "workshop"
NO_LINK = ""


@dataclass(frozen=True)
class House:
    """The rooms of the package in their layers, and who imports whom."""

    root: Path
    layers: tuple[tuple[str, ...], ...]
    graph: Any

    @property
    def rooms(self) -> list[str]:
        """The rooms from the top down."""
        return [room for layer in self.layers for room in layer]

    def uses(self) -> dict[str, set[str]]:
        """The rooms that each room imports."""
        used: dict[str, set[str]] = {room: set() for room in self.rooms}
        for importer in self.graph.modules:
            for imported in self.graph.find_modules_directly_imported_by(importer):
                one, other = _part(importer, PACKAGE), _part(imported, PACKAGE)
                if one != other and one in used and other in used:
                    used[one].add(other)
        return used

    def inside(self, room: str) -> dict[str, set[str]]:
        """The modules and folders of a room, each with those of the room that it imports."""
        name = f"{PACKAGE}.{room}"
        children = self.graph.find_children(name)
        parts: dict[str, set[str]] = {_part(module, name): set() for module in sorted(children)}
        if room == "exercises":  # a folder for each exercise: they import the engine and nobody imports them
            parts = {"engine": set()}
        for importer in self.graph.find_descendants(name):
            for imported in self.graph.find_modules_directly_imported_by(importer):
                one, other = _part(importer, name), _part(imported, name)
                if one != other and one in parts and other in parts:
                    parts[one].add(other)
        return parts


def read_house(root: Path) -> House:
    """The house as it stands in ``root``."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["type"] == "layers"]
    layers = tuple(
        tuple(
            room
            for room in (name.strip(" ()") for name in layer.split("|"))
            if (root / PACKAGE / room / "__init__.py").is_file()
        )
        for layer in contract["layers"]
    )
    return House(root, tuple(filter(None, layers)), grimp.build_graph(PACKAGE, cache_dir=None))


def _part(module: str, within: str) -> str:
    """``session`` of ``workshop.launch.session`` within ``workshop.launch``; empty for one elsewhere."""
    return module[len(within) + 1 :].split(".")[0] if module.startswith(f"{within}.") else ""


def house_page(house: House) -> str:
    """The page of the whole house, in reStructuredText."""
    uses = house.uses()
    picture = draw(
        house.layers,
        uses,
        f"The rooms of the package in {len(house.layers)} layers; imports only go down.",
        lambda room: f"{room}.html",
    )
    lines = [
        "How the package is built",
        "=" * 24,
        "",
        "Each folder of the package is a room. A room imports from the layers below it and from none beside",
        "or above it; ``make check`` holds that. The picture shows the imports that there are.",
        "",
        *_raw(picture),
        *(f"* :doc:`{room}`: {_first_sentence(house, room)}" for room in house.rooms),
        "",
        ".. toctree::",
        "   :hidden:",
        "",
        *(f"   {room}" for room in house.rooms),
    ]
    return "\n".join(lines) + "\n"


def room_page(house: House, room: str, lessons: Sequence[str]) -> str:
    """The page of one room. lessons: names of those whose cells import it."""
    path = house.root / PACKAGE / room / "__init__.py"
    uses, inside = house.uses(), house.inside(room)
    above = [other for other in house.rooms if room in uses[other]]
    below = [other for other in house.rooms if other in uses[room]]
    around = {room: set(below), **{other: {room} for other in above}, **{other: set() for other in below}}
    lines = [
        room,
        "=" * len(room),
        "",
        *body_of(ast.parse(path.read_text(encoding="utf-8")), names_of(path, house.root)),
        "",
    ]
    place = [
        name for name, row in zip(("above", "itself", "below"), (above, [room], below), strict=True) if row
    ]
    words = f"{room} is imported by {_listed(above)} and imports {_listed(below)}."
    lines += ["Its place", "---------", "", words, ""]
    rows = [row for row in (above, [room], below) if row]
    lines += _raw(
        draw(rows, around, words, lambda other: NO_LINK if other == room else f"{other}.html", room)
    )
    if len(inside) > 1 and place:
        caption = f"Who imports whom inside {room}: " + _inside_words(inside)
        lines += ["Inside", "------", "", "Each box imports those below it that a line leads to.", ""]
        lines += _raw(draw(rows_of(inside), inside, caption, lambda _: NO_LINK))
    lines += ["Its parts", "---------", "", *_parts(house, room, inside), ""]
    if lessons:
        lines += ["Lessons that use it", "-------------------", ""]
        lines += [f"* :doc:`{Path(name).name} </notebooks/{name}>`" for name in lessons] + [""]
    return "\n".join([*lines, f"All names: :doc:`/reference/{PACKAGE}.{room}`.", ""])


def _parts(house: House, room: str, inside: dict[str, set[str]]) -> list[str]:
    """A line for each module and folder: what it is."""
    folder = house.root / PACKAGE / room
    lines = []
    for part in sorted(inside):
        path = folder / f"{part}.py" if (folder / f"{part}.py").is_file() else folder / part / "__init__.py"
        lines.append(f"* ``{part}``: {first_sentence(path)}")
    return lines or ["One module."]


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    paragraph = "\n".join(body_of(ast.parse(path.read_text(encoding="utf-8")))).split("\n\n")[0]
    text = " ".join(paragraph.split())
    match = re.match(r"(.+?[.?!])(?= [A-Z`]|$)", text)
    return (match[1] if match else text).removesuffix("::").rstrip(":")


def _first_sentence(house: House, room: str) -> str:
    return first_sentence(house.root / PACKAGE / room / "__init__.py")


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no room"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _inside_words(inside: dict[str, set[str]]) -> str:
    return "; ".join(
        f"{name} imports {_listed(sorted(used))}" for name, used in sorted(inside.items()) if used
    )


def _raw(element: str) -> list[str]:
    return [".. raw:: html", "", f"   {element}", ""]


def lessons_by_room(sources: Path, rooms: Sequence[str]) -> dict[str, list[str]]:
    """For each room the lessons (``dayN_topic/NN_name``) whose cells import it."""
    by_room: dict[str, list[str]] = {room: [] for room in rooms}
    for path in sorted(sources.glob("day*/*.py")):
        code = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if line[:2] != "# ")
        used = set(re.findall(r"\bworkshop\.(\w+)", code))
        for names in re.findall(r"from workshop import ([\w, ]+)", code):
            used |= {name.strip().split(" ")[0] for name in names.split(",")}
        for room in used & set(rooms):
            by_room[room].append(f"{path.parent.name}/{path.stem}")
    return by_room
