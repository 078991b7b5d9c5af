"""An example of every picture, small but with all that it can hold: several names, a cap, a limit."""

from __future__ import annotations

from workshop import show
from workshop.facts.layout import Layout
from workshop.measure.report import Timeline
from workshop.predict.pipeline import Durations, simulate_pipeline
from workshop.predict.published_runs import reproduce

LIVE = Timeline(
    [4, 9, 6, 2],
    {"weights": [1] * 4, "activations": [3, 8, 2, 0], "gradients": [0, 0, 3, 1]},
    ["forward", "backward", "backward", "optimizer"],
)

PICTURES = {
    "accuracy_by_trained": lambda: show.accuracy_by_trained({"none": (0, 0.3), "some": (1_000, 0.7)}),
    "kl_by_bits": lambda: show.kl_by_bits({8: 0.002, 4: 0.7}, {8: 0.002, 4: 0.5}, {"NF4": (4, 0.3)}),
    "codes_used": lambda: show.codes_used(
        {"two": ([-1.0, 1.0], [1, 3]), "three": ([-1.0, 0.0, 1.0], [1, 2, 1])}
    ),
    "predicted_and_measured": lambda: show.predicted_and_measured(
        ["a", "b"], [4e6, 8e6], [4e6, None], cap=6e6
    ),
    "before_and_after": lambda: show.before_and_after({0: [1], 1: [2]}, {0: [3], 1: [3]}, "all_reduce"),
    "ring_steps": lambda: show.ring_steps([[[1, 1], [1, 1]], [[1, 2], [2, 1]], [[2, 2], [2, 2]]]),
    "message_curve": lambda: show.message_curve(
        [1e3, 1e6], {"x": [1e-4, 1e-3], "y": [1e-5, 1e-3]}, {"fit": (1e-4, 1e9), "other": (1e-5, 1e9)}
    ),
    "held_and_sent": lambda: show.held_and_sent(
        {"a": {"state": 4e9}, "b": {"state": 1e9, "gradients": 1e9}},
        {"a": {"gradients": 2e9}, "b": {"gradients": 2e9, "weights": 1e9}},
        3e9,
        "two stages",
    ),
    "engine_costs": lambda: show.engine_costs(
        {"a": [3.0, 2.0], "b": [3.0, 2.0]},
        {"a": {"weights": 4e6}, "b": {"weights": 2e6, "moments": 4e6}},
        {"a": 0.0, "b": 6e6},
        {"a": (4e6, 0.0), "b": (6e6, 6e6)},
    ),
    "replicas": lambda: show.replicas({"weights": 4e9, "moments": 8e9}, 4, 16e9),
    "parallel_cell": lambda: show.parallel_cell(2),
    "job_tree": lambda: show.job_tree(2, 2),
    "continued_losses": lambda: show.continued_losses([3.0, 2.0, 1.0], [(0, [3.0, 2.0]), (2, [1.0])]),
    "memory_by_part": lambda: show.memory_by_part(
        {"predicted": {"weights": 4e9}, "measured": {"weights": 4e9, "activations": 3e9}}, cap=6e9, title="a"
    ),
    "memory_timeline": lambda: show.memory_timeline(LIVE, cap=10),
    "memory_timelines": lambda: show.memory_timelines({"plain": LIVE, "full": LIVE}),
    "pipeline_gantt": lambda: show.pipeline_gantt(simulate_pipeline("zb-h1", 2, 4, Durations(1.0, 2.0))),
    "pipeline_gantts": lambda: show.pipeline_gantts(
        {name: simulate_pipeline(name, 2, 4, Durations(1.0, 2.0)) for name in ("gpipe", "naive")}, "two"
    ),
    "roofline": lambda: show.roofline("A100-80GB", {"qkv": (4096, 4096, 4096)}),
    "rooflines": lambda: show.rooflines({"a": (1e12, 1e11, {"norm": (1e6, 1e6)}, {"norm": 1e-5})}),
    "bucket_timeline": lambda: show.bucket_timeline(
        [("ready", 0, "b", 0.1), ("sent", 0, "", 0.1), ("ready", 1, "a", 0.2), ("sent", 1, "", 0.2)], 0.3
    ),
    "loss_by_bytes": lambda: show.loss_by_bytes({"x": [2.0, 1.0]}, {"x": [0.0, 4e3]}),
    "traffic_by_axis": lambda: show.traffic_by_axis(
        {name: {"tensor": 8_000, "pipeline": 50, "data": 8_000} for name in ("predicted", "measured")}
    ),
    "soft_targets": lambda: show.soft_targets(["a", "b"], {"T = 1": [0.9, 0.1], "T = 4": [0.6, 0.4]}, "a"),
    "chance_to_be_found": lambda: show.chance_to_be_found(
        {"few": (2, 3), "many": (9, 4)}, {"few": {0.5: 0.2, 0.9: 0.9}}
    ),
    "bits_held": lambda: show.bits_held(
        {"small": {1: [0.9, 1.0], 2: [1.5]}, "large": {1: [1.0], 4: [1.6]}}, "bits of facts", {"all": [1, 2]}
    ),
    "reach_and_leak": lambda: show.reach_and_leak(
        {0.1: 0.98, 1.0: 0.6}, {0.1: [0.97, 0.99], 1.0: [0.61]}, {0.0: [0.7, 0.9], 1.0: [0.2]}, 0.05, 0.6
    ),
    "learned_and_forgotten": lambda: show.learned_and_forgotten(
        (900.0, 1.5), {"full": [(5.0, 6.0), (6.0, 7.0)], "lora": [(90.0, 1.6)]}
    ),
    "learned_by_age": lambda: show.learned_by_age({"a": {0: 0.7, 4: 0.6}, "b": {0: 0.7, 4: 0.3}}, 0.5),
    "split_curve": lambda: show.split_curve({"rollout": [6.0, 3.0, 2.0], "train": [1.0, 1.5, 3.0]}, 2, 2.5),
    "two_jobs": lambda: show.two_jobs(
        {
            "in turns": {0: [("train", 1.0, 2.0)], 1: [("rollout", 0.0, 1.0)]},
            "at once": {0: [("train", 0.0, 1.0)]},
        }
    ),
    "times_read": lambda: show.times_read({"all": ([2, 2, 2], 2), "some": ([0, 1, 5], 1)}),
    "two_fits": lambda: show.two_fits([0, 1, 2], [0, 1, 0], {"forward": [0.2, 0.6, 0.2]}),
    "scores_by_step": lambda: show.scores_by_step({"x": {0: 2.0, 10: 1.0}}, "loss", ("teacher", 0.5)),
    "zero_patterns": lambda: show.zero_patterns({"2:4": [[True, False], [False, True]], "row": [[True]]}),
    "spread": lambda: show.spread({"ticket": [1.0, 1.2], "fresh": [0.8, 0.9]}, "accuracy"),
    "predicted_and_published": lambda: show.predicted_and_published([reproduce("llama-65b")]),
    "goodput_by_interval": lambda: show.goodput_by_interval([1, 10], {"x": [0.8, 0.9]}, {"x": 5.0}),
    "states_of_ranks": lambda: show.states_of_ranks(
        {"": [["fine", "waits"], ["fine", "fine"]]}, {"fine": "#BBBBBB", "waits": "#E69F00"}, "collective"
    ),
    "counted_causes": lambda: show.counted_causes({"GPU": 3, "software": 1}, ["GPU"], ("GPU", "all else")),
    "rows_read": lambda: show.rows_read([2, 1], [[(0, 0, 2), (1, 2, 3)]]),
    "saves_in_time": lambda: show.saves_in_time({"plain": (0.2, 0.2), "asynchronous": (0.03, 0.4)}),
    "channel_sizes": lambda: show.channel_sizes({"layer 0": [1.0, 9.0]}, 6.0),
    "grid_steps": lambda: show.grid_steps([-1.0, 0.2, 0.4], {"absmax": [-1.0, 0.0, 0.5]}),
    "harm_by_bits": lambda: show.harm_by_bits({"a": {"rtn": {16: 1.0, 4: 1.5}, "gptq": {16: 1.0, 4: 1.2}}}),
    "rank_map": lambda: show.rank_map(Layout(tensor=2, shard=2)),
    "two_cuts": lambda: show.two_cuts(),
    "rows_to_experts": lambda: show.rows_to_experts([[1, 0, 2, 1], [0, 0, 3, 1]]),
    "causal_work": lambda: show.causal_work({"contiguous": [0, 0, 1, 1], "zigzag": [0, 1, 1, 0]}),
    "expert_shares": lambda: show.expert_shares({"alone": [[0.5, 0.5], [0.9, 0.1]]}),
    "f_and_g": lambda: show.f_and_g(),
    "positions_for_heads": lambda: show.positions_for_heads(2),
    "ring_blocks": lambda: show.ring_blocks(3),
    "compromises": lambda: show.compromises(
        {"model": {"a x 2": ((5e7, 0.1), (6e7, 0.12)), "b": ((3e7, 0.2), (3e7, 0.3))}}, 5.5e7
    ),
    "piece_shares": lambda: show.piece_shares(["stem", "head"], {"weights": [1, 3], "seconds": [4, 1]}),
    "cut_matrices": lambda: show.cut_matrices(
        {"A": (4, 8, "columns"), "B": (8, 4, "rows"), "norm": (1, 4, "whole")}, 4
    ),
    "number_in_formats": lambda: show.number_in_formats(0.3952),
    "format_ranges": lambda: show.format_ranges(),
    "error_by_size": lambda: show.error_by_size([1.0, 2.0], {"bf16": [1e-3, 2e-3], "fp16": [1e-4, 1.0]}),
    "sizes_by_layer": lambda: show.sizes_by_layer({"x": [3.0, 900.0]}, {"x": [0.1, 0.2]}, {"448": 448}),
    "error_panels": lambda: show.error_panels(
        [1.0, 2.0], {"row": {"tensor": [0.1, 1.0]}, "column": {"tensor": [0.1, 0.5]}}, "factor"
    ),
    "three_products": lambda: show.three_products(3, 2, 4),
    "delayed_scaling": lambda: show.delayed_scaling([1.0, 8.0, 1.0], {"delayed": [1.0, 1.0, 8.0]}),
    "harm_by_way": lambda: show.harm_by_way({"int8": 0.7, "FP8": 0.05}),
    "bars_by_group": lambda: show.bars_by_group(
        {"a": {"x": 0.1, "y": 0.2}, "b": {"x": 0.3, "y": 0.1}}, "error"
    ),
    "gradient_sizes": lambda: show.gradient_sizes(
        {"fp32": [1, 5, 2], "fp16": [0, 4, 2]}, -25, {"fp32": 0.1, "fp16": 0.4}, {"smallest": -24}
    ),
    "training_curves": lambda: show.training_curves(
        {"a": [3.0, 2.0], "b": [3.0, 1.0]}, {"b": [4, 8]}, "scale", True
    ),
    "kernel_queue": lambda: show.kernel_queue(5, {"short": ([3, 3], ()), "and a wait": ([8, 8], (0,))}),
    "phase_bars": lambda: show.phase_bars(
        {"rank 0": {"data": 0.01, "forward": 0.02, "mine": 0.001}}, "a step"
    ),
    "storage_and_views": lambda: show.storage_and_views(
        6, {"x": ((2, 3), (3, 1), 0), "x.T": ((3, 2), (1, 3), 0)}
    ),
}
