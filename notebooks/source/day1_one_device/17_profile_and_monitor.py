# %% [markdown]
# # What is the machine doing?
#
# - **You need** `12_flops_and_mfu` (what a step should cost) and `00_welcome` (what `%%torchrun` does).
# - **It takes** 25 minutes to read and try, under half a minute to run.
# - **What runs where:** all of it here, on a CPU or unchanged on GPUs. What only an NVIDIA driver can tell is named with its
#   source, and no number is made up for it. Nsight Systems is shown as the line that runs where it is installed.
# - **Links:** before this [15_optimizers](15_optimizers.ipynb), after it [21_collectives](../day2_data_parallel/21_collectives.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A training step takes several times as long as you expected. The cores are busy, all of them. Who is it? There are four ways to look,
# from far to near: a **monitor** (what do the cores do?), **step timers** (which phase?), a **trace** (which operator?), and a **call
# profile** (which line of Python?). Each answers another question, and each can mislead.

# %%
# %load_ext workshop
from workshop import launch, show

folder = launch.Session.get().directory  # a private folder that goes when the kernel goes

# %% [markdown]
# ## The program
#
# A small Llama on two ranks, on pages of Python's manual. It averages its gradients with one all-reduce, by hand, so that we see it. One
# function in it is slow. Read it as you would read a colleague's code.
#
# Two things watch. `StepTimer` finds forward, backward and optimizer by itself; `timer.batches` counts the wait for data, and
# `span("communication")` names what we do ourselves. A span is a range in torch.profiler's trace, and an NVTX range where there is a GPU.

# %%
# %%torchrun -n 2 --into slow --pass folder --save {folder}/step.py
import sys
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.profiler import ProfilerActivity, profile

from workshop import report
from workshop.measure import StepTimer, profile_calls, span
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import reference_manual

dist.init_process_group()
rank = dist.get_rank()
device = torch.accelerator.current_accelerator() or torch.device("cpu")
LETTERS = [chr(code) for code in range(256)]
manual = bytes(reference_manual()[:80_000].tolist()).decode("latin-1")


def encode(text):
    """Letters as token numbers."""
    return torch.tensor([LETTERS.index(letter) for letter in text])


def batches(count):
    """Windows of the manual, other ones on each rank."""
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        tokens = encode(manual)
        starts = torch.randint(0, len(tokens) - 65, (8,), generator=generator)
        rows = torch.stack([tokens[start : start + 65] for start in starts.tolist()])
        yield rows[:, :-1].to(device), rows[:, 1:].to(device)


def batches_once(count):
    """The same windows; the manual is encoded once."""
    generator = torch.Generator().manual_seed(rank)
    tokens = encode(manual)
    for _ in range(count):
        starts = torch.randint(0, len(tokens) - 65, (8,), generator=generator)
        rows = torch.stack([tokens[start : start + 65] for start in starts.tolist()])
        yield rows[:, :-1].to(device), rows[:, 1:].to(device)


torch.manual_seed(0)
shape = GPTConfig(
    vocab_size=256, hidden_size=64, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=176
)
model = GPT(shape).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
source, losses = batches_once if "once" in sys.argv else batches, []


def train(timer, loader):
    for tokens, targets in timer.batches(loader):
        loss = model(tokens, targets)
        loss.backward()
        with span("communication"):
            gradients = [parameter.grad for parameter in model.parameters()]
            joined = parameters_to_vector(gradients)
            dist.all_reduce(joined, op=dist.ReduceOp.SUM)
            vector_to_parameters(joined / dist.get_world_size(), gradients)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())


with StepTimer(model) as timer:
    loader = source(18)
    train(timer, islice(loader, 12))
    seconds, steps = timer.mean_seconds(skip=2), timer.seconds()[2:]  # two to warm up
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * torch.cuda.is_available())]
    ) as trace:
        train(timer, islice(loader, 2))
    with profile_calls() as calls:
        train(timer, islice(loader, 4))
path = f"{folder}/trace_{'once' if 'once' in sys.argv else 'slow'}_{rank}.json"
trace.export_chrome_trace(path)
report(seconds=seconds, steps=steps, trace=path, called=calls, losses=losses)
dist.destroy_process_group()

# %% [markdown]
# ## Predict
#
# The rule of thumb from `12_flops_and_mfu`: backward costs twice the forward. Write your guess down before you go on: **which of data,
# forward, backward, communication and optimizer takes most of a step, and what share?**

# %%
my_guess = "backward"  # data, forward, backward, communication or optimizer

# %% [markdown]
# ## Look: which phase?

# %%
show.phase_bars({f"rank {rank}": slow[rank].seconds for rank in (0, 1)}, "a step")

# %% tags=["nbval-check-output"]
phases = slow[0].seconds
largest = max(phases, key=phases.get)
print("most of a step is", largest)
print("your guess was", "right" if my_guess == largest else "another one: that is why one measures")
assert largest == "data"
assert abs(sum(phases.values()) / (sum(sum(step.values()) for step in slow[0].steps) / 10) - 1) < 1e-6

# %% [markdown]
# The bars have no gaps: a second is counted once, under one name. (`communication` is waiting, too: a rank that comes early waits for the
# one that comes late.)
#
# ## Look: which operator?
#
# torch.profiler has written a trace for each rank, in Chrome's format. `read_trace` puts them on one axis of time. The mouse on a box says
# what it is.

# %%
from workshop.measure.trace import read_trace

trace = read_trace([slow[rank].trace for rank in (0, 1)])
show.trace_lanes(trace, depth=5, title="two steps of two ranks")

# %% [markdown]
# Under `forward` and `backward` lie operators. Under `data` there is nearly nothing: PyTorch did not work there. It waited for Python. (Yellow, on threads of their own:
# gloo's all-reduces. On a GPU there is a lane for each stream, with its kernels.)
#
# `save_html` writes a page that zooms. The file itself opens in Perfetto: go to https://ui.perfetto.dev, "Open trace file"; it stays in your
# browser.

# %%
page = show.trace_lanes(trace).save_html(folder / "trace.html")
assert page.read_text().count("<svg") == 1
trace.table(8)

# %% [markdown]
# ### Exercise: self time
#
# The table sorts by *self* time. The total of `forward` includes every operator inside it; add up totals and you count the same
# second many times.


# %%
# %%exercise self_seconds
def self_seconds(events: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds by name, each second counted for the innermost event only."""
    own = {}
    open_ones = []  # the events that we are inside of, outermost first
    for name, start, end in events:
        while open_ones and open_ones[-1][2] <= start:
            open_ones.pop()
        own[name] = own.get(name, 0.0) + ...
        if open_ones:
            ...
        open_ones.append((name, start, end))
    return own


# %% [markdown]
# Yours on the real trace, one thread of rank 0:

# %% tags=["nbval-check-output"]
lane = next(span.lane for span in trace.spans if span.name == "forward")
events = [(span.name, span.start, span.end) for span in trace.spans if span.lane == lane]
mine = self_seconds(events)
outermost = sum(span.seconds for span in trace.spans if span.lane == lane and span.depth == 0)
assert abs(sum(mine.values()) / outermost - 1) < 1e-3
print("self times sum to the outermost spans:", max(mine, key=mine.get), "is the largest")
assert max(mine, key=mine.get) == "data"

# %% [markdown]
# ### Exercise: how long did it stand idle?
#
# The trace also says when PyTorch computed at all. For a GPU this is the number to look at first: which share of the step had a kernel
# running?


# %%
# %%exercise busy_share
def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of the window in which at least one span is open."""
    busy = 0.0
    reached = begin  # all that lies before has been counted
    for start, stop in sorted(spans):
        ...
    return busy / (end - begin)


# %%
def operators_busy(trace, rank):
    """Share of a rank's trace in which an operator (on a GPU: a kernel) ran."""
    own = [span for span in trace.spans if span.lane.startswith(f"rank {rank} ")]
    kinds = {"kernel"} if any(span.kind == "kernel" for span in own) else {"cpu_op"}
    work = [(span.start, span.end) for span in own if span.kind in kinds]
    return busy_share(work, min(span.start for span in own), max(span.end for span in own))


slow_busy = operators_busy(trace, 0)
print(f"rank 0: PyTorch computes for {slow_busy:.0%} of the time")
assert 0 < slow_busy < 0.7

# %% [markdown]
# ## Look: which line of Python?
#
# cProfile counts every call. Drawn as an icicle, each box is as wide as its time, below the function that called it. Follow the widest
# one down.

# %%
show.icicle(slow[0].called.tree(), title="four steps of rank 0")

# %%
slow[0].called.table(5)

# %% [markdown]
# There it is: `encode`, called from `batches`, once for each step, on the *whole* text, and inside it 80,000 times `list.index`. In the
# source it is one harmless line. `batches_once` moves it out of the loop.
#
# cProfile makes small functions look slower than they are, for it counts each call. It sees one thread, and no kernels. So: trace for
# operators, cProfile for Python.
#
# ## Mend it, and compare
#
# The same program with one argument. A **monitor** watches both runs from outside: a thread that reads the kernel's counters, for cores,
# memory, network and disk, and NVML for GPUs.

# %%

from workshop.measure.monitor import Monitor

watched, result = {}, {}
for name in ("slow", "once"):
    with Monitor(interval_seconds=0.1, log=folder / f"{name}.jsonl") as watched[name]:
        result[name] = launch.torchrun(launch.Script(folder / "step.py", (name,)), 2)
once = result["once"]
show.phase_bars({"slow": result["slow"][0].seconds, "encoded once": once[0].seconds}, "rank 0, a step")

# %% tags=["nbval-check-output"]
before, after = (sum(result[name][0].seconds.values()) for name in ("slow", "once"))
assert after < 0.6 * before
for name in ("slow", "once"):
    assert all(abs(a - b) < 1e-3 for a, b in zip(result[name][0].losses, slow[0].losses, strict=True))
assert once[0].seconds["data"] < 0.25 * after
print("the step is shorter, and the losses are the same")

# %%
again = read_trace([once[rank].trace for rank in (0, 1)])
print(
    f"{before / after:.1f} times faster; PyTorch computes for {operators_busy(again, 0):.0%} of the time, not {slow_busy:.0%}"
)
assert operators_busy(again, 0) > slow_busy

# %% [markdown]
# ## What the monitor saw

# %%
show.monitor_strips(watched["slow"].samples)

# %% [markdown]
# Two ranks, two busy cores, all the time. **It looks healthy.** The cores were busy with the wrong thing, and no monitor can know that.
# It is the same with a GPU's utilisation: NVML defines it as the share of time in which *one or more kernels* ran. One small kernel
# after the other is 100 %. Watch it for what is *not* there (a GPU at 30 % waits for something), for memory that grows, for clocks that fall.

# %%
for name, monitor in watched.items():
    print(name, "|", *monitor.notes, f"a sample cost {1e3 * monitor.cost_seconds:.1f} ms of CPU")
    assert max(sum(sample.cpu.cores_busy) for sample in monitor.samples) > 0.5
watched["slow"].summary()

# %% [markdown]
# Everything is in the log file too, a JSON line for each sample. It is read back with one call:

# %% tags=["nbval-check-output"]
from workshop.measure.monitor_record import read_log

assert list(read_log(folder / "slow.jsonl").samples) == watched["slow"].samples
print("read back: equal")

# %% [markdown]
# In a notebook `%monitor` shows strips that move for a minute while you work, and `%%monitor` above a cell shows what the machine did
# during it; in a terminal `workshop monitor --log FILE`. With an NVIDIA driver each sample also holds, for every GPU:
#
# | field | NVML's query | what it means |
# |---|---|---|
# | `busy` | `nvmlDeviceGetUtilizationRates` | share of time in which one or more kernels ran |
# | `memory_used_bytes` | `nvmlDeviceGetMemoryInfo` | all of the device: every process, and the driver's own |
# | `power_watts`, `power_limit_watts` | `nvmlDeviceGetPowerUsage`, `...EnforcedPowerLimit` | near the limit the clocks fall |
# | `temperature_celsius` | `nvmlDeviceGetTemperature` | of the chip |
# | `sm_clock_mhz` | `nvmlDeviceGetClockInfo` | what it runs at now; the data sheet's peak is for the highest |
# | `slowed` | `nvmlDeviceGetCurrentClocksEventReasons` | why it is not higher: power cap, temperature, power brake, ... |
# | `nvlink`, `pcie` | `nvmlDeviceGetFieldValues`, `nvmlDeviceGetPcieThroughput` | bytes per second; PCIe only with `pcie=True` |
#
# There is no recorded run of this on a GPU yet, so none is shown. What a device does not tell is `None`.
#
# ## One logger
#
# Curves want to be kept. Four ways to keep them have the same two calls here, so the training loop does not change with the tool: a text file,
# TensorBoard, Weights & Biases without the network, and Aim.

# %%
from workshop.train.log import open_log

for name in ("jsonl", "tensorboard", "wandb", "aim"):
    try:
        log = open_log(name, folder / "log" / name)
    except ImportError as error:
        print(f"{name:<12} not installed here: pip install {name}")
        continue
    for step, (loss, seconds) in enumerate(zip(once[0].losses, once[0].steps, strict=False)):
        log.write(step, loss=loss, **{f"seconds_{phase}": value for phase, value in seconds.items()})
    log.close()
    files = [path for path in (folder / "log" / name).rglob("*") if path.is_file()]
    print(
        f"{name:<12} {len(files)} file{'s' * (len(files) > 1)}, {sum(path.stat().st_size for path in files):,} bytes"
    )
    assert files

# %% [markdown]
# ## Nsight Systems
#
# On a GPU, torch.profiler's trace has the kernels. Nsight Systems adds what lies below: the driver, the operating system, NCCL, all
# ranks of a node in one report. `%%torchrun --nsys NAME` writes the cell as `NAME.py` and runs this line, or shows it where nsys is not
# installed. Your spans are in the report as NVTX ranges; with `--nsys-range` only what lies inside one is recorded.

# %% tags=["nbval-check-output"]
import shlex

from workshop.configs.nsys_command import nsys_command

print(shlex.join(nsys_command("step.py", 8, "step", inside="forward")).replace(" --", " \\\n    --"))

# %% [markdown]
# ## Whose GPU is it?
#
# On a shared node, the GPU that looks idle may be somebody's. `%%torchrun` takes as many free GPUs as it has ranks, with a lease that
# ends with the launch or with your kernel, however it ends. Two notebooks never get the same one, and `workshop gpus` says who holds which.
#
# ## What to take away
#
# - From far to near: monitor, step timer, trace, call profile. Begin with the phase; it says where to look next.
# - Busy is not useful. A monitor sees that something runs, never whether it is the right thing.
# - Self times sum to the whole; total times do not.
# - A gap under a range is time in which PyTorch waited for Python. Look for loops over elements, for `.item()`, for work done anew each step.
# - Measure, change one thing, measure again, and check that the losses are the same.
#
# ## Sources
#
# - PyTorch, *torch.profiler* and *torch.cuda.nvtx*, documentation. Google, *Trace Event Format*.
# - NVIDIA, *NVML API Reference Guide*; *Nsight Systems User Guide*, "CLI Profile Command Switch Options".
# - Python documentation, *The Python Profilers*. Linux, *proc(5)*.
# - B. Gregg, *The Flame Graph*, Communications of the ACM 59(6), 2016.
#
# Next: [21_collectives](../day2_data_parallel/21_collectives.ipynb), what ranks say to each other.
