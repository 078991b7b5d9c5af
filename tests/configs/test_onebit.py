"""1-bit optimizers: written for a DeepSpeed that has them, refused by name for one that has not."""

from __future__ import annotations

import pytest

from tests.configs.cases import run
from workshop.configs import OneBit, deepspeed_config
from workshop.facts.layout import Layout


@pytest.mark.parametrize("version", ["0.19.8", "0.20", "1.0.0"])
@pytest.mark.parametrize("name", ["OneBitAdam", "ZeroOneAdam", "OneBitLamb"])
def test_a_version_without_them_is_refused_by_name(name, version):
    with pytest.raises(
        ValueError, match=f"DeepSpeed {version} has no {name}: it dropped its 1-bit optimizers"
    ):
        OneBit(name, lr=1e-4, freeze_step=100, deepspeed_version=version)


def test_the_installed_version_is_judged_rightly():
    deepspeed = pytest.importorskip("importlib.metadata").version("deepspeed")
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

    try:
        OneBit("OneBitAdam", lr=1e-4, freeze_step=100, deepspeed_version=deepspeed)
        allowed = True
    except ValueError:
        allowed = False
    assert allowed == ("onebitadam" in DEEPSPEED_OPTIMIZERS)


def test_they_need_stage_0():
    onebit = OneBit("OneBitAdam", lr=1e-4, freeze_step=100, deepspeed_version="0.16.9")
    with pytest.raises(ValueError, match="zero = 2 with OneBitAdam: .*use zero = 0"):
        deepspeed_config(run(Layout(shard=8, zero=2, precision="deepspeed-bf16")), onebit=onebit)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("OneBitAdm", 1e-4, 100, "0.16.9"),
            "unknown 1-bit optimizer 'OneBitAdm'; did you mean 'OneBitAdam'",
        ),
        (("OneBitAdam", 1e-4, -1, "0.16.9"), "freeze_step must be a whole number"),
        (("OneBitAdam", 1e-4, 100, "latest"), "deepspeed_version = 'latest' is no version"),
    ],
)
def test_wrong_values_are_told(arguments, told):
    with pytest.raises(ValueError, match=told):
        OneBit(*arguments)
