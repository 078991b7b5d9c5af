"""What a rehearsal knows of values, what it answers without knowing, and what it refuses."""

import textwrap

import pytest

from workshop.rehearse import RehearsalError, rehearse


def cell(text: str) -> str:
    return "import torch, torch.distributed as dist\nfrom torch import nn\n" + textwrap.dedent(text)


def printed(text: str, world_size: int = 1, **options) -> list[str]:
    return rehearse(cell(text), world_size, **options).output.splitlines()


def test_small_numbers_that_the_program_wrote_are_true():
    said = printed(
        """
        import numpy as np
        print(torch.tensor([1, 2, 3, 4]).tolist(), torch.arange(2, 9, 3).tolist())
        print([round(x.item(), 2) for x in torch.linspace(0, 0.2, 3)])
        grid = torch.arange(8).view(2, 2, 2)
        print((grid == 3).nonzero().flatten().tolist(), grid[0, 1].tolist(), grid[:, 1, 0].tolist())
        array = np.arange(6.0).reshape(2, 3)
        print(torch.from_numpy(array).sum(1).tolist(), torch.as_tensor(array)[1].numpy().sum())
        lengths = torch.tensor([3, 1, 2])
        print(torch.repeat_interleave(torch.arange(3), lengths).tolist(), lengths.cumsum(0)[-1].item())
        order = torch.randperm(1000)
        print(sorted(order.tolist()) == list(range(1000)), order[:10].unique().numel())
        start = torch.randint(100, 200, (3,))
        print(all(100 <= int(s) < 200 for s in start), 'abcdefgh'[torch.tensor(3)])
        keep = torch.tensor([True, False, True])
        print(torch.randn(3, 5)[keep].shape[0], torch.where(keep)[0].tolist(), bool(keep.all()))
        """
    )
    assert said == [
        "[1, 2, 3, 4] [2, 5, 8]",
        "[0.0, 0.1, 0.2]",
        "[0, 1, 1] [2, 3] [2, 6]",
        "[3.0, 12.0] 12.0",
        "[0, 0, 0, 1, 2, 2] 6",
        "True 10",
        "True d",
        "2 [0, 2] False",
    ]


def test_what_is_known_follows_views_and_is_forgotten_when_overwritten():
    said = printed(
        """
        losses = torch.zeros(4)
        view = losses[1:3]
        losses[2] = 5
        print(losses.tolist(), view.tolist())
        view += 1
        print(losses.tolist())
        unknown = torch.randn(2, 2).sum()
        view[0] = unknown
        print(losses.tolist())
        losses.zero_()
        print(losses.tolist())
        table = torch.from_numpy(__import__("numpy").ones(3, dtype="float32"))
        table.mul_(unknown)
        print(table.tolist(), table.sum().item())
        step = torch.tensor(0.0)
        for _ in range(3):
            step += 1
        print(step.item())
        """
    )
    assert said[0] == "[0.0, 0.0, 5.0, 0.0] [0.0, 5.0]"
    assert said[1] == "[0.0, 1.0, 6.0, 0.0]"
    assert said[2] == "[1.0, 1.0, 1.0, 1.0]"  # all unknown, answered with ones
    assert said[3] == "[0.0, 0.0, 0.0, 0.0]"
    assert said[4] == "[1.0, 1.0, 1.0] 1.0"
    assert said[5] == "3.0"


def test_numbers_of_other_ranks_are_taken_to_be_alike():
    played = rehearse(
        cell("""
        dist.init_process_group()
        tokens = torch.tensor([100.0, 7.0])
        dist.all_reduce(tokens)
        sizes = [torch.empty(1, dtype=torch.long) for _ in range(4)]
        dist.all_gather(sizes, torch.tensor([5]))
        largest = torch.tensor(3)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        print(tokens.tolist(), [int(size) for size in sizes], largest.item())
        """),
        world_size=4,
        rank=2,
    )
    assert played.output.split("\n")[0] == "[400.0, 28.0] [5, 5, 5, 5] 3"
    assert any("other ranks' are taken to be this rank's" in note for note in played.notes)


def test_what_python_asks_of_a_tensor():
    played = rehearse(
        cell("""
        import copy
        loss = nn.Linear(4, 4)(torch.randn(2, 4)).mean()
        print(f"{loss:.4f} {loss.item():>8.2f}", loss.detach().numpy(), loss.double().tolist())
        layer = nn.Linear(3, 3)
        twin = nn.ModuleList([layer, nn.Linear(3, 3)])
        twin[1].weight = layer.weight
        other = copy.deepcopy(twin)
        print(other[0].weight is other[1].weight, other[0].weight is layer.weight, type(other[0].weight).__name__)
        whole = torch.arange(6)
        half = whole[:3]
        a, b = copy.deepcopy([whole, half])
        a[0] = 9
        print(b.tolist(), half.tolist())
        print(torch.zeros(2, device="cpu:0").add(torch.ones(2)).device)
        """),
        world_size=1,
    )
    assert played.output.splitlines() == [
        "1.0000     1.00 1.0 1.0",
        "True False FakeTensor",
        "[9, 1, 2] [0, 1, 2]",
        "cpu",
    ]


def test_parameters_stay_the_same_objects():
    said = printed(
        """
        model = nn.ModuleList([nn.Embedding(8, 4), nn.Linear(4, 8, bias=False), nn.BatchNorm1d(4)])
        model[1].weight = model[0].weight
        first = model[0].weight
        optimizer = torch.optim.AdamW(model.parameters())
        model.to(torch.bfloat16)
        print(model[1].weight is first is model[0].weight, first.dtype, model[2].running_mean.dtype)
        model[1](model[0](torch.tensor([1]))).sum().backward()
        model.half()
        print(first.grad.dtype, len(list(model.parameters())))
        optimizer.step()
        print(optimizer.state[first]["exp_avg"].dtype)
        with torch.device("meta"):
            empty = nn.Linear(2, 2)
        before = empty.weight
        print(empty.to_empty(device="cpu").weight is before, empty.weight.device)
        """,
        steps=2,
    )
    assert said == [
        "True torch.bfloat16 torch.bfloat16",
        "torch.float16 3",
        "torch.float16",
        "False cpu",
    ]


def test_a_batch_of_nothing_raises_an_alarm():
    played = rehearse(
        cell("""
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(100, 8)
        for _ in range(2):
            batch = data[5:5]
            model(batch).sum().backward()
            optimizer.step()
        """),
        world_size=1,
    )
    assert played.alarms == [
        "nothing was multiplied: one side is empty, in line 9: model(batch).sum().backward()"
    ]
    assert "ALARM: nothing was multiplied" in str(played)
    assert played.to_measurement().setting["notes"][0].startswith("nothing was multiplied")


def test_a_step_without_a_product_raises_an_alarm():
    played = rehearse(
        cell("""
        weight = nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            weight.sum().backward()
            optimizer.step()
        """),
        world_size=1,
    )
    (alarm,) = played.alarms
    assert "0 FLOPs" in alarm


def test_a_program_that_leaves_early_is_not_a_training():
    played = rehearse(cell("if not torch.cuda.is_available():\n    raise SystemExit\n"), world_size=1)
    assert "left before its first optimizer.step(), at line 4: raise SystemExit" in played.alarms[0]
    assert "line 3: if not torch.cuda.is_available(): was answered with the truth" in played.alarms[0]
    assert "--cuda" in played.alarms[0]


def test_a_loop_over_unknown_values_is_refused_with_its_line():
    with pytest.raises(
        RehearsalError, match=r"line 4: while \(x > 2\)\.any\(\):[\s\S]*10,000 times in a row"
    ):
        rehearse(
            cell("x = torch.randn(3, 3)\nwhile (x > 2).any():\n    x = torch.randn(3, 3)\n"), world_size=1
        )


def test_the_time_limit_names_the_line_and_keeps_what_was_printed():
    with pytest.raises(RehearsalError, match=r"line 5: time.sleep\(1\)\n.* after 4 s ") as caught:
        rehearse(
            "import time\nprint('begun')\nfor _ in range(60):\n    # rest\n    time.sleep(1)\n",
            1,
            timeout_seconds=4,
        )
    assert caught.value.output == "begun\n"


def test_a_failing_program_keeps_what_it_printed():
    with pytest.raises(RehearsalError, match="line 3: raise KeyError") as caught:
        rehearse("print('one')\nprint('two')\nraise KeyError('three')\n", 1)
    assert caught.value.output == "one\ntwo\n"


def test_truncated_normals_end_and_nothing_is_written(tmp_path):
    kept = tmp_path / "checkpoint.pt"
    kept.write_bytes(b"of a real training")
    played = rehearse(
        cell(f"""
        weight = torch.empty(64, 64)
        nn.init.trunc_normal_(weight, std=1.0, a=-1.0, b=1.0)
        nn.init.trunc_normal_(weight, std=5.0, a=-1.0, b=1.0)
        torch.save({{"weight": weight}}, {str(kept)!r})
        print("done")
        """),
        world_size=1,
        timeout_seconds=60,
    )
    assert played.output == "done\n"
    assert kept.read_bytes() == b"of a real training"
    assert any("torch.save wrote nothing" in note for note in played.notes)


def test_a_world_joined_by_its_mesh_listens_on_no_port():
    played = rehearse(
        cell("""
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        store = dist.TCPStore("localhost", 29500, 4, is_master=True)
        store.set("key", "value")
        print(list(mesh.get_coordinate()), dist.get_world_size(), store.get("key"), type(store).__name__)
        """),
        world_size=4,
        rank=3,
        timeout_seconds=60,
    )
    assert played.output == "[1, 1] 4 b'value' _NoListener\n"
