"""What the README says of times is what was measured."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def costs(measured: dict[str, Any]) -> list[str]:
    """The README's four times of a launch, in its order and with its digits."""
    fresh, plain = measured["torchrun_cell"]["next"]["median"], measured["torchrun"]["median"]
    staying = measured["ranks_in_notebook"]
    seconds = [f"{fresh:.1f} s", f"{plain:.1f} s"]
    return seconds + [f"{1000 * staying[part]['median']:.1f} ms" for part in ("magic", "empty_cell")]


def test_the_costs_of_a_launch_are_those_of_the_record() -> None:
    measured = json.loads((ROOT / "data/measurements/launch.json").read_text(encoding="utf-8"))["results"]
    (paragraph,) = re.findall(r"(?s)What it costs, on two cores: .*?\n\n", (ROOT / "README.md").read_text())
    assert re.findall(r"\d+\.\d m?s", paragraph) == costs(measured)
