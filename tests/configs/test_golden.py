"""Every written file, to the letter. `UPDATE_GOLDEN=1 pytest tests/configs/test_golden.py` writes them anew: read
the difference before you commit it.
"""

from __future__ import annotations

import json
import os

import pytest
import yaml

from tests.configs.cases import ACCELERATE, DEEPSPEED, GOLDEN
from workshop.configs import (
    accelerate_config,
    accelerate_yaml,
    deepspeed_config,
    deepspeed_json,
    find_mistakes,
    fsdp_plugin_arguments,
    trainer_arguments,
)
from workshop.configs.engines import engine_of

WRITTEN = {
    **{
        f"{name}.yaml": lambda case=case: accelerate_yaml(case[0], **case[1])
        for name, case in ACCELERATE.items()
    },
    **{
        f"{name}.json": lambda case=case: deepspeed_json(case[0], **case[1])
        for name, case in DEEPSPEED.items()
    },
    **{
        f"{name}.plugin.json": lambda case=case: (
            json.dumps({"plugin": fsdp_plugin_arguments(case[0]), "trainer": trainer(case[0])}, indent=2)
            + "\n"
        )
        for name, case in ACCELERATE.items()
        if name.startswith("fsdp")
    },
}


def trainer(run):
    hybrid = run.layout.replicate > 1 or run.layout.offload == "activations"
    return None if hybrid else trainer_arguments(run)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_file_is_the_golden_one(name):
    text = WRITTEN[name]()
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8")


def test_there_is_no_golden_file_that_nobody_writes():
    assert {path.name for path in GOLDEN.iterdir()} == set(WRITTEN)


@pytest.mark.parametrize("name", ACCELERATE)
def test_comments_do_not_change_the_content(name):
    run, settings = ACCELERATE[name]
    assert yaml.safe_load(accelerate_yaml(run, **settings)) == accelerate_config(run, **settings)


@pytest.mark.parametrize("name", ACCELERATE)
def test_what_the_yaml_leaves_out_stands_in_its_comments(name):
    run, settings = ACCELERATE[name]
    comments = [line for line in accelerate_yaml(run, **settings).splitlines() if line.startswith("#")]
    text = "\n".join(comments)
    assert f"micro_batch = {run.micro_batch}:" in text
    assert f"seq_len = {run.seq_len}:" in text
    assert (f"accumulation = {run.accumulation}:" in text) == (
        (settings.get("engine") or engine_of(run)) != "deepspeed"
    )


@pytest.mark.parametrize("name", [name for name in ACCELERATE if name != "deepspeed-8-file"])
def test_no_written_yaml_goes_wrong_in_silence(name):
    run, settings = ACCELERATE[name]
    found = find_mistakes(accelerate_config(run, **settings))
    assert [str(mistake) for mistake in found] == []


@pytest.mark.parametrize("name", DEEPSPEED)
def test_no_written_json_goes_wrong_in_silence(name):
    run, settings = DEEPSPEED[name]
    found = find_mistakes(deepspeed_config(run, **settings))
    keys = {mistake.key for mistake in found}
    # fp32 is named as costly because it is; a 1-bit optimizer needs an older version than today's
    assert keys <= (
        {"optimizer.type"} if "onebit" in settings else {"bf16.enabled"} if "fp32" in name else set()
    )
    assert ("onebit" in settings) == ("optimizer.type" in keys)
