# %% [markdown]
# # What is the machine doing?
#
# - **You need** `12_flops_and_mfu` (what a step should cost) and `00_welcome` (what `%%torchrun` does).
# - **It takes** 35 minutes to read and try, under half a minute to run.
# - **What runs where:** everything runs here, on a CPU or unchanged on GPUs. Values that only an NVIDIA driver can report are listed with
#   their source, and we do not make up numbers for them.
# - **Model and text:** `TINY` on Python's reference manual. The question is how the data gets in, so a colleague's function cuts the text
#   into samples, and not `TextBatches`. One cell profiles a layer of BERT-large on random numbers, because a paper has published its
#   profile.
# - **Links:** before this [16_faster_step](16_faster_step.ipynb), after it [18_scale_the_recipe](18_scale_the_recipe.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A training step takes several times as long as you expected, and all cores are busy. What are they busy with? There are four ways to
# look, from far to near:
#
# - a **monitor** shows what the cores do;
# - a **clock** for each phase shows which one takes long: data, forward, backward, communication or optimizer;
# - a **trace** lists every operator of PyTorch with its start and end;
# - a **call profile** counts the calls of each Python function.
#
# Each of them answers a different question, and each can mislead.

# %%
# %load_ext workshop
import os

os.environ["KINETO_LOG_LEVEL"] = "6"  # otherwise PyTorch's profiler prints log lines

# %%
import contextlib
import math
import textwrap
import time
from collections import Counter
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.profiler import ProfilerActivity, profile, record_function

from workshop import launch, report, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.jupyter.explorer import Control, explore
from workshop.measure import profile_calls
from workshop.models.gpt import GPT, TINY
from workshop.models.text import reference_manual
from workshop.show.style import Picture, new_figure

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["TRACES"] = str(folder)  # for the script at the end

# %% [markdown]
# ## The program
#
# The program trains `TINY` on two ranks, on pages of Python's manual. A colleague wrote the code that reads the data. Read it as in a
# code review.

# %%
LETTERS = [chr(code) for code in range(256)]


def encode(text):
    """Letters as token numbers."""
    return [LETTERS.index(letter) for letter in text]


def slow_batches(text, encode, starts):
    """For each row of starts, the windows of 65 tokens that begin there."""
    for row in starts:
        tokens = encode(text)
        yield [tokens[start : start + 65] for start in row]


# %% [markdown]
# A step has five phases. `phase` is our clock, written by hand in ten lines. It also calls `record_function`, which gives the phase a
# name in PyTorch's trace. (In Nsight Systems you see a name if you open an NVTX range. You use `torch.cuda.nvtx.range(name)` in the same
# way.)
#
# Two details decide whether such a clock tells the truth on a GPU. First, it must **synchronize** before it stops, because the GPU still computes
# while Python continues. Second, the loss stays on the device, as a tensor. Calling `loss.item()` in each step would wait for the GPU, and so slow
# down what we want to measure.


# %%
@contextlib.contextmanager
def phase(name, seconds):
    """Add the time of what runs inside to `seconds`, and name it in a trace."""
    start = time.perf_counter()
    with record_function(name):
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def train(model, optimizer, loader, num_steps, device):
    """Some steps: seconds by phase, and the losses."""
    seconds, losses = {}, []
    for _ in range(num_steps):
        with phase("data", seconds):
            rows = torch.tensor(next(loader), device=device)
        with phase("forward", seconds):
            loss = model(rows[:, :-1], rows[:, 1:])
        with phase("backward", seconds):
            loss.backward()
        with phase("communication", seconds):
            gradients = [parameter.grad for parameter in model.parameters()]
            flat = parameters_to_vector(gradients)
            dist.all_reduce(flat)
            vector_to_parameters(flat / dist.get_world_size(), gradients)
        with phase("optimizer", seconds):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return {name: took / num_steps for name, took in seconds.items()}, losses


# %% [markdown]
# The next cells contain the program that each rank runs. It receives `batches` as an argument, so that we can replace it later. It runs
# steps with the clock only, then two under PyTorch's profiler, then ten that measure what this profiler costs (`looking`), and finally
# four under Python's own profiler.


# %%
def looking(rest, activities, device):
    """Seconds of computing in a step, bare and profiled: in turns, the quickest."""
    took = {"bare": [], "profiled": []}
    for way in list(took) * 5:
        bare = contextlib.nullcontext()
        with profile(activities=activities) if way == "profiled" else bare:
            seconds, _ = train(*rest, 1, device)
        computing = [seconds[name] for name in ("forward", "backward", "optimizer")]
        took[way].append(sum(computing))
    return {way: min(times) for way, times in took.items()}


# %%
def program(batches):
    """What each rank runs."""
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
    generator = torch.Generator().manual_seed(dist.get_rank())
    text = bytes(reference_manual()[:160_000].tolist()).decode("latin-1")
    starts = torch.randint(len(text) - 65, (30, 8), generator=generator).tolist()
    torch.manual_seed(0)
    model = GPT(TINY).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rest = (model, optimizer, iter(batches(text, encode, starts)))

    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []

    _, losses = train(*rest, 2, device)  # to warm up
    begin = time.perf_counter()
    seconds, more = train(*rest, 12, device)
    step = (time.perf_counter() - begin) / 12
    with profile(activities=activities) as trace:
        clock, _ = train(*rest, 2, device)
    sums = [row for row in trace.key_averages() if row.cpu_time_total]  # see below
    rows = {row.key: row.cpu_time_total / 2e6 for row in sums}
    report(clock=clock, profiler={name: rows[name] for name in clock})
    report(looked=looking(rest, activities, device))
    with profile_calls() as calls:
        train(*rest, 4, device)
    path = f"{folder}/trace_{batches.__name__}_{dist.get_rank()}.json"
    trace.export_chrome_trace(path)
    losses = torch.stack([*losses, *more]).tolist()
    report(seconds=seconds, step=step, trace=path, called=calls, losses=losses)
    dist.destroy_process_group()


# %%
# %%guess most --choices data,forward,backward,communication,optimizer
# According to lesson 12, backward costs twice as much as forward. Which phase takes
# the largest part of a step of this program?
...

# %% [markdown]
# While the program runs, a **monitor** watches it from outside. The monitor is a thread that reads the operating system's counters of
# cores, memory, network and disk, and NVML's counters of GPUs.

# %%
from workshop.measure.monitor import Monitor

monitor = Monitor(interval_seconds=0.1, log=folder / "slow.jsonl").start()

# %%
# %%torchrun -n 2 --pass program,slow_batches --into slow
program(slow_batches)

# %%
monitor.stop()

# %% [markdown]
# ## Look from far: what do the cores do?

# %%
show.monitor_strips(monitor.samples)

# %% [markdown]
# There are two ranks, and each keeps a core busy for most of the time. **It looks healthy.** But no monitor can know whether the cores are
# busy with the right work.
#
# The same is true of GPU utilization. NVML defines it as the share of time in which *one or more kernels* ran, so one small kernel after
# another counts as 100 %. Use a monitor to find what is *missing* (a GPU at 30 % is waiting for something), memory that grows, and clock
# rates that fall. NVIDIA's DCGM looks closer: *SM active* (`DCGM_FI_PROF_SM_ACTIVE`) is the share of time in which a multiprocessor had
# work, averaged over all of them, and *tensor active* (`DCGM_FI_PROF_PIPE_TENSOR_ACTIVE`) the share in which the tensor cores computed.
#
# ## Look nearer: which phase?

# %%
show.phase_bars({f"rank {rank}": slow[rank].seconds for rank in (0, 1)}, "a step")

# %%
phases = slow[0].seconds
covered = sum(phases.values()) / slow[0].step
largest = max(phases, key=phases.get)
print(f"most of a step is {largest}; the five phases cover {covered:.1%} of it")
assert largest == "data"
assert 0.9 < covered < 1.001
beside("most", measured=largest)

# %% [markdown]
# Every second is counted exactly once, and the five phases cover almost the whole step. Check this for every clock that you build. (The
# phase `communication` also includes waiting: a rank that arrives early waits for the one that arrives late.)
#
# ## Look nearer: which operator?
#
# torch.profiler has written a trace for each rank. `read_trace` puts both on the same time axis. Move the mouse over a box to read it.

# %%
from workshop.measure.trace import read_trace

trace = read_trace([slow[rank].trace for rank in (0, 1)])
show.trace_lanes(trace, depth=4, title="two steps of two ranks")

# %% [markdown]
# There is almost nothing under `data`: PyTorch did hardly any work there, and waited for Python. (On a GPU there is also a lane for each
# stream, with its kernels.)
#
# The operators are under `forward` and `backward`, but most of them are too short to be visible at this width. The next cell shows one phase
# alone. Read a stack from the top: `aten::linear` calls `aten::matmul`, and `aten::mm` does the work. White between two operators is time
# that Python needs to come from one to the next. **Choose each `phase` in turn: in which one can you see no operator at all, and how much of
# `forward` is white?**

# %%
of_rank_0 = [span for span in trace.spans if span.lane.startswith("rank 0 ")]


def draw(phase):
    """The first time of this phase on rank 0, as wide as the page."""
    own = [s for s in of_rank_0 if s.kind == "user_annotation" and s.name == phase]
    start, end = own[0].start, own[0].end
    inside = tuple(s for s in of_rank_0 if start <= s.start and s.end <= end)
    return show.trace_lanes(replace(trace, spans=inside), depth=6, title=phase)


explore(draw, [Control("phase", "forward", tuple(phases))])

# %% [markdown]
# ### Two clocks
#
# Can you believe a profiler? During these two steps, our own clock was running too, so we can compare. `key_averages()` is PyTorch's own
# sum over the trace. It has one row for each name, which is an operator or a name that you gave with `record_function`. (On a GPU your
# names have a second row for the device, in which Python's time is zero. `program` skips these rows.)

# %%
clock, profiler = slow[0].clock, slow[0].profiler
together = sum(profiler.values()) / sum(clock.values())
assert 0.9 < together < 1.01
assert 0.9 < profiler["data"] / clock["data"] < 1.01
rows = [
    (name, f"{1e3 * took:.2f} ms", f"{1e3 * profiler[name]:.2f} ms")
    for name, took in clock.items()
]
note = f"The profiler's phases are {together:.1%} of ours."
Table(("a step of rank 0", "by hand", "profiler"), rows, note=note)

# %% [markdown]
# They agree. Our times are slightly longer, because our clock starts a little before `record_function` and stops a little after it.
#
# Does profiling itself cost time? Ten more steps ran alternately without the profiler and with it. We compare the fastest step of each kind, in the
# three phases that compute:

# %%
bare, profiled = 1e3 * slow[0].looked["bare"], 1e3 * slow[0].looked["profiled"]
print(f"without {bare:.1f} ms, with {profiled:.1f} ms: {profiled / bare:.2f} times")

# %% [markdown]
# If the ratio is near 1, profiling cost little here, in this program. But a profiler records every operator, so its cost grows with the
# number of short operators in a step. Therefore take shares from a trace, and seconds from a run without one.
#
# If you want to zoom into the trace, open the file in Perfetto: https://ui.perfetto.dev, "Open trace file". The file does not leave your
# browser. You can also write the trace to an HTML page:

# %%
page = show.trace_lanes(trace).save_html(folder / "trace.html")
assert page.read_text().count("<svg") == 1
trace.table(8)

# %% [markdown]
# ### Exercise: self time
#
# The table is sorted by *self* time. The total time of `forward` includes every operator inside it, so if you add up total times, you
# count the same second many times.


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
# The next cell applies your function to the real trace, to one thread of rank 0:

# %% tags=["nbval-check-output"]
named = [span for span in trace.spans if span.kind == "user_annotation"]
lane = next(span.lane for span in named if span.name == "forward")
spans = [span for span in trace.spans if span.lane == lane]
mine = self_seconds([(span.name, span.start, span.end) for span in spans])
outermost = sum(span.seconds for span in spans if span.depth == 0)
assert abs(sum(mine.values()) / outermost - 1) < 1e-3
largest_two = sorted(mine, key=mine.get)[-2:]
print("self times add up to the outermost spans")
assert "data" in largest_two

# %% [markdown]
# ### Exercise: how long was it idle?
#
# The trace also tells you when PyTorch computed at all. For a GPU this is the first number to look at: during which share of the step was
# a kernel running?


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
# %%guess computes --unit %
# The monitor showed two cores that were busy nearly all the time. For what share of
# the two traced steps did an operator of PyTorch run on rank 0, in percent?
...


# %%
def operators_busy(trace, rank):
    """Share of a rank's trace in which an operator (on a GPU: a kernel) ran."""
    own = [span for span in trace.spans if span.lane.startswith(f"rank {rank} ")]
    on_gpu = any(span.kind == "kernel" for span in own)
    kind = "kernel" if on_gpu else "cpu_op"
    work = [(span.start, span.end) for span in own if span.kind == kind]
    begin, end = min(span.start for span in own), max(span.end for span in own)
    return busy_share(work, begin, end)


slow_busy = operators_busy(trace, 0)
assert 0 < slow_busy < 0.5
beside("computes", measured=100 * slow_busy)

# %% [markdown]
# The monitor and the trace are both right: the cores are busy, and PyTorch computes for the smaller part of the time. So what are the cores busy
# with? It is not an operator, so no trace of operators can tell.
#
# ## Look from near: which line of Python?
#
# cProfile counts every call. The next cell draws its result as an icicle: each box is as wide as its time, and hangs below the function
# that called it. Follow the widest box down. (A number in front of a name, as in `1234567890.train`, stands for the cell in which the
# function was written.)

# %%
show.icicle(slow[0].called.tree(), title="four steps of rank 0")

# %%
slow[0].called.table(5)

# %% [markdown]
# (cProfile makes small functions look slower than they are, because it adds a cost to each call. It sees one thread, and no kernels. So
# use a trace for operators, and cProfile for Python. If a program is already running, py-spy can profile it without changing a line:
# `py-spy top --pid PID`.)
#
# ### Exercise: fix it
#
# You now know the phase and the function. Write `batches` so that it yields the same windows faster. The ranks will run your version
# next.


# %%
# %%exercise faster_batches
def batches(text, encode, starts):
    """For each row of starts, the windows of 65 tokens that begin there."""
    for row in starts:
        tokens = ...
        yield [tokens[start : start + 65] for start in row]


# %%
# %%guess faster
# How many times faster will a step be with your batches? (Look at the bars above.)
...

# %%
# %%torchrun -n 2 --pass program,batches --into mended
program(batches)

# %%
cases = {"slow": slow[0].seconds, "mended": mended[0].seconds}
show.phase_bars(cases, "rank 0, a step")

# %%
before, after = sum(phases.values()), sum(mended[0].seconds.values())
without_data = before - phases["data"]
least = before / without_data  # if communication stays as it is
most = before / (without_data - phases["communication"])  # if all of it was waiting
assert least / 4 < before / after < 4 * most  # loose: other programs may run
for old, new in zip(slow[0].losses, mended[0].losses, strict=True):
    assert abs(old - new) < 1e-3, "the same training"
assert after < 0.8 * before
assert mended[0].seconds["data"] < 0.3 * phases["data"]
rows = [
    (name, f"{1e3 * took:.1f} ms", f"{1e3 * mended[0].seconds[name]:.1f} ms")
    for name, took in phases.items()
]
display(Table(("a step of rank 0", "slow", "mended"), rows))
rows = [
    ("predicted, if only `data` goes", f"{least:.1f}"),
    ("predicted, if all of `communication` goes too", f"{most:.1f}"),
    ("measured", f"{before / after:.1f}"),
]
display(Table(("a step of rank 0", "times faster"), rows))
beside("faster", measured=before / after)

# %% [markdown]
# The losses are the same, so the training is the same. But how should a step change? If only `data` goes, the lower prediction is right. But part of
# `communication` was waiting for the slower rank, and waiting goes too. If all of it was waiting, the upper prediction is right.
#
# Both assume that forward, backward and the optimizer take as long as before. Look at their rows: nobody touched them, and in the run that is
# stored here they became faster. So the whole step became faster than even the upper prediction. (Where other programs run, they can also become
# slower, and the step falls short of both.) Why faster? One suspect is the pause: `data` took a tenth of a second between one update and the next
# forward. You test a suspicion by changing one thing. So here are your batches again, each after a tenth of a second of sleep:

# %%
# %%torchrun -n 2 --pass program,batches --into paused
import time


def pausing(text, encode, starts):
    """The windows of `batches`, each row after a pause."""
    for windows in batches(text, encode, starts):
        time.sleep(0.1)
        yield windows


program(pausing)

# %%
runs = {"slow": slow, "mended": mended, "mended, with a pause": paused}
rows = [(name, f"{1e3 * run[0].looked['bare']:.1f} ms") for name, run in runs.items()]
Table(("batches", "forward, backward and optimizer"), rows, "The fastest of five steps")

# %% [markdown]
# In the run stored here, the suspicion holds: after a pause in which the rank does nothing at all, the same computing takes as long as it did in the
# slow program. So what cost time was not how the letters were encoded, but that computing began anew after each pause. (Caches that have
# forgotten the model in the meantime are a likely reason, but this does not show it.) We changed one phase, and others did not stay the same. That
# is why you measure again after each change.
#
# And for what share of the time does PyTorch compute now?

# %%
again = read_trace([mended[rank].trace for rank in (0, 1)])
mended_busy = operators_busy(again, 0)
print(f"PyTorch computes for {mended_busy:.0%} of the time, not {slow_busy:.0%}")
assert mended_busy > slow_busy

# %% [markdown]
# ## What next: which kind of operator?
#
# PyTorch now computes for a much larger share of the time, so its operators are what you would look at next. Lesson 12 predicted times from FLOPs,
# and nearly all FLOPs are in the matrix products. Do they also take nearly all of the time? To compare with a published profile, we take its model:
# Ivanov et al. (2020) profiled the training of one layer of **BERT**, in PyTorch on a GPU. They sort its operators into three kinds: **matrix
# products**; **normalization** (softmax and layer norm); and **element-wise** operators (dropout, the activation, additions).
#
# The next cells build such a layer in the sizes of BERT-large: 1,024 numbers per token, 16 heads, 512 tokens. (We use a single sequence.
# More sequences would not change the shares of the FLOPs.) `with_flops=True` counts the FLOPs of the matrix products. For the other
# operators we choose a FLOP count per number that they process: 5 to 13 for a normalization, and 1 for an addition, a multiplication or a
# GELU. (Lesson 12 counted the operations inside a GELU, about 8.)

# %%
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
NORMS = {"aten::_softmax": 6, "aten::_softmax_backward_data": 5}
NORMS |= {"aten::native_layer_norm": 7, "aten::native_layer_norm_backward": 13}
ONE_EACH = ("aten::add", "aten::mul", "aten::gelu", "aten::gelu_backward")

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
bert = nn.TransformerEncoderLayer(1024, 16, 4096, activation="gelu", batch_first=True)
bert.to(device)
vectors = torch.randn(1, 512, 1024, device=device)


def bert_step():
    bert.zero_grad()
    with sdpa_kernel(SDPBackend.MATH):  # attention as separate operators, as in 2020
        bert(vectors).sum().backward()


kinds_of_work = [ProfilerActivity.CPU]
kinds_of_work += [ProfilerActivity.CUDA] if device.type == "cuda" else []
options = {"activities": kinds_of_work, "record_shapes": True, "with_flops": True}
looks = {}
for _ in range(4):
    start = time.perf_counter()
    with profile(**options) as seen:
        bert_step()
    looks[time.perf_counter() - start] = seen
seen = looks[min(looks)]  # the fastest: noise can only add time
rows = [
    row
    for row in seen.key_averages(group_by_input_shape=True)
    if row.key.startswith("aten::")
]

# %% [markdown]
# First we check that your `self_seconds` agrees with PyTorch, whose own column is called `self_cpu_time_total`.

# %%
if device.type == "cpu":  # on a GPU, calls of CUDA come in between
    ours = Counter()
    for thread in {event.thread for event in seen.events()}:
        events = [event for event in seen.events() if event.thread == thread]
        times = [(e.time_range.start, -e.time_range.end, e.name) for e in events]
        ours.update(self_seconds([(n, a, -b) for a, b, n in sorted(times)]))
    for row in seen.key_averages():
        close = 1 + 0.01 * row.self_cpu_time_total  # microseconds
        assert abs(ours[row.key] - row.self_cpu_time_total) < close, row.key
    print("self_seconds and the profiler's own self times: equal")
else:
    print("not compared on a GPU")

# %%
# %%guess little --unit %
# Matrix products do 99.8 % of the layer's FLOPs. What share of the time do all other
# operators take, in percent?
...

# %%
own_time = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
flops, took = Counter(), Counter()
for row in rows:
    numbers = row.count * math.prod(row.input_shapes[0])
    if row.key in PRODUCTS:
        kind, done = "products", row.flops
    elif row.key in NORMS:
        kind, done = "normalization", numbers * NORMS[row.key]
    else:
        kind, done = "element-wise", numbers * (row.key in ONE_EACH)
    flops[kind] += done
    took[kind] += getattr(row, own_time)

# %%
published = {"products": (99.80, 61.0), "normalization": (0.17, 25.5)}
published["element-wise"] = (0.03, 13.5)
shares, table = {}, []
for kind, (told_flops, told_time) in published.items():
    of_flops = 100 * flops[kind] / flops.total()
    of_time = 100 * took[kind] / took.total()
    shares[kind] = of_flops, of_time
    cells = [f"{share:.2f} %" for share in (of_flops, told_flops)]
    cells += [f"{share:.1f} %" for share in (of_time, told_time)]
    table.append((kind, *cells))
    assert abs(of_flops - told_flops) < 0.05
others = 100 - shares["products"][1]
assert others > 10 * (100 - shares["products"][0])
head = ("operators", "FLOPs here", "published", "time here", "published")
display(Table(head, table))
beside("little", measured=others)

# %%
figure, axis = new_figure(6.6, 2.2)
names = ["FLOPs, here", "time, here", "time, a GPU in the paper"]
left = [0.0] * 3
for kind, colour in zip(published, ("#0072B2", "#E69F00", "#CC79A7"), strict=True):
    widths = [*shares[kind], published[kind][1]]
    axis.barh(names, widths, left=left, color=colour, label=kind)
    left = [one + more for one, more in zip(left, widths, strict=True)]
axis.invert_yaxis()
axis.set(xlabel="%", xlim=(0, 100))
figure.legend(loc="outside upper center", ncols=3, frameon=False)
words = (
    f"other operators: 0.2 % of the FLOPs, {others:.0f} % of the time here, 39 % there"
)
Picture(figure, words)

# %% [markdown]
# The FLOPs agree with the paper's to within a few hundredths of a percentage point. (The element-wise share is so small that it depends
# on what one counts as a FLOP. We get twice the paper's value.)
#
# The time does not follow the FLOPs, neither here nor in the paper. Operators with 0.2 % of the FLOPs took 39 % of the time in the paper, and many
# times their share of the FLOPs on this page. For each number that they move, they perform only a few operations (in `12_flops_and_mfu`: left of the
# ridge). So never derive times from FLOPs. Measure them.
#
# How the time of these operators is divided between normalization and element-wise operators is a different matter. Compare the two, here and in the
# paper: their order is reversed. The paper measured another machine, a larger batch, and the kernels of PyTorch in 2020. This page cannot tell which
# of these differences counts most, so do not carry such shares over to your machine either.
#
# ## What a monitor writes down
#
# The monitor's log contains one line of JSON per sample. A single call reads it back:

# %%
from workshop.measure.monitor_record import read_log

assert list(read_log(folder / "slow.jsonl").samples) == monitor.samples
for note in monitor.notes:
    print(textwrap.fill(note, 88))
print(f"a sample cost {1e3 * monitor.cost_seconds:.1f} ms of CPU time")
monitor.summary()

# %% [markdown]
# In a notebook, `%monitor` shows strips that move for a minute while you work, and `%%monitor` at the top of a cell shows what the
# machine did while the cell ran. In a terminal, use `workshop monitor --log FILE`. With an NVIDIA driver, each sample also contains, for
# every GPU:
#
# | field | NVML's query | what it means |
# |---|---|---|
# | `busy` | `nvmlDeviceGetUtilizationRates` | share of time in which one or more kernels ran |
# | `memory_used_bytes` | `nvmlDeviceGetMemoryInfo` | all used memory of the device: every process, and the driver's own |
# | `power_watts`, `power_limit_watts` | `nvmlDeviceGetPowerUsage`, `...EnforcedPowerLimit` | near the limit the clock rates fall |
# | `temperature_celsius` | `nvmlDeviceGetTemperature` | of the chip |
# | `sm_clock_mhz` | `nvmlDeviceGetClockInfo` | the current clock rate; the data sheet's peak assumes the highest |
# | `slowed` | `nvmlDeviceGetCurrentClocksEventReasons` | why the clock rate is not higher: power cap, temperature, power brake, ... |
# | `nvlink`, `pcie` | `nvmlDeviceGetFieldValues`, `nvmlDeviceGetPcieThroughput` | bytes per second; PCIe only with `pcie=True` |
#
# Without an NVIDIA driver, there are no such numbers in the summary above. If a GPU does not support a field, it is `None`. DCGM's *SM
# active* and *tensor active* are not among the fields.
#
# ## Keep the curves
#
# When a loss jumps at night, you want to know in the morning what came before. So store the loss curve together with the run. The simplest way
# is a file with one line of JSON per step. TensorBoard's writer needs two
# lines in any training loop:

# %%
import json

from torch.utils.tensorboard import SummaryWriter

with (folder / "losses.jsonl").open("w") as file, SummaryWriter(folder / "log") as log:
    for step, loss in enumerate(mended[0].losses):
        file.write(json.dumps({"step": step, "loss": loss}) + "\n")
        log.add_scalar("loss", loss, step)
lines = (folder / "losses.jsonl").read_text().splitlines()
(events,) = (folder / "log").iterdir()
assert [json.loads(line)["loss"] for line in lines] == mended[0].losses
print(f"{len(lines)} lines; TensorBoard's file has {events.stat().st_size:,} bytes")

# %% [markdown]
# `tensorboard --logdir log` shows the curve. `workshop.train.log` offers the same two calls for Weights & Biases (without the network)
# and Aim, if they are installed.
#
# ## Nsight Systems
#
# On a GPU, torch.profiler's trace contains the kernels. Nsight Systems adds the layers below: the driver, the operating system, NCCL, and
# all ranks of a node in one report. `%%torchrun --nsys NAME` writes the cell to `NAME.py` and runs the following command, or only shows
# it if nsys is not installed:

# %% tags=["nbval-check-output"]
import shlex

from workshop.configs.nsys_command import nsys_command

line = shlex.join(nsys_command("step.py", 8, "step", inside="forward"))
print(line.replace(" --", " \\\n    --"))

# %% [markdown]
# ## Whose GPU is it?
#
# On a shared node, a GPU that looks idle may be reserved by somebody else. `%%torchrun` takes as many free GPUs as it has ranks, with a
# lease. The lease ends with the launch or with your kernel, however it ends. Two notebooks never get the same GPU, and `workshop gpus`
# shows who holds which.
#
# ## Tomorrow's script
#
# You do not need to profile a whole run. `schedule` waits for some steps, warms up for one, and records a few; `prof.step()` tells it
# where a step ends. Then it calls your function, which writes the trace for Perfetto and prints where the time went. Replace the code
# inside the phases with your own.

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/profile_steps.py
import os
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
layers = [torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)]
model = torch.nn.Sequential(*layers).to(device)  # replace it with yours
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
folder = Path(os.environ.get("TRACES", "."))
phases = ("data", "forward", "backward", "optimizer")


def one_step():
    with record_function("data"):
        x = torch.randn(128, 256, device=device)
    with record_function("forward"):
        loss = (model(x) - x).square().mean()
    with record_function("backward"):
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def written(prof):
    """Called after the last step: the trace as a file, and where its time went."""
    trace = folder / f"trace_{prof.step_num}.json"
    prof.export_chrome_trace(str(trace))
    # (on a GPU, a name also has a row for the device, in which Python's time is zero)
    rows = {row.key: row for row in prof.key_averages() if row.cpu_time_total}
    step = rows["ProfilerStep*"].cpu_time_total
    shares = {name: rows[name].cpu_time_total / step for name in phases}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    print(f"{trace.name}: {listed}, together {sum(shares.values()):.0%} of a step")
    operators = [row for row in rows.values() if row.key.startswith("aten::")]
    on_gpu = device.type == "cuda"
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    print("most self time:", max(operators, key=lambda row: getattr(row, own)).key)


kinds = [ProfilerActivity.CPU]
kinds += [ProfilerActivity.CUDA] if device.type == "cuda" else []
plan = schedule(wait=2, warmup=1, active=4, repeat=1)
with profile(activities=kinds, schedule=plan, on_trace_ready=written) as prof:
    for _ in range(10):
        one_step()
        prof.step()

# %% [markdown]
# On a GPU these are the times in which Python hands work to the device, because nothing in this script waits for it: even `x` is drawn on
# the device. (A batch from a loader does make Python wait, unless it is in pinned memory and is copied with `non_blocking=True`. If
# Python waits there, `data` includes the time of the step before.) What the device does with the work is in the trace.

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("17_profile_and_monitor")

# %% [markdown]
# ## What to take away
#
# - From far to near: monitor, clock per phase, trace, call profile. Start with the phase, because it tells you where to look next.
# - Busy is not the same as useful. A monitor sees that something runs, but not whether it is the right thing.
# - Synchronize before you stop a clock, and keep `.item()` out of the loop.
# - Self times add up to the whole; total times do not.
# - FLOPs are not time: in a layer of BERT-large, operators with 0.2 % of the FLOPs take 39 % of the time (Ivanov et al.).
# - A gap in a trace is time in which PyTorch waited for Python. Look for loops over elements, for `.item()`, and for work that is
#   repeated in each step.
# - Measure, change one thing, measure again, and check that the losses are the same.
#
# Next: [18_scale_the_recipe](18_scale_the_recipe.ipynb), what must change when the model grows.
#
# ## Sources
#
# - PyTorch, *torch.profiler* and *torch.cuda.nvtx*, documentation. Google, *Trace Event Format*.
# - NVIDIA, *NVML API Reference Guide*; *DCGM User Guide*, "Profiling Metrics"; *Nsight Systems User Guide*, "CLI Profile Command Switch Options".
# - Python documentation, *The Python Profilers*. Linux, *proc(5)*.
# - B. Gregg, *The Flame Graph*, Communications of the ACM 59(6), 2016.
# - A. Ivanov et al., *Data Movement Is All You Need: A Case Study on Optimizing Transformers*, 2020,
#   [arXiv:2007.00072](https://arxiv.org/abs/2007.00072): the table "Proportions for operator classes in PyTorch". BERT-large: J. Devlin
#   et al., 2018, [arXiv:1810.04805](https://arxiv.org/abs/1810.04805).
