"""The Ultra-Scale Playbook's best layouts with nanotron on H100: bf16, FlashAttention-2.

Memory is printed as "GB" but divided by 1024**3 in nanotron's logger, and taken as **reserved**. Models and
vocabulary (131,072 words, embeddings tied below an MLP of 10,000, as many key-value heads as heads,
sequence parallel) are those of scripts/scaling_benchmarks.py of huggingface/nanotron.

**Time** is tokens a second. The figure shows an MFU against 989 TFLOP/s instead, and it does not count every
row alike: 6 N + 12 L h s FLOPs a token with N the parameters of *all stages*, and a tied table lies on the
first stage and on the last. So with stages the smallest model shows 44.3 % where 38.0 % are counted without
them. The benchmark's own results have both, and this count gives all 18 figures to the last digit.

**The network** is what the benchmark's test of it showed. Before it trains it times collectives over all of
its GPUs, and eight adapters a node share what the test prints. It is a fact about the machine that day, as a
centre knows it from nccl-tests; nothing of training is in it. On 8 nodes it ranges from 52 to 190 GB/s.
"""

from __future__ import annotations

from workshop.facts import catalogue
from workshop.facts.device import ClusterSpec
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import check_devices, memory, number, plain, text, unused, whole
from workshop.published.record import MFU, RESERVED, TOKENS, MeasuredRun, Row, Source, with_network

VOCAB = 131072
SHAPES = (
    (16, 2048, 32, 8192),
    (28, 3072, 32, 8192),
    (30, 3072, 32, 8192),
    (32, 4096, 32, 14336),
    (80, 8192, 64, 28672),
    (126, 16384, 128, 53248),
)


def benchmark_model(billions: float) -> ModelSpec:
    """The shape whose parameter count is the row's, within 2 %."""
    shapes = [
        ModelSpec(
            f"nanotron-{layers}x{hidden}",
            layers,
            hidden,
            heads,
            VOCAB,
            ffn_hidden_size=ffn,
            tied_embeddings=ffn < 10_000,
        )
        for layers, hidden, heads, ffn in SHAPES
    ]
    best = min(shapes, key=lambda shape: abs(shape.num_params / 1e9 - billions))
    if abs(best.num_params / 1e9 / billions - 1) > 0.02:
        known = ", ".join(f"{shape.num_params / 1e9:.2f}" for shape in shapes)
        raise NotPredictable(
            f"no benchmark shape of nanotron has {billions} billion parameters (known: {known})"
        )
    return best


def first_layers(model: ModelSpec, stages: int) -> int:
    """Layers on the first of `stages`: nanotron cuts by cost, and the head costs as a layer of its size
    would.

    A stage ends with the block that reaches its share: of 16 layers and a head that costs 4, ten on the first
    of two stages, as the parameters there say (940 million).
    """
    layer = sum(linear.weights for linear in model.linears())
    return -(-(layer * model.num_layers + model.vocab_size * model.hidden_size) // (stages * layer))


def counted_flops(model: ModelSpec, seq_len: int, stages: int) -> float:
    """FLOPs of a token as the figure's MFU counts them: a tied table twice where there are stages."""
    again = model.vocab_size * model.hidden_size if model.tied_embeddings and stages > 1 else 0
    scores = 12 * model.num_layers * model.hidden_size * seq_len
    return 6 * (model.num_params + again) + scores


def tested_cluster(row: Row, devices: int, together: int, zero: int) -> ClusterSpec:
    """So many H100 on the network as it was tested; as the vendor builds it where no test is given.

    The test prints the bus's bytes a second over all GPUs. A ring leaves each node through eight adapters,
    so GB/s of the bus are Gbit/s of an adapter. ZeRO-1 scatters and gathers, without it gradients are
    all-reduced: in their test a tree may be faster than the ring of the others. What a ring loses of the
    line's rate it loses at each of its nodes, so one over fewer nodes (`together` devices) loses in
    proportion: tested over 32 nodes at 75 GB/s, it should reach 127 over 16, where 122 to 129 were tested.
    """
    cluster = catalogue.cluster(f"{devices}xH100")
    names = ("reduce_scatter_test_GBps", "all_gather_test_GBps") if zero else ("all_reduce_test_GBps",)
    if cluster.num_nodes == 1 or cluster.inter is None or not all(text(row, name) for name in names):
        return cluster
    rates = [number(row, name) for name in names]
    if min(rates) <= 0:
        raise NotPredictable(f"{' and '.join(names)} are {rates}: give GB/s above 0, or leave them empty")
    tested = sum(1 / rate for rate in rates) / len(rates)
    line = 1e9 / (cluster.inter.bytes_per_second * cluster.devices_per_node)
    nodes = -(-together // cluster.devices_per_node)
    bus = 1 / (line + max(tested - line, 0.0) * nodes / cluster.num_nodes)
    return with_network(cluster, round(bus * 8 / cluster.devices_per_node, 2))


def stage_ends(model: ModelSpec, stages: int) -> tuple[int, int]:
    """Layers of the first stage and of the last, as a layout takes them: 0 where there is one."""
    if stages == 1:
        return 0, 0
    first = first_layers(model, stages)
    return first, max(model.num_layers - (stages - 1) * first, 0)


def left_open(row: Row) -> tuple[tuple[str, str], ...]:
    """What neither the figure nor the results say."""
    assumed = [
        ("device", "H100: in neither; the playbook's cluster"),
        ("num_layers", "with the whole shape: the benchmark's shape of this parameter count"),
        ("precision", "megatron-bf16, gradients in fp32: the benchmark's script"),
        ("sequence_parallel", "with tensor parallelism: the benchmark's script"),
    ]
    if not text(row, "seq_len"):
        assumed.append(("seq_len", "4096: the benchmark's script"))
    if not text(row, "all_reduce_test_GBps"):
        assumed.append(("network_gbps_per_device", "as the vendor builds the node: no test of it is given"))
    return tuple(assumed)


def describe(row: Row) -> MeasuredRun:
    """bf16 weights, fp32 gradients and master weights; ZeRO-1 where the row says so; 1F1B."""
    size = text(row, "model_params")
    shape = benchmark_model(number({"model_params": size.rstrip("B")}, "model_params"))
    dp, tp, pp, devices = (whole(row, name) for name in ("dp", "tp", "pp", "gpus"))
    check_devices(devices, dp=dp, tp=tp, pp=pp)
    zero, seq_len, used = whole(row, "zero_stage", 0), whole(row, "seq_len", 4096), stack("nanotron")
    first, last = stage_ends(shape, pp)
    layout = Layout(
        shard=dp if zero else 1,
        replicate=1 if zero else dp,
        zero=zero,
        tensor=tp,
        sequence_parallel=tp > 1,
        pipeline=pp,
        first_stage_layers=first,
        last_stage_layers=last,
        precision="megatron-bf16",
    )
    run = Run(
        shape,
        tested_cluster(row, devices, dp * tp, zero),
        layout,
        whole(row, "micro_batch_size_seqs"),
        seq_len,
        accumulation=whole(row, "grad_accum"),
        implementation=used.implementation,
    )
    name = f"{size} dp{dp} tp{tp} pp{pp}"
    return MeasuredRun(
        name,
        size,
        run,
        used.software,
        assumed=left_open(row),
        flops_per_token=counted_flops(shape, seq_len, pp),
    )


SOURCE = Source(
    ("nanotron_ultrascale_best_configs_h100",),
    describe,
    {
        "tokens_per_second_per_gpu": plain(TOKENS),
        "mfu_percent": plain(MFU, 0.01),
        "memory_GB": memory(RESERVED, "GiB"),
        "first_stage_params": unused,
    },
)
