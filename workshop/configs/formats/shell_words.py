"""The words of a shell script as they are written, before anything is put in for its variables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """A raw word as written, or a separator or parenthesis; ``line`` counts from 1."""

    text: str
    line: int
    is_word: bool


class UnreadableScriptError(ValueError):
    """A script does what cannot be followed without running it."""


def tokens(text: str) -> list[Token]:
    """Words, separators and parentheses of a script."""
    tokens: list[Token] = []
    place, line = 0, 1
    while place < len(text):
        rest = text[place:]
        if rest.startswith("\\\n"):
            place, line = place + 2, line + 1
        elif rest[0] in " \t\r":
            place += 1
        elif rest[0] == "#":
            place += len(rest.partition("\n")[0])
        elif rest.startswith("<<") and not rest.startswith("<<<"):
            raise UnreadableScriptError(f"line {line}: a here-document is not read; write the arguments out")
        else:
            token = next((mark for mark in ("&&", "||", ";;", *"\n;|&()") if rest.startswith(mark)), "")
            is_word = not token
            token = token or _raw_word(rest, line)
            tokens.append(Token(token, line, is_word))
            place, line = place + len(token), line + token.count("\n")
    return tokens


def _raw_word(text: str, line: int) -> str:
    """The word at the beginning of a text, with its quotes and braces."""
    place = 0
    while place < len(text) and text[place] not in " \t\r\n;|&()":
        mark = text[place]
        if mark == "\\":
            place += 2
        elif mark in "'\"`":
            place = closing(text, place + 1, mark, line) + 1
        elif text.startswith("$((", place):
            place = text.find("))", place) + 2 or len(text)
        elif text.startswith("$(", place):
            place = closing(text, place + 2, ")", line) + 1
        elif text.startswith("${", place):
            place = closing(text, place + 2, "}", line) + 1
        else:
            place += 1
    return text[:place]


def closing(text: str, place: int, mark: str, line: int) -> int:
    """Where the quote or brace ends that began before ``place``; what is nested in it is stepped over.

    Raises:
        UnreadableScriptError: It has no end.
    """
    start = place
    while place < len(text):
        letter = text[place]
        inner = ""
        if letter == "\\" and mark != "'":
            place += 2
            continue
        if letter == mark:
            return place
        if mark != "'" and text.startswith(("$(", "${"), place):
            place, inner = place + 1, {"(": ")", "{": "}"}[text[place + 1]]
        elif mark in ")}" and letter in "'\"`":
            inner = letter
        elif mark == ")" and letter == "(":
            inner = ")"
        place = closing(text, place + 1, inner, line) + 1 if inner else place + 1
    raise UnreadableScriptError(f"line {line}: {text[max(0, start - 2) :][:20]!r} has no end")
