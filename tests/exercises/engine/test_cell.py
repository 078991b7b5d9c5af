"""An exercise cell as text: open places, definitions, and lines counted as the notebook counts them."""

import ast
import inspect
import traceback

import pytest

from workshop.exercises.engine import cell


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = ...\n", [2]),
        ("def f():\n    ...\n\nf(...)\n", [3, 5]),
        ("def f():\n    '''Say ... here.'''\n    return 1  # ...\n", []),
        ("x = y[..., 0]\nz: tuple[int, ...] = ()\n", []),
        ("x = y[...]\nreturned = ...\n", [3]),
        ("x = {..., 1}\n", [2]),
    ],
)
def test_open_places(source, lines):
    assert cell.open_places(cell.parse("x", source)) == lines


def test_defined_functions_in_order_and_once():
    tree = cell.parse(
        "x", "def b(): 0\ndef a():\n  def inner(): 0\nclass C:\n  def method(self): 0\ndef b(): 1\n"
    )
    assert cell.defined_functions(tree) == ["b", "a"]


def test_definitions_only_leaves_trials_out():
    tree = cell.parse(
        "x", "import math\nsize: int = 3\nprint(size)\nfor i in range(3): print(i)\ndef f(): 0\n"
    )
    kept = [type(node).__name__ for node in cell.definitions_only(tree).body]
    assert kept == ["Import", "AnnAssign", "FunctionDef"]


def test_a_syntax_error_is_on_the_notebooks_line():
    with pytest.raises(SyntaxError) as caught:
        cell.parse("x", "a = 1\nb = = 2\n")
    assert caught.value.lineno == 3


def test_run_shows_a_last_expression_and_only_that(capsys):
    namespace = {}
    cell.run("x", "a = 1\n'not shown'\na + 1\n", namespace)
    assert capsys.readouterr().out == "2\n"
    assert namespace["a"] == 1
    cell.run("x", "a = 5\n", namespace)
    assert capsys.readouterr().out == ""


def test_lines_are_known_to_tracebacks_and_inspect():
    namespace = {}
    cell.run("divide", "def divide(a):\n    return a / 0\n", namespace)
    assert inspect.getsource(namespace["divide"]) == "def divide(a):\n    return a / 0\n"
    with pytest.raises(ZeroDivisionError) as caught:
        namespace["divide"](1)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.lineno, last.line) == (3, "return a / 0")


def test_as_numbered_is_the_cell_with_its_magic_line():
    assert cell.as_numbered("ring_bytes", "a = 1\n") == "# %%exercise ring_bytes\na = 1\n"
    assert isinstance(cell.parse("x", "").body, list)
    assert ast.dump(cell.parse("x", "")) == ast.dump(ast.parse(""))
