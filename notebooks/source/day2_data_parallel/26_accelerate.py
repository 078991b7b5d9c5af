# %% [markdown]
# # One script, every engine
#
# - **You need** `22_ddp`, `24_zero` and `25_fsdp`, or the idea of them: what DDP, ZeRO and FSDP do.
# - **It takes** 40 minutes to read and try, less than a minute to run.
# - **What runs where:** everything runs here, on two ranks. These libraries need a GPU for each rank, so with fewer than two GPUs
#   all runs are on the CPU. On the CPU, `ranks_like_gpus()` lets the GPU branches of Accelerate and DeepSpeed run over gloo;
#   on GPUs it does nothing. The last part describes 64 GPUs and rehearses 512.
# - **Model and text:** `TINY` and the reference manual, as in lesson 22, so that only the engine is new. The files at the end are for Llama 3 8B, a
#   model that justifies 64 GPUs. The file that lies needs no model.
# - **Links:** before this [25_fsdp](25_fsdp.ipynb), after it [27_fewer_bytes](27_fewer_bytes.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# You have written ZeRO by hand, used PyTorch's FSDP, and seen DeepSpeed. Each one wraps the model, runs backward, clips gradients and saves in its
# own way. Must you choose the engine when you write the training script?
#
# With [Accelerate](https://github.com/huggingface/accelerate) you do not have to. The script calls `prepare` and `backward`, and a file that is
# read **when the script starts** names the engine. This is convenient, but it also moves the most consequential decision of a training run
# into a file that nobody tests. So we do two things in this lesson: we use Accelerate, and we learn to read its files.

# %%
# %load_ext workshop
import os

import numpy as np
import torch
import yaml

from workshop import Layout, Run, launch, predict_memory, show
from workshop.configs import (
    Overrides,
    accelerate_config,
    accelerate_environment,
    accelerate_yaml,
    find_mistakes,
    read_config,
)
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes
from workshop.exercises import beside
from workshop.launch.device import choose

# NCCL needs one GPU per rank: with fewer than two GPUs, all runs use the CPU
os.environ.update(choose(2, torch.accelerator.device_count()).environment())
folder = launch.Session.get().directory  # private; deleted when the kernel ends

# %% [markdown]
# ## The script
#
# We train a model with an optimizer, and a loader that gives each rank its part of every batch: 20 steps of 8 sequences. Nothing in this
# cell depends on an engine.

# %%
from torch.utils.data import DataLoader

from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches

STEPS, GLOBAL_BATCH, SEQ_LEN = 20, 8, 64
text = TextBatches(SEQ_LEN, GLOBAL_BATCH)
sequences = [text.sequence(number).long() for number in range(STEPS * GLOBAL_BATCH)]


def task(ranks):
    """The same first weights on every rank; a batch is divided among the ranks."""
    torch.manual_seed(0)
    model = GPT(TINY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-6)
    return model, optimizer, DataLoader(sequences, batch_size=GLOBAL_BATCH // ranks)


# %% [markdown]
# Two functions connect the program to this notebook: one reads a configuration file, the other returns the results.

# %%
import json
from pathlib import Path

from workshop import report


def obey(files):
    """What `accelerate launch --config_file FILE` does with FILE."""
    for file in files:
        variables = accelerate_environment(yaml.safe_load(Path(file).read_text()))
        os.environ.update(variables)


def hand_over(is_main, measured, **found):
    """To the notebook; from `accelerate launch`, which knows no notebook, by a file."""
    sent = [row.wire_bytes for row in measured.traffic]
    found["sent"] = sum(size for size in sent if size > 8)
    found["peak"] = measured.memory.peak_bytes
    if "RESULT" not in os.environ:
        report(**found)
    elif is_main:
        Path(os.environ["RESULT"]).write_text(json.dumps(found))


# %% [markdown]
# This is the program. Read it once from top to bottom: it never names DDP, FSDP or DeepSpeed. `--save` keeps it as a file. Here it runs on **one
# rank, with no configuration at all**. We will compare the other runs with this one. (There is no clock in it: on two CPU cores the ranks and their
# communication share the cores, and `TINY` really is tiny, so the time of a step would say little about the engines.)

# %%
# %%torchrun -n 1 --pass task,obey,hand_over,STEPS --into alone --save {folder}/train.py
import gc
import sys
import warnings
from contextlib import nullcontext

import torch

from workshop.measure import count_from_here, held_bytes, measure
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus

warnings.filterwarnings("ignore", category=FutureWarning)  # DeepSpeed's, about torch
obey(sys.argv[1:])
ranks_like_gpus()
from accelerate import Accelerator


def train():
    count_from_here()
    accelerator = Accelerator()
    ranks, losses = accelerator.num_processes, []
    model, optimizer, loader = accelerator.prepare(*task(ranks))  # here is the engine
    for batch in loader:
        with measure() if len(losses) == STEPS - 1 else nullcontext() as measured:
            loss = model(batch[:, :-1], batch[:, 1:])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    del batch, loss
    found = {"engine": type(model).__name__, "ranks": ranks, "losses": losses}
    hand_over(accelerator.is_main_process, measured, held=held_bytes(), **found)


train()
gc.collect()
torch.distributed.destroy_process_group()

# %% [markdown]
# ## Predict
#
# Now we make three configuration files. We describe the run that we want as a `Run`, and a function writes the file.

# %%
from workshop.facts.model import ModelSpec
from workshop.models.from_spec import gpt_config

tiny = ModelSpec(
    "TINY",
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    ffn_hidden_size=192,
    vocab_size=256,
)
assert gpt_config(tiny) == TINY, (
    "the model that is described is the model that is built"
)


def small(**layout) -> Run:
    """TINY on this machine in fp32, a global batch of 8."""
    how = Layout(precision="fp32", **layout)
    return Run(tiny, "this-machine", how, micro_batch=4, seq_len=SEQ_LEN)


engines = {
    "DDP": (small(replicate=2), "ddp"),
    "FSDP2": (small(shard=2, zero=3), "fsdp"),
    "ZeRO-2": (small(shard=2, zero=2), "deepspeed"),
}
for name, (run, engine) in engines.items():
    # "Layer" is the class of TINY's layers
    text = accelerate_yaml(run, engine, wrap_class="Layer")
    (folder / f"{name}.yaml").write_text(text)

# %% tags=["nbval-check-output"]
print((folder / "FSDP2.yaml").read_text())

# %% [markdown]
# The comments at the top are as important as the file. **Half of the run is not in the file:** batch, sequence length,
# optimizer and accumulation are in the script. If you start the script of one run with the file of another, you get no warning.
#
# What happens to the file? `accelerate launch` reads it, sets environment variables, and, for the three files of this lesson, starts the ranks as
# torchrun does. (Further down, a file makes it start a single process.) In every rank, `Accelerator()` reads the variables again. For FSDP2, the
# translation from file to variables takes a few lines:

# %% tags=["nbval-check-output"]
config = yaml.safe_load((folder / "FSDP2.yaml").read_text())
by_hand = {
    "ACCELERATE_MIXED_PRECISION": config["mixed_precision"],
    "ACCELERATE_USE_FSDP": "true",
}
for key, value in config["fsdp_config"].items():
    variable = key.upper().replace("TRANSFORMER_LAYER", "TRANSFORMER")
    by_hand[variable] = str(value).lower() if isinstance(value, bool) else str(value)
whole = accelerate_environment(config)
for variable, value in by_hand.items():
    print(f"{variable} = {value}")
print("and what the file leaves out:", ", ".join(sorted(whole.keys() - by_hand)))
assert by_hand.items() <= whole.items(), "the package's translation says the same"

# %% [markdown]
# (A test of this workshop compares the workshop's translation, for all engines, with Accelerate's own.)
#
# All runs below start from the same weights, and use the same global batch and the same optimizer, all in fp32.

# %%
# %%guess other_losses --choices none,DDP,FSDP2,ZeRO-2,all
# In 20 steps, which engines' losses differ from one rank's by 1e-5 or more?
...

# %%
# %%guess held --unit B
# And what do they cost? Between two steps the gradients are freed. How many bytes a
# parameter does each of two ranks hold under FSDP2, in fp32 with AdamW?
...

# %% [markdown]
# *Between* two steps, a rank holds weights (4 bytes a parameter) and AdamW's moments (8). On two ranks, FSDP2 cuts both in two, and ZeRO-2 only the
# moments. Two surprises come from the libraries' sources. Accelerate's DDP keeps its gradient buckets (4 bytes). DeepSpeed keeps a "master" copy of
# its part of the weights even in fp32, where this is a second copy of the same numbers.
#
# The bytes that a step sends follow from lessons 22, 24 and 25. Each number is to be multiplied by (N - 1)/N: DDP sends 2 x the weights, FSDP 3 x
# (less one gather of the root), and DeepSpeed's ZeRO-2 3 x, because it reduces with an all-reduce.

# %% tags=["nbval-check-output"]
parts = {  # bytes per parameter; what is divided by 2 is split between the two ranks
    "one rank": {"weights": 4, "moments": 8},
    "DDP": {"weights": 4, "moments": 8, "buckets": 4},
    "FSDP2": {"weights": 4 / 2, "moments": 8 / 2},
    "ZeRO-2": {"weights": 4, "moments": 8 / 2, "master copy": 4 / 2},
}
predicted = {name: sum(each.values()) for name, each in parts.items()}
parameters = engines["DDP"][0].model.num_params
rows = [
    (name, f"{each:.0f}", format_bytes(each * parameters))
    for name, each in predicted.items()
]
Table(("", "bytes a parameter", "a rank holds"), rows)

# %% [markdown]
# ## Run
#
# The program that we saved above now runs on two ranks, once with each file. We start FSDP2 as you will start your own runs, with the real
# `accelerate launch --config_file` in a process of its own. The other two runs get the same environment variables from our launcher, which is
# quicker.

# %%
import subprocess
import sys

launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
command = [*launcher, str(folder / "FSDP2.yaml"), str(folder / "train.py")]
print("$", " ".join(["accelerate launch", "--config_file", "FSDP2.yaml", "train.py"]))
result = str(folder / "fsdp.json")
environment = {**os.environ, "RESULT": result, "OMP_NUM_THREADS": "1"}
started = subprocess.run(
    command,
    env=environment,
    capture_output=True,
    text=True,
    timeout=240,
)
assert started.returncode == 0, started.stderr[-2000:]
found = {"one rank": dict(alone[0].items())}
found["FSDP2"] = json.loads((folder / "fsdp.json").read_text())

# %%
for name in ("DDP", "ZeRO-2"):
    script = launch.Script(folder / "train.py", (str(folder / f"{name}.yaml"),))
    found[name] = dict(launch.torchrun(script, 2)[0].items())

# %% [markdown]
# ## Compare

# %% tags=["nbval-check-output"]
truth, differing, rows = found["one rank"]["losses"], [], []
for name, result in found.items():
    pairs = zip(result["losses"], truth, strict=True)
    off = max(abs(loss - true) for loss, true in pairs)
    same = "yes" if off < 1e-5 else "no"
    rows.append((name, str(result["ranks"]), result["engine"], same))
    if off >= 1e-5:
        differing.append(name)
assert len(truth) == 20
assert truth[-1] < 0.7 * truth[0], "it has learned something"
assert [found[name]["ranks"] for name in engines] == [2, 2, 2]
Table(("", "ranks", "class of the prepared model", "one rank's losses, to 1e-5"), rows)

# %%
assert not differing, differing
beside("other_losses", predicted="none", measured=" ".join(differing) or "none")

# %% [markdown]
# All engines agree, to 1e-5. In fp32, the engine does not decide what is learned. It decides what the training costs:

# %%
weight_bytes = 4 * parameters
spec = engines["DDP"][0].model
ends = 1 if spec.tied_embeddings else 2  # embedding and head
root = 4 * (ends * spec.vocab_size + 1) * spec.hidden_size
sent = {
    "one rank": 0,
    "DDP": 2 * weight_bytes / 2,
    "FSDP2": (3 * weight_bytes - root) / 2,
    "ZeRO-2": 3 * weight_bytes / 2,
}
rows = []
for name, held in predicted.items():
    case = found[name]
    sizes = (held * parameters, case["held"], sent[name], case["sent"], case["peak"])
    shown = [format_bytes(size) for size in sizes]
    rows.append((name, *shown))
    assert abs(case["held"] / (held * parameters) - 1) < 0.02, name
    assert abs(case["sent"] - sent[name]) <= 0.02 * sent[name], name
assert found["FSDP2"]["held"] < found["ZeRO-2"]["held"] < found["DDP"]["held"]
assert 4 * 500_000_000 < found["ZeRO-2"]["peak"] < 4.25 * 500_000_000, "its bucket"
head = ("", "held: predicted", "measured", "sent: predicted", "measured", "peak")
display(Table(head, rows))
held = found["FSDP2"]["held"] / parameters
beside("held", predicted=predicted["FSDP2"], measured=held)

# %% [markdown]
# FSDP2 holds the least, and sends more than DDP. The next picture shows the same: on the left the 20 losses, as four lines on top of each other, and on
# the right what a rank holds and sends. Bars are predicted, diamonds measured.

# %%
show.engine_costs(
    {name: found[name]["losses"] for name in parts},
    {
        name: {part: size * parameters for part, size in each.items()}
        for name, each in parts.items()
    },
    sent,
    {name: (found[name]["held"], found[name]["sent"]) for name in parts},
)

# %% [markdown]
# The table has one more surprise, the peak of ZeRO-2: two gigabytes, for a model of half a megabyte. DeepSpeed sends gradients through a bucket
# (`reduce_bucket_size`). If the file does not set its size, it has 500,000,000 numbers, however small the model is. With 8 billion parameters
# nobody notices two more gigabytes. With our model, the bucket is nearly all of the peak.
#
# ### What the number of ranks changes
#
# `DataLoader(batch_size=...)` counts the sequences of *one* rank, so with more ranks the global batch grows. (That is why `task` divides by the
# number of ranks.) The scheduler changes as well:

# %%
# %%guess rate
# A scheduler halves the rate in each of its steps, from 1.0. It goes through `prepare`,
# and two ranks make one optimizer step and one scheduler step. What is the rate then?
...

# %%
# %%torchrun -n 2 --into scheduled
import torch
from accelerate import Accelerator

from workshop import report
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus

ranks_like_gpus()
accelerator = Accelerator()
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
halve = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
optimizer, halve = accelerator.prepare(optimizer, halve)
optimizer.step()
halve.step()
report(rate=halve.get_last_lr()[0])
torch.distributed.destroy_process_group()

# %%
assert scheduled[0].rate == 0.25
beside("rate", predicted=0.5**2, measured=scheduled[0].rate)

# %% [markdown]
# A prepared scheduler takes as many steps as there are ranks each time, unless you ask for `split_batches`. Accelerate assumes that the global batch
# has grown with the number of ranks, and that a schedule which was counted for one process has to advance as much faster. A schedule that you
# counted in optimizer steps therefore ends too early: with two ranks after half of the run, with 64 after a 64th of it. Nothing tells you.
#
# ### When engines do differ
#
# Here all numbers are fp32, and that is why the losses agree.
# [Hugging Face and IBM](https://huggingface.co/blog/deepspeed-to-fsdp-and-back) moved a run of Mistral 7B, loaded in bf16, from DeepSpeed to FSDP
# with Accelerate. With a learning rate of 1e-6, the loss had fallen under DeepSpeed, but it did not fall under FSDP; with 4e-6 it did. The reason:
# DeepSpeed updated its master copy in fp32, and FSDP updated the weights as they had been loaded, in bf16. AdamW's first step moves each weight by
# about the learning rate.

# %%
# %%guess changed --unit %
# A million weights in bf16, of the ordinary size 0.02 (as a standard deviation), shall
# all become smaller by 1e-6. What share of them changes at all?
...

# %%
weights = 0.02 * torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
moved = {}
for kind in (torch.float32, torch.bfloat16):
    for rate in (1e-6, 4e-6):
        before = weights.to(kind)
        moved[kind, rate] = (before - rate != before).float().mean().item()
assert moved[torch.float32, 1e-6] > 0.99
assert 3 < moved[torch.bfloat16, 4e-6] / moved[torch.bfloat16, 1e-6] < 5
assert moved[torch.bfloat16, 1e-6] < 0.05
rows = [
    (str(kind).removeprefix("torch."), f"{rate:g}", f"{share:.1%}")
    for (kind, rate), share in moved.items()
]
display(Table(("weights in", "size of the step", "weights that change"), rows))
beside("changed", measured=100 * moved[torch.bfloat16, 1e-6])

# %% [markdown]
# In bf16 the next larger number after 0.02 is 0.0001 away, so a step of a millionth is rounded back to nothing. Since version 0.30, Accelerate keeps
# FSDP's weights in fp32 as well, if the file says `mixed_precision: bf16`. With `'no'` it keeps the precision in which they were loaded.
#
# ### The same arithmetic, published
#
# DeepSpeed's documentation, [Memory Requirements](https://deepspeed.readthedocs.io/en/latest/memory.html), states what T5-3B needs on a node of 8
# GPUs in mixed precision. The model has 2,851 million parameters, of which the largest layer has 32 million. Weights and gradients take 2 bytes
# each. The master copy, its gradient and the two moments take 16 together. In stage 2 only these 16 are cut. In stage 3 the weights are cut as
# well. Weights and gradients in 16 bits are then whole for only one layer at a time, and the largest layer counts.

# %%
import logging

logging.disable(logging.WARNING)  # otherwise DeepSpeed logs which device it found
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

logging.disable(logging.NOTSET)
P, LAYER, N = 2_851_000_000, 32_000_000, 8
in_16_bits, in_fp32 = 2 + 2, 4 + 4 + 8
estimate = {
    "ZeRO-2, a GPU": in_16_bits * P + in_fp32 * P / N,
    "ZeRO-3, a GPU": in_16_bits * LAYER + (2 + in_fp32) * P / N,
    "the host": 1.5 * N * 4 * P,
}
published = {"ZeRO-2, a GPU": 15.93, "ZeRO-3, a GPU": 6.09, "the host": 127.45}
how = {"cpu_offload": False, "cpu_offload_params": False, "zero_init": False}
host, gpu, _ = estimate_zero3_model_states_mem_needs(P, LAYER, N, **how)
_, stage_2 = estimate_zero2_model_states_mem_needs(P, N, cpu_offload=False)
by_library = dict(zip(estimate, (stage_2, gpu, host), strict=True))
older = 4 * P + int(16 * P / N)  # what releases before 0.19 return
assert stage_2 in (2 * P + int(18 * P / N), older), "16-bit gradients are cut, too"
rows = []
for name, size in estimate.items():
    sizes = (size / 2**30, published[name], by_library[name] / 2**30)
    rows.append((name, *(f"{each:.2f}" for each in sizes)))
    assert round(size / 2**30, 2) == published[name]
    assert name.startswith("ZeRO-2") or by_library[name] == int(size)
Table(("GiB", "by hand", "documented", "DeepSpeed's function"), rows)

# %% [markdown]
# (The page calls them GB. The function for stage 2 has changed since it was written: DeepSpeed 0.19 cuts the 16-bit gradients as well.)
#
# Look at the line for the host. Before any engine cuts anything, each of the 8 processes makes the whole model in fp32, as our `task` does. The
# factor of 1.5 is a safety margin. For Llama 2 70B the authors of [this guide](https://huggingface.co/blog/ram-efficient-pytorch-fsdp) count
# "70\*4\*8 GB ~ 2TB" in a node of 1 TB. The keys `zero3_init_flag` and `fsdp_cpu_ram_efficient_loading` avoid this.
#
# ## The same loop in another library
#
# [Lightning Fabric](https://github.com/Lightning-AI/pytorch-lightning) follows the same idea, but the engine is an argument instead of
# a file. Compare this loop with the one above and look for the differences.

# %%
# %%torchrun -n 2 --pass task --into fabric_losses
import gc
import logging
import os
import warnings

import torch
from lightning.fabric import Fabric

from workshop import report

logging.disable(logging.INFO)  # Fabric logs each rank as it joins
warnings.filterwarnings("ignore")


def train() -> None:
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = Fabric(strategy="ddp", devices=devices)  # on GPUs also "fsdp", "deepspeed"
    fabric.launch()
    model, optimizer, loader = task(fabric.world_size)
    model, optimizer = fabric.setup(model, optimizer)  # accelerator.prepare
    loader = fabric.setup_dataloaders(loader)
    losses = []
    for batch in loader:
        loss = model(batch[:, :-1], batch[:, 1:])
        fabric.backward(loss)  # accelerator.backward
        optimizer.step()
        optimizer.zero_grad()
        mean = fabric.all_gather(loss.detach()).mean()  # accelerator.gather
        losses.append(mean.item())
    report(losses=losses)


train()
gc.collect()
torch.distributed.destroy_process_group()

# %% tags=["nbval-check-output"]
pairs = zip(fabric_losses[0].losses, truth, strict=True)
off = max(abs(loss - true) for loss, true in pairs)
print("Fabric's DDP and one rank, the same 20 losses:", off < 1e-5)
assert off < 1e-5, off

# %% [markdown]
# ## A file that lies
#
# The next file asks for two processes on a machine without GPUs. `accelerate config` writes one like it if you answer "multi-CPU". We start
# the file with the real `accelerate launch`, and every process prints its rank.

# %%
# %%guess processes
# The file below has num_processes: 2. How many processes will train?
...

# %% tags=["nbval-check-output"]
two_processes = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
use_cpu: true
num_machines: 1
num_processes: 2
mixed_precision: 'no'
"""
(folder / "two.yaml").write_text(two_processes)
(folder / "who.py").write_text(
    "from accelerate import Accelerator\n"
    "a = Accelerator()\n"
    "print(f'I am rank {a.process_index} of {a.num_processes}')\n"
)
started = subprocess.run(
    [*launcher, folder / "two.yaml", folder / "who.py"],
    capture_output=True,
    text=True,
    timeout=240,
)
print(f"{started.stdout}exit code {started.returncode}")
assert started.stdout == "I am rank 0 of 1\n"
assert started.returncode == 0

# %%
beside("processes", predicted=2, measured=started.stdout.count("I am rank"))

# %% [markdown]
# Only one process ran, the exit code is 0, and the output above says nothing about the missing process. With a longer script, you would have trained
# for a night on half of the machine, with half of the batch. Nothing in the script is wrong. But one more line in it would have caught the error,
# `assert accelerator.num_processes == 2`, and so would a check of the file:

# %% tags=["nbval-check-output"]
for mistake in find_mistakes(two_processes):
    print(mistake)

# %% [markdown]
# ### Exercise: read six files
#
# None of these files gives an error when it starts. The first line of each says what its author wanted. To judge them, you need to know these keys:
#
# | key | what it does |
# |---|---|
# | `num_processes` | counts the processes of **all** machines |
# | `use_cpu` | the launchers of `FSDP` and `MULTI_GPU` do not read it: without GPUs their processes start, but do not find each other |
# | `fsdp_auto_wrap_policy` | without `TRANSFORMER_BASED_WRAP` the class named below it is ignored, and the model is one unit |
# | `fsdp_reshard_after_forward` | FSDP version 2: `false` keeps weights until backward |
# | `fsdp_sharding_strategy` | the same choice in version 1; version 2 does not read it |
# | `zero3_init_flag` | ZeRO-3: layers are cut as they are made |
# | `zero3_save_16bit_model` | ZeRO-3: whole weights can be saved; without it no rank has them |
# | `offload_optimizer_device` | `cpu`: the optimizer lives in the host's memory |

# %% tags=["nbval-check-output"]
from workshop.exercises.wrong_settings.files import FILES

for letter, text in FILES.items():
    print(f"--- {letter} ---\n{text}")


# %%
# %%exercise wrong_settings
def wrong_settings() -> dict[str, str]:
    """For each file the key that is wrong or missing; "nothing" for the right one."""
    return {
        "a": ...,
        "b": ...,
        "c": ...,
        "d": ...,
        "e": ...,
        "f": ...,
    }


# %% [markdown]
# `find_mistakes` checks the same files, and the next cell prints its verdicts beside your answers. `find_mistakes` accepts any file of this
# kind, Accelerate's YAML or DeepSpeed's JSON. In a terminal, use `workshop configs read FILE`.

# %% tags=["nbval-check-output"]
loop = Overrides(device="H100", program="accelerate")  # a plain loop, no Trainer
yours, rows = wrong_settings(), []
for letter, text in FILES.items():
    mistakes = find_mistakes(text, loop)
    verdict = str(mistakes[0]) if mistakes else "no mistake found"
    problem, _, cure = verdict.partition("\n    cure: ")
    rows.append((letter, yours[letter], problem, cure))
    assert bool(mistakes) == (yours[letter] != "nothing")
Table(("file", "your answer", "what find_mistakes finds", "its cure"), rows)

# %% [markdown]
# One more mistake deserves attention, because it costs days. DeepSpeed clips gradients by itself, and ignores the `max_norm` in the script's
# `accelerator.clip_grad_norm_`. What counts is `gradient_clipping` in Accelerate's file:
#
# - **No value**: Accelerate writes `auto`, and `prepare` replaces it by 1.0.
# - **`0`**: Accelerate drops it, and DeepSpeed's default decides. Version 0.19 clips at 1.0; earlier versions did not clip.
# - **Another number** is passed on.
#
# (In a JSON file for DeepSpeed alone, as in lesson 24, `0.0` does mean off.) That is why the DeepSpeed files written here always contain a number.

# %% tags=["nbval-check-output"]
from accelerate import DeepSpeedPlugin

rows = []
for clip, expected in ((None, "auto"), (0.0, "nothing"), (1e9, 1e9)):
    config = DeepSpeedPlugin(gradient_clipping=clip).deepspeed_config
    passed = config.get("gradient_clipping", "nothing")
    rows.append(("no value" if clip is None else f"{clip:g}", str(passed)))
    assert passed == expected
display(Table(("gradient_clipping in the file", "DeepSpeed is given"), rows))
zero2 = accelerate_config(small(shard=2, zero=2), "deepspeed")
zero2["deepspeed_config"]["gradient_clipping"] = 0
print(find_mistakes(zero2, Overrides(program="accelerate"))[0])

# %% [markdown]
# ### Exercise: complete a file


# %%
# %%exercise fsdp_file
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """FSDP2 over all GPUs, a unit for each `layer`; weights stay until backward."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": ...,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": ...,
            "fsdp_reshard_after_forward": ...,
            "fsdp_auto_wrap_policy": ...,
            "fsdp_transformer_layer_cls_to_wrap": ...,
        },
    }


# %% [markdown]
# Does your file do what it is for? Here it runs: the same program as above, on one machine with two processes (in fp32, as the others).

# %%
# %%guess kept_sends --choices DDP,FSDP2,ZeRO-2
# Whose bytes will a rank send in a step under your file: as many as DDP (513 KiB), as
# FSDP2 above (706 KiB), or as DeepSpeed's ZeRO-2 (770 KiB)?
...

# %%
mine = fsdp_file(1, 2, "Layer") | {"mixed_precision": "no"}
(folder / "mine.yaml").write_text(yaml.dump(mine))
script = launch.Script(folder / "train.py", (str(folder / "mine.yaml"),))
found["your file"] = dict(launch.torchrun(script, 2)[0].items())

# %%
compared, rows = ("DDP", "FSDP2", "ZeRO-2", "your file"), []
for name in compared:
    sizes = [format_bytes(found[name][key]) for key in ("held", "sent")]
    rows.append((name, *sizes))
once = 2 * weight_bytes / 2  # one gather and one reduce-scatter
assert abs(found["your file"]["sent"] - once) < 0.02 * once
assert abs(found["your file"]["held"] / found["FSDP2"]["held"] - 1) < 0.02
assert max(map(abs, np.subtract(found["your file"]["losses"], truth))) < 1e-5
display(Table(("", "a rank holds", "a rank sends"), rows))
near = min(
    compared[:3], key=lambda n: abs(found[n]["sent"] - found["your file"]["sent"])
)
beside("kept_sends", predicted="DDP", measured=near)

# %% [markdown]
# With one gather and one reduce-scatter, sharding costs no more traffic than DDP, and between two steps a rank holds as little as with FSDP2. The
# price is paid within the step: from forward until backward every rank has all weights.
#
# `read_config` works in the opposite direction: it turns your file into the `Run` that the file describes. You have to add what only the script
# knows.

# %% tags=["nbval-check-output"]
overrides = Overrides(
    model="llama-3-8b",
    device="H100",
    micro_batch=1,
    seq_len=8192,
    accumulation=8,
)
written = yaml.dump(fsdp_file(8, 8, "LlamaDecoderLayer"))
asked = read_config(written, overrides).run
cut = asked.layout
print(f"{asked.cluster.name}: shard {cut.shard}, ZeRO stage {cut.zero}")
assert (cut.shard, cut.zero) == (64, 2), "weights are gathered once, as in stage 2"

# %% [markdown]
# ## At scale: 64 GPUs
#
# Now we plan Llama 3 8B on 8 nodes of 8 H100s, with a global batch of 512 sequences of 8,192 tokens. The next cells show what we want, the file for
# it, and how much memory it will need:

# %%
large = Run(
    "llama-3-8b",
    "64xH100",
    Layout(shard=64, zero=3, recompute="full"),
    micro_batch=1,
    seq_len=8192,
    global_batch=512,
)
text = accelerate_yaml(large)

# %% tags=["nbval-check-output"]
print(text)

# %%
predict_memory(large)

# %% [markdown]
# Which lines of the file decide whether the model fits?

# %%
# %%guess decides --choices GPUs,checkpointing
# Llama 3 8B, fully sharded, without checkpointing on 8 H100s. Which saves more memory
# on each GPU: 512 GPUs in place of 8, or `fsdp_activation_checkpointing: true`?
...

# %% [markdown]
# Each slider is a line of the file. Start without checkpointing on 8 GPUs. How much does each line save, and which combinations fit?

# %%
from workshop.jupyter.explorer import Control, explore


def planned(num_processes, reshard_after_forward, activation_checkpointing):
    """The memory of one GPU under a file with these three lines."""
    layout = Layout(
        shard=num_processes,
        zero=3 if reshard_after_forward else 2,
        recompute="full" if activation_checkpointing else "none",
    )
    cluster = f"{num_processes}xH100"
    return predict_memory(
        Run("llama-3-8b", cluster, layout, micro_batch=1, seq_len=8192)
    )


def draw_planned(**lines):
    """The prediction as a bar, with what the device has."""
    memory = planned(**lines)
    title = ", ".join(f"{name}: {str(value).lower()}" for name, value in lines.items())
    picture = {"one GPU": memory}
    return show.memory_by_part(picture, cap=memory.capacity, title=title)


switch = (True, False)
explore(
    draw_planned,
    [
        Control("num_processes", 8, (8, 16, 32, 64, 512)),
        Control("reshard_after_forward", True, switch),
        Control("activation_checkpointing", False, switch),
    ],
)

# %%
before, more_gpus, checkpointed = (
    planned(*lines).allocated[0]
    for lines in ((8, True, False), (512, True, False), (8, True, True))
)
saved = {"GPUs": before - more_gpus, "checkpointing": before - checkpointed}
rows = [(name, format_bytes(size)) for name, size in saved.items()]
assert saved["checkpointing"] > 3 * saved["GPUs"]
display(Table(("", "saves on each GPU"), rows))
beside("decides", calculated=max(saved, key=saved.get))

# %% [markdown]
# At 8,192 tokens the activations are most of what a GPU holds, and sharding does not cut them. One line of the file saves more than 504 GPUs. (The
# bar is what PyTorch allocates. The reserve and the CUDA context come on top, so a bar close to the line may not fit.)
#
# The other direction works as well. If you add what the file does not contain, `read_config` returns the same `Run`, field by field:

# %% tags=["nbval-check-output"]
reading = read_config(text, overrides)
print(reading)
assert reading.run == large

# %% [markdown]
# The note in the output is important. `accumulate()` saves traffic by reducing only after the last micro-batch. Under FSDP2
# the price is that each rank keeps *whole* gradients until then (lesson 25 measured it). For 8 billion parameters they take
# 16 GB on each of 64 GPUs, because Accelerate reduces in bf16. And this happens in a run that shards everything else.
# `sync_each_batch=True`, as in the file's comment, keeps the gradients sharded.
#
# ### The lesson's own loop on 512 ranks
#
# Does the file do what we think when there are 512 ranks? You do not have to rent them to find out. The next cell is the loop from above with the
# file for 512 GPUs, executed as **one** rank of 512 on tensors without content. Predict first: full sharding gathers the weights for forward and
# again for backward, and reduce-scatters the gradients, all in bf16: $3 \cdot 2P \cdot \frac{511}{512}$ bytes. But the embedding and the head
# belong to the root unit, which is gathered once and kept, so they save one of the two gathers.

# %%
layout = Layout(shard=512, zero=3, recompute="full")
run = Run("llama-3-8b", "512xH100", layout, seq_len=2048)
at_512 = accelerate_config(run, wrap_class="Layer")
spec = large.model
root = 2 * spec.vocab_size * spec.hidden_size + spec.hidden_size  # both ends and a norm
closed_form = {
    "all_gather": 2 * (2 * spec.num_params - root) * 511 / 512,
    "reduce_scatter": 2 * spec.num_params * 511 / 512,
}

# %%
# %%rehearse -n 512 --pass at_512 --into rehearsed
import os
import warnings

import torch

from workshop.configs import accelerate_environment
from workshop.facts.catalogue import model as known_model
from workshop.models.from_spec import gpt_config
from workshop.models.gpt import GPT
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus

warnings.filterwarnings("ignore", category=FutureWarning)
os.environ.update(accelerate_environment(at_512))
ranks_like_gpus()
from accelerate import Accelerator

accelerator = Accelerator()
model = GPT(gpt_config(known_model("llama-3-8b")))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(2):
    batch = torch.randint(0, 128_256, (1, 2049), device=accelerator.device)
    loss = model(batch[:, :-1], batch[:, 1:])
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()

# %%
show.traffic_table(rehearsed)

# %%
sent = dict.fromkeys(closed_form, 0.0)
for entry in rehearsed.traffic:
    sent[entry.name] += entry.wire_bytes
rows = []
for name, expected in closed_form.items():
    rows.append((name, f"{expected / 1e9:.2f} GB", f"{sent[name] / 1e9:.2f} GB"))
    assert abs(sent[name] / expected - 1) < 0.01
Table(("", "closed form", "rehearsed"), rows)

# %% [markdown]
# There are 65 gathers, two for each of 32 layers and one for the root, and 33 reduce-scatters, one for each layer and one for the root. So the
# wrapping in the file worked: there is one unit for each layer. If `fsdp_auto_wrap_policy` had been missing (file `b`), there would have been a
# single gather and a single reduce-scatter, of 16 GB each.
#
# ## Tomorrow's script
#
# This script works without this workshop. On GPUs, `accelerate launch --config_file FSDP2.yaml train_accelerate.py` takes the engine from a file. The
# file above wraps the class `Layer`, so the script uses that name. Plain `torchrun` gives DDP. The assert is the line that was missing above. It
# compares the number of processes with `RANKS`, a variable that only you set, and no launcher: a launcher's own `WORLD_SIZE` would agree with the
# file even where the file is wrong. If you do not set `RANKS`, the script expects two processes. For eight, run `RANKS=8 torchrun --nproc-per-node 8
# train_accelerate.py`.

# %%
os.environ["CHECKPOINT"] = str(folder / "train_accelerate")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/train_accelerate.py
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

on_cpu = not torch.cuda.is_available()
accelerator = Accelerator(cpu=on_cpu, gradient_accumulation_steps=2)
wanted = int(os.environ.get("RANKS", "2"))  # what you asked for
found = accelerator.num_processes
assert found == wanted, f"RANKS is {wanted}, and {found} processes train together"


class Layer(torch.nn.Sequential):
    """What the file calls fsdp_transformer_layer_cls_to_wrap."""


inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
loader = DataLoader(dataset, batch_size=16, shuffle=True)
network = torch.nn.Sequential(
    Layer(torch.nn.Linear(16, 64), torch.nn.GELU()), torch.nn.Linear(64, 1)
)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(network, optimizer, loader)
saved, first = Path(os.environ.get("CHECKPOINT", "train_accelerate")), 0
whole = [int(path.parent.name) for path in saved.glob("*/complete")]
if whole:
    accelerator.load_state(str(saved / str(max(whole))))
    first = max(whole) + 1

for epoch in range(first, first + 3):
    loader.set_epoch(epoch)
    total = torch.zeros(1, device=accelerator.device)
    for x, y in loader:  # already on the device; each rank gets its own part
        with accelerator.accumulate(model):
            loss = (model(x) - y).square().mean()
            accelerator.backward(loss)
            optimizer.step()  # skipped except after the last micro-batch
            optimizer.zero_grad()
        total += loss.detach() / len(loader)
    mean = accelerator.gather(total).mean().item()
    accelerator.print(f"epoch {epoch}: mean loss {mean:.3f}")
    accelerator.save_state(str(saved / str(epoch)))
    accelerator.wait_for_everyone()  # all parts are written
    if accelerator.is_main_process:
        (saved / str(epoch) / "complete").touch()  # last: a killed save has none
accelerator.wait_for_everyone()  # no rank exits before the file is written
accelerator.end_training()

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("26_accelerate", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - The engine changes the cost, not the result: in fp32 the same script gave the same 20 losses under all of them. In bf16, ask which weights an
#   engine updates.
# - `accelerate launch` turns a file into environment variables and starts processes: as torchrun does, or, for some files, only one.
# - Half of a run is in the file, half in the script. `num_processes` counts the processes of all machines together.
# - Wrong configurations fail silently: they run the wrong number of processes, wrap nothing, clip although you did not ask for it, or train weights
#   that cannot be saved. **Assert what you asked for**, in the script, before the first step.
# - Write such files from one description, check files that others wrote, and know how much memory they need before you queue a job.
#
# Next: [27_fewer_bytes](27_fewer_bytes.ipynb). What if the wire is slow?
#
# ## Sources
#
# - S. Gugger et al., *Accelerate*, github.com/huggingface/accelerate, version 1.15: `commands/launch.py`, `utils/launch.py`,
#   `utils/dataclasses.py`.
# - DeepSpeed, github.com/deepspeedai/DeepSpeed, version 0.19: `runtime/config.py`, `runtime/zero/config.py`.
# - S. Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020,
#   [arXiv:1910.02054](https://arxiv.org/abs/1910.02054), section 7.
# - Y. Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, VLDB 2023,
#   [arXiv:2304.11277](https://arxiv.org/abs/2304.11277).
# - DeepSpeed documentation, *Memory Requirements*, [deepspeed.readthedocs.io](https://deepspeed.readthedocs.io/en/latest/memory.html).
# - F. Lim, Z. Mueller, S. Bekman, *From DeepSpeed to FSDP and Back Again with Hugging Face Accelerate*,
#   [huggingface.co](https://huggingface.co/blog/deepspeed-to-fsdp-and-back).
# - S. Mangrulkar et al., *Fine-tuning Llama 2 70B using PyTorch FSDP*, [huggingface.co](https://huggingface.co/blog/ram-efficient-pytorch-fsdp).
# - Lightning Fabric, github.com/Lightning-AI/pytorch-lightning.
