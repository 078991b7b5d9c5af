"""Every way of training gives the single process's losses, over 20 steps on the same global batch.

Ranks are seeded differently: who forgets to begin alike is caught. What may differ is rounding: sums over
ranks are added in another order. bf16 rounds to 8 bits, so its runs are held to the noise that it has in a
single process, measured here: the largest difference of a bf16 run to the fp32 one.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.installed import skip_without
from workshop import launch
from workshop.facts.layout import Layout
from workshop.train.settings import Settings

PROGRAM = (Path(__file__).parent / "programs" / "every_way.py").read_text()
STEPS, CUT_STEPS = 20, 4
PLAIN = Settings(num_steps=STEPS, learning_rate=1e-3, clip_norm=0.0)
CLIPPED = replace(PLAIN, clip_norm=0.5)
FP32, BF16 = 1e-5, 5e-3


def way(maker="by_layout", settings=CLIPPED, accumulation=1, tied=True, layers=2, **layout):
    return maker, Layout(**{"precision": "fp32", **layout}), settings, accumulation, tied, layers


def cut(settings=CLIPPED, **more):
    """A model that is cut itself: some steps show it."""
    return way(settings=replace(settings, num_steps=CUT_STEPS), layers=4, **more)


def engine(name, settings=CLIPPED):
    return replace(settings, engine=name)


OTHERS = ("sgd-momentum", "lion", "adafactor", "muon")


def other(name):
    """By this optimizer; Muon multiplies each matrix fifteen times a step, and some steps show it."""
    return replace(CLIPPED, optimizer=name, num_steps=CUT_STEPS if name == "muon" else STEPS)


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
    **{f"by {name}": way(settings=other(name)) for name in OTHERS},
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
    **{f"FSDP2, by {name}": way(settings=other(name), shard=2, zero=3) for name in OTHERS if name != "adafactor"},
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
CUT_ALONE = {"tied": cut(), "untied": cut(tied=False)}
CUT_ON_TWO = {
    "tensor": cut(tensor=2),
    "tensor and sequence": cut(tensor=2, sequence_parallel=True, accumulation=2),
    "tensor, recomputed and compiled": cut(tensor=2, recompute="full", settings=replace(CLIPPED, compile="eager")),
    "tensor in bf16": cut(tensor=2, precision="amp-bf16"),
    **{f"pipeline, {name}": cut(pipeline=2, schedule=name, accumulation=4) for name in ("naive", "gpipe", "1f1b")},
    **{
        f"pipeline, {name}": cut(pipeline=2, virtual_stages=2, schedule=name, accumulation=4)
        for name in ("interleaved", "breadth-first")
    },
    "pipeline, untied": cut(pipeline=2, accumulation=4, tied=False),
    "pipeline, uneven, recomputed": cut(pipeline=2, first_stage_layers=1, accumulation=2, recompute="full"),
    "pipeline in bf16": cut(pipeline=2, accumulation=2, precision="amp-bf16"),
    "context": cut(context=2),
    "context, sharded": cut(context=2, zero=3),
}  # fmt: skip
CUT_ON_FOUR = {
    "tensor x replicate": cut(tensor=2, replicate=2, accumulation=2),
    "tensor x shard": cut(tensor=2, shard=2, zero=3),
    "tensor x sequence x shard": cut(tensor=2, sequence_parallel=True, shard=2, zero=3, accumulation=2),
    "pipeline x tensor x sequence": cut(pipeline=2, tensor=2, sequence_parallel=True, accumulation=2),
    "pipeline x shard": cut(pipeline=2, shard=2, zero=3, accumulation=4),
    "pipeline x replicate": cut(pipeline=2, replicate=2, accumulation=2),
    "context x tensor": cut(context=2, tensor=2),
    "context x pipeline": cut(context=2, pipeline=2, accumulation=2),
    "shard in bf16 x pipeline": cut(pipeline=2, shard=2, zero=3, accumulation=2, precision="fsdp-bf16"),
}
CUT_ON_EIGHT = {
    "pipeline x shard x tensor x sequence": cut(
        pipeline=2, shard=2, zero=3, tensor=2, sequence_parallel=True, accumulation=2
    ),
}


@cache
def losses(num_ranks: int, group: str) -> launch.Result:
    ways = {
        "single": SINGLE,
        "two": ON_TWO,
        "deepspeed": DEEPSPEED,
        "four": ON_FOUR,
        "cut alone": CUT_ALONE,
        "cut on two": CUT_ON_TWO,
        "cut on four": CUT_ON_FOUR,
        "cut on eight": CUT_ON_EIGHT,
    }[group]
    return launch.torchrun(PROGRAM, num_ranks, variables={"WAYS": ways}, limits=launch.Limits(timeout=170))


def difference(found, name, alone="clipped", group="single"):
    """Largest difference of a step's loss to the single process's; all ranks must tell the same."""
    told = [found[rank][name] for rank in range(len(found))]
    assert all(one == told[0] for one in told)
    return apart(told[0], losses(1, group)[0][alone])


def apart(found, wanted):
    assert len(found) in (STEPS, CUT_STEPS)
    return max(abs(a - b) for a, b in zip(found, wanted, strict=True))


def twin(name):
    """The single process that does the same."""
    others = {f"by {name}": f"by {name}" for name in OTHERS}
    twins = {"untied": "untied", "FSDP by hand": "plain", **others}
    return next((alone for part, alone in twins.items() if name.endswith(part)), "clipped")


def cut_twin(name):
    return "untied" if "untied" in name else "tied"


def limit(name):
    return BF16 if "bf16" in name or "muon" in name else FP32  # torch's Muon iterates in bf16


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in SINGLE
        if n not in ("clipped", "plain", "untied", "some steps", "some steps, untied")
        and not n.startswith("by ")
    ],
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
    skip_without("deepspeed")
    assert difference(losses(2, "deepspeed"), name) <= limit(name)


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_ranks(name):
    assert difference(losses(4, "four"), name) <= limit(name)


@pytest.mark.parametrize("name", CUT_ON_TWO)
def test_a_cut_model_on_two_ranks(name):
    assert difference(losses(2, "cut on two"), name, cut_twin(name), "cut alone") <= limit(name)


@pytest.mark.parametrize("name", CUT_ON_FOUR)
def test_a_cut_model_on_four_ranks(name):
    assert difference(losses(4, "cut on four"), name, cut_twin(name), "cut alone") <= limit(name)


@pytest.mark.parametrize("name", CUT_ON_EIGHT)
def test_a_cut_model_on_eight_ranks(name):
    assert difference(losses(8, "cut on eight"), name, cut_twin(name), "cut alone") <= limit(name)


def test_the_norm_of_a_cut_model_is_that_of_the_whole():
    """On every rank, though none has the whole gradient, and some parts are on several."""
    alone = losses(1, "cut alone")[0]
    cases = [("cut on two", 2, CUT_ON_TWO), ("cut on four", 4, CUT_ON_FOUR)]
    for group, ranks, ways in cases:
        for name in ways:
            if "bf16" in name or "sgd" in name:
                continue
            wanted = alone[f"{cut_twin(name)} norm"]
            for rank in range(ranks):
                found = losses(ranks, group)[rank][f"{name} norm"]
                assert found == pytest.approx(wanted, rel=1e-4), (name, rank)


def test_the_norm_before_the_cut_is_that_of_the_whole_gradient():
    alone, two = losses(1, "single")[0]["clipped norm"], losses(2, "two")
    for name in ("DDP", "FSDP2", "ZeRO 1 by hand", "ZeRO 3 by hand"):
        assert two[0][f"{name} norm"] == pytest.approx(alone, rel=1e-4)


def test_bf16_really_rounds():
    """Else its limit would hold anything that runs in fp32 by mistake."""
    for found, name in ((losses(2, "two"), "DDP in bf16"), (losses(2, "two"), "FSDP2 in bf16")):
        assert difference(found, name) > 2 * FP32
