"""What a rehearsal answers, and how it refuses."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from workshop import launch
from workshop.facts.measurement import Measurement
from workshop.rehearse import Rehearsal, RehearsalError, Roofline, rehearse, rehearse_ranks
from workshop.rehearse.run import roofline_of

ROOT = Path(__file__).resolve().parents[2]

TRAINING = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
model = DistributedDataParallel(nn.Linear(64, 32, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(1000):
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
"""


def cell(text: str) -> str:
    return "import torch, torch.distributed as dist\n" + textwrap.dedent(text)


def trained_somewhere(width, layers=1):
    """A function to be rehearsed; it lives in this file."""
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()


def test_a_cell_as_one_rank_of_a_world():
    played = rehearse(TRAINING, world_size=64, rank=17)
    weights = 64 * 32 * 4
    assert (played.rank, played.world_size, played.steps) == (17, 64, 2)
    for part in ("weights", "gradients", "optimizer", "buckets"):
        assert max(played.memory.timeline.part_bytes[part]) == weights, part
    assert sum(played.memory.peak_parts.values()) == played.peak_bytes
    (row,) = played.traffic
    assert (row.name, row.axis, row.group_size, row.count, row.payload_bytes) == (
        "all_reduce",
        "world",
        64,
        1,
        weights,
    )
    assert row.wire_bytes == round(2 * 63 / 64 * weights)
    assert played.flops == 2 * 2 * 8 * 64 * 32
    assert played.output.splitlines() == ["0 1.0"]  # stopped inside the second step, after optimizer.step()


def test_the_same_text_runs_on_real_ranks(tmp_path):
    """Under our launcher; `tests/launch/test_examples.py` holds it and torch's own equal."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("1000", "2") + "dist.destroy_process_group()\n")
    text = launch.torchrun(launch.Script(script), 2, limits=launch.Limits(timeout=120)).text
    assert {line.split()[-2] for line in text.splitlines()} == {"0", "1"}  # both steps
    assert rehearse(script, world_size=2).steps == 2


def test_a_function_with_arguments():
    played = rehearse(trained_somewhere, world_size=1, arguments=(32,), keywords={"layers": 3}, steps=1)
    assert max(played.memory.timeline.part_bytes["weights"]) == 3 * 32 * 32 * 4


def test_it_becomes_json_and_comes_back():
    played = rehearse(TRAINING, world_size=2)
    again = Rehearsal.from_dict(json.loads(json.dumps(played.to_dict())))
    assert again == played
    assert "all_reduce" in played._repr_html_()
    assert "rehearsed rank 0 of 2" in str(played)


def test_a_roofline_is_the_sum_of_its_operators():
    roofline = Roofline({"float32": 1e12}, bytes_per_second=1e30, wire_bytes_per_second=1e9)
    played = rehearse(TRAINING, world_size=2, roofline=roofline)
    assert played.roofline_seconds["compute"] == pytest.approx(played.flops / 1e12)
    assert played.roofline_seconds["communication"] == pytest.approx(64 * 32 * 4 / 1e9)


def test_a_device_by_its_name_is_its_roofline():
    by_name = rehearse(TRAINING, world_size=16, roofline="H100")
    assert (
        by_name.roofline_seconds == rehearse(TRAINING, 16, roofline=roofline_of("H100", 16)).roofline_seconds
    )
    with pytest.raises(ValueError, match="did you mean 'H100'"):
        rehearse(TRAINING, world_size=16, roofline="H1000")


def test_the_roofline_takes_the_slowest_link_of_the_world():
    node, cluster = roofline_of("H100", 8), roofline_of("H100", 64)
    assert node.flops_per_second["bfloat16"] == 989e12
    assert node.wire_bytes_per_second > cluster.wire_bytes_per_second > 0
    assert roofline_of("H100", 1).wire_bytes_per_second == float("inf")


def test_a_record_outlives_the_rehearsal(tmp_path):
    played = rehearse(TRAINING, world_size=64, rank=17)
    record = played.to_measurement(layout="ddp")
    record.save(tmp_path / "record.json")
    assert Measurement.load(tmp_path / "record.json") == record
    assert (record.rank, record.world_size, record.allocated_bytes) == (17, 64, played.peak_bytes)
    assert sum(record.parts.values()) == record.allocated_bytes
    (row,) = record.traffic
    assert (row.name, row.count, row.payload_bytes) == ("all_reduce", 1, 64 * 32 * 4)
    assert record.setting["by"] == "rehearse"
    assert record.setting["layout"] == "ddp"
    assert record.step_seconds == 0


UNEVEN = """
import torch, torch.distributed as dist
dist.init_process_group()
model = torch.nn.Linear(64 * (1 + dist.get_rank()), 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, model.in_features)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_several_ranks_of_one_world():
    found = rehearse_ranks(UNEVEN, 64, (0, 7, 63))
    assert [one.rank for one in found] == [0, 7, 63]
    assert found[7] == found.ranks[1]
    assert found.worst.rank == 63
    assert found[63].peak_bytes > found[0].peak_bytes
    assert list(found.by_rank()) == ["rank 0", "rank 7", "rank 63"]
    assert "rehearsed ranks of 64" in str(found)
    with pytest.raises(KeyError, match="rank 5 was not rehearsed"):
        found[5]


@pytest.mark.parametrize(
    ("ranks", "message"), [((), "at least one"), ((1, 1), "none twice"), ((0, 4), "not in a world of 4")]
)
def test_ranks_that_cannot_be(ranks, message):
    with pytest.raises(ValueError, match=message):
        rehearse_ranks(UNEVEN, 4, ranks)


def test_losses_whose_mean_keeps_the_storage_of_its_elements():
    """Asks every loss again, so that a change in torch is seen here."""
    import torch
    import torch.nn.functional as functional

    from workshop.rehearse.tracer import _ROOMY_MEANS

    roomy = {operator._schema.name.removeprefix("aten::") for operator in _ROOMY_MEANS}
    a, b = torch.rand(64, 128), torch.rand(64, 128)
    for name in (*roomy, "l1_loss", "huber_loss", "binary_cross_entropy_with_logits"):
        kept = getattr(functional, name)(a, b).untyped_storage().nbytes()
        assert kept == (a.numel() * 4 if name in roomy else 4), name


def test_the_notebook_needs_no_torch():
    code = "import sys, workshop.rehearse, workshop.measure; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_seven_billion_parameters_on_64_ranks():
    program = ROOT / "benchmarks" / "rehearsed" / "large.py"
    played = rehearse(program, 64, arguments=("--size", "7b"))
    parameters = 6_738_415_616  # Llama 2 7B
    assert played.memory.peak_parts["weights"] == pytest.approx(4 * parameters / 64, rel=1e-3)
    assert played.memory.peak_parts["optimizer"] == pytest.approx(8 * parameters / 64, rel=1e-3)
    gathered, reduced = played.traffic
    assert gathered.payload_bytes == pytest.approx(2 * parameters, rel=1e-3)
    assert reduced.payload_bytes == pytest.approx(4 * parameters, rel=1e-3)
    matmul = 6 * (parameters - 32_000 * 4096) * 4096
    attention = 14 * 32 * 4096 * 4096**2
    assert played.flops == pytest.approx(matmul + attention, rel=1e-3)
    assert played.child_peak_bytes < 1e9


# Values that a fake tensor does not have.


def test_values_are_answered_and_noted():
    played = rehearse(
        cell("""
        x = torch.randn(4)
        print(x.sum().item(), x.argmax().item(), bool(torch.isnan(x).any()), bool((x == x).all()),
        torch.equal(x, x))
        """),
        world_size=1,
    )
    assert played.output.split() == ["1.0", "0", "False", "True", "True"]
    assert any("a number was read" in note and "line 4" in note for note in played.notes)


@pytest.mark.parametrize(
    "counting",
    [
        "torch.bincount(choice.flatten(), minlength=8)",
        "torch.nn.functional.one_hot(choice, 8).sum((0, 1))",
        "torch.zeros(8, dtype=torch.long).scatter_add_(0, choice.view(-1), torch.ones_like(choice.view(-1)))",
        "torch.histc(choice.flatten().float(), 8, 0, 7).long()",
        "torch.stack([(choice == e).sum() for e in range(8)])",
    ],
)
def test_a_router_is_taken_to_be_balanced(counting):
    played = rehearse(
        cell(f"""
        choice = torch.randn(64, 8).topk(2, dim=-1).indices
        counts = {counting}
        print(counts.tolist(), counts.cumsum(0)[-1].item(), counts.view(4, 2).sum(1).tolist())
        """),
        world_size=1,
    )
    assert played.output.strip() == f"{[16] * 8} 128 {[32] * 4}"


def test_choosing_by_mask_is_balanced_too():
    played = rehearse(
        cell("""
        x = torch.randn(64, 5)
        choice = x.argmax(-1)
        print(x[choice == 3].shape[0], torch.where(choice == 1)[0].shape[0])
        """),
        world_size=1,
    )
    assert played.output.split() == ["13", "13"]


def test_a_size_nobody_can_know_is_refused_with_advice():
    with pytest.raises(RehearsalError, match=r"line 3: y = x\[x > 0\][\s\S]*rehearsal cannot see values"):
        rehearse(cell("x = torch.randn(4)\ny = x[x > 0]\n"), world_size=1)


# The world.


def test_meshes_and_objects_of_a_world_that_is_not_there():
    played = rehearse(
        cell("""
        from torch.distributed.device_mesh import init_device_mesh
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cpu", (2, 4, 8), mesh_dim_names=("pp", "dp", "tp"))
        print(list(mesh.get_coordinate()), mesh["dp"].size(), mesh["tp"].get_local_rank())
        everything = [None] * dist.get_world_size()
        dist.all_gather_object(everything, dist.get_rank())
        print(len(everything), everything[0], dist.get_backend())
        """),
        world_size=64,
        rank=45,
    )
    assert played.output.splitlines() == ["[1, 1, 5] 4 5", "64 45 gloo"]


def test_environment_of_torchrun():
    played = rehearse(
        "import os\nprint(*[os.environ[n] for n in 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE'.split()])\n",
        world_size=64,
        rank=45,
        local_world_size=4,
    )
    assert played.output.split() == ["45", "64", "1", "4"]


def test_a_program_that_spawns_its_ranks_gets_the_one_that_is_here():
    played = rehearse(
        cell("""
        def main(rank, world):
            dist.init_process_group("gloo", init_method="tcp://localhost:1", rank=rank, world_size=world)
            print(rank, dist.get_rank(), dist.get_world_size())
        torch.multiprocessing.spawn(main, args=(4,), nprocs=4)
        """),
        world_size=4,
        rank=3,
    )
    assert played.output.split() == ["3", "3", "4"]


# Refusals.


def test_errors_of_the_program_name_its_line():
    with pytest.raises(RehearsalError, match=r"line 4: model\(torch.randn\(4, 9\)\)[\s\S]*RuntimeError"):
        rehearse(
            cell("from torch import nn\nmodel = nn.Linear(8, 8)\nmodel(torch.randn(4, 9))\n"), world_size=1
        )


def test_a_program_that_never_ends_is_ended():
    with pytest.raises(RehearsalError, match=r"line 2: time.sleep\(60\)\n.* after 3 s .*--timeout"):
        rehearse("import time\ntime.sleep(60)\n", world_size=1, timeout_seconds=3)


def test_a_program_that_aborts_its_process_kills_no_notebook():
    with pytest.raises(RehearsalError, match="died"):
        rehearse("import os\nos.abort()\n", world_size=1)


def test_an_exit_code_is_an_error():
    with pytest.raises(RehearsalError, match="exit code 3"):
        rehearse("import sys\nsys.exit(3)\n", world_size=1)


@pytest.mark.parametrize("layer", ["Linear4bit", "Linear8bitLt"])
def test_layers_of_bitsandbytes_are_refused_with_the_reason(layer):
    """When one is made. peft imports the library wherever it is installed, and that is no reason."""
    with pytest.raises(RehearsalError, match="line 2: .*\\n.*4-bit weights"):
        rehearse(f"import bitsandbytes\nbitsandbytes.nn.{layer}(8, 8)\n", world_size=1)


def test_compiled_code_is_an_estimate():
    played = rehearse(cell("f = torch.compile(torch.nn.Linear(4, 4))\nf(torch.ones(2, 4))\n"), world_size=1)
    assert any("torch.compile" in note and "estimate" in note for note in played.notes)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"world_size": 0}, "world_size is 0"),
        ({"world_size": 4, "rank": 4}, "rank 4 is not in a world of 4: ranks are 0 to 3"),
        ({"world_size": 4, "steps": 0}, "steps is 0"),
    ],
)
def test_impossible_places_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        rehearse(TRAINING, **keywords)


def test_a_script_that_is_not_there():
    with pytest.raises(ValueError, match="there is no script 'nowhere.py'"):
        rehearse("nowhere.py", world_size=1)


def test_a_roofline_without_the_dtype_says_which_it_has():
    with pytest.raises(RehearsalError, match="no rate for float32 products; it has bfloat16"):
        rehearse(TRAINING, world_size=1, roofline=Roofline({"bfloat16": 1e12}, 1e12, 1e9))
