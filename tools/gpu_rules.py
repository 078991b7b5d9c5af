"""Dead ends on a GPU that can be seen in a source, without one.

- **Messages only in batches.** `dist.isend` and `dist.irecv` one by one: NCCL does what is queued in order,
  so ranks that all send before they receive wait for ever (pytorch issue 108378). Inside a `dist.P2POp` they
  go out together. Blocking `send` and `recv` in turns are fine.
- **A clock waits for the device.** A function or a cell that reads `perf_counter` around tensors' work must
  synchronise, or it times the queue.
- **No step waits.** `.item()` or `.tolist()` inside a loop that calls ``backward()``: each makes the host
  wait for the device, in every step. (A lesson that shows four losses may; the package may not.)
- **No backend by name.** `init_process_group("gloo")` in a lesson keeps its tensors off every GPU.
- **No accelerator that is not there.** `torch.accelerator.current_accelerator()` names what PyTorch was built
  for: with a CUDA build "cuda", on a laptop too, and on ranks that were sent to the CPU. Its argument
  `check_available` asks whether there is one.
- **No question to CUDA at import.** `torch.cuda.is_available()` begins CUDA's driver, and a fork of a process
  that has begun it cannot use a GPU. Ranks are forks of a process that has imported the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

WAITS = re.compile(
    r"synchroni[sz]e|elapsed_time|\.item\(\)|\.tolist\(\)|process_time|\.cpu\(\)|device\.type|\bwait\(\)|allclose"
)
# A source without one of these has no dead end.
NAMED = re.compile(
    r"isend|irecv|perf_counter|backward\(|init_process_group|current_accelerator|(cuda|accelerator)\.is_available"
)
WORK = re.compile(
    r"\b(backward|forward|all_reduce|all_gather|matmul|optimizer|randn|ones|zeros|tensor|model)\b"
)
CELL = re.compile(r"^# %%.*$", re.MULTILINE)
MAGIC = re.compile(r"^(# )?%{1,2}\w.*$", re.MULTILINE)


def calls_of(tree: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    """Calls of ``anything.name`` or ``name``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in names:
                yield node


def messages_one_by_one(tree: ast.AST) -> list[int]:
    """Lines that call `isend` or `irecv`; named as the operation of a `P2POp` they are not called."""
    lines = []
    for call in calls_of(tree, {"isend", "irecv"}):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if getattr(owner, "id", "") in ("dist", "distributed"):
            lines.append(call.lineno)
    return sorted(lines)


def clocks_that_do_not_wait(text: str, tree: ast.AST) -> list[int]:
    """Lines of `perf_counter` in functions, or in a cell's own code, that never wait for a device."""
    lines, clocks = text.splitlines(), []
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for clock in calls_of(tree, {"perf_counter"}):
        around = [f for f in functions if f.lineno <= clock.lineno <= (f.end_lineno or f.lineno)]
        inner = max(around, key=lambda f: f.lineno, default=None)
        source = "\n".join(lines[inner.lineno - 1 : inner.end_lineno] if inner else lines)
        if source.count("perf_counter") > 1 and WORK.search(source) and not WAITS.search(text):
            clocks.append(clock.lineno)
    return sorted(set(clocks))[:1]


def steps_that_wait(tree: ast.AST) -> list[int]:
    """Lines inside a loop over steps (it calls ``backward``) that bring a number to the host."""
    waits = set()
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.While) and any(calls_of(loop, {"backward"})):
            inner = [
                node
                for child in loop.body
                for node in ast.walk(child)
                if isinstance(node, ast.For | ast.While) and any(calls_of(node, {"backward"}))
            ]
            if inner:
                continue  # the loop around a whole training: once is no step
            waits |= {call.lineno for call in calls_of(loop, {"item", "tolist"}) if not call.args}
    return sorted(waits)


def backends_by_name(tree: ast.AST) -> list[int]:
    """Lines that make the default group with gloo."""
    return [
        call.lineno
        for call in calls_of(tree, {"init_process_group"})
        if any(
            isinstance(one, ast.Constant) and one.value == "gloo"
            for one in [*call.args, *(k.value for k in call.keywords)]
        )
    ]


def accelerators_unasked(tree: ast.AST) -> list[int]:
    """Lines that take the accelerator PyTorch was built for to be there."""
    calls = calls_of(tree, {"current_accelerator"})
    return [call.lineno for call in calls if not (call.args or call.keywords)]


def asked_at_import(tree: ast.AST) -> list[int]:
    """Lines that ask whether there is a GPU while a module is imported, outside of any function."""
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for part in (function.body if isinstance(function.body, list) else [function.body])
        for node in ast.walk(part)
    }
    calls = [call for call in calls_of(tree, {"is_available"}) if call not in inside]
    owners = ((call.lineno, call.func.value) for call in calls if isinstance(call.func, ast.Attribute))
    return [line for line, owner in owners if ast.unparse(owner) in ("torch.cuda", "torch.accelerator")]


def dead_ends(text: str, name: str, *, imported: bool = False) -> list[str]:
    """Every dead end of a piece of source, as ``NAME: what``.

    imported: It is a module, and no cell or script.
    """
    if not NAMED.search(text):
        return []
    tree = ast.parse(text)
    ends = [(line, "isend or irecv outside a batch") for line in messages_one_by_one(tree)]
    ends += [
        (line, "a clock that never waits for the device") for line in clocks_that_do_not_wait(text, tree)
    ]
    ends += [(line, "a step that waits for the device") for line in steps_that_wait(tree)]
    ends += [(line, "gloo by name") for line in backends_by_name(tree)]
    ends += [(line, "an accelerator that may not be there") for line in accelerators_unasked(tree)]
    if imported:
        ends += [(line, "a question to CUDA at import") for line in asked_at_import(tree)]
    lines = text.splitlines()
    return [f"{name}: {what}: {lines[line - 1].strip()}" for line, what in sorted(ends)]


def cells(source: Path) -> Iterator[str]:
    """The code cells of a lesson's source, magics and the comment marks of their cells taken away."""
    text = source.read_text("utf-8")
    marks = [*CELL.finditer(text)]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        if "[markdown]" not in mark.group():
            body = text[mark.end() : following.start() if following else len(text)]
            yield MAGIC.sub("", body)


def lesson_dead_ends(source: Path) -> list[str]:
    """Dead ends of a lesson; a cell that is no Python by itself is another rule's business."""
    ends = []
    for cell in cells(source):
        try:
            ends += dead_ends(cell, source.stem)
        except SyntaxError:
            continue
    return ends
