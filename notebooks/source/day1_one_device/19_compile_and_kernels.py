# %% [markdown]
# # What does the rest of a step cost?
#
# - **You need** `12_flops_and_mfu` (rooflines) and `16_faster_step` (kernels, their launch, and waits).
# - **It takes** 45 minutes to read and try, about 45 seconds to run.
# - **What runs where:** everything runs here, on a CPU or unchanged on a GPU. The compiler needs a C++ compiler on a CPU; without one the
#   cells say so, and compile nothing. One kernel needs the package `triton`, which comes with PyTorch for CUDA.
# - **Model and text:** half a layer of Llama 2 7B, of which only the shapes are needed, and `TINY` with 8 layers, because the question is what a
#   compiler does with layers that are alike. The text is Python's reference manual, cut into paragraphs, because their lengths differ.
# - **Links:** before this [18_scale_the_recipe](18_scale_the_recipe.ipynb), after it [21_collectives](../day2_data_parallel/21_collectives.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# In `16_faster_step` we mended a slow script until nothing waited without need. What is left are matrix products, and **the rest**: norms,
# activations, sums. The rest does hardly any arithmetic. Does it cost anything, and who can make it cheaper: you, the compiler, or a library?
#
# First we count what the rest moves. Then the compiler joins its kernels, and we check its own count against yours. After that we write one
# such kernel by hand. Two more costs do not appear in your code at all: the allocator's and the loop's.

# %%
# %load_ext workshop
import contextlib
import io
import json
import math
import os
import shutil
import sys
import time
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts import catalogue
from workshop.facts.tabular import Table
from workshop.facts.tree import ROOT
from workshop.jupyter.explorer import Control, explore
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches, reference_manual
from workshop.process.quiet import quietly
from workshop.show.style import Picture, new_figure

# %%
torch.set_num_threads(1)
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
on_gpu = device.type == "cuda"
folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")  # starts empty
if device.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # must be set before Triton is imported


def wait():
    """A GPU computes while Python goes on: wait for it before looking at the clock."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def quickest(*functions, times=15):
    """Milliseconds of each one's quickest call, in turns."""
    best = [math.inf] * len(functions)
    for _ in range(times):
        for place, function in enumerate(functions):
            wait()
            start = time.perf_counter()
            function()
            wait()
            best[place] = min(best[place], 1e3 * (time.perf_counter() - start))
    return best


# %% [markdown]
# ## The rest of half a layer
#
# The second half of a Llama layer is a norm, three matrix products, the activation between them, and the sum with the residual stream. Here it
# is, with each operator written out:


# %%
def norm(x, weight):
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def swiglu(gate, up):
    return F.silu(gate) * up


def half_layer(x, gain, gate, up, down):
    y = norm(x, gain)
    return x + swiglu(y @ gate, y @ up) @ down


# %% [markdown]
# Without a compiler, each operator is a kernel of its own. It reads its inputs from memory and writes its output back. A `TorchDispatchMode` sees
# every operator that PyTorch calls, so it can note what each of them does:


# %%
class Operators(TorchDispatchMode):
    """Of each operator: its name, its FLOPs, and the bytes that it reads and writes."""

    NO_KERNEL = ("empty_like", "_unsafe_view")  # they compute nothing; nor do views

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        is_idle = operator.is_view or operator.namespace == "profiler"
        if not is_idle and name not in self.NO_KERNEL:
            tensors = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
            flops = max((x.numel() for x in tensors), default=0)  # one a number
            if operator is torch.ops.aten.mm.default:
                flops = 2 * args[0].numel() * args[1].shape[1]
            self.rows.append((name, flops, sum(x.nbytes for x in tensors)))
        return result


# %% [markdown]
# We look at Llama 2 7B with 4,096 tokens in bf16 on an H200. Its tensors need not exist: on the device `meta` they have a shape and no memory. By the
# roofline of lesson 12, an operator takes at least as long as its FLOPs, and at least as long as its bytes.

# %%
# %%guess rest --unit %
# The three products do more than 99.9 % of the FLOPs. What share of the half layer's
# time do the other operators take on an H200, by the roofline, in percent?
...

# %%
TOKENS, WIDTH, INNER = 4_096, 4_096, 11_008  # Llama 2 7B
h200 = catalogue.device("H200")


def roofline_ms(flops, moved):
    """Milliseconds at least: the device computes while it moves."""
    return 1e3 * max(flops / h200.peak("bf16"), moved / h200.memory_bandwidth)


def on_meta(*shape):
    return torch.empty(shape, device="meta", dtype=torch.bfloat16)


wide = on_meta(TOKENS, WIDTH), on_meta(WIDTH)
weights = on_meta(WIDTH, INNER), on_meta(WIDTH, INNER), on_meta(INNER, WIDTH)
with Operators() as operators:
    half_layer(*wide, *weights)
products = [row for row in operators.rows if row[0] == "mm"]
others = [row for row in operators.rows if row[0] != "mm"]
assert (len(products), len(others)) == (3, 9)

# %%
flops, moved, took = {}, {}, {}
for kind, some in (("products", products), ("the rest", others)):
    flops[kind] = sum(row[1] for row in some)
    moved[kind] = sum(row[2] for row in some)
    took[kind] = sum(roofline_ms(*row[1:]) for row in some)
rest = 100 * took["the rest"] / sum(took.values())
assert flops["the rest"] < 0.001 * flops["products"]
assert 10 < rest < 15
rows = [
    (kind, f"{flops[kind] / 1e9:,.1f}", f"{moved[kind] / 1e6:,.0f} MB", f"{ms:.2f} ms")
    for kind, ms in took.items()
]
Table(("half a layer", "GFLOPs", "moved", "on an H200, at least"), rows)

# %%
beside("rest", calculated=rest)

# %% [markdown]
# So the rest does a fiftieth of a percent of the arithmetic, and takes an eighth of the time. Its bytes stay what they are when the products become
# faster.
#
# ## Fewer bytes: one kernel for several operators
#
# Most of these bytes are written by one kernel only to be read by the next. If one kernel does the work of both, what lies between them stays in
# registers. This is called **fusion**; lesson 15 had a fused optimizer. How much
# it saves follows from the list of operators.
#
# ### Exercise: one kernel for all


# %%
# %%exercise fused_bytes
def fused_bytes(
    operators: list[tuple[str, list[str]]], size: dict[str, int], wanted: set[str]
) -> int:
    """Bytes that one kernel for all these operators reads and writes."""
    made = {output for output, _ in operators}
    ...
    return ...


# %% [markdown]
# PyTorch can write the list for us: `make_fx` runs a function on tensors without memory, and records its operators as a graph. We take four
# functions: three from a Llama layer, and the approximation of GELU that GPT-2 uses, typed in from its formula.

# %%
LIKE = (512, 1_024)
like = torch.randn(LIKE, device=device)
one_gain = torch.ones(LIKE[1], device=device)


def add_and_norm(x, branch, gain):
    """The sum goes on along the residual stream, its norm into the next block."""
    stream = x + branch
    return stream, norm(stream, gain)


def gelu(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


FUNCTIONS = {
    norm: (like, one_gain),
    swiglu: (like, like.clone()),
    add_and_norm: (like, like.clone(), one_gain),
    gelu: (like,),
}

# %%
# %%guess passes --unit passes
# A pass reads or writes as many bytes as x has. `add_and_norm` needs 10 of them with a
# kernel for each operator. How many does a single kernel need?
...


# %%
def listed(function, *given):
    """What `fused_bytes` takes: operators, bytes by name, and what is returned."""
    graph = make_fx(function, tracing_mode="fake")(*given).graph
    called = [node for node in graph.nodes if node.op == "call_function"]
    operators = [(n.name, [one.name for one in n.all_input_nodes]) for n in called]
    size = {n.name: n.meta["val"].nbytes for n in graph.nodes if n.op != "output"}
    return operators, size, {one.name for one in graph.output_node().all_input_nodes}


passes, rows = {}, []
for function, given in FUNCTIONS.items():
    with Operators() as each:
        function(*given)
    eager = sum(moved for _, _, moved in each.rows) / like.nbytes
    one_kernel = fused_bytes(*listed(function, *given)) / like.nbytes
    passes[function] = eager, one_kernel
    counts = f"{len(each.rows)}", f"{eager:.0f}", f"{one_kernel:.0f}"
    rows.append((function.__name__, *counts))
assert [round(fused) for _, fused in passes.values()] == [2, 3, 4, 2]
assert [round(eager) for eager, _ in passes.values()] == [7, 5, 10, 18]
Table(("function", "kernels", "passes, a kernel each", "passes, one kernel"), rows)

# %%
beside("passes", calculated=passes[add_and_norm][1])

# %% [markdown]
# (The means and gains are so small that they vanish in the rounding.) The tidy formula of GELU is the worst: each of its operators reads and writes
# a whole matrix. PyTorch has a function for it:

# %%
with Operators() as library:
    by_library = F.gelu(like, approximate="tanh")
((name, _, moved),) = library.rows  # one kernel
assert torch.allclose(by_library, gelu(like), atol=1e-6)
assert moved == fused_bytes(*listed(gelu, like))
print(f"F.gelu: 1 kernel, {moved / like.nbytes:.0f} passes, the same numbers")

# %% [markdown]
# That is one kernel, and it moves as few bytes as yours. But nobody has written one for every formula.
#
# What does this bring for the half layer? The next picture has three GPUs, by the roofline. Move `kernels` to join those of the norm, of the
# activation, and of the sum, and `products` to compute the products in FP8. **Which of the two makes the rest more important, and on which GPU does it
# matter least?**


# %%
def rest_share(name, products, kernels):
    """The rest's share of the half layer's time, in percent, and the milliseconds."""
    gpu, place = catalogue.device(name), ("one each", "joined").index(kernels)
    computing = flops["products"] / gpu.peak(products)
    x_passes = passes[norm][place] + 3  # the sum reads two tensors and writes one
    moved = (
        2 * TOKENS * (round(x_passes) * WIDTH + round(passes[swiglu][place]) * INNER)
    )
    moving = moved / gpu.memory_bandwidth
    share = 100 * moving / (computing + moving)
    return share, 1e3 * computing, 1e3 * moving


GPUS = ("H100", "H200", "B200")


def draw_rest(products, kernels):
    figure, axis = new_figure(6.8, 2.0)
    of_gpu = [rest_share(name, products, kernels) for name in GPUS]
    computing, moving = ([one[part] for one in of_gpu] for part in (1, 2))
    axis.barh(GPUS, computing, color="#0072B2", label=f"products in {products}")
    bars = axis.barh(GPUS, moving, left=computing, color="#D55E00", label="the rest")
    axis.bar_label(bars, [f" {share:.0f} %" for share, _, _ in of_gpu], padding=2)
    axis.invert_yaxis()
    axis.set(xlabel="milliseconds of half a layer, at least", xlim=(0, 1.6))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    shares = ", ".join(
        f"{n} {one[0]:.0f} %" for n, one in zip(GPUS, of_gpu, strict=True)
    )
    return Picture(
        figure, f"the rest, kernels {kernels}, products in {products}: {shares}"
    )


formats = Control("products", "bf16", ("bf16", "fp8"))
explore(draw_rest, [formats, Control("kernels", "one each", ("one each", "joined"))])

# %%
rows = []
for name in GPUS:
    shares = [
        rest_share(name, products, kernels)[0]
        for products in ("bf16", "fp8")
        for kernels in ("one each", "joined")
    ]
    assert shares[0] > 1.5 * shares[1]
    assert shares[2] > 1.6 * shares[0]
    apart, joined = (rest_share(name, "bf16", k)[2] for k in ("one each", "joined"))
    assert 0.5 < joined / apart < 0.6
    rows.append((name, *(f"{share:.0f} %" for share in shares)))
assert min(GPUS, key=lambda name: rest_share(name, "bf16", "one each")[0]) == "H200"
head = ("share of the rest", "bf16", "bf16, joined", "FP8", "FP8, joined")
Table(head, rows)

# %% [markdown]
# FP8 makes the rest more important, because it makes the products shorter. It matters least on the H200, which computes as fast as the H100 and moves
# more bytes a second. Joining takes away nearly half of its time. (A compiler can join more than we do here, for example the sum with the
# norm of the next half layer.)
#
# ## torch.compile: the kernels that nobody wrote
#
# `torch.compile` traces a function, and its default backend, **Inductor**, generates the joined kernels: Triton for a GPU, C++ for a CPU. That
# takes a while.

# %%
# %%guess pays --unit calls
# torch.compile takes some seconds to compile the norm; we run its forward only. After
# how many calls has that paid off, with 4,096 x 1,024 numbers on a CPU (on a GPU with
# 32 times as many)?
...

# %%
usual = "clang++" if sys.platform == "darwin" else "g++"
can_compile = bool(shutil.which(os.environ.get("CXX", usual)))  # where Inductor looks
backend = "inductor" if can_compile else "eager"
shape = (131_072 if on_gpu else 4_096, 1_024)  # the smaller would fit in a GPU's cache
x, scale = torch.randn(shape, device=device), torch.ones(1_024, device=device)
out, startup = torch.empty_like(x), []
torch.zeros(31 * 2**20, dtype=torch.uint8)  # and free it again: see the allocator below
with torch.no_grad():
    for _ in range(2):  # the second time, it finds its work in the disk cache
        torch.compiler.reset()
        start = time.perf_counter()
        compiled = torch.compile(norm, dynamic=False, backend=backend)
        assert torch.allclose(compiled(x, scale), norm(x, scale), atol=1e-5)
        startup.append(time.perf_counter() - start)
    eager, fused, copied = quickest(
        lambda: norm(x, scale), lambda: compiled(x, scale), lambda: out.copy_(x)
    )
print(f"start-up {startup[0]:.1f} s, and {startup[1]:.1f} s from the cache on disk")

# %%
bandwidth = 2 * x.nbytes / copied  # bytes per millisecond, from a copy
rows = []
for name, ms, count in zip(
    ("eager", "compiled"), (eager, fused), passes[norm], strict=True
):
    roof = round(count) * x.nbytes / bandwidth
    rows.append((name, f"{count:.0f}", f"{roof:.2f} ms", f"{ms:.2f} ms"))
if can_compile:
    assert eager > 1.3 * fused
    assert startup[1] < startup[0]
    calls = 1e3 * startup[0] / (eager - fused)
else:
    print("no C++ compiler here: nothing was compiled")
    calls = math.inf
Table(("norm", "passes", "at the rate of a copy", "measured"), rows)

# %%
beside("pays", measured=calls)

# %% [markdown]
# The rate of a copy is a yardstick and not a strict limit. The eager version can take *less* than its seven passes, because a part of what it wrote
# a moment ago is still in the cache when it is read. What matters is the ratio: seven passes against two. (The two times above need not have this
# ratio. A pass of the compiled version may be slower than a copy's, and one of the eager version faster.)
#
# Did the compiler find everything that you found? Inductor counts the bytes of the kernels that it generates, and writes the number into a log. With
# `torch._logging.set_logs` we switch that log on, and send its text nowhere:

# %%
from torch._inductor import metrics


def inductors_count(function, *given):
    """Kernels, and the bytes that they read and write; as the compiler logs them."""
    metrics.reset()
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(function, dynamic=False)(*given)
    return len(metrics.nodes_num_elem), metrics.num_bytes_accessed


rows = []
if can_compile:
    with contextlib.redirect_stderr(io.StringIO()):  # the log keeps this stream
        torch._logging.set_logs(inductor_metrics=True)
    for function, given in FUNCTIONS.items():
        kernels, moved = inductors_count(function, *given)
        its_count, ours = moved / like.nbytes, passes[function][1]
        counts = f"{kernels}", f"{its_count:.2f}", f"{ours:.2f}"
        rows.append((function.__name__, *counts))
        assert its_count == ours or (
            function is add_and_norm and its_count < ours + 1.1
        )
    torch._logging.set_logs()
Table(("function", "its kernels", "passes, its count", "passes, one kernel"), rows)

# %% [markdown]
# Three of the four agree with your function to the byte. With `add_and_norm` it depends on the device: where it generates two kernels, as on this
# page, the stream is written by one and read again by the other, and that is a fifth pass. So a compiler is not perfect. But it reads every formula,
# and that of GELU it takes from 18 passes to 2.
#
# ## How much is compiled, and how often?
#
# Because of the start-up time, it matters how much code is compiled. A backend is only a function: it gets a graph of operators, and returns
# something that can be called. So we write one that compiles nothing and keeps count. We give it `TINY` with eight layers, once as a whole, and
# once layer by layer.


# %%
def graphs_and_operators(compile_layers, lengths, **options):
    """How many graphs a compiler would get for these lengths, and how large."""
    counts = []

    def keeps_count(graph, inputs):
        calls = [node for node in graph.graph.nodes if node.op.startswith("call_")]
        counts.append(len(calls))
        return graph

    torch.compiler.reset()
    model = GPT(replace(TINY, num_layers=8)).model.to(device)
    for module in model.layers if compile_layers else [model]:
        module.compile(backend=keeps_count, **options)
    with torch.no_grad():
        for length in lengths:
            model(torch.zeros(1, length, dtype=torch.long, device=device))
    return len(counts), sum(counts)


# %%
# %%guess graphs --unit graphs
# Six batches come padded to their longest paragraph: 40, 50, 60, 70, 80 and 90 tokens.
# How many graphs does `torch.compile` build of the model as a whole, with its defaults?
...

# %%
packed, padded = [96] * 6, [40, 50, 60, 70, 80, 90]
cases = (
    ("the whole model", False, "packed to 96", packed, {}),
    ("each layer", True, "packed to 96", packed, {}),
    ("the whole model", False, "six lengths", padded, {"dynamic": False}),
    ("the whole model", False, "six lengths", padded, {}),
    ("each layer", True, "six lengths", padded, {}),
    ("each layer", True, "six lengths", padded, {"dynamic": True}),
)
compiled_of, rows = {}, []
for what, by_layer, text, lengths, options in cases:
    given = f"dynamic={options['dynamic']}" if options else "defaults"
    count, size = graphs_and_operators(by_layer, lengths, **options)
    compiled_of[by_layer, text, given] = count, size
    rows.append((what, text, given, f"{count}", f"{size:,}"))
counts = [count for count, _ in compiled_of.values()]
assert counts == [1, 1, 6, 2, 2, 1]
whole, layer = (
    compiled_of[by_layer, "packed to 96", "defaults"][1] for by_layer in (False, True)
)
assert 7 < whole / layer < 9
Table(("compiled", "texts", "options", "graphs", "operators to compile"), rows)

# %%
beside("graphs", measured=compiled_of[False, "six lengths", "defaults"][0])

# %% [markdown]
# **Each layer by itself** is an eighth of the work: the eight layers run the same code on tensors of the same shape, so what was compiled for the
# first serves all of them. `for layer in model.layers: layer.compile()` is all it takes.
#
# **Changing lengths** are compiled again and again with `dynamic=False`. By default, the second length makes the compiler build a graph for
# any length, which it then uses for all others. (Such a graph may be slower, because the compiler does not know the sizes.) If all rows have the same length,
# as after packing, the question does not come up.
#
# ## Graph breaks
#
# Code that cannot be compiled splits the function into two graphs, with Python in between. `torch._dynamo.explain` shows where this
# happens. The most frequent cause is one that you know from `16_faster_step`:


# %%
def guarded(x, weight):
    y = norm(x, weight)
    if y.abs().max().item() > 1e4:  # a guard against large values
        y = y / 2
    return F.silu(y) * x


def without_asking(x, weight):
    y = norm(x, weight)
    y = torch.where(y.abs().max() > 1e4, y / 2, y)
    return F.silu(y) * x


few_rows, rows = x[:8], []
for function in (guarded, without_asking):
    torch.compiler.reset()
    with quietly():
        parts = torch._dynamo.explain(function)(few_rows, scale)
    reasons = "; ".join(one.reason.splitlines()[0] for one in parts.break_reasons)
    counts = f"{parts.graph_count}", f"{parts.graph_break_count}"
    rows.append((function.__name__, *counts, reasons))
    assert (parts.graph_break_count == 0) == (function is without_asking)
assert torch.allclose(guarded(few_rows, scale), without_asking(few_rows, scale))
torch.compiler.reset()
one_graph = torch.compile(without_asking, fullgraph=True, backend="eager")
assert torch.allclose(one_graph(few_rows, scale), guarded(few_rows, scale))
Table(("function", "graphs", "breaks", "why"), rows)

# %% [markdown]
# `torch.compile(..., fullgraph=True)` raises an error instead of breaking the graph, so that an `.item()` cannot come back unnoticed. And
# `mode="reduce-overhead"` records the kernels of a graph as a CUDA graph, which is handed over as a whole. This helps when a step is
# launch-bound.
#
# ## One kernel by hand
#
# The compiler generates Triton code for a GPU, and you can also write Triton yourself. (The output on this page is from a machine without
# a GPU, where Triton was installed.) In the next cell, a *program* processes one row: it loads the row, computes, and stores the result.
# Here it runs in Triton's interpreter, one program at a time. On a GPU, the same lines run for thousands of rows at the same time.
#
# Read the kernel with these four hints. `tl.program_id(0)` is the number of the program, here its row. `tl.arange(0, BLOCK)` are the numbers of
# many columns at once, and `BLOCK` must be a power of two. The mask `inside` protects what lies beyond the end of the row: it is neither read
# nor written. And `norm_kernel[(num_rows,)]` starts one program for each row.

# %%
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
    print("Triton is not installed here. It comes with PyTorch for CUDA; without a GPU")
    print("`pip install triton` (a gigabyte on disk) brings its interpreter.")

if triton:

    @triton.jit
    def norm_kernel(x, weight, out, width, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        column = tl.arange(0, BLOCK)
        inside = column < width
        value = tl.load(x + row * width + column, mask=inside, other=0.0)
        scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
        gain = tl.load(weight + column, mask=inside, other=0.0)
        tl.store(out + row * width + column, gain * value * scale, mask=inside)

    def triton_norm(x, weight, eps=1e-6):
        out, (num_rows, width) = torch.empty_like(x), x.shape
        block = triton.next_power_of_2(width)
        norm_kernel[(num_rows,)](x, weight, out, width, eps, BLOCK=block)
        return out

# %% [markdown]
# You can read off how many bytes the kernel moves: it loads a row of `x` and the weight, and stores a row. The weight is the same for all
# rows and stays in the GPU's cache.

# %%
if triton:
    odd = torch.randn(16, 200, device=device)  # a width that is not a power of two
    gain = torch.randn(200, device=device)
    worst = (triton_norm(odd, gain) - norm(odd, gain)).abs().max().item()
    library = F.rms_norm(odd, (200,), gain, 1e-6)
    assert worst < 1e-5
    assert torch.allclose(library, norm(odd, gain), atol=1e-5)
    print(f"Triton, PyTorch's rms_norm and ours agree; largest difference {worst:.0e}")
    if on_gpu:
        by_hand, eager = quickest(lambda: triton_norm(x, scale), lambda: norm(x, scale))
        roof = 2 * x.nbytes / bandwidth
        print(
            f"by hand {by_hand:.3f} ms, eager {eager:.3f} ms, its bytes {roof:.3f} ms"
        )
    else:
        print("the interpreter tells whether a kernel is right, and nothing about time")

# %% [markdown]
# The next table shows the kernel's time on an H200, together with the eager norm, PyTorch's own kernel and the compiler's. The prediction
# is the time needed to read `x` once and to write the same number of bytes.

# %%
record = ROOT / "data" / "measurements" / "gpu" / "kernels.json"
on_h200 = json.loads(record.read_text())["parts"]
for shape in ("(16384, 2048)", "(8192, 8192)"):
    lines = {line["what"]: line for line in on_h200[f"norm {shape}"]["rows"]}
    times = {way: line["measured"] / line["predicted"] for way, line in lines.items()}
    assert times["eager"] > 5
    assert max(times["compiled"], times["Triton, by hand"]) < 1.25
    assert min(times["eager"], times["torch's rms_norm"]) > 1.3
show.measured_on_gpu("kernels", "norm (16384", "norm (8192")

# %% [markdown]
# These dozen lines take at most a quarter longer than the bytes require. The same is true of the compiler's kernel, and both are faster than
# PyTorch's own kernel. Eager takes more than five times as long as the bytes need, because each of its operators reads and writes a whole
# matrix.
#
# ## The allocator: waiting for memory
#
# A cost that is not visible in the code is a wait for memory. Each new tensor needs memory. Requesting it from the GPU's driver
# (`cudaMalloc`) is slow, and returning it (`cudaFree`) waits until the queue is empty. So PyTorch keeps the memory that it once got, and
# cuts new tensors from it. A block can be used again for anything that fits.
#
# Changing sizes defeat this. If every tensor is slightly larger than all tensors before it, no kept block fits, and PyTorch has to
# request a new one each time. The next cell imitates this in ten lines, for a tensor that is created again in each step:


# %%
def reserved_bytes(sizes, expandable=False):
    """Taken from the device after tensors of these sizes, one at a time."""
    blocks = []
    for size in sizes:
        if any(block >= size for block in blocks):
            continue  # it is cut from a free block
        if expandable and blocks:
            blocks = [size]  # the block grows at its end
        else:
            blocks.append(size)
    return sum(blocks)


# %%
# %%guess fragments --unit times
# The manual's paragraphs come in about 300 batches of 8, each padded to its longest
# one, from short to long. For the logits of the largest batch one block would be
# enough. How many times as much is reserved?
...

# %%
text = bytes(reference_manual().tolist())
paragraphs = [part for part in text.split(b"\n\n") if len(part) > 16]
lengths = sorted(min(len(part) - 1, 512) for part in paragraphs)
bucket_sizes = [  # logits of 8 rows, 8,192 words, 4 bytes each
    4 * 8 * max(lengths[n : n + 8]) * 8_192 for n in range(0, len(lengths), 8)
]
once = max(bucket_sizes)
grown = reserved_bytes(bucket_sizes)
draw = torch.Generator().manual_seed(0)
mixed = torch.randperm(len(bucket_sizes), generator=draw).tolist()
shuffled = [bucket_sizes[n] for n in mixed]
assert reserved_bytes(bucket_sizes, expandable=True) == once
assert reserved_bytes([once] * 300) == once < reserved_bytes(shuffled) <= grown
assert reserved_bytes(bucket_sizes[::-1]) == once  # the largest first
print(
    f"sorted: {grown / once:.0f} times, shuffled: {reserved_bytes(shuffled) / once:.1f}"
)
beside("fragments", calculated=grown / once)

# %% [markdown]
# This is fragmentation in its worst form. PyTorch rounds sizes, splits blocks, and returns cached ones before it fails, so in practice
# the effect is smaller. You can recognize it when `torch.cuda.memory_reserved()` is far above `memory_allocated()`. There are three
# remedies: the same shape for all batches (packing), the largest batch *first*, or `PYTORCH_ALLOC_CONF=expandable_segments:True`, which
# is the flag `expandable` of our function.
#
# On a CPU, the C library's allocator is used, and the wait can be counted. For each tensor above 32 MiB, glibc requests new memory from
# the operating system, and returns it as soon as the tensor is freed. The first access to each new page is a *page fault*: the program
# stops until the page is available. The plain loss of `16_faster_step` does this with the logits of every step. The next cell counts the page faults of a
# program that creates 48 MiB twenty times. `jemalloc` and `tcmalloc` replace the C library's allocator without any change to the program. (Below
# 32 MiB, glibc learns: once it has freed a block, it keeps others of that size. This is why we freed 31 MiB before we timed the norm.)

# %%
import ctypes.util
import subprocess

PROGRAM = """
import resource, time, numpy
begin, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
for _ in range(20):
    numpy.empty(48 * 2**20, dtype=numpy.uint8).fill(1)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin
print(faults, 1e3 * (time.perf_counter() - start))
"""
KEEP = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824"
ways = {"as it is": {}, "glibc that keeps": {"GLIBC_TUNABLES": KEEP}}
for name in ("jemalloc", "tcmalloc"):
    if library := ctypes.util.find_library(name):
        decay = "oversize_threshold:1,dirty_decay_ms:-1,muzzy_decay_ms:-1"
        ways[name] = {"LD_PRELOAD": library, "MALLOC_CONF": decay}
faults, rows = {}, []
for name, variables in ways.items():
    environ = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0", **variables}
    line = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
    faults[name], took = (float(word) for word in done.stdout.split())
    rows.append((name, f"{faults[name]:,.0f}", f"{took:.0f} ms"))
if sys.platform == "linux" and faults["as it is"] > 100:
    assert faults["glibc that keeps"] < 0.2 * faults["as it is"]
Table(("allocator", "page faults", "twenty times 48 MiB"), rows)

# %% [markdown]
# ## Your loop, or a library's?
#
# A library's loop performs the same step, and much more: callbacks, logs, progress bars, checks. All this is Python's time, and meanwhile
# Python hands nothing over to the GPU. How much does that cost? We use `TINY` itself, whose step is short, so that the rest becomes
# visible. The next cells run 24 steps with your own loop, with Accelerate, with Lightning and with transformers' `Trainer`. All of them
# read from the same stream, which records the time whenever a batch is requested.

# %%
# %%guess library_ms --unit ms
# By how many milliseconds is a step of transformers' Trainer longer than a step of the
# plain loop with the same model?
...

# %%
STEPS = 24
texts = TextBatches(seq_len=32, global_batch=4)


class Stream(torch.utils.data.IterableDataset):
    """Batches in order; `asked` has the time of each request."""

    def __init__(self):
        self.asked = []

    def __iter__(self):
        for step in range(STEPS):
            self.asked.append(time.perf_counter())
            ((tokens, targets),) = texts.step(step)
            yield {"tokens": tokens, "targets": targets}


class WithLoss(nn.Module):
    """What Trainer asks of a model: a dictionary that holds the loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gpt = GPT(TINY)

    def forward(self, tokens, targets):
        return {"loss": self.gpt(tokens, targets)}


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


# %%
def own_loop(model, stream):
    model.to(device)
    optimizer = adamw(model)
    for batch in DataLoader(stream, batch_size=None):
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        model(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


def accelerate_loop(model, stream):
    accelerator = Accelerator()
    loader = DataLoader(stream, batch_size=None)
    parts = accelerator.prepare(model, adamw(model), loader)
    model, optimizer, loader = parts
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()


# %%
with quietly():
    import lightning
    from accelerate import Accelerator
    from transformers import PrinterCallback, Trainer, TrainingArguments


# %%
class Module(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return adamw(self.model)


def lightning_loop(model, stream):
    off = (
        "logger",
        "enable_checkpointing",
        "enable_progress_bar",
        "enable_model_summary",
    )
    options = {"max_steps": STEPS, "devices": 1, **dict.fromkeys(off, False)}
    trainer = lightning.Trainer(**options)
    trainer.fit(Module(model), DataLoader(stream, batch_size=None))


# %%
def trainer_loop(model, stream):
    options = {"max_steps": STEPS, "learning_rate": 1e-3, "max_grad_norm": 0}
    options |= {"lr_scheduler_type": "constant", "save_strategy": "no"}
    options |= {"logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(str(folder / "trainer"), **options)
    arguments._n_gpu = min(1, arguments.n_gpu)  # it would use all GPUs, see below
    loader = DataLoader(stream, batch_size=None)
    trainer = Trainer(
        model, arguments, train_dataset=stream, optimizers=(adamw(model), None)
    )
    trainer.remove_callback(PrinterCallback)
    trainer.get_train_dataloader = lambda: trainer.accelerator.prepare(loader)
    trainer.train()


# %%
loops = {"own": own_loop, "Accelerate": accelerate_loop}
loops |= {"Lightning": lightning_loop, "Trainer": trainer_loop}
step_ms, ends = dict.fromkeys(loops, math.inf), {}
for name, loop in list(loops.items()) * 2:  # alternating; keep the fastest step of each
    model, stream = WithLoss(), Stream()
    with quietly():
        loop(model, stream)
    gaps = [b - a for a, b in pairwise(stream.asked)]
    step_ms[name] = min(step_ms[name], 1e3 * min(gaps[4:]))
    ends[name] = torch.cat(
        [weight.detach().cpu().flatten() for weight in model.parameters()]
    )
    assert torch.allclose(ends[name], ends["own"], atol=1e-5), "the same training"
assert max(step_ms.values()) < step_ms["own"] + 20  # loose: the machine may be busy
rows = [
    (name, f"{took:.2f} ms", f"{took - step_ms['own']:.2f} ms")
    for name, took in step_ms.items()
]
Table(("loop", "a step", "longer than your own"), rows)

# %%
beside("library_ms", measured=step_ms["Trainer"] - step_ms["own"])

# %% [markdown]
# All four end with the same weights. Would a GPU have to wait? Suppose that your own loop hands over a kernel every 5 µs, as in `16_faster_step`. We
# count the kernels of a step, and distribute the library's extra milliseconds over them. Where a kernel is shorter than its launch, the GPU is idle
# for the difference.

# %%
((tokens, targets),) = texts.step(0)
model = GPT(TINY).to(device)
optimizer = adamw(model)
for _ in range(2):  # the first step also creates AdamW's state
    with Operators() as operators:
        model(tokens.to(device), targets.to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
count, rows = len(operators.rows), []
for name in ("own", "Trainer"):
    launch_us = 5.0 + max(0.0, 1e3 * (step_ms[name] - step_ms["own"])) / count
    idle = [max(0.0, 1 - kernel / launch_us) for kernel in (6.0, 50.0)]
    rows.append((name, f"{launch_us:.1f} µs", *(f"{share:.1%}" for share in idle)))
assert idle[1] == 0 or step_ms["Trainer"] > step_ms["own"] + 5
print(f"a step hands over {count} kernels")
Table(("loop", "to hand one over", "idle: kernels of 6 µs", "of 50 µs"), rows)

# %% [markdown]
# With kernels of 50 µs the library costs nothing, because Python is far ahead. With kernels of 6 µs Python was hardly ahead before, so for every
# microsecond that a library adds to a launch, the GPU may have to wait. This was a loop without extras; callbacks, logs and metrics add more.
# (`17_profile_and_monitor` shows where Python's time goes, function by function.)
#
# We leave out one thing on purpose: `nn.DataParallel`. It copies the model to all GPUs in each step, from one Python process whose
# threads wait for each other. PyTorch itself recommends `DistributedDataParallel` even on one node
# (`22_ddp`; `23_ddp_limits` does a step of `DataParallel` by hand).
#
# ## Tomorrow's script
#
# This program trains a stack of gated blocks with and without the compiler, without this workshop. It compiles layer by layer, refuses graph
# breaks, compares the losses, and prints how many graphs were built and how long a step takes. (Two graphs for four layers: the first layer's input
# needs no gradient, and those of the others do.)

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/compiled.py
import os
import shutil
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
WIDTH, INNER, LAYERS, ROWS = 128, 256, 4, 512
usual = "clang++" if sys.platform == "darwin" else "g++"
has_compiler = device.type == "cuda" or shutil.which(os.environ.get("CXX", usual))
backend = "inductor" if has_compiler else "eager"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.gate, self.up = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        y = self.gain * (x * scale)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def train(is_compiled):
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(LAYERS)]).to(device)
    if is_compiled:
        for layer in model:  # one graph serves all; fullgraph: no silent break
            layer.compile(backend=backend, fullgraph=True, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    x = torch.randn(ROWS, WIDTH, device=device)
    losses, took = [], []
    for _ in range(30):
        start = time.perf_counter()
        loss = F.mse_loss(model(x), x.roll(1, -1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if device.type == "cuda":
            torch.cuda.synchronize()  # only because we time each step here
        took.append(time.perf_counter() - start)
    return torch.stack(losses).cpu(), took


eager, eager_times = train(False)
compiled, compiled_times = train(True)
assert torch.allclose(eager, compiled, rtol=1e-2), "not the same training"
built = counters["stats"]["unique_graphs"]  # the first layer's x needs no gradient
print(f"{backend}: {built} graphs for {LAYERS} layers")
print(f"first step {compiled_times[0]:.1f} s, eager {eager_times[0]:.2f} s")
for name, took in (("eager", eager_times), ("compiled", compiled_times)):
    print(f"{name}: a step {1e3 * min(took[5:]):.2f} ms")
print(f"both: loss {eager[0]:.2f} to {eager[-1]:.2f}")

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("19_compile_and_kernels")

# %% [markdown]
# ## What to take away
#
# - The rest of a step does less than a thousandth of its arithmetic, and can take a tenth of its time: it is bytes. Count passes over memory.
# - One kernel for several operators reads what comes from outside once, and writes what is needed afterwards. Nothing else has to move.
# - `torch.compile` generates such kernels for formulas that nobody has written a kernel for. It costs seconds once and pays off with every call.
# - Compile one layer instead of the model, use one shape, and let `fullgraph=True` refuse an `.item()`.
# - A kernel by hand is a dozen lines of Triton: load a row, compute, store. Its bytes tell how fast it can be.
# - Changing shapes cost memory in the allocator, and waits when it has to ask the driver for more.
# - A library's loop adds some time of its own to every step. This matters when the step is short.
#
# Next: [21_collectives](../day2_data_parallel/21_collectives.ipynb), what ranks send to each other.
#
# ## Sources
#
# - J. Ansel et al., *PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph Compilation*, ASPLOS 2024:
#   TorchDynamo and TorchInductor.
# - A. Ivanov et al., *Data Movement Is All You Need: A Case Study on Optimizing Transformers*, MLSys 2021,
#   [arXiv:2007.00072](https://arxiv.org/abs/2007.00072).
# - H. Touvron et al., *Llama 2: Open Foundation and Fine-Tuned Chat Models*, 2023, [arXiv:2307.09288](https://arxiv.org/abs/2307.09288);
#   the sizes are those of its configuration, 4,096 wide and 11,008 inside.
# - P. Tillet, H. T. Kung, D. Cox, *Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations*, MAPL 2019.
# - PyTorch documentation: `torch.compile`, `torch._logging`, *CUDA semantics* ("Memory management"), `DataParallel`. GNU C Library manual, *Malloc
#   Tunable Parameters*.
