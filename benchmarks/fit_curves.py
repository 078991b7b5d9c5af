"""The constants that come from kernels timed alone, again from `workshop/facts/data/*.csv`.

    python benchmarks/fit_curves.py

Nothing here has seen a training run. For each device that was timed:

- products (`gemm.csv`, 16 bits): the rate of a large one, `tile_loss`, `ramp`, the bandwidth at which they
  read and write, and the shortest kernel, by least squares of log(predicted / measured), cut at 40 %;
- products in 8 bits, of more than 1e12 FLOPs: their rate beside the quantizing of their input, which the
  time model counts for itself;
- experts (`grouped_gemm.csv`, 16 bits, 64 tokens an expert and more): seconds = grouped x products +
  passes x bytes / bandwidth + route_seconds.

Attention and collectives have no constants: their tables are read as they stand.
"""

from __future__ import annotations

import numpy as np

from workshop.facts.catalogue import device
from workshop.facts.device import DeviceSpec
from workshop.facts.microbenchmarks import Gemm, GroupedGemm, gemm, grouped_gemm
from workshop.predict.time.matmul import Product, matmul_seconds
from workshop.predict.time.rates import Rates, rates_of
from workshop.published.fit import minimise

NAMES = ("matmul", "tile_loss", "ramp", "matmul_memory", "kernel_seconds")
START = (0.95, 10.0, 100.0, 0.7, 3e-6)
CUT = 0.4
LARGE = 1e12
"""FLOPs of a product that power limits, not the launch."""
DEVICES = ("A100-80GB", "H100", "GB200", "B200")


def predicted(rates: Rates, spec: DeviceSpec, rows: list[Gemm], share: float) -> np.ndarray:
    """Seconds of some products by the time model's formula."""
    columns = (np.array([getattr(row, name) for row in rows], float) for name in ("rows", "cols", "depth"))
    peak = spec.reachable_flops[rows[0].dtype] * share
    return matmul_seconds(rates, peak, spec.memory_bandwidth * rates.matmul_memory, Product(*columns))


def products(name: str) -> tuple[dict[str, float], float]:
    """What the products of a device determine, and the mean absolute relative error that is left."""
    spec, rows = device(name), [row for row in gemm() if (row.device, row.dtype) == (name, "bf16")]
    measured = np.array([row.seconds for row in rows])

    def off(x: np.ndarray) -> np.ndarray:
        rates = rates_of(name).with_values(**dict(zip(NAMES, map(float, np.exp(x)), strict=True)))
        return np.log(predicted(rates, spec, rows, rates.matmul) / measured)

    far = np.full(len(NAMES), 20.0)
    start = np.log(START)
    best = minimise(lambda x: np.clip(off(x), -CUT, CUT), start, start - far, start + far, rounds=20)
    constants = dict(zip(NAMES, map(float, np.exp(best)), strict=True))
    return constants, float(np.abs(np.exp(off(best)) - 1).mean())


def share_in_8_bits(name: str, constants: dict[str, float]) -> float | None:
    """The rate of products in 8 bits, as a share of the device's reachable one.

    What was timed holds the quantizing of the input, so seconds = products / share + passes x its bytes.
    """
    rows = [row for row in gemm() if (row.device, row.dtype) == (name, "fp8")]
    rows = [row for row in rows if 2.0 * row.rows * row.cols * row.depth > LARGE]
    if not rows:
        return None
    spec, rates = device(name), rates_of(name).with_values(**constants)
    each = np.array([float(row.rows) * row.depth for row in rows]) / spec.memory_bandwidth
    best, _ = reweighted([predicted(rates, spec, rows, 1.0), each], np.array([row.seconds for row in rows]))
    return float(1 / best[0])


def reweighted(terms: list[np.ndarray], seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors of some terms that add up to measured seconds, and the relative errors that are left.

    Least squares of the relative error, reweighted so that it falls on the median.
    """
    shares = np.stack(terms, axis=1) / seconds[:, None]
    weight = np.ones(len(seconds))
    for _ in range(10):
        best = np.linalg.lstsq(shares * weight[:, None], weight, rcond=None)[0]
        errors = np.abs(shares @ best - 1)
        weight = 1 / np.sqrt(np.maximum(errors, 0.05))
    return best, errors


def experts(name: str) -> tuple[dict[str, float], float] | None:
    """What the experts of a device determine, and the mean absolute relative error."""
    spec, rates = device(name), rates_of(name)
    rows = [row for row in grouped_gemm() if (row.device, row.dtype) == (name, "bf16")]
    rows = [row for row in rows if row.tokens_per_expert >= 64]
    if not rows:
        return None
    terms = np.stack([terms_of(row, rates, spec) for row in rows], axis=1)
    best, errors = reweighted(list(terms), np.array([row.seconds for row in rows]))
    constants = dict(
        zip(("grouped", "routed_passes", "token_passes", "route_seconds"), map(float, best), strict=True)
    )
    return constants, float(errors.mean())


def terms_of(row: GroupedGemm, rates: Rates, spec: DeviceSpec) -> np.ndarray:
    """Seconds of the products as plain ones at once, of a pass over routed tokens, of one over all; and 1."""
    tokens, experts_here = row.tokens_per_expert, row.local_experts
    hidden, wide = row.hidden_size, row.expert_ffn_hidden_size
    peak = spec.reachable_flops["bf16"] * rates.matmul
    feed = spec.memory_bandwidth * rates.matmul_memory
    up_and_down = Product(tokens, 2 * wide, hidden, experts_here), Product(tokens, hidden, wide, experts_here)
    plain = sum(float(matmul_seconds(rates, peak, feed, product)) for product in up_and_down)
    each = 2.0 * hidden / spec.memory_bandwidth
    return np.array([plain, tokens * experts_here * each, row.tokens * each, 1.0])


def main() -> None:
    """Print what was found beside what `rates.toml` has."""
    for name in DEVICES:
        constants, error = products(name)
        rates = rates_of(name)
        constants["matmul_fp8"] = share_in_8_bits(name, constants) or rates.matmul_fp8
        print(f"{name}: products predicted within {error:.1%} on average")
        if grouped := experts(name):
            constants.update(grouped[0])
            print(f"  experts within {grouped[1]:.1%}")
        for key, value in constants.items():
            print(f"  {key:<16} {value:<9.3g} rates.toml {getattr(rates, key):.3g}")


if __name__ == "__main__":
    main()
