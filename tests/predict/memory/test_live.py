"""The closed form against what torch really allocates on this CPU, for transformers' Llama and GPT-2.

Peaks are those of torch's own allocator: c10's counter is switched on before any tensor exists, and the
profiler reports the total after every allocation. Each case runs in a process of its own, forked from one rank
that has imported transformers.
"""

import pytest

from tests.installed import skip_without
from workshop import launch
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory

skip_without("transformers")

PROGRAM = """
import ctypes, os, torch
from torch._C._profiler import _EventType as EventType
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from workshop import report

CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM), "gpt2": (GPT2Config, GPT2LMHeadModel)}
c10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
torch.set_num_threads(1)

def peak_of(case):
    ctypes.c_bool.in_dll(c10, "FLAGS_caffe2_report_cpu_memory_usage").value = True
    make_config, make_model = CLASSES[case["kind"]]
    config = make_config(**case["fields"], use_cache=False)
    model = make_model(config).to(getattr(torch, case["dtype"])).train()
    if case["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[case["optimizer"]]
    optimizer = make(model.parameters(), lr=1e-3, foreach=True)
    tokens = torch.randint(0, config.vocab_size, (2, LENGTH))

    def step():
        for _ in range(case["accumulation"]):
            model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def largest(node):
        own = node.extra_fields.total_allocated if node.tag == EventType.Allocation else 0
        return max([own, *(largest(child) for child in node.children)])

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    return max(largest(root) for root in trace.profiler.kineto_results.experimental_event_tree())

for name, case in CASES.items():
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(into, str(peak_of(case)).encode())
        os._exit(0)
    os.close(into)
    said = os.read(out, 100)
    assert os.waitpid(child, 0)[1] == 0 and said, f"{name} could not be measured"
    report(**{name: int(said)})
"""

LENGTH = 128  # a CPU without instructions for bfloat16 multiplies it fifty times as slowly as float32
LLAMA = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
GPT2 = {"vocab_size": 4096, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 512}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def spec_of(kind):
    if kind == "llama":
        return ModelSpec("llama", 4, 256, 4, 4096, ffn_hidden_size=704, num_kv_heads=2)
    return ModelSpec(
        "gpt2", 4, 256, 4, 4096, positions="learned", max_positions=512, norm="layernorm", gated_mlp=False,
        qkv_bias=True, attention_out_bias=True, mlp_bias=True, tied_embeddings=True,
    )  # fmt: skip


CASES = {
    f"{kind} {dtype} {optimizer}": {
        "kind": kind,
        "fields": LLAMA if kind == "llama" else GPT2 | NO_DROPOUT,
        "dtype": dtype,
        "optimizer": optimizer,
        "recompute": recompute,
        "accumulation": accumulation,
    }
    for kind in ("llama", "gpt2")
    for dtype, optimizer, recompute, accumulation in (
        ("float32", "adamw", False, 1),
        ("bfloat16", "adamw", False, 1),
        ("float32", "sgd", True, 2),
        ("bfloat16", "sgd", True, 1),
    )
}


@pytest.fixture(scope="module")
def measured(loaded_engine):
    variables = {"CASES": CASES, "LENGTH": LENGTH}
    return launch.torchrun(PROGRAM, 1, variables=variables, limits=launch.Limits(timeout=200))[0]


@pytest.mark.parametrize("name", CASES)
def test_closed_form_against_measured(measured, name):
    case = CASES[name]
    precision = "fp32" if case["dtype"] == "float32" else "bf16"
    run = Run(
        spec_of(case["kind"]),
        "this-machine",
        Layout(precision=precision, recompute="full" if case["recompute"] else "none"),
        micro_batch=2,
        seq_len=LENGTH,
        accumulation=case["accumulation"],
        optimizer=case["optimizer"],
        implementation=implementation("transformers"),
    )
    assert predict_memory(run).peak_bytes == pytest.approx(measured[name], rel=0.06)
