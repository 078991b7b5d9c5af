"""Run -> file -> Run gives the run back in all that the file can say, over a grid of layouts."""

from __future__ import annotations

from itertools import product

import pytest

from workshop.configs import ENGINES, Overrides, accelerate_yaml, deepspeed_json, read_config
from workshop.configs.engines import MIXED_PRECISION, OFFLOADS, STAGES, chosen_engine
from workshop.facts.layout import Layout
from workshop.facts.run import Run

RANKS = ((1, 1), (1, 8), (2, 8), (1, 64))  # replicas x shards


def grid():
    """Every combination of engine, stage, precision, offload, recomputing, ranks and accumulation there is."""
    for engine in ENGINES:
        for zero, precision, offload, recompute, (replicate, shard), steps in product(
            STAGES[engine],
            MIXED_PRECISION[engine],
            OFFLOADS[engine],
            ("none", "selective", "full"),
            RANKS,
            (1, 4),
        ):
            ranks = {"replicate": replicate, "shard": shard} if zero else {"replicate": replicate * shard}
            layout = Layout(zero=zero, precision=precision, offload=offload, recompute=recompute, **ranks)
            implementation = "deepspeed" if engine == "deepspeed" else "torch"
            run = Run(
                "llama-3-8b", f"{layout.world_size}xH100", layout, micro_batch=2, seq_len=4096, accumulation=steps,
                implementation=implementation,
            )  # fmt: skip
            try:
                chosen_engine(run, engine)
            except ValueError:
                continue  # the engine cannot: tested by name in test_engines
            yield engine, run


GRID = list(grid())


def beside(run, *, accumulation=True, micro_batch=True):
    """What the file cannot say, told in the words of `Overrides`."""
    return Overrides(
        model=run.model,
        device="H100",
        micro_batch=run.micro_batch if micro_batch else 0,
        seq_len=run.seq_len,
        accumulation=run.accumulation if accumulation else 0,
        precision=run.layout.precision if run.layout.precision == "bf16" else "",
        recompute=run.layout.recompute if run.layout.recompute != "none" else "",
    )


def test_the_grid_is_wide():
    assert len(GRID) > 150
    assert {(engine, run.layout.zero) for engine, run in GRID} == {
        (engine, zero) for engine in ENGINES for zero in STAGES[engine]
    }
    assert any(run.layout.replicate > 1 and run.layout.shard > 1 for _, run in GRID)
    assert {run.layout.offload for _, run in GRID} == {"none", "optimizer", "params", "activations"}


def test_accelerate_gives_the_run_back():
    for engine, run in GRID:
        text = accelerate_yaml(run, engine)
        found = read_config(text, beside(run, accumulation=engine != "deepspeed"))
        assert found.run == run, text
        assert found.mistakes == ()


def test_deepspeed_gives_the_run_back():
    runs = [run for engine, run in GRID if engine == "deepspeed"]
    for run in runs:
        text = deepspeed_json(run)
        found = read_config(text, beside(run, accumulation=False, micro_batch=False))
        assert found.run == run, text
    assert len(runs) > 40


@pytest.mark.parametrize(
    ("optimizer", "lr"), [("adamw", 1e-4), ("adam", 1e-4), ("lion", 1e-4), ("muon", 1e-4)]
)
def test_an_optimizer_in_the_json_is_read_back(optimizer, lr):
    layout = Layout(shard=8, zero=2, precision="deepspeed-bf16")
    run = Run("llama-3-8b", "8xH100", layout, optimizer=optimizer, implementation="deepspeed", seq_len=4096)
    assert (
        read_config(
            deepspeed_json(run, lr=lr), Overrides(model="llama-3-8b", device="H100", seq_len=4096)
        ).run
        == run
    )


def test_a_json_beside_the_yaml_is_read_with_it(tmp_path):
    layout = Layout(shard=8, zero=3, precision="deepspeed-bf16", offload="params")
    run = Run("llama-3-8b", "8xH100", layout, 2, 4096, accumulation=4, implementation="deepspeed")
    (tmp_path / "zero3.json").write_text(deepspeed_json(run))
    (tmp_path / "run.yaml").write_text(accelerate_yaml(run, deepspeed_file="zero3.json"))
    found = read_config(tmp_path / "run.yaml", Overrides(model="llama-3-8b", device="H100", seq_len=4096))
    assert (found.run, found.mistakes) == (run, ())
    (tmp_path / "zero3.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no file .*zero3\.json"):
        read_config(tmp_path / "run.yaml")
