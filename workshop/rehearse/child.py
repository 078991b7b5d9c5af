"""The process in which a rehearsal happens: `python -m workshop.rehearse.child REQUEST.json ANSWER.json`.

A process of its own, because the program may abort it, may set global state, and must find the fake world in
place before it imports anything. The answer is written as JSON whether the program worked or not.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workshop.rehearse.request import Request

CELL = "<rehearsed cell>"


def main(request_path: str, answer_path: str) -> None:
    """Read a request, rehearse, write the answer."""
    request = Request.from_json(Path(request_path).read_text())
    started = time.perf_counter()
    notes: dict[str, None] = {}
    from workshop.rehearse.stage import Stage  # torch is imported here

    stage = Stage(request, notes)
    imported = time.perf_counter()
    error = None
    try:
        with stage.playing(), _late_standins():
            _run_program(request)
    except stage.stop:
        pass
    except SystemExit as exit_:
        if exit_.code not in (0, None):
            error = f"the program left with exit code {exit_.code}"
    except Exception as problem:  # noqa: BLE001 whatever the learner's program raises is the answer
        error = _explain(problem, request)
    answer = stage.answer() | {
        "error": error,
        "notes": list(notes),
        "seconds": {"import": imported - started, "run": time.perf_counter() - imported},
        "child_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    Path(answer_path).write_text(json.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of a world that never was have nothing to say


def _run_program(request: Request) -> None:
    name = "__rehearsed__" if request.function else "__main__"
    module = types.ModuleType(name)
    if request.path:
        path = Path(request.path).resolve()
        text, filename = path.read_text(), str(path)
        sys.path.insert(0, str(path.parent))
        module.__file__ = filename
    else:
        text, filename = request.source, CELL
        sys.path.insert(0, str(Path.cwd()))
        import linecache

        linecache.cache[CELL] = (len(text), None, text.splitlines(keepends=True), CELL)
    sys.modules[name] = module
    sys.argv = [filename, *([] if request.function else map(str, request.arguments))]
    exec(compile(text, filename, "exec"), module.__dict__)
    if request.function:
        getattr(module, request.function)(*request.arguments, **request.keywords)


def _explain(problem: Exception, request: Request) -> str:
    """The error, and the line of the learner's program where it happened."""
    own = {str(Path(request.path).resolve())} if request.path else {CELL}
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename in own]
    place = f"line {frames[-1].lineno}: {frames[-1].line}\n" if frames else ""
    if os.environ.get("WORKSHOP_REHEARSE_TRACEBACK"):
        place += "".join(traceback.format_exception(problem))
    return f"{place}{type(problem).__name__}: {problem}"


class _Watcher(importlib.abc.MetaPathFinder):
    """Puts a library's stand-in in place right after the program has imported it."""

    _WATCHED = ("transformers", "bitsandbytes", "deepspeed")

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name not in self._WATCHED or name in self._busy:
            return None
        self._busy.add(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        inner = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            from workshop.rehearse import standins

            inner(module)
            standins.install_for_imports(name)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _late_standins() -> Iterator[None]:
    watcher = _Watcher()
    sys.meta_path.insert(0, watcher)
    try:
        yield
    finally:
        sys.meta_path.remove(watcher)


if __name__ == "__main__":
    main(*sys.argv[1:])
