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
import threading
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workshop.rehearse.program import Program
from workshop.rehearse.request import Request


def main(request_path: str, answer_path: str) -> None:
    """Read a request, rehearse, write the answer."""
    request = Request.from_json(Path(request_path).read_text())
    program = Program(request)
    started = time.perf_counter()
    answer = Answer(Path(answer_path))
    _end_in_time(request.timeout_seconds, program, answer)
    notes: dict[str, None] = {}
    from workshop.rehearse.stage import PreparedProcess  # torch is imported here

    stage = PreparedProcess(request, program, notes)
    imported = time.perf_counter()
    error, alarms = None, []
    try:
        with stage.playing(), _late_standins():
            program.run()
    except stage.stop:
        pass
    except BaseException as problem:  # noqa: BLE001 whatever the learner's program raises is the answer
        if not stage.tracer.seen_enough:
            error, alarm = _why_it_ended(problem, program, stage.tracer.finished_steps)
            error = error + stage.hint(error) if error else None
            alarms += [text + stage.hint(text) for text in alarm]
    seen = stage.answer()
    facts = seen | {
        "error": error,
        "alarms": [*alarms, *seen["alarms"]],
        "notes": list(notes),
        "seconds": {"import": imported - started, "run": time.perf_counter() - imported},
        "child_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    answer.give(facts)


def _why_it_ended(problem: BaseException, program: Program, steps: int) -> tuple[str | None, list[str]]:
    """(error, alarms) of a program that raised something before its steps were over."""
    if not isinstance(problem, SystemExit):
        return program.explain(problem), []
    line = program.quote(program.raised_at(problem))
    if problem.code not in (0, None):
        return f"{line}the program left with exit code {problem.code}", []
    return None, [] if steps else [f"the program left before its first optimizer.step(), at {line.strip()}"]


class Answer:
    """Written once, by whoever is first, and then the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def give(self, facts: dict[str, Any]) -> None:
        """Write the facts and leave."""
        self._lock.acquire()  # for ever: nobody speaks after this
        self._path.write_text(json.dumps(facts))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # destructors of a world that never was have nothing to say


def _end_in_time(seconds: float, program: Program, answer: Answer) -> None:
    """When the time is up, say which line of the program is being executed."""
    main_thread = threading.main_thread().ident

    def end() -> None:
        line = program.quote(program.place(sys._current_frames().get(main_thread or 0)))
        answer.give(
            {"error": f"{line}the rehearsal was still here after {seconds:g} s and was ended", "late": True}
        )

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


class _Watcher(importlib.abc.MetaPathFinder):
    """Puts a library's stand-in in place right after the program has imported it."""

    _WATCHED = ("transformers", "bitsandbytes", "deepspeed", "safetensors.torch", "accelerate.data_loader")

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def catch_up(self) -> None:
        """Stand in for what this process had imported before the program began."""
        from workshop.rehearse import standins

        for name in self._WATCHED:
            if name in sys.modules:
                standins.install_for_imports(name)

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name not in self._WATCHED or name in self._busy:
            return None
        self._busy.add(name)  # the search below comes here again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
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
    watcher.catch_up()
    sys.meta_path.insert(0, watcher)
    try:
        yield
    finally:
        sys.meta_path.remove(watcher)


if __name__ == "__main__":
    main(*sys.argv[1:])
