"""How a job ended: the scheduler's word for it and what its ranks left, made into a result or a sentence.

The scheduler says COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, OUT_OF_MEMORY ...; the ranks say which of
them raised what on which line. A reader needs both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workshop.facts.units import format_seconds
from workshop.launch import verdicts
from workshop.launch.failures import RankFailed, attach, judge
from workshop.launch.fresh.replicas import ReplicasResult
from workshop.launch.fresh.torchrun import Result
from workshop.launch.jobs.client import SchedulerError, State
from workshop.launch.jobs.record import Record, Task

TIMED_OUT = 124  # what `timeout` ends with; ranks that fail make torchrun end with 1
# The scheduler's word to what it means, where the ranks themselves could not say.
MEANING = {
    "NODE_FAIL": "a node was lost; --requeue starts such a job again from its last checkpoint",
    "OUT_OF_MEMORY": "a node's memory was full: more of it (a directive --mem=) or fewer ranks a node",
    "PREEMPTED": "another job took its nodes; --requeue starts such a job again from its last checkpoint",
    "BOOT_FAIL": "its nodes could not be started",
    "DEADLINE": "it could not have ended before its deadline",
    "CANCELLED": "it was cancelled from outside this notebook",
    "KILLED": "somebody deleted it, or it went over its memory (h_vmem)",
    "GONE": "the scheduler has forgotten it, and it left no record of its end: cancelled, or its node lost",
}


class ArrayResult(dict[int, Result]):
    """The results of an array: `results[task][rank]`. ``labels``: what each task was given."""

    def __init__(self, results: Mapping[int, Result], labels: Mapping[int, str], device: str, text: str):
        super().__init__(results)
        self.labels = dict(labels)
        self.device = device
        self.text = text

    def __repr__(self) -> str:
        return "\n".join(f"{self.labels[task]}\n{result!r}" for task, result in self.items())


def from_record(task: Task) -> State:
    """The state of a task that the scheduler has forgotten, from what its script left, and we."""
    code = task.exit_code()
    if code == 0:
        word = "COMPLETED"
    elif task.cancelled() or (code is None and not task.began()):  # taken out of the queue
        word = "CANCELLED"
    else:
        word = {None: "GONE", TIMED_OUT: "TIMEOUT"}.get(code, "FAILED")
    return State(task.record.job, task.number, word)


def settled(task: Task, state: State | None) -> State:
    """The state of a task: the scheduler's word, or its own record's; a kill is called by its cause."""
    if state is None or (task.record.replicas and state.over and task.exit_code() is not None):
        return from_record(task)  # of replicas the scheduler knows only how all together ended
    if state.word == "KILLED" and task.cancelled():
        return replace(state, word="CANCELLED")
    if state.word == "KILLED" and (state.seconds or 0) >= task.record.seconds:
        return replace(state, word="TIMEOUT")
    return state


def conclude(
    record: Record,
    tasks: Mapping[int, Task],
    states: Mapping[int, State],
    text: str,
    seconds: float,
    *,
    allow_pickle: bool = False,
) -> Result | ArrayResult | ReplicasResult:
    """The result of a job that is over. ``allow_pickle``: with reported values that had to be pickled.

    Raises RankFailed or RankTimeout with what the ranks left, SchedulerError where no rank ever began. Of an
    array, the first task that failed is told, and how many others did.
    """
    results = {}
    for number, task in tasks.items():
        before = notes(task)
        shown = "" if record.several else "".join(f"{note}\n" for note in before) + text
        results[number] = Result(
            task.reports(allow_pickle=allow_pickle), shown, record.sentence, seconds, before
        )
    whole: Result | ArrayResult | ReplicasResult = results[record.tasks[0]]
    if record.replicas:
        whole = ReplicasResult(tuple(results.values()), text, record.sentence, seconds)
    elif record.array:
        labels = {number: record.task_label(number) for number in tasks}
        whole = ArrayResult(results, labels, record.sentence, text)
    bad = [number for number, state in states.items() if state.word != "COMPLETED"]
    if not bad:
        return whole
    error = failure(tasks[bad[0]], states[bad[0]])
    if record.several:
        what = "replicas" if record.replicas else "tasks"
        others = f" ({len(bad)} of {len(tasks)} {what} failed)" if len(bad) > 1 else ""
        error = type(error)(f"{record.task_label(bad[0])}{others}: {error}", *_data(error))
    raise attach(error, whole)


def _data(error: BaseException) -> tuple[list, ...]:
    return (error.failures, error.ends) if isinstance(error, RankFailed) else ()


def notes(task: Task) -> tuple[str, ...]:
    """What happened before the start and the attempt whose output is shown."""
    notes_before = []
    if task.start:
        times = "once" if task.start == 1 else f"{task.start} times"
        notes_before.append(f"it was queued again {times}; this is start {task.start + 1}")
    if task.attempt:
        notes_before.append(f"all ranks were started again; this is attempt {task.attempt + 1}")
    return tuple(notes_before)


def failure(task: Task, state: State) -> RankFailed | SchedulerError:
    """The exception for a task that did not complete."""
    job = f"job {state.job}"
    if not task.had_ranks():
        return SchedulerError(_before_ranks(task, state, job))
    program = task.program()
    if state.word == "TIMEOUT":
        ends = task.ends("timeout")
        limit = task.record.seconds
        return verdicts.timed_out(ends, limit, program, f"{job}: its --time was {format_seconds(limit)}.")
    ends = task.ends("failed")
    if judge(ends).first:
        note = "" if state.word == "FAILED" else f"{job} ended as {state.word}: {MEANING.get(state.word, '')}"
        return verdicts.failed(ends, program, note)
    why = MEANING.get(state.word, "its ranks left no trace")
    return RankFailed(f"{job} ended as {state.word}: {why}.{_tail(task)}", [], ends)


def _before_ranks(task: Task, state: State, job: str) -> str:
    why = MEANING.get(state.word)
    if why:
        return f"{job} ended as {state.word} before its ranks had started: {why}"
    return f"{job} ended as {state.word} before its ranks had started.{_tail(task)}"


def _tail(task: Task) -> str:
    lines = [line for line in task.printed().splitlines() if line.strip()][-6:]
    return f" {task.output()} ends:\n    " + "\n    ".join(lines) if lines else ""
