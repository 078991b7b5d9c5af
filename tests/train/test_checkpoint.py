"""Saved on four ranks, taken up on four, two and one; by the engine that saved it and by others."""

import shutil
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.installed import skip_without
from workshop import launch
from workshop.facts.layout import Layout
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.train import Checkpoints, Settings, files, train_loop
from workshop.train.apply_layout import apply_layout
from workshop.train.checkpoint import to_one_file

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "train_gpt.py"
TINY = GPTConfig(
    vocab_size=256, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64, tied=True
)


def train(ranks, *arguments, folder=None, restarts=0):
    """The example on ranks: what rank 0 reported, and the launch's notes."""
    told = ["--model", "tiny", *map(str, arguments)]
    told += ["--folder", str(folder)] if folder else []
    limits = launch.Limits(timeout=100, max_restarts=restarts)
    result = launch.torchrun(launch.Script(EXAMPLE, tuple(told)), ranks, limits=limits)
    assert all(result[rank].losses == result[0].losses for rank in range(ranks))
    return result


@cache
def unbroken(ranks, zero):
    return train(ranks, "--zero", zero)[0].losses


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of four ranks of FSDP2 after four of eight steps."""
    folder = tmp_path_factory.mktemp("saved")
    train(4, "--zero", 3, "--save-every", 4, folder=folder)
    shutil.rmtree(folder / "step-00000008")
    (folder / "latest").write_text("step-00000004\n")
    return folder


def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_the_same_ranks_go_on_to_the_last_bit(saved, tmp_path):
    found = train(4, "--zero", 3, folder=copied(saved, tmp_path))[0]
    assert found.first_step == 4
    assert found.losses == unbroken(4, 3)[4:]


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [(2, ("--zero", 3)), (1, ()), (2, ("--zero", 0)), (2, ("--zero", 3, "--engine", "zero"))],
    ids=["FSDP2 on two", "plain on one", "DDP on two", "ZeRO 3 by hand on two"],
)
def test_other_ranks_and_engines_go_on_to_rounding(saved, tmp_path, ranks, arguments):
    found = train(ranks, *arguments, folder=copied(saved, tmp_path))[0]
    assert found.first_step == 4
    assert found.losses == pytest.approx(unbroken(4, 3)[4:], abs=2e-6)


def test_zero_by_hand_saves_what_others_read(tmp_path):
    train(2, "--zero", 2, "--engine", "zero", "--steps", 4, "--save-every", 4, folder=tmp_path)
    # `--steps` also stretches the rate's curve: the twin is told the same.
    found = train(2, "--zero", 3, "--steps", 4, folder=tmp_path)[0]
    assert (found.first_step, found.losses) == (4, [])
    with_fsdp = tmp_path / "with_fsdp"
    train(2, "--zero", 3, "--steps", 4, "--save-every", 4, folder=with_fsdp)
    one, other = (
        torch.load(to_one_file(Checkpoints(folder).find(), tmp_path / f"{name}.pt"))
        for name, folder in (("hand", tmp_path), ("fsdp", with_fsdp))
    )
    assert one.keys() == other.keys() == GPT(TINY).state_dict().keys()
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], rtol=0, atol=1e-6)


def test_deepspeed_goes_on_and_becomes_one_file_that_a_gpt_loads(tmp_path):
    skip_without("deepspeed")
    arguments = ("--zero", 2, "--engine", "deepspeed", "--steps", 8)
    train(2, *arguments, "--save-every", 4, folder=tmp_path / "ds")
    checkpoints = Checkpoints(tmp_path / "ds")
    assert [path.name for path in files.whole_steps(checkpoints.root)] == ["step-00000004", "step-00000008"]
    (tmp_path / "ds" / "latest").write_text("step-00000004\n")
    found = train(2, *arguments, folder=tmp_path / "ds")[0]
    assert found.losses == pytest.approx(unbroken(2, 3)[4:], abs=2e-6)

    weights = torch.load(to_one_file(checkpoints.find(step=8), tmp_path / "weights.pt"))
    model = GPT(TINY)
    model.load_state_dict(weights)
    settings = Settings(num_steps=1, learning_rate=0.0)
    after = train_loop(apply_layout(model, Layout(precision="fp32"), settings), TextBatches(64, 8), settings)
    assert after.last < unbroken(2, 3)[0] - 0.1  # it has learnt, and the weights are where they belong

    with pytest.raises(launch.RankFailed, match=r"saved by DeepSpeed on 2 ranks and these are 1"):
        train(1, "--engine", "deepspeed", folder=tmp_path / "ds")


def test_a_flipped_byte_is_refused_by_name_on_every_rank(saved, tmp_path):
    folder = copied(saved, tmp_path)
    path = folder / "step-00000004" / "__2_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(launch.RankFailed) as refused:
        train(2, "--zero", 3, folder=folder)
    assert "ranks 0-1 all raised DamagedCheckpointError" in str(refused.value)
    assert "step-00000004: __2_0.distcp is not the file that was saved" in str(refused.value)


def test_a_lost_file_of_a_rank_is_refused(saved, tmp_path):
    folder = copied(saved, tmp_path)
    (folder / "step-00000004" / "__1_0.distcp").unlink()
    with pytest.raises(files.DamagedCheckpointError, match="__1_0.distcp is missing"):
        to_one_file(folder / "step-00000004", tmp_path / "one.pt")


def test_other_data_are_refused(saved, tmp_path):
    with pytest.raises(
        launch.RankFailed, match=r"the checkpoint's data were .*'global_batch': 8.*'global_batch': 4"
    ):
        train(2, "--zero", 3, "--global-batch", 4, folder=copied(saved, tmp_path))


@pytest.mark.parametrize(
    "place", ["while files are written", "before the rename", "before latest is replaced"]
)
def test_a_killed_save_leaves_the_last_good_one(tmp_path, place):
    program = (HERE / "programs" / "killed_save.py").read_text()
    variables = {"PLACE": place, "FOLDER": str(tmp_path)}
    with pytest.raises(launch.RankFailed, match="died first"):
        launch.torchrun(program, 2, variables=variables, limits=launch.Limits(timeout=100))
    good = files.latest(tmp_path)
    assert good == tmp_path / "step-00000002"
    files.check_whole(good)
    found = train(2, "--zero", 3, "--save-every", 2, folder=tmp_path)[0]
    assert (found.first_step, found.losses) == (2, unbroken(2, 3)[2:])
    assert not list(tmp_path.glob(f"*{files.PARTIAL}"))
    assert files.latest(tmp_path).name.startswith("step-00000008")


def test_random_state_is_taken_up(tmp_path):
    """One process, no group: dropout and the like go on where they were."""
    settings, batches = Settings(num_steps=2), TextBatches(32, 4)
    ready = apply_layout(GPT(TINY), Layout(precision="fp32"), settings)
    train_loop(ready, batches, settings)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.resume(ready, batches) == 0
    checkpoints.save(ready, batches, 2)
    drawn = torch.rand(3)
    torch.manual_seed(99)
    assert checkpoints.resume(ready, batches) == 2
    assert torch.equal(torch.rand(3), drawn)
    with pytest.raises(ValueError, match=r"no checkpoint of step 7 in .*\(there: step-00000002\)"):
        checkpoints.resume(ready, batches, step=7)
