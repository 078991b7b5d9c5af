# %% [markdown]
# # Welcome: four ranks on your own machine
#
# - **You need** Python and a little PyTorch (tensors, a training step). You need to know nothing about clusters.
# - **It takes** fifteen minutes to read and try, and less than one minute to run.
# - **What runs where:** everything here runs now, on this machine. It runs on the CPU if two cores are all you have, and on GPUs if you
#   have them. The cells are the same in both cases.
# - **Links:** after it [11_numbers_and_tensors](../day1_one_device/11_numbers_and_tensors.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A model that does not fit on one **device** (a CPU, or a GPU) is trained by many processes that send each other data. Each of these
# processes is called a **rank**. Can your machine run several of them? And how does a notebook cell run on four ranks at once?
#
# ## How to use a lesson
#
# Read from top to bottom. To run a cell, click into it and press Shift+Enter. Run every cell in its turn, because it may use names from
# the cells above. You may change a cell and run it again. The square button above the notebook stops a cell that takes too long. If nothing else
# helps, choose *Restart Kernel* in the menu *Kernel*, and begin again at the top.
#
# A line that begins with `%` or `%%` is not Python. It is a command to the notebook. The first cell makes the workshop's own commands known:

# %%
# %load_ext workshop
from workshop.exercises import beside
from workshop.facts.tabular import Table

# %% [markdown]
# ## Is your machine ready?
#
# The doctor checks what the workshop needs: Python, torch, devices, memory, ports, and whether two real ranks can agree on a number. Each
# check takes a moment and prints a dot. The verdict is `ok`, `note` (it works, but there is something you should know) or `no` (with advice
# on what to do). The cell shows only the lines that are not `ok`. To see all of them, run `workshop doctor` in a terminal.

# %% tags=["this-machine"]
from workshop.doctor import diagnose, summary

diagnosis = diagnose(on_line=lambda line: print(".", end="", flush=True))
print("\n" + summary(diagnosis))
print(*[line for line in diagnosis if line.verdict != "ok"], sep="\n")

# %% [markdown]
# ## Four ranks by hand
#
# A rank is an ordinary process, so you need nothing new to start four of them. Start the same program four times. Two environment variables tell
# each copy its number (`RANK`) and how many copies there are (`WORLD_SIZE`).

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
# On a cluster, the command `torchrun` starts the copies. In this workshop, a cell that begins with `%%torchrun -n 4` does the same. Such a
# cell is a **program**: it does not run in the notebook but in four fresh processes, and each of them runs the whole cell. The only
# difference between them is one number, the rank.

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
# The first line of the output tells where the ranks ran: on GPUs if there is one for each rank, and on the CPU otherwise. It also names the
# library that carries data between them: **gloo** between CPUs, **NCCL** between NVIDIA GPUs. Then comes what the ranks printed, as a single
# text in the order of the ranks. A line that several ranks printed appears once, with the numbers of those ranks in front.
#
# `report(...)` sends values to the notebook, and `--into` stores them by rank under the name that you give. We use this to check that these
# ranks printed the same lines as the processes we started by hand. (An `assert` prints nothing if it holds.)

# %%
assert [launched[rank].line + "\n" for rank in range(4)] == printed

# %% [markdown]
# A launcher does two things that our loop with `Popen` does not. It gives the ranks an address where they find each other (`MASTER_ADDR`,
# `MASTER_PORT`). It also watches all of them, so that no rank is left waiting when another one dies.
#
# ## Ranks that stay
#
# A program starts with no variables and forgets everything when it ends. To explore, you want ranks that remember what they computed.
# `%%ranks` keeps the ranks and their variables from one cell to the next, until the notebook's kernel ends or you run `%ranks stop`. `torch`,
# `dist` (which is `torch.distributed`), `rank`, `world_size` (the number of ranks) and `device` are defined from the start.

# %% tags=["nbval-check-output"]
# %%ranks -n 4
x = torch.tensor([rank + 1.0], device=device)
print("holds", x.item())

# %% [markdown]
# ## Add them up, by hand
#
# Now the ranks exchange data. For this they form a *process group*, which `%%ranks` has already made. They hold 1, 2, 3 and 4, and at the end
# each of them should hold the sum. Sending and receiving is enough for this: rank 0 collects the values, adds them, and sends the sum back.


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
# PyTorch does this with one call, `dist.all_reduce`, which all ranks make together. Such a call is a **collective**. The tensor `x` from
# the first `%%ranks` cell still exists, so we can use it here:

# %% tags=["nbval-check-output"]
# %%ranks
dist.all_reduce(x)
assert torch.equal(by_hand, x)
print("all_reduce:", x.item())

# %% [markdown]
# Our version sends all the traffic through rank 0. Lesson 21 shows how to share the traffic fairly.
#
# Now `x` is 10 on every rank. The ranks will make the same call once more.
#
# Before they do, the next cell asks what you expect. Every lesson asks such questions. Write your answer in place of the three dots, and run the
# cell. A wrong guess costs nothing, and it shows you what to think about. Below the run, `beside(...)` puts three numbers next to each other:
# your guess, what a formula predicts, and what was measured.

# %%
# %%guess twice
# What does rank 2 hold after one more all_reduce of x?
...

# %% tags=["nbval-check-output"]
# %%ranks --into second
from workshop import report

dist.all_reduce(x)
print("once more:", x.item())
report(x=x.item())

# %%
beside("twice", predicted=4 * 10, measured=second[2].x)

# %% [markdown]
# An `all_reduce` does not ask whether its input is a part or already the sum. On four ranks, a second call by mistake gives four times too
# much, without an error.
#
# On a cluster you write the same as a program, and a fresh program has none of these names defined. So it joins the other ranks
# (`init_process_group`), picks a device (a GPU if it has one, and the CPU otherwise), and leaves the other ranks at the end.
#
# (On a machine with several GPUs, each rank needs one of its own. `%%torchrun` takes care of that. A program that you start with plain torchrun
# does it itself: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`. `LOCAL_RANK` is the rank's number on its machine.)

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
assert [results[rank].total for rank in range(4)] == [1 + 2 + 3 + 4] * 4

# %% [markdown]
# ## Break it
#
# Distributed programs fail in a way of their own: one rank fails, and the others wait for it. Run the next cell to see this. Rank 1 raises
# an error while the other ranks are in a barrier, a call that waits for all ranks.

# %% tags=["raises-exception"]
# %%ranks
if rank == 1:
    raise ValueError("rank 1 has had enough")
dist.barrier()

# %% [markdown]
# The message tells you which rank failed first, on which line, and where each of the others was. They were waiting in a call that would
# have returned only after a timeout of many minutes, with an error of its own. The workshop cut their connections, so that they could go
# on. Nothing is lost, and the ranks can work together again:

# %% tags=["nbval-check-output"]
# %%ranks
dist.all_reduce(x)
print("x was kept, and four times 40 is", x.item())

# %% [markdown]
# ## Compare: a prediction beside a measurement
#
# Every lesson makes a prediction before it measures. Here is a small example, with the question that decides whether a model fits on your GPU:
# how many bytes does training take? To train a parameter with the optimizer AdamW, a rank keeps **four values** for it: the weight, its gradient,
# and two *moments*, which are running averages of the gradient and of its square. In **fp32**, numbers of 32 bits, each value takes four bytes.
# That makes **16 bytes a parameter**.
#
# So for a layer with 1,000 x 1,000 weights, each rank should hold 16 MB (that is 15.3 MiB).

# %%
parameters = 1_000 * 1_000
predicted = 16 * parameters

# %%
# %%guess halfway --unit MB
# After the first backward and before the first optimizer step, how many MB are held?
...

# %% [markdown]
# In the next cell, `--pass` gives the ranks a variable of this notebook. `held_bytes()` adds up the bytes of all tensors that a rank has
# created since `count_from_here()` and still holds. On a GPU it corresponds to `torch.cuda.memory_allocated()`.

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
when = ["the weights", "after backward", "after the first step"]
expected = [4 * parameters, 8 * parameters, predicted]
held = [measured[0].weights, measured[0].after_backward, measured[0].after_step]
for want, have in zip(expected, held, strict=True):
    assert abs(have / want - 1) < 0.01
show.predicted_and_measured(when, expected, held)

# %%
beside("halfway", predicted=expected[1] / 1e6, measured=held[1] / 1e6)

# %% [markdown]
# (The picture counts in MiB, of $2^{20}$ bytes: 7.6 MiB are 8 MB.) The optimizer's two moments are half of the memory, and they are created
# only in its first step. So a run can survive its first step and still run out of memory in the second. Then its activations, which are what the
# layers keep for backward, come on top of the moments.
#
# Once you know what one parameter takes, you know what a whole model takes. The paper on ZeRO, a method of day 2, has GPT-2 as its example, with
# 1.5 billion parameters: 3 GB of weights in 16 bits, and at least 24 GB to train it (Rajbhandari et al., 2020, section 3.1). The authors count
# 2 + 2 + 12 bytes for weight, gradient and optimizer, because they train in mixed precision (lesson 13 explains the 12). In fp32 the count is
# 4 + 4 + 8. Both add up to the same 16 bytes:

# %% tags=["nbval-check-output"]
a_parameter, gpt_2 = held[-1] / parameters, 1.5e9
gigabytes = {"weights": 2 * gpt_2 / 1e9, "training": a_parameter * gpt_2 / 1e9}
published = {"weights": 3, "training": 24}
rows = []
for name, size in gigabytes.items():
    assert round(size) == published[name]
    rows.append((name, f"{size:.0f} GB", f"{published[name]} GB"))
Table(("GPT-2", "from our bytes a parameter", "published"), rows)

# %% [markdown]
# ## Exercise: who does what?
#
# Now it is your turn. Run the cell as it is to see the task. Together, the ranks must take each item exactly once, and no rank may get more
# than one item more than another. Which items a rank takes is up to you.
#
# Replace the `...`. The check runs your function on four real ranks. If the answer is wrong, you see why, together with a hint; run the
# cell again for the next hint. The next cell uses the function that you wrote. You may also leave the exercise unsolved: then the next cell
# uses the reference solution.


# %%
# %%exercise who_am_i
def my_share(items: list, rank: int, world_size: int) -> list:
    """The items that this rank works on."""
    return ...


# %% [markdown]
# `%exercise who_am_i --hint` shows the next hint without counting as a try. `%progress` lists all exercises and your guesses.

# %% tags=["nbval-check-output"]
# %%torchrun -n 4 --pass my_share
import os

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print("takes", *my_share(list("abcdefghij"), rank, world_size))

# %% [markdown]
# ## Take the cell with you
#
# `%%torchrun -n 4 --save FILE.py` writes a cell to a file as a program. You can then run it with `torchrun --nproc-per-node 4 FILE.py`,
# here or on a cluster. The program needs the workshop package in two cases only: if the cell imports from it (`report`, above), or if
# `--pass` gave it more than numbers and text. A function that you pass is saved in a second file beside the program, so take both files
# with you. A cell with nothing but `%%torchrun?` or `%%ranks?` shows all options.

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("00_welcome")

# %% [markdown]
# ## What to take away
#
# - A **rank** is a process that runs the same program as the others and knows its number. The number of ranks is the **world size**.
# - `torchrun` starts N processes and tells each one its rank.
# - `%%torchrun -n 4` runs a cell as a program on fresh ranks. `%%ranks` keeps ranks, and their variables, from cell to cell.
# - A **collective** such as `all_reduce` is called by all ranks, and all of them wait for it.
# - When a run fails, look at the rank that failed **first**; the others were only waiting for it.
# - Training with AdamW in fp32 takes 16 bytes a parameter, not counting activations. Half of it is created in the optimizer's first step.
#
# Next: [11_numbers_and_tensors](../day1_one_device/11_numbers_and_tensors.ipynb), what 32, 16 and 8 bits keep.
#
# ## Sources
#
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020,
#   [arXiv:1910.02054](https://arxiv.org/abs/1910.02054), section 3.1.
# - PyTorch documentation: `torchrun` (Elastic Launch), `torch.distributed`.
