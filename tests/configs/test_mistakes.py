"""Each mistake is seen in a file that has it, named with its cure, and not in files that are right."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.configs.mistake_cases import CASES, DDP, GOOD, H100, RIGHT, changed
from workshop.configs import Overrides, find_mistakes, mistakes
from workshop.configs.mistakes.mistake import Mistake

RULES = Path(mistakes.__file__).parent


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong_with_the_good_ones(name):
    assert find_mistakes(GOOD[name]) == []
    assert find_mistakes(GOOD[name], H100) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.good}-{case.key}-{case.kind}")
def test_it_is_found(case):
    found = find_mistakes(case.config(), case.overrides)
    here = [mistake for mistake in found if mistake.key == case.key and case.told in mistake.what]
    assert here, [str(mistake) for mistake in found]
    assert here[0].kind == case.kind
    assert here[0].cure


@pytest.mark.parametrize(("good", "changes", "overrides", "_"), RIGHT)
def test_what_is_right_is_left_alone(good, changes, overrides, _):
    found = find_mistakes(changed(GOOD[good], changes), overrides)
    assert [str(mistake) for mistake in found if mistake.is_certain or overrides] == []


def test_every_rule_has_a_case(monkeypatch):
    """Each line of `workshop.configs.mistakes` that makes a `Mistake` is reached by a case, and so held by its proof."""
    makers = {
        (path.name, node.lineno)
        for path in RULES.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Mistake"
    }
    reached = set()

    def noted(self: Mistake) -> None:
        frame = sys._getframe(2)  # the generated __init__ is between
        reached.add((Path(frame.f_code.co_filename).name, frame.f_lineno))

    monkeypatch.setattr(Mistake, "__post_init__", noted)
    for case in CASES:
        find_mistakes(case.config(), case.overrides)
    test_of_two_files = {line for line in makers if line[0] == "accelerate.py"} - reached
    assert makers - reached == test_of_two_files
    assert len(test_of_two_files) == 1  # `_said_twice`: test_said_twice
    assert len(makers) > 60


def test_said_twice(tmp_path):
    (tmp_path / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}'
    )
    path = tmp_path / "run.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 2\n"
    )
    first, *others = find_mistakes(path)
    assert "must not: zero_stage, mixed_precision" in first.what
    assert "gradient_clipping" in {mistake.key for mistake in others}  # of the JSON
    assert not any("deepspeed.initialize" in mistake.what for mistake in others)  # Accelerate reads it


def test_a_mistake_reads_well():
    mistake = find_mistakes(changed(DDP, {"distributed_type": "MULTI_CPU"}))[0]
    assert str(mistake) == (
        "silent: distributed_type: MULTI_CPU starts one process, whatever num_processes says (8), and ends with "
        "exit code 0\n    cure: torchrun --nproc-per-node 8 train.py, with ACCELERATE_USE_CPU=true set"
    )
    with pytest.raises(ValueError, match="unknown kind of mistake 'loud'"):
        Mistake("key", "loud", "", "")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": True}, "fsdp_config holds True"),
        ({"train_micro_batch_size_per_gpu": 1, "bf16": True, "zero_optimization": {}}, "bf16 holds True"),
        ({"train_micro_batch_size_per_gpu": 1, "zero_optimization": [2]}, r"zero_optimization holds \[2\]"),
    ],
)
def test_a_section_that_is_no_table_is_told(config, told):
    with pytest.raises(ValueError, match=f"{told}; it must be a table of names and values"):
        find_mistakes(config)


def test_an_unknown_program_lists_the_known():
    with pytest.raises(ValueError, match="unknown program 'trainr'; did you mean 'trainer'"):
        Overrides(program="trainr")
