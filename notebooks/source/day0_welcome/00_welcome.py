# %% [markdown]
# # Welcome: four ranks on your own machine
#
# - **You need** Python and a little PyTorch (tensors, a training step). Nothing about clusters.
# - **It takes** fifteen minutes to read and try, under one to run.
# - **What runs where:** everything here runs now, on this machine: on the CPU with two cores if that is
# what you have, on GPUs if you have them. The cells do not change.
# - **Links:** after it [11_numbers_and_tensors](../day1_one_device/11_numbers_and_tensors.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A model that does not fit on one **device** (a CPU, or a GPU) is trained by many processes that send each other data.
# Each of them is called a **rank**. Does your machine play along, and what is a cell that runs on
# four ranks at once?

# %%
# %load_ext workshop
from workshop.exercises import beside

# %% [markdown]
# ## Does the machine play along?
#
# The doctor looks at what the workshop needs: Python, torch, devices, memory, ports, and two real ranks that
# agree on a number. Each look takes a moment and shows a dot. A verdict is `ok`, `note` (it works, but know
# this) or `no`, with what to do. All lines: `workshop doctor` in a terminal.

# %%
from workshop.doctor import diagnose, summary

diagnosis = diagnose(on_line=lambda line: print(".", end="", flush=True))
print("\n" + summary(diagnosis))
print(*[line for line in diagnosis if line.verdict != "ok"], sep="\n")

# %% [markdown]
# ## Four ranks by hand
#
# A rank is a process like any other. So you need nothing new to have four of them: start the same program four times, and tell each copy
# its number in a variable of its environment.

# %% tags=["nbval-check-output"]
import os
import subprocess
import sys

program = """
import os
print("I am rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""
started = []
for rank in range(4):
    variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4"}
    options = {"env": variables, "stdout": subprocess.PIPE, "text": True}
    started.append(subprocess.Popen([sys.executable, "-c", program], **options))
printed = [process.communicate()[0] for process in started]
print(*printed, sep="", end="")
assert printed == [f"I am rank {rank} of 4\n" for rank in range(4)]

# %% [markdown]
# ## A parallel cell
#
# On a cluster the command `torchrun` starts the copies, and here a cell that begins with `%%torchrun -n 4` does. Such a cell is a
# **program**: it does not run in the notebook, but in four fresh processes, and each runs all of it. They differ in one number only, the
# rank.

# %%
from workshop import show

show.parallel_cell(ranks=4)

# %% tags=["nbval-check-output"]
# %%torchrun -n 4 --into launched
import os

from workshop import report

line = f"I am rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
print("the same line on every rank")
print(line)
report(line=line)

# %% [markdown]
# The output is one text, in the order of the ranks. A line that several ranks printed appears once, with their numbers.
#
# `report(...)` hands values to the notebook, and `--into` keeps them by rank. So we can see whether these ranks printed what ours printed:

# %%
assert [launched[rank].line + "\n" for rank in range(4)] == printed

# %% [markdown]
# What a launcher adds to our loop with `Popen`: an address where the ranks find each other (`MASTER_ADDR`, `MASTER_PORT`), and an eye on all of
# them, so that none is left waiting when another one dies.
#
# ## Ranks that stay
#
# A program begins with nothing and ends. To explore, you want ranks that remember. `%%ranks` keeps them between cells. `torch`, `dist`,
# `rank`, `world_size` and `device` are there from the start.

# %% tags=["nbval-check-output"]
# %%ranks -n 4
x = torch.tensor([rank + 1.0], device=device)
print("holds", x.item())

# %% [markdown]
# ## Predict: what do they add up to?
#
# Now the ranks exchange data. They hold 1, 2, 3 and 4, and in the end each of them shall hold the sum. That takes nothing but sending and
# receiving: rank 0 collects, adds, and sends the sum back.

# %%
# %%guess total
# What will rank 2 hold afterwards?
...

# %% [markdown]
# ## Run


# %% tags=["nbval-check-output"]
# %%ranks
def all_reduce_by_hand(x):
    """Every rank's x becomes the sum of all."""
    if rank == 0:
        other = torch.empty_like(x)
        for source in range(1, world_size):
            dist.recv(other, source)
            x += other
        for target in range(1, world_size):
            dist.send(x, target)
    else:
        dist.send(x, 0)
        dist.recv(x, 0)


by_hand = x.clone()
all_reduce_by_hand(by_hand)
print("by hand:", by_hand.item())

# %% [markdown]
# PyTorch has one call for it, `dist.all_reduce`, which all ranks make together. Such a call is a **collective**. The tensor `x` is still
# there from the first `%%ranks` cell:

# %% tags=["nbval-check-output"]
# %%ranks
dist.all_reduce(x)
assert torch.equal(by_hand, x)
print("all_reduce:", x.item())

# %% [markdown]
# Ours sends all the traffic through rank 0. Lesson 21 shows how to share it fairly.
#
# On a cluster the same is a program, and in a fresh program nothing is there from the start. It takes a device, joins the other ranks, and
# leaves them at its end:

# %% tags=["nbval-check-output"]
# %%torchrun -n 4 --into results
import torch
import torch.distributed as dist

from workshop import report

dist.init_process_group()  # gloo on CPU, NCCL on GPUs
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
x = torch.tensor([dist.get_rank() + 1.0], device=device)
print("before", x.item())
dist.all_reduce(x)
print("after", x.item())
report(total=x.item())
dist.destroy_process_group()

# %%
assert [results[rank].total for rank in range(4)] == [10.0] * 4
beside("total", predicted=1 + 2 + 3 + 4, measured=results[2].total)

# %% [markdown]
# Here every rank has a whole processor core or GPU for itself, if there are enough. With fewer GPUs than ranks they run
# on the CPU; the line above the output says which. The library underneath that carries the tensors is **gloo** on CPUs
# and **NCCL** on GPUs.
#
# ## Break it
#
# Distributed programs fail in a way of their own: one rank stumbles, the others wait for it. Run this:
# rank 1 raises an error while the others sit in a barrier, waiting for all.

# %% tags=["raises-exception"]
# %%ranks
if rank == 1:
    raise ValueError("rank 1 has had enough")
dist.barrier()

# %% [markdown]
# You read who failed first, on which line, and where each of the others was. They were waiting in a
# call that would never have returned. The workshop cut their connections, so that they could go on. Nothing is
# lost, and the ranks are together again:

# %% tags=["nbval-check-output"]
# %%ranks
dist.all_reduce(x)
print("x was kept, and four times 10 is", x.item())

# %% [markdown]
# ## Compare: a prediction beside a measurement
#
# Every lesson says what it expects before it looks. Here is a small one. To train a parameter with
# AdamW in fp32, a rank keeps **four values** for it: the weight, its gradient, and the optimizer's two
# moments. Four values of four bytes: **16 bytes a parameter**.
#
# So a layer with 1,000 x 1,000 weights should make each rank hold 16 MB (that is 15.3 MiB).

# %%
parameters = 1_000 * 1_000
predicted = 16 * parameters

# %%
# %%guess halfway --unit MB
# After the first backward, and before the optimizer's first step: how many MB?
...

# %% [markdown]
# `--pass` gives the ranks a variable of this notebook. `held_bytes()` adds up the bytes of all tensors that a rank has made since
# `count_from_here()` and still holds. On a GPU that is `torch.cuda.memory_allocated()`.

# %%
# %%torchrun -n 2 --pass parameters --into measured
import torch

from workshop import report
from workshop.measure import count_from_here, held_bytes

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
side = int(parameters**0.5)
batch = torch.ones(1, side, device=device)
count_from_here()
layer = torch.nn.Linear(side, side, bias=False, device=device)
weights = held_bytes()
assert abs(weights / layer.weight.nbytes - 1) < 0.01
optimizer = torch.optim.AdamW(layer.parameters())
layer(batch).sum().backward()
gradients = held_bytes()
optimizer.step()
report(after_backward=gradients, after_step=held_bytes(), weights=weights)

# %%
moments = ["the weights", "after backward", "after the first step"]
expected = [4 * parameters, 8 * parameters, predicted]
found = [measured[0].weights, measured[0].after_backward, measured[0].after_step]
for want, have in zip(expected, found, strict=True):
    assert abs(have / want - 1) < 0.01
show.predicted_and_measured(moments, expected, found)

# %%
beside("halfway", predicted=expected[1] / 1e6, measured=found[1] / 1e6)

# %% [markdown]
# (The picture counts in MiB, of $2^{20}$ bytes: 7.6 MiB are 8 MB.) The optimizer's half appears only with its first step. So a run can survive its first step and run out of memory in the second.
#
# What one parameter took tells what a model takes. The example of the ZeRO paper is GPT-2, with 1.5 billion parameters: 3 GB of
# weights in 16 bits, and at least 24 GB to train it (Rajbhandari et al., 2020, section 3.1). They count 2 + 2 + 12 bytes, as training in
# mixed precision holds them (lesson 13); in fp32 it is 4 + 4 + 8. The sum is the same:

# %% tags=["nbval-check-output"]
a_parameter, gpt_2 = found[-1] / parameters, 1.5e9
gigabytes = {"weights": 2 * gpt_2 / 1e9, "training": a_parameter * gpt_2 / 1e9}
published = {"weights": 3, "training": 24}
for name, size in gigabytes.items():
    print(f"GPT-2, {name}: {size:.0f} GB, published {published[name]} GB")
    assert round(size) == published[name]

# %% [markdown]
# ## Exercise: who does what?
#
# Your turn. Run the cell as it is, and it says what it wants: together the ranks take each item once, and none of them gets more than one item
# more than another. Which items a rank takes is up to you.
#
# Replace the `...`. The check runs your function on four real ranks. If it is wrong, you read why, and a hint; run
# it again for the next hint. What you wrote is what the next cell runs. Leave it unsolved if you like: then it runs
# the reference solution.


# %%
# %%exercise who_am_i
def my_share(items: list, rank: int, world_size: int) -> list:
    """The items that this rank works on."""
    return ...


# %% [markdown]
# `%exercise who_am_i --hint` gives the next hint without a try, and `%progress` lists all exercises and your guesses.

# %% tags=["nbval-check-output"]
# %%torchrun -n 4 --pass my_share
import os

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print("takes", my_share(list("abcdefghij"), rank, world_size))

# %% [markdown]
# ## Take the cell with you
#
# `%%torchrun -n 4 --save FILE.py` writes a cell as a program. `torchrun --nproc-per-node 4 FILE.py` runs it, here or on
# a cluster. It needs the workshop only where the cell imports from it (`report`, above), or where `--pass` gave it more than
# numbers and text: a function lies in a second file beside the program, so take both.

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("00_welcome")

# %% [markdown]
# ## What to take away
#
# - A **rank** is a process that runs the same program as the others and knows its number. How many there are is the **world size**.
# - `torchrun` starts N processes and tells each its rank.
# - `%%torchrun -n 4` runs a cell as a program on fresh ranks. `%%ranks` keeps ranks, and their variables, from cell to cell.
# - A **collective** such as `all_reduce` is called by all ranks, and all of them wait for it.
# - When one rank fails, look at the rank that failed **first**; the others only waited for it.
# - Training with AdamW in fp32 holds 16 bytes a parameter, activations not counted. Half of it comes with the optimizer's first step.
#
# Next: [11_numbers_and_tensors](../day1_one_device/11_numbers_and_tensors.ipynb), what 32, 16 and 8 bits keep.
#
# ## Sources
#
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020,
#   [arXiv:1910.02054](https://arxiv.org/abs/1910.02054), section 3.1.
# - PyTorch documentation: `torchrun` (Elastic Launch), `torch.distributed`.
