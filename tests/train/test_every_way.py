"""Every way of training gives the single process's losses, over 20 steps on the same global batch.

Ranks are seeded differently: who forgets to begin alike is caught. What may differ is rounding: sums over
ranks are added in another order. bf16 rounds to 8 bits, so its runs are held to the noise that it has in a
single process, measured here: the largest difference of a bf16 run to the fp32 one.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from workshop import launch
from workshop.facts.layout import Layout
from workshop.train.settings import Settings

PROGRAM = (Path(__file__).parent / "programs" / "every_way.py").read_text()
STEPS = 20
PLAIN = Settings(num_steps=STEPS, learning_rate=1e-3, clip_norm=0.0)
CLIPPED = replace(PLAIN, clip_norm=0.5)
FP32, BF16 = 1e-5, 5e-3


def way(maker="by_layout", settings=CLIPPED, accumulation=1, tied=True, **layout):
    return maker, Layout(**{"precision": "fp32", **layout}), settings, accumulation, tied


def engine(name, settings=CLIPPED):
    return replace(settings, engine=name)


OTHERS = ("sgd-momentum", "lion", "adafactor", "muon")
SINGLE = {
    "clipped": way(),
    "plain": way(settings=PLAIN),
    "untied": way(tied=False),
    "in micro-batches": way(accumulation=4),
    "recomputed": way(recompute="full"),
    "recomputed in part": way(recompute="selective", recompute_modules=("core_attn", "mlp")),
    "recomputed by ops": way(recompute="selective", recompute_modules=("ops",)),
    "activations on the host": way(offload="activations"),
    "compiled": way(settings=replace(CLIPPED, compile="eager")),
    **{f"by {name}": way(settings=replace(CLIPPED, optimizer=name)) for name in OTHERS},
    "bf16": way(precision="amp-bf16"),
    "bf16 of FSDP": way(precision="fsdp-bf16"),
}
ON_TWO = {
    "averaged by hand": way("average_by_hand", replicate=2),
    "buckets by hand": way("buckets_by_hand", replicate=2, accumulation=2),
    "DDP": way(replicate=2),
    "DDP, untied": way(replicate=2, tied=False),
    "DDP, no_sync": way(replicate=2, accumulation=4),
    "DDP, compiled and recomputed": way(replicate=2, recompute="full", settings=replace(CLIPPED, compile="eager")),
    "Accelerate": way("by_accelerate", replicate=2, accumulation=2),
    **{f"ZeRO {z} by hand": way(settings=engine("zero"), shard=2, zero=z, accumulation=2) for z in (0, 1, 2, 3)},
    "ZeRO 3 by hand, recomputed": way(settings=engine("zero"), shard=2, zero=3, recompute="full"),
    "FSDP by hand": way("fsdp_by_hand", settings=PLAIN, shard=2, zero=3),
    "FSDP2": way(shard=2, zero=3),
    "FSDP2, untied": way(shard=2, zero=3, tied=False),
    "FSDP2, in micro-batches": way(shard=2, zero=3, accumulation=2),
    "FSDP2, weights kept": way(shard=2, zero=2),
    "FSDP2, nothing cut": way(settings=engine("fsdp"), replicate=2),
    "FSDP2, offloaded": way(shard=2, zero=3, offload="params"),
    "FSDP2, compiled and recomputed": way(shard=2, zero=3, recompute="full", settings=replace(CLIPPED, compile="aot_eager")),
    **{f"FSDP2, by {name}": way(settings=replace(CLIPPED, optimizer=name), shard=2, zero=3) for name in OTHERS if name != "adafactor"},
    "DDP in bf16": way(replicate=2, precision="amp-bf16"),
    "FSDP2 in bf16": way(shard=2, zero=3, precision="fsdp-bf16"),
    "ZeRO 2 by hand in bf16": way(settings=engine("zero"), shard=2, zero=2, precision="deepspeed-bf16"),
}  # fmt: skip
DEEPSPEED = {
    **{f"DeepSpeed {z}": way(settings=engine("deepspeed"), shard=2, zero=z, accumulation=2) for z in (0, 1, 2, 3)},
    "DeepSpeed 2, offloaded": way(shard=2, zero=2, offload="optimizer"),
    "DeepSpeed 2 in bf16": way(shard=2, zero=2, precision="deepspeed-bf16"),
}  # fmt: skip
ON_FOUR = {
    "FSDP2, hybrid": way(replicate=2, shard=2, zero=3),
    "DDP": way(replicate=4),
    "ZeRO 2 by hand": way(settings=engine("zero"), shard=4, zero=2),
}


@cache
def losses(num_ranks: int, group: str) -> launch.Result:
    ways = {"single": SINGLE, "two": ON_TWO, "deepspeed": DEEPSPEED, "four": ON_FOUR}[group]
    return launch.torchrun(PROGRAM, num_ranks, passing={"WAYS": ways}, limits=launch.Limits(timeout=110))


def difference(found, name, alone="clipped"):
    """Largest difference of a step's loss to the single process's; all ranks must tell the same."""
    told = [found[rank][name] for rank in range(len(found))]
    assert all(one == told[0] for one in told)
    assert len(told[0]) == STEPS
    return max(abs(a - b) for a, b in zip(told[0], losses(1, "single")[0][alone], strict=True))


def twin(name):
    """The single process that does the same."""
    others = {f"by {other}": f"by {other}" for other in OTHERS}
    twins = {"untied": "untied", "FSDP by hand": "plain", **others}
    return next((alone for part, alone in twins.items() if name.endswith(part)), "clipped")


def limit(name):
    return BF16 if "bf16" in name or "muon" in name else FP32  # torch's Muon iterates in bf16


@pytest.mark.parametrize(
    "name", [n for n in SINGLE if n not in ("clipped", "plain", "untied") and not n.startswith("by ")]
)
def test_alone(name):
    assert difference(losses(1, "single"), name) <= limit(name)


def test_the_model_learns_and_clipping_matters():
    alone = losses(1, "single")[0]
    assert alone["clipped"][0] > 5.4
    assert alone["clipped"][-1] < alone["clipped"][0] - 0.5
    assert max(abs(a - b) for a, b in zip(alone["clipped"], alone["plain"], strict=True)) > 100 * FP32


@pytest.mark.parametrize("name", ON_TWO)
def test_on_two_ranks(name):
    assert difference(losses(2, "two"), name, twin(name)) <= limit(name)


@pytest.mark.parametrize("name", DEEPSPEED)
def test_by_deepspeed(name):
    pytest.importorskip("deepspeed")
    assert difference(losses(2, "deepspeed"), name) <= limit(name)


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_ranks(name):
    assert difference(losses(4, "four"), name) <= limit(name)


def test_the_norm_before_the_cut_is_that_of_the_whole_gradient():
    alone, two = losses(1, "single")[0]["clipped norm"], losses(2, "two")
    for name in ("DDP", "FSDP2", "ZeRO 1 by hand", "ZeRO 3 by hand"):
        assert two[0][f"{name} norm"] == pytest.approx(alone, rel=1e-4)


def test_bf16_really_rounds():
    """Else its limit would hold anything that runs in fp32 by mistake."""
    for found, name in ((losses(2, "two"), "DDP in bf16"), (losses(2, "two"), "FSDP2 in bf16")):
        assert difference(found, name) > 2 * FP32
