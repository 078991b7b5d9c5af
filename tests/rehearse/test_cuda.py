"""`device="cuda"` on a machine that has none: what is faithful to a GPU, and what is refused."""

import re
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from workshop.rehearse import RehearsalError, rehearse  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def cell(text: str) -> str:
    return "import torch, torch.distributed as dist\nfrom torch import nn\n" + textwrap.dedent(text)


def test_the_device_is_where_python_and_the_program_look():
    played = rehearse(
        cell("""
        torch.cuda.set_device(1)
        x = torch.randn(4, 8).cuda()
        host = torch.zeros(4, 8)
        print(x.device, x.is_cuda, host.device, x.cpu().device, x.to(0).device, x.to(x.device) is x)
        layer = nn.Linear(8, 8).to("cuda")
        weight = layer.weight
        y = layer(x)
        print(weight.device, y.device, torch.zeros_like(y).device, y.new_ones(2).device, y.type_as(host).device)
        print(torch.arange(3, device=y.device).tolist(), torch.tensor([1, 2], device="cuda").sum().item())
        q = torch.randn(2, 4, 6, 8, device="cuda", requires_grad=True)
        picked = torch.cat([q, q])[:, 0, torch.arange(3, device="cuda")].topk(2).values
        (picked.sum() + nn.functional.scaled_dot_product_attention(q, q, q).sum()).backward()
        print(q.grad.device)
        with torch.device("cuda"):
            print(nn.Linear(2, 2).weight.device, torch.device(3))
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.current_stream())
        print(torch.cuda.memory_allocated() > 0, torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated())
        """),
        world_size=1,
    )
    assert played.output.splitlines() == [
        "cuda:1 True cpu cpu cuda:0 True",
        "cuda:1 cuda:1 cuda:1 cuda:1 cpu",
        "[0, 1, 2] 3",
        "cuda:1",
        "cuda:1 cuda:3",
        "True True",
    ]


def test_the_peak_is_the_devices_and_the_hosts_is_noted():
    played = rehearse(
        cell("""
        data = torch.randn(1000, 1000)
        x = data[:10].to("cuda")
        torch.empty(50, 1000, device="cuda")
        """),
        world_size=1,
    )
    assert played.peak_bytes == (10 + 50) * 1000 * 4
    assert any("peak of 4.000 MB" in note for note in played.notes)


def test_two_devices_are_not_mixed_in_silence():
    with pytest.raises(RehearsalError, match=r"line 4: .*\n.*cuda:0(,| and) cpu"):
        rehearse(cell('x = torch.randn(4, device="cuda")\nx + torch.randn(4)\n'), world_size=1)


AUTOCAST = """
    torch.manual_seed(0)
    norm, wide, narrow = (layer.to("cuda") for layer in (nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)))
    parameters = [p for layer in (norm, wide, narrow) for p in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        x = torch.randn(512, 64, device="cuda")
        {step}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_autocast_follows_the_lists_of_a_gpu():
    played = rehearse(
        cell("""
        x = torch.randn(4, 8, device="cuda")
        layer, norm = nn.Linear(8, 8, device="cuda"), nn.LayerNorm(8, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = layer(x)
            z = norm(y)
            loss = nn.functional.cross_entropy(y, torch.zeros(4, dtype=torch.long, device="cuda"))
            print(*[t.dtype for t in (y, z, y.softmax(-1), y.sum(), loss, y @ y.T, y + z, y * 2, y.exp(), nn.functional.relu(y))])
            print(layer(x).dtype, torch.addcmul(z, y, y).dtype, nn.functional.gelu(y).dtype, y.pow(2).dtype)
        print(layer(x).dtype)
        with torch.autocast("cuda", dtype=torch.float16), torch.autocast("cuda", enabled=False):
            print(layer(x).dtype)
        scaler = torch.amp.GradScaler("cuda")
        with torch.cuda.amp.autocast():
            loss = layer(x).float().mean()
        scaler.scale(loss).backward()
        print(layer.weight.grad.dtype, scaler.is_enabled())
        """),
        world_size=1,
    )
    names = [line.replace("torch.", "").split() for line in played.output.splitlines()]
    low, full = "bfloat16", "float32"
    assert names[0] == [low, full, full, full, full, low, full, low, full, low]
    assert names[1] == [low, full, low, full]
    assert names[2:] == [[full], [full], [full, "True"]]


def test_autocast_needs_what_explicit_casts_need():
    by_hand = """h = norm(x).bfloat16()
        low = [p.bfloat16() for layer in (wide, narrow) for p in layer.parameters()]
        h = nn.functional.linear(h, low[0], low[1])
        h = nn.functional.linear(nn.functional.gelu(h), low[2], low[3])
        loss = nn.functional.mse_loss(h.float(), x)
        del h, low"""
    automatic = """with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(narrow(nn.functional.gelu(wide(norm(x)))), x)
        """
    explicit = rehearse(
        cell(
            textwrap.dedent(AUTOCAST).format(step=textwrap.dedent(" " * 8 + by_hand).replace("\n", "\n    "))
        ),
        1,
    )
    found = rehearse(
        cell(
            textwrap.dedent(AUTOCAST).format(
                step=textwrap.dedent(" " * 8 + automatic).replace("\n", "\n    ")
            )
        ),
        1,
    )
    assert found.flops == explicit.flops
    assert found.memory.step_peaks[-1] == pytest.approx(explicit.memory.step_peaks[-1], rel=0.01)


def test_the_lists_are_those_of_this_torch():
    """Every operator that torch's CUDA autocast knows is in one of its three lists, or here too."""
    from workshop.rehearse import autocast

    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        pytest.skip("this torch came without its headers")
    text = header.read_text()

    def listed(name: str) -> set[str]:
        block = re.search(rf"#define {name}\(_\)(.*?)\n\n", text, re.DOTALL)
        assert block, name
        return set(re.findall(r"_\((\w+)", block.group(1)))

    assert listed("AT_FORALL_LOWER_PRECISION_FP") == autocast.LOWER
    assert listed("AT_FORALL_PROMOTE") == autocast.WIDEST
    assert listed("AT_FORALL_FP32_SET_OPT_DTYPE") == autocast.RESULT_IN_FP32


ASKS = """
assert torch.cuda.is_available(), "this needs a GPU"
rank = dist.get_rank() if dist.is_initialized() else 0
model = nn.Linear(8, 8).to(rank % torch.cuda.device_count())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4, 8, device=model.weight.device)).sum().backward()
    optimizer.step()
"""


def test_a_program_that_asks_is_told_the_truth_or_what_was_wished():
    with pytest.raises(RehearsalError, match=r"line 4: assert.*\nAssertionError: this needs a GPU\n.*--cuda"):
        rehearse(cell(ASKS), world_size=1)
    played = rehearse(cell(ASKS), world_size=1, pretend_cuda=True)
    assert (played.steps, played.alarms) == (2, [])
    assert max(played.memory.timeline.part_bytes["weights"]) == (64 + 8) * 4


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch's build for CUDA knows what a number means")
def test_a_number_for_a_device_is_refused_with_what_to_write():
    with pytest.raises(RehearsalError, match=r"line 3: torch.zeros\(2, device=0\)[\s\S]*cuda:\{number\}"):
        rehearse(cell("torch.zeros(2, device=0)\n"), 1)


def test_facts_of_a_gpu_are_refused():
    with pytest.raises(
        RehearsalError, match=r"line 4: torch.cuda.get_device_properties\(0\).*\n.*facts of a GPU"
    ):
        rehearse(
            cell("x = torch.ones(2, device='cuda')\ntorch.cuda.get_device_properties(0).total_memory\n"), 1
        )


def test_an_optimizer_takes_the_foreach_way_of_a_gpu():
    """Whose temporaries are those of all parameters at once."""
    text = """
        layers = [nn.Linear(64, 64, bias=False).to(DEVICE) for _ in range(8)]
        optimizer = torch.optim.AdamW([layer.weight for layer in layers])
        for _ in range(3):
            sum(layer.weight.sum() for layer in layers).backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    weights = 8 * 64 * 64 * 4
    on_cpu = rehearse(cell(text.replace("DEVICE", "'cpu'")), 1).memory.step_peaks[-1]
    on_gpu = rehearse(cell(text.replace("DEVICE", "'cuda'")), 1).memory.step_peaks[-1]
    assert 4 * weights < on_cpu < 4.5 * weights  # weights, gradients, two states, and one layer's temporaries
    assert on_gpu >= 5 * weights


def test_a_tensor_of_numbers_is_on_the_ranks_own_gpu():
    program = """
        import torch
        import torch.distributed as dist
        dist.init_process_group()
        torch.cuda.set_device(1)
        made = torch.tensor([[1, 2, 3]], device=torch.device("cuda"))
        assert made.device == torch.zeros(3, device="cuda").device == torch.device("cuda", 1), made.device
        assert torch.tensor([1.0]).to("cuda").device == made.device
        """
    rehearse(cell(program), world_size=2, rank=1, pretend_cuda=True)
