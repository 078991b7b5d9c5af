"""Unsolved, wrong or right: run an answer and say which, in the learner's words.

Nothing that a learner's cell does may break the notebook: an exception, also one raised on a rank, a rank
that dies, a hang, `exit()`: each is a wrong answer with a sentence. Only the stop button
(KeyboardInterrupt) passes.
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

from workshop.exercises.engine import cell
from workshop.exercises.engine.check import Wrong
from workshop.exercises.engine.exercise import Exercise
from workshop.exercises.engine.rank_function import RankFunction

TIMEOUT_SECONDS = (
    60.0  # for a launch; a hang inside the exercise is noticed earlier, by the group's own limit
)

LONGEST_MESSAGE = 300
CELL_IS_ALONE = "A cell on ranks sees nothing of the notebook: import and define in it what it uses."


@dataclass(frozen=True)
class Verdict:
    """What became of one answer, and what the cell printed on the ranks."""

    state: Literal["unsolved", "wrong", "right"]
    message: str
    printed: str = ""


Runner = Callable[[Exercise, str, dict[str, Any]], None]
Launcher = Callable[[Exercise, str], Any]


def judge(
    exercise: Exercise,
    source: str,
    namespace: dict[str, Any],
    *,
    run: Runner | None = None,
    launched: Launcher | None = None,
) -> Verdict:
    """Run the learner's cell and its check. What the cell defines lands in ``namespace``.

    Where the cell runs may be chosen, the verdict is the same: ``run`` runs a plain one elsewhere and puts
    what stands for its functions into the namespace; ``launched`` runs one on ranks, with its check program,
    and returns what each rank reported, as `launch.torchrun` does.
    """
    try:
        tree = cell.parse(exercise.name, source)
    except SyntaxError as error:
        return Verdict("wrong", _syntax_error(error))
    if not tree.body:
        return Verdict("unsolved", "the cell is empty.")
    if places := cell.open_places(tree):
        where = f"line {places[0]} waits" if len(set(places)) == 1 else f"lines {_spoken(places)} wait"
        return Verdict("unsolved", f"`...` on {where} for your code.")
    try:
        if exercise.ranks:
            return _judge_on_ranks(exercise, source, tree, namespace, launched or _launched)
        return _judge_plain(exercise, source, tree, namespace, run or _run)
    except Wrong as wrong:
        return Verdict("wrong", str(wrong))


def is_untouched(exercise: Exercise, source: str) -> bool:
    """Whether a cell is still the stub, or holds no code; comments and blank lines are no try."""
    try:
        tree = cell.parse(exercise.name, source)
    except SyntaxError:
        return False
    return not tree.body or ast.dump(tree) == ast.dump(cell.parse(exercise.name, exercise.stub))


def bind_solution(exercise: Exercise, namespace: dict[str, Any]) -> None:
    """Put the reference solution's functions into the notebook, so that the cells below run."""
    namespace.update(solution_names(exercise))


def solution_names(exercise: Exercise) -> dict[str, Any]:
    """The functions of the reference solution, and of those earlier ones that it calls."""
    if exercise.ranks:
        return {name: RankFunction(exercise.name, name, exercise.solution) for name in exercise.defines}
    names: dict[str, Any] = {"__name__": "__main__"}  # as if typed in the notebook: goes to ranks by value
    names.update(_needed(exercise))
    cell.run(f"{exercise.name} --solution", exercise.solution, names)
    return {name: names[name] for name in exercise.defines}


def _needed(exercise: Exercise) -> dict[str, Any]:
    from workshop.exercises import find

    return {name: value for needed in exercise.needs for name, value in solution_names(find(needed)).items()}


def _run(exercise: Exercise, source: str, namespace: dict[str, Any]) -> None:
    cell.run(exercise.name, source, namespace)


def _launched(exercise: Exercise, source: str) -> Any:
    from workshop import launch

    assert exercise.ranks
    program = launch.Cell(f"{source}\n\n{exercise.check_program}", f"%%exercise {exercise.name}")
    # An answer is judged by its values and calls, for which ranks need not share a GPU.
    limits = launch.Limits(timeout=TIMEOUT_SECONDS, share_gpu=False)
    return launch.torchrun(program, exercise.ranks, limits=limits)


def _judge_plain(
    exercise: Exercise, source: str, tree: ast.Module, namespace: dict[str, Any], run: Runner
) -> Verdict:
    """Run the cell in the notebook and check the names it defined."""
    for name, value in _needed(exercise).items():
        namespace.setdefault(name, value)
    for name in exercise.defines:  # an earlier answer must not stand in for a missing one
        namespace.pop(name, None)
    try:
        run(exercise, source, namespace)
        _require(exercise, [name for name in exercise.defines if name in namespace], tree)
        followed = _followed(exercise, namespace)
        saw = exercise.check({**namespace, **followed})
        return _right(saw, _on_gpu(followed))
    except Wrong:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever the learner's code raises is an answer
        return Verdict("wrong", _raised(error, exercise.name, source))


def _judge_on_ranks(
    exercise: Exercise, source: str, tree: ast.Module, namespace: dict[str, Any], launched: Launcher
) -> Verdict:
    """Run the cell and its check program on fresh ranks, and check what they reported."""
    from workshop import launch

    assert exercise.ranks
    functions = cell.defined_functions(tree)
    _require(exercise, functions, tree)
    try:
        result = launched(exercise, source)
    except launch.RankFailed as failed:
        return Verdict("wrong", _rank_failed(failed, source), _printed(failed))
    try:
        saw = exercise.check([_reported(result, rank) for rank in range(exercise.ranks)])
    except Wrong as wrong:
        return Verdict("wrong", str(wrong), result.text.strip("\n"))
    verdict = _right(saw, *(result[rank].get("on_gpu") for rank in range(exercise.ranks)))
    if verdict.state == "right":
        namespace.update({name: RankFunction(exercise.name, name, source) for name in functions})
    return replace(verdict, printed=result.text.strip("\n"))


def _followed(exercise: Exercise, namespace: dict[str, Any]) -> dict[str, Any]:
    """The functions to check; where the cell has loaded torch, with an eye on the devices of tensors."""
    if "torch" not in sys.modules:
        return {}
    from workshop.exercises.engine.cpu_tensors import followed

    return {name: followed(namespace[name]) for name in exercise.defines}


def _on_gpu(followed: dict[str, Any]) -> dict[str, Any] | None:
    if not followed:
        return None
    from workshop.exercises.engine.cpu_tensors import on_gpu

    return on_gpu(followed.values())


def _right(saw: str, *on_gpu: dict[str, Any] | None) -> Verdict:
    """The verdict on an answer that is right on CPU tensors, on which checks run everywhere.

    One that would fail on a GPU is told so. Where there is a GPU it is wrong: the lesson's next cells use it
    there.
    """
    failing = next((one for one in on_gpu if one and one["words"]), None)
    if failing is None:
        return Verdict("right", saw)
    if failing["here"]:
        return Verdict("wrong", failing["words"])
    return Verdict("right", f"{saw.rstrip('.')}. {failing['words']}")


def _reported(result: Any, rank: int) -> dict[str, Any]:
    if "check" not in result[rank]:
        raise Wrong(f"Rank {rank} ended before the check was done. Does the cell call `exit()`?")
    return result[rank]["check"]


def _require(exercise: Exercise, defined: list[str], tree: ast.Module) -> None:
    """Wrong, if a function that the exercise asks for is not there; names the nearest that is."""
    for name in exercise.defines:
        if name not in defined:
            near = get_close_matches(name, cell.defined_functions(tree), 1, cutoff=0.5)
            instead = f" It defines `{near[0]}`: rename it?" if near else ""
            raise Wrong(f"The cell defines no function `{name}`.{instead}")


def _syntax_error(error: SyntaxError) -> str:
    text = (error.text or "").strip()
    if text.startswith(("%", "!")):
        return f"Line {error.lineno}: `{text}` is IPython's; an exercise cell is plain Python."
    return f"Line {error.lineno} is not Python yet: {error.msg}." + (f" It reads `{text}`." if text else "")


def _raised(error: BaseException, name: str, source: str) -> str:
    """An exception of the learner's code: what, in which of their lines, in which call."""
    frames = traceback.extract_tb(error.__traceback__)
    steps = [step for step in frames if step.filename == cell.file_name(name)]
    what = _one_line(type(error).__name__, str(error))
    where = ""
    number = (
        steps[-1].lineno if steps else getattr(error, "line_of_answer", None)
    )  # the latter where it ran elsewhere
    lines = source.splitlines()
    if number is not None and 2 <= number <= len(lines) + 1:
        where = f"Line {number}, `{lines[number - 2].strip()}`: "  # line 1 is the magic's
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    if isinstance(error, SystemExit):
        what = "the cell ends the program (exit); an answer returns instead"
    return f"{where}{what}.{notes}"


def _spoken(numbers: Sequence[int]) -> str:
    """Line numbers as one would say them: "5 and 8", "9 to 11", "4, 8 and 10 to 14"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [each for run in runs for each in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _one_line(error_type: str, message: str) -> str:
    """Type and message on one line; torch's longest messages list every overload of a function."""
    text = " ".join(message.split()).rstrip(".")
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]} ..."
    return f"{error_type}: {text}" if text else error_type


def _rank_failed(failed: Any, source: str) -> str:
    """A rank's exception, death or time limit: the engine's words, shortened to who, where and what."""
    headline = str(failed).splitlines()[0]
    if not failed.failures or failed.failures[0].kind not in ("raised", "died"):
        return f"The ranks did not come to an end: {headline}"
    first = failed.failures[0]
    lines = source.splitlines()
    own = first.line is not None and 2 <= first.line <= len(lines) + 1  # else the line is the check's
    where = f" on line {first.line}, `{lines[first.line - 2].strip()}`" if own else ""
    message = first.message if first.kind == "died" else _one_line(first.error_type, first.message)
    alone = f" {CELL_IS_ALONE}" if first.error_type == "NameError" else ""
    return f"Rank {first.rank} stopped{where}: {message}.{alone}"


def _printed(failed: Any) -> str:
    """What the ranks had printed until one failed."""
    result = getattr(failed, "result", None)
    return result.text.strip("\n") if result else ""
