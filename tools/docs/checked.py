"""Go through built pages: links, anchors, pictures and their words, and what must not stand in them."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

OUTSIDE = ("http", "https", "mailto")
# Folders of the machine that built or executed: none is of use to a reader, and each tells of one machine.
MACHINE = re.compile(r"(?<![\w.~-])/(?:work/|root/|home/(?!user/|you/|me/|learner/)\w+/)[\w./-]*|file:///\S+")


@dataclass
class Checked:
    """What was gone through, and what is wrong."""

    pages: int = 0
    links: int = 0
    pictures: int = 0
    outside: int = 0
    problems: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """What a page offers and asks for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.pictures: list[dict[str, str]] = []
        self.unnamed = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag names."""
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "img":
            self.pictures.append(values)
            self.loaded.append(values.get("src", ""))
        if tag == "svg" and values.get("role") == "img" and not values.get("aria-label", "").strip():
            self.unnamed += 1
        if tag == "script" and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon", "shortcut icon"):
            self.loaded.append(values.get("href", ""))


def check(folder: Path) -> Checked:
    """Every page below ``folder``."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.html"))}
    pages = {path: Page(text) for path, text in texts.items()}
    checked = Checked(pages=len(pages))
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        for link in page.links:
            _follow(link, path, pages, checked, name)
        for address in page.loaded:
            if urlsplit(address).scheme in OUTSIDE or address.startswith("//"):
                checked.problems.append(f"{name}: loads {address} from elsewhere")
            elif not (path.parent / unquote(urlsplit(address).path)).is_file():
                checked.problems.append(f"{name}: no file {address}")
        checked.pictures += len(page.pictures)
        wordless = [picture.get("src", "") for picture in page.pictures if not picture.get("alt", "").strip()]
        checked.problems += [f"{name}: a picture without words: {source}" for source in wordless]
        checked.problems += [f"{name}: a drawing without words"] * page.unnamed
        checked.problems += [f"{name}: names {place}" for place in sorted(set(MACHINE.findall(texts[path])))]
    return checked


@functools.cache
def _target(folder: Path, place: str) -> Path | None:
    """The file that a link from a page in ``folder`` leads to; None where there is none."""
    target = (folder / unquote(place)).resolve()
    return target if target.is_file() else None


def _follow(link: str, path: Path, pages: dict[Path, Page], checked: Checked, name: str) -> None:
    """Count one link, and say where it leads to nothing."""
    parts = urlsplit(link)
    if parts.scheme in OUTSIDE:
        checked.outside += 1
        host = r"([\w-]+\.)+[a-z]{2,}|127\.0\.0\.1(:\d+)?"
        if parts.scheme != "mailto" and not re.fullmatch(host, parts.netloc.lower()):
            checked.problems.append(f"{name}: {link} is no address")
        return
    checked.links += 1
    if parts.scheme or link.startswith("//"):
        checked.problems.append(f"{name}: {link} is no address")
        return
    target = _target(path.parent, parts.path) if parts.path else path
    if target is None:
        checked.problems.append(f"{name}: no page {link}")
    elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        checked.problems.append(f"{name}: no place {link}")
