"""The commands of a shell script, with its variables put in, and without running anything.

Training scripts keep arguments in variables and arrays, and hand them to one long command at the end::

    TP=8
    MODEL_ARGS=(--num-layers 32 --hidden-size $((TP * 512)))
    torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size $TP ${MODEL_ARGS[@]}

What is understood: words with quotes, comments, line ends with a backslash; variables, ``${X:-default}``,
arrays, ``+=``, arithmetic; ``if`` with comparisons of what is known. What only a running shell knows (the
output of a command, a variable of the environment) stays in the word as it is written, so that a reader who
needs it can say so. Anything else that could change the arguments, such as a loop, is refused with its line.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from workshop.configs.formats.shell_words import Token, UnreadableScriptError, closing, tokens

Word = list[tuple[str, bool]]  # pieces of a word, and whether each stood in quotes that let nothing split it
SEPARATORS = ("\n", ";", "&&", "||", "|", "&", ";;")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "-eq": lambda a, b: int(a) == int(b),
    "-ne": lambda a, b: int(a) != int(b),
    "-gt": lambda a, b: int(a) > int(b),
    "-ge": lambda a, b: int(a) >= int(b),
    "-lt": lambda a, b: int(a) < int(b),
    "-le": lambda a, b: int(a) <= int(b),
}
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,  # a shell divides whole numbers
    ast.Mod: operator.mod,
}


def commands(text: str) -> list[list[str]]:
    """Every simple command of a script as its words, in order.

    Raises:
        UnreadableScriptError: A loop, a function or a condition that nobody knows decides about arguments;
            its line is told.
    """
    script = _Script(tokens(text))
    script.block(())
    return script.commands


# ------------------------------------------------------------------ statements


class _Script:
    """A walk over the tokens that keeps variables and collects commands."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.place = 0
        self.variables: dict[str, list[str]] = {}
        self.commands: list[list[str]] = []
        self.skips = 0  # above zero inside a branch that is not taken
        self.unknown: list[str] = []  # conditions around this place that nobody knows

    def block(self, ends: tuple[str, ...]) -> str:
        """Statements up to one of the words; which one it was."""
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            if token.is_word and token.text in ends:
                self.place += 1
                return token.text
            if not token.is_word:
                self.place += 1
            elif token.text == "if":
                self.place += 1
                self._condition(token)
            elif token.text in ("for", "while", "until", "case", "select", "function") or self._is_function():
                self._passed_over(token)
            else:
                self._statement()
        if ends:
            raise UnreadableScriptError(f"the script ends before {' or '.join(ends)}")
        return ""

    def _is_function(self) -> bool:
        following = [token.text for token in self.tokens[self.place + 1 : self.place + 3]]
        return following == ["(", ")"] and _NAME.fullmatch(self.tokens[self.place].text) is not None

    def _passed_over(self, opening: Token) -> None:
        """A loop or a function, which may print or copy, but not decide about arguments."""
        closing = {"case": "esac", "function": "}"}.get(opening.text, "done")
        closing = "}" if self._is_function() else closing
        depth = 0
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            self.place += 1
            depth += token.is_word and token.text in ("for", "while", "until", "select", "case", "{")
            if _ASSIGNMENT.fullmatch(token.text) or token.text.startswith("--"):
                raise UnreadableScriptError(
                    f"line {token.line}: {token.text!r} is set inside {opening.text!r} of line "
                    f"{opening.line}, which is "
                    "not followed here; write the arguments out"
                )
            if token.is_word and token.text == closing:
                depth -= 1
                if depth <= 0:
                    return

    def _condition(self, opening: Token) -> None:
        """if ... then ... elif ... else ... fi."""
        taken = False
        word = "if"
        while word != "fi":
            holds = True if word == "else" else self._holds(opening)
            enters = not taken and holds is not False
            self.skips += not enters
            if holds is None:
                self.unknown.append(f"the condition of line {opening.line}")
            word = self.block(("elif", "else", "fi"))
            self.skips -= not enters
            if holds is None:
                self.unknown.pop()
            taken = taken or holds is True

    def _holds(self, opening: Token) -> bool | None:
        """Whether the condition up to ``then`` is true; None where nobody knows."""
        tests: list[list[str]] = [[]]
        joins: list[str] = []
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            self.place += 1
            if token.text == "then":
                break
            if token.text in ("&&", "||"):
                joins.append(token.text)
                tests.append([])
            elif token.is_word:
                tests[-1] += self._expanded(token) or [""]
        else:
            raise UnreadableScriptError(f"line {opening.line}: if without then")
        first, *others = [_tested(test) for test in tests]
        result = first
        for join, value in zip(joins, others, strict=True):
            result = _joined(join, result, value)
        return result

    def _statement(self) -> None:
        """Assignments and one command, up to a separator."""
        words: list[str] = []
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            if not token.is_word and token.text in SEPARATORS:
                break
            self.place += 1
            if words and words[0] in ("[[", "["):
                continue
            assigned = _ASSIGNMENT.fullmatch(token.text) if token.is_word else None
            if assigned and (not words or words[0] in ("export", "local", "declare", "readonly")):
                self._assign(assigned, token)
            elif token.is_word:
                words += self._expanded(token)
        if words and not self.skips:
            self._sure(" ".join(words[:3]), words)
            self.commands.append(words)

    def _assign(self, assigned: re.Match[str], token: Token) -> None:
        name, adds, value = assigned.groups()
        following = self.tokens[self.place] if self.place < len(self.tokens) else None
        if not value and following is not None and following.text == "(" and following.line == token.line:
            values = self._array()
        else:
            values = [" ".join(self._expanded(Token(value, token.line, True), whole=True))]
        if self.skips:
            return
        self._sure(name, values)
        before = self.variables.get(name, [])
        if adds and len(before) == 1 and following is not None and following.text != "(":
            values = [before[0] + values[0]]
        elif adds:
            values = [*before, *values]
        self.variables[name] = values

    def _sure(self, what: str, words: list[str]) -> None:
        """Refuse what hangs on an unknown condition and could be an argument."""
        if self.unknown and any(word.startswith("--") for word in words):
            raise UnreadableScriptError(
                f"{what} depends on {self.unknown[-1]}, which is not known; write the arguments out"
            )

    def _array(self) -> list[str]:
        """The words between the parentheses of an array."""
        self.place += 1
        values: list[str] = []
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            self.place += 1
            if token.text == ")" and not token.is_word:
                return values
            if token.is_word:
                values += self._expanded(token)
        raise UnreadableScriptError("an array has no end")

    # -------------------------------------------------------------- expansion

    def _expanded(self, token: Token, *, whole: bool = False) -> list[str]:
        """A raw word as the words it becomes: unquoted values are split at blanks, quoted ones are not."""
        if re.fullmatch(r'"\$\{[A-Za-z_]\w*\[@\]\}"', token.text):
            return list(self.variables.get(token.text[3:-5], []))
        words: list[str] = [""]
        has_text = False
        for text, quoted in self._pieces(token.text):
            has_text = has_text or quoted or bool(text)
            if quoted or whole:
                words[-1] += text
                continue
            parts = re.split(r"[ \t\n]+", text)
            words[-1] += parts[0]
            words += parts[1:]
        return [word for word in words if word or (has_text and len(words) == 1 and '"' in token.text)]

    def _pieces(self, raw: str) -> Word:
        """Text of a raw word with variables put in."""
        pieces: Word = []
        place = 0
        while place < len(raw):
            mark = raw[place]
            if mark == "'":
                end = raw.index("'", place + 1)
                pieces.append((raw[place + 1 : end], True))
                place = end + 1
            elif mark == '"':
                end = closing(raw, place + 1, '"', 0)
                inside = "".join(text for text, _ in self._pieces_of_text(raw[place + 1 : end]))
                pieces.append((inside, True))
                place = end + 1
            elif mark == "\\":
                pieces.append((raw[place + 1 : place + 2].strip("\n"), True))
                place += 2
            else:
                end = min(
                    (at for at in (raw.find(c, place + 1) for c in "'\"\\") if at > 0), default=len(raw)
                )
                if mark == "$" and raw[place : place + 2] in ("${", "$("):
                    end = max(end, _end_of_expansion(raw, place))
                pieces += self._pieces_of_text(raw[place:end])
                place = end
        return pieces

    def _pieces_of_text(self, text: str) -> Word:
        """Text without quotes of its own: variables, arithmetic, and what only a shell knows."""
        pieces: Word = []
        place = 0
        while place < len(text):
            if text[place] == "\\" and place + 1 < len(text):
                pieces.append((text[place + 1], True))
                place += 2
            elif text[place] == "`":
                end = text.find("`", place + 1)
                end = len(text) if end < 0 else end + 1
                pieces.append((text[place:end], True))
                place = end
            elif text[place] != "$" or place + 1 == len(text):
                end = min(
                    (at for at in (text.find(c, place + 1) for c in "$\\`") if at > 0), default=len(text)
                )
                pieces.append((text[place:end], False))
                place = end
            else:
                end = _end_of_expansion(text, place)
                value = self._value(text[place:end])
                pieces.append((value, value.startswith(("$(", "${"))))
                place = end
        return pieces

    def _value(self, raw: str) -> str:
        """The value of ``$X``, ``${X:-default}``, ``$((...))``; as written where it is not known."""
        if raw.startswith("$(("):
            return self._arithmetic(raw)
        if raw.startswith("$("):
            return raw
        inside = raw[2:-1] if raw.startswith("${") else raw[1:]
        name = re.match(r"[A-Za-z_]\w*|\d+|[@*#?$!]", inside)
        if name is None:
            return raw
        after = inside[name.end() :]
        values = self.variables.get(name.group(), None)
        if after in ("[@]", "[*]") or (after == "" and values is not None):
            return " ".join(values) if values is not None and after else (values[0] if values else "")
        default = re.fullmatch(r":?[-=](.*)", after, re.DOTALL)
        if default:
            known = values is not None and (values != [""] or not after.startswith(":"))
            return (
                values[0] if known and values else "".join(text for text, _ in self._pieces(default.group(1)))
            )
        return raw

    def _arithmetic(self, raw: str) -> str:
        text = "".join(piece for piece, _ in self._pieces_of_text(raw[3:-2]))
        text = re.sub(_NAME, lambda name: (self.variables.get(name.group()) or [name.group()])[0], text)
        try:
            return str(_computed(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return raw


def _end_of_expansion(text: str, place: int) -> int:
    """Where the expansion that begins with the ``$`` at ``place`` ends."""
    if text.startswith("$((", place):
        end = text.find("))", place)
        return len(text) if end < 0 else end + 2
    if text.startswith("${", place):
        return closing(text, place + 2, "}", 0) + 1
    if text.startswith("$(", place):
        return closing(text, place + 2, ")", 0) + 1
    name = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!]").match(text, place + 1)
    return place + 1 if name is None else name.end()


def _computed(node: ast.AST) -> int:
    """Whole numbers and + - * / %."""
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**15:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return int(_ARITHMETIC[type(node.op)](_computed(node.left), _computed(node.right)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(node.operand)
    raise ValueError("no arithmetic")


def _tested(words: list[str]) -> bool | None:
    """A test such as ``[[ a == b ]]``; None where it asks for something that is not known."""
    inside = [word for word in words if word not in ("[", "[[", "]", "]]", "test")]
    negated = bool(inside) and inside[0] == "!"
    inside = inside[negated:]
    result: bool | None = None
    if any(word.startswith(("$", "`")) for word in inside):
        result = None
    elif len(inside) == 2 and inside[0] in ("-z", "-n"):
        result = (inside[1] == "") == (inside[0] == "-z")
    elif len(inside) == 3 and inside[1] in _COMPARISONS:
        try:
            result = _COMPARISONS[inside[1]](inside[0], inside[2])
        except ValueError:
            result = None
    return None if result is None else result != negated


def _joined(join: str, left: bool | None, right: bool | None) -> bool | None:
    """``&&`` and ``||`` of what may be unknown."""
    decisive = join == "||"
    if decisive in (left, right):
        return decisive
    return None if None in (left, right) else not decisive
