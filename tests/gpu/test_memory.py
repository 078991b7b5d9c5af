"""The allocator's own account, beside what we say of it: rounding, peaks, caps, histories, what is held."""

import pytest
import torch
from torch import nn

from workshop.launch.child.device_cap import cap_device_memory
from workshop.measure.held import count_from_here, held_bytes, workspace_bytes
from workshop.measure.session import measure
from workshop.models.gpt import GPT, TINY

MIB = 2**20


@pytest.mark.parametrize("wanted", [1, 512, 513, MIB, MIB + 1, 10 * MIB + 1])
def test_a_request_is_rounded_to_512_bytes_and_cut_from_the_segment_that_the_predictor_names(wanted):
    """`predict.memory.allocator` says: 2 MiB segments up to 1 MiB, 20 MiB up to 10 MiB, own ones beyond."""
    before = torch.cuda.memory_reserved()
    held = torch.empty(wanted, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == -(-wanted // 512) * 512
    segment = (
        2 * MIB if wanted <= MIB else 20 * MIB if wanted < 10 * MIB else -(-wanted // (2 * MIB)) * 2 * MIB
    )
    assert torch.cuda.memory_reserved() - before == segment
    del held
    assert torch.cuda.memory_allocated() == 0


def test_the_predictors_allocator_replays_a_real_history():
    from workshop.predict.memory.allocator import CachingAllocator

    sizes, ours = [3 * MIB, 700, 12 * MIB, MIB, 5 * MIB], CachingAllocator()
    held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
    for size in sizes:
        ours.malloc(size)
    assert torch.cuda.memory_allocated() == ours.allocated
    assert torch.cuda.memory_reserved() == ours.reserved
    del held


def test_held_bytes_are_the_allocators():
    count_from_here()
    assert held_bytes() == 0
    kept = torch.zeros(1000, 256, device="cuda")
    assert held_bytes() == kept.nbytes
    del kept
    assert held_bytes() == 0


def test_a_cap_refuses_what_is_too_much_in_torchs_words_and_lets_the_rest_through():
    cap_device_memory(256 * MIB, "cuda")
    held = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 200.00 MiB"):
        torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    assert held.nbytes == 128 * MIB
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")


def test_a_cap_larger_than_the_gpu_is_none():
    total = torch.cuda.get_device_properties(0).total_memory
    assert cap_device_memory(2 * total, "cuda") is None


def step(model, optimizer, rows=4, length=64):
    words = torch.randint(0, 256, (rows, length + 1), device="cuda")
    model(words[:, :-1], words[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_the_trace_and_the_allocator_agree_on_the_peak():
    model = GPT(TINY).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    workspaces = workspace_bytes()  # which the trace leaves out, and which are many times such a step
    torch.cuda.reset_peak_memory_stats()
    with measure(model, optimizer, traffic=False) as found:
        for _ in range(2):
            step(model, optimizer)
    peak = torch.cuda.max_memory_allocated() - workspaces
    assert found.memory.peak_bytes == pytest.approx(peak, rel=0.02)
    assert sum(found.memory.peak_parts.values()) == pytest.approx(found.memory.peak_bytes, rel=0.01)


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_the_trace_names_parts(part):
    model = GPT(TINY).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    with measure(model, optimizer, traffic=False) as found:
        for _ in range(2):
            step(model, optimizer)
    numbers = sum(p.numel() for p in model.parameters())
    wanted = {"weights": 4, "optimizer": 8}[part] * numbers
    assert found.memory.peak_parts[part] == pytest.approx(wanted, rel=0.05)


def test_recompute_holds_less():
    peaks = {}
    for again in (False, True):
        model = GPT(TINY).to("cuda")
        model.model.recompute = again
        torch.cuda.reset_peak_memory_stats()
        words = torch.randint(0, 256, (16, 513), device="cuda")
        model(words[:, :-1], words[:, 1:]).backward()
        peaks[again] = torch.cuda.max_memory_allocated()
        del model, words
    assert peaks[True] < peaks[False]


@pytest.mark.parametrize("pinned", [False, True])
def test_activations_on_the_host_leave_the_gpu(pinned):
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to("cuda")
    x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
    net(x).sum().backward()  # from here on gradients and both threads' workspaces are there
    wanted, x.grad = x.grad.clone(), None
    before = torch.cuda.memory_allocated()
    plain = net(x).sum()
    kept = torch.cuda.memory_allocated() - before
    del plain
    with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
        away = net(x).sum()
    assert torch.cuda.memory_allocated() - before < kept - 4 * 4096 * 1024 * 4
    away.backward()
    assert torch.equal(x.grad, wanted)


def test_a_rehearsal_says_what_the_gpu_allocates():
    """Within 2 %, cuBLAS's workspaces aside: what `make gpu` measures for thirty configurations."""
    from benchmarks.gpu.train_once import train_once
    from workshop.rehearse import rehearse

    shape = {"name": "small", "num_layers": 4, "hidden_size": 512, "num_heads": 8, "vocab_size": 8192,
             "ffn_hidden_size": 1408, "tied_embeddings": True}  # fmt: skip
    told = {"model": shape, "precision": "amp-bf16", "recompute": "none", "micro_batch": 16, "seq_len": 512}
    rehearsed = rehearse(train_once, 1, keywords=told, pretend_cuda=True).peak_bytes
    a = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated()
    (a @ a).sum().item()
    workspaces = torch.cuda.memory_allocated() - before  # of the main thread; autograd's thread has one more
    torch.cuda.reset_peak_memory_stats()
    train_once(**told)
    measured = torch.cuda.max_memory_allocated() - 2 * workspaces - before
    assert measured == pytest.approx(rehearsed, rel=0.02)


def test_what_is_held_after_products_is_tensors_not_the_workspaces_of_cublas():
    count_from_here()
    weight = torch.ones(256, 256, device="cuda", requires_grad=True)
    (weight @ weight).sum().backward()
    assert held_bytes() == 2 * weight.nbytes


def test_what_is_held_after_a_layer_with_a_bias_is_the_layer():
    count_from_here()
    layer = nn.Linear(256, 256, device="cuda")
    x = torch.ones(4, 256, device="cuda")
    layer(x).sum().backward()
    assert held_bytes() == x.nbytes + 2 * sum(p.nbytes for p in layer.parameters())


def test_a_measured_step_holds_no_workspaces():
    weight = torch.ones(256, 256, device="cuda", requires_grad=True)
    with measure() as measured:
        (weight @ weight).sum().backward()
    assert measured.memory.peak_bytes < 16 * weight.nbytes


def test_shared_heads_in_fp32_keep_no_scores():
    """No fused kernel takes them as they are; the kernel that is left keeps heads * sequence^2 numbers."""
    from workshop.models.gpt import attend

    query = torch.randn(1, 8, 4096, 64, device="cuda", requires_grad=True)
    key = torch.randn(1, 2, 4096, 64, device="cuda", requires_grad=True)
    attend(query, key, key, is_causal=True).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    mixed = attend(query, key, key, is_causal=True)
    assert torch.cuda.memory_allocated() - before < 8 * 4096 * 4096 * 4 / 4
    del mixed
