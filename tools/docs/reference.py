"""The reference: public names with signatures and docstrings, read from the files without importing them.

A folder of the package is a page, its modules the sections. Public is what ``__all__`` lists, else what has
no underscore in front and is defined in the module.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

CONFIG: Any = Config(napoleon_use_param=False, napoleon_use_rtype=False, napoleon_use_ivar=True)
# Exercises are read by their questions in the lessons; their folders hold answers, not an interface.
LEFT_OUT = ("workshop/exercises/",)
KEPT = ("workshop/exercises/__init__.py", "workshop/exercises/engine/")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def modules_by_folder(root: Path) -> dict[Path, list[Path]]:
    """The modules of each folder of the package that the reference shows; ``__init__`` comes first."""
    by_folder: dict[Path, list[Path]] = {}
    for path in sorted((root / "workshop").rglob("*.py"), key=lambda path: (path.parent, path.stem)):
        place = path.relative_to(root).as_posix()
        if not place.startswith(LEFT_OUT) or place.startswith(KEPT):
            by_folder.setdefault(path.parent, []).append(path)
    return by_folder


def module_name(path: Path, root: Path) -> str:
    """``workshop.launch.session`` of its file."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public(tree: ast.Module) -> Iterator[Definition]:
    """Functions and classes of a module that others may use."""
    listed = _all(tree)
    for node in tree.body:
        if isinstance(node, Definition) and (
            node.name in listed if listed is not None else not node.name.startswith("_")
        ):
            yield node


def _all(tree: ast.Module) -> set[str] | None:
    """What ``__all__`` lists; None without one, or with one that is computed."""
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.List | ast.Tuple):
            continue
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            names = {str(item.value) for item in node.value.elts if isinstance(item, ast.Constant)}
            own = {node.name for node in tree.body if isinstance(node, Definition)}
            return names if names & own else None
    return None


def names_of(path: Path, root: Path) -> dict[str, str]:
    """Where each name of the package comes from that a module defines or imports, in full."""
    tree, module = ast.parse(path.read_text(encoding="utf-8")), module_name(path, root)
    names = {node.name: f"{module}.{node.name}" for node in public(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workshop"):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


class _InFull(ast.NodeTransformer):
    """Names in annotations as the whole path, so that no other class of the same name is linked."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Name(self.names[node.value]) if node.value in self.names else node


def _typed(annotation: ast.expr, names: dict[str, str]) -> ast.expr:
    changed: ast.expr = _InFull(names).visit(annotation)
    return changed


def signature(node: Definition, names: dict[str, str]) -> str:
    """Name, arguments and result as they are written, types by their whole path."""
    if isinstance(node, ast.ClassDef):
        made = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        return (
            f"{node.name}({_arguments(made.args, names)})" if made else f"{node.name}{_fields(node, names)}"
        )
    returns = f" -> {ast.unparse(_typed(node.returns, names))}" if node.returns else ""
    return f"{node.name}({_arguments(node.args, names)}){returns}"


def _arguments(arguments: ast.arguments, names: dict[str, str]) -> str:
    """Arguments, without ``self``."""
    for one in (
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ):
        if one is not None and one.annotation is not None:
            one.annotation = _typed(one.annotation, names)
    return re.sub(r"^(self|cls)(, |$)(/, )?", "", ast.unparse(arguments))


def _fields(node: ast.ClassDef, names: dict[str, str]) -> str:
    """Fields of a dataclass or a named tuple as the arguments they become."""
    made = [ast.unparse(item) for item in (*node.decorator_list, *node.bases)]
    if not any("dataclass" in text or text.endswith("NamedTuple") for text in made):
        return ""
    fields = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.dump(item.annotation):
            name, kind = ast.unparse(item.target), ast.unparse(_typed(item.annotation, names))
            default = "" if item.value is None else f" = {ast.unparse(item.value)}"
            fields += [] if name.startswith("_") else [f"{name}: {kind}{default}"]
    return f"({', '.join(fields)})"


def folder_page(folder: Path, modules: list[Path], root: Path) -> str:
    """The page of one folder, in reStructuredText."""
    name = ".".join(folder.relative_to(root).parts)
    parts = [_title(name, "="), ""]
    for path in modules:
        parts += module_section(path, module_name(path, root), root)
    return "\n".join(parts) + "\n"


def module_section(path: Path, name: str, root: Path) -> list[str]:
    """One module: its docstring, then its public names."""
    tree, names = ast.parse(path.read_text(encoding="utf-8")), names_of(path, root)
    heading = [] if path.stem == "__init__" else [_title(name, "-"), ""]
    lines = [*heading, f".. py:module:: {name}", "", f"*{path.relative_to(root).as_posix()}*", ""]
    lines += [*body_of(tree, names), ""]
    if path.stem == "__init__" and (offered := _offered(tree, names)):
        lines += [
            "From here: " + ", ".join(f":py:obj:`{short} <{full}>`" for short, full in offered) + ".",
            "",
        ]
    for node in public(tree):
        lines += described(node, "class" if isinstance(node, ast.ClassDef) else "function", 0, names)
    return lines


def _offered(tree: ast.Module, names: dict[str, str]) -> list[tuple[str, str]]:
    """Names of other modules that a folder's front door offers."""
    own = {node.name for node in tree.body if isinstance(node, Definition)}
    direct = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return [(short, full) for short, full in sorted(names.items()) if short in direct - own]


def described(node: Definition, kind: str, depth: int, names: dict[str, str]) -> list[str]:
    """A function or a class with its public methods, as Sphinx's domain of Python takes them."""
    indent = "   " * depth
    lines = [f"{indent}.. py:{kind}:: {signature(node, names)}", ""]
    lines += [f"{indent}   {line}".rstrip() for line in body_of(node, names)] + [""]
    if isinstance(node, ast.ClassDef):
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_"):
                lines += described(item, "method", depth + 1, names)
    return lines


def body_of(node: Definition | ast.Module, names: dict[str, str] | None = None) -> list[str]:
    """A docstring as reStructuredText, its Google sections as lists."""
    text = ast.get_docstring(node) or ""
    return marked_up(str(GoogleDocstring(text, CONFIG)), names or {}).splitlines()


def marked_up(text: str, names: dict[str, str]) -> str:
    """A docstring's prose as reStructuredText reads it.

    Names between backticks lead to their place where the module knows it; stars, bars and underscores are
    themselves; a paragraph whose lines are indented by hand keeps its lines.
    """
    lines: list[str] = []
    block: int | None = None
    for paragraph in re.split(r"\n[ \t]*\n", _FENCE.sub(_indented, text)):
        rows = paragraph.splitlines()
        indent = min((_indent(row) for row in rows if row.strip()), default=0)
        if block is None or indent <= block:
            block = _indent(rows[-1]) if rows and rows[-1].rstrip().endswith("::") else None
            rows = _paragraph(rows, indent, names)
        lines += [*rows, ""]
    return "\n".join(lines)


_FENCE = re.compile(r"(?ms)^```\w*\n(.+?)^```$")


def _indented(fence: re.Match[str]) -> str:
    return "::\n\n" + "".join(f"   {line}\n" for line in fence[1].splitlines())


def _paragraph(rows: list[str], indent: int, names: dict[str, str]) -> list[str]:
    """The lines of one paragraph; a table and a directive stay as they are."""
    if any(re.fullmatch(r"\s*=+( +=+)+\s*", row) for row in rows) or (rows and rows[0].lstrip()[:2] == ".."):
        return rows
    if _by_hand(rows) and indent > 1:
        return ["::", "", *rows]
    text = re.sub(
        r"(?m)^( *):raises (\w+):", lambda match: _raised(match[1], match[2], names), "\n".join(rows)
    )
    whole = _words(text, names).splitlines()
    return [f"{' ' * indent}| {row[indent:]}" for row in whole] if _by_hand(rows) else whole


def _raised(indent: str, name: str, names: dict[str, str]) -> str:
    """The field of an exception: by its whole path, and without a link where the module does not name it."""
    if name in names:
        return f"{indent}:raises ~{names[name]}:"
    return f"{indent}:raises {name}:" if hasattr(builtins, name) else f"{indent}:Raises {name}:"


def _by_hand(rows: list[str]) -> bool:
    """Whether the lines of a paragraph are set out: indented otherwise than a list or a term's text is."""
    rows = [row for row in rows if row.strip()]
    if len({_indent(row) for row in rows}) < 2 or rows[0].lstrip().startswith(":") or rows[-1].endswith("::"):
        return False
    first = re.match(r"\s*([-*] |\d+\. )", rows[0])
    if first is None:
        return True
    inside = (_indent(rows[0]), len(first[0]))
    return any(
        _indent(row) != (inside[0] if re.match(r"\s*([-*] |\d+\. )", row) else inside[1]) for row in rows
    )


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


def _words(paragraph: str, names: dict[str, str]) -> str:
    """Backticks as links or code, everything else but a paragraph's own markup as it stands."""
    pieces = re.split(
        r"(``.+?``|:\w+(?::\w+)?:`[^`]+`|`[^`]+`|\*\*?[^*\s](?:[^*\n]*[^*\s])?\*\*?(?!\w))",
        paragraph,
        flags=re.DOTALL,
    )
    return "".join(
        _piece(piece, names) if number % 2 else _plain(piece) for number, piece in enumerate(pieces)
    )


def _piece(piece: str, names: dict[str, str]) -> str:
    if not piece.startswith("`"):
        return piece
    code = " ".join(piece.strip("`").split())
    whole = names.get(code.removesuffix("()"), code if code.startswith("workshop.") else "")
    return f":py:obj:`{code} <{whole}>`" if whole and not piece.startswith("``") else f"``{code}``"


def _plain(text: str) -> str:
    """Stars, bars and underscores that would be markup, as themselves."""
    text = re.sub(r"(?<=\w)_(?!\w)", r"\\_", text.replace("|", "\\|"))
    text = re.sub(r"(?<=\w):(?=/)(?!//[\w-]+\.)", r"\\:", text)  # neither a mount nor host:port is an address
    return re.sub(r"\*(?=\S)", r"\\*", text)


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}"
