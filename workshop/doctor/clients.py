"""What another program answers, within a time limit: a client with a bad controller hangs for ever."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SECONDS = 10.0


@dataclass(frozen=True)
class Answer:
    """``text`` is what it printed; ``why`` is empty when all went well, else one line of what did not.

    errors: what it wrote to stderr.
    """

    text: str
    why: str = ""
    errors: str = ""

    @property
    def came(self) -> bool:
        """The program is there, ended in time, and well."""
        return not self.why


def ask(
    command: Sequence[str], seconds: float = SECONDS, environment: Mapping[str, str] | None = None
) -> Answer:
    """Run ``command`` and return its answer; nothing of it is left when the time is up."""
    environment = os.environ if environment is None else environment
    if shutil.which(command[0], path=environment.get("PATH", os.defpath)) is None:
        return Answer("", f"there is no {command[0]} on PATH")
    process = subprocess.Popen(
        list(command), env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own group, and it has not been waited for
            process.communicate()
            return Answer("", f"{command[0]} did not answer in {seconds:g} s")
    if process.returncode:
        words = err.strip() or out.strip() or f"{command[0]} ended with exit code {process.returncode}"
        return Answer(out, words.splitlines()[-1][:200], err)
    return Answer(out, errors=err)
