"""The roofline: is a matrix product limited by arithmetic or by memory, and how near does it come?

A product of [rows, depth] by [depth, cols] does 2 rows cols depth FLOPs and moves at least
(rows depth + depth cols + rows cols) elements. Their quotient is its *intensity*, FLOPs per byte. A device
does at most min(peak, bandwidth x intensity) FLOP/s: a slope and a roof that meet at peak / bandwidth, the
ridge (Williams, Waterman and Patterson, "Roofline", CACM 2009). Left of the ridge memory decides, right of
it arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workshop.facts import catalogue
from workshop.facts.checks import check_positive
from workshop.facts.device import DeviceSpec
from workshop.facts.run import Run
from workshop.show.style import LIMIT, MEASURED, ON_WHITE, Picture, name_axes, new_figure, panels

ELEMENT_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
Shape = tuple[int, int, int]


def intensity(shape: Shape, element_bytes: float) -> float:
    """FLOPs per byte of a product (rows, cols, depth) whose operands are read, and result written, once."""
    rows, cols, depth = shape
    return 2 * rows * cols * depth / element_bytes / (rows * depth + depth * cols + rows * cols)


def layer_products(run: Run) -> dict[str, Shape]:
    """The matrix products of one layer of a run, forward, as one rank does them: name -> (rows, cols, depth).

    Tensor parallelism divides the columns or the depth, as each map's ``split`` says.
    """
    tensor, products = run.layout.tensor, {}
    for linear in run.model.linears(run.model.layer_kinds()[-1]):
        cols = linear.outputs // (tensor if linear.split == "column" else 1)
        depth = linear.inputs // (tensor if linear.split == "row" else 1)
        rows = max(1, run.tokens_per_rank * linear.active // linear.copies)
        products[linear.name] = (rows, cols, depth)
    return products


def roofline(
    device: DeviceSpec | str,
    products: Mapping[str, Shape],
    *,
    dtype: str = "bf16",
    measured: Mapping[str, float] | None = None,
) -> Picture:
    """The roof of a device and the place of some matrix products under it.

    ``products``: name -> (rows, cols, depth). ``measured``: name -> seconds of one such product, drawn as
    filled points; without them, a hollow point on the roof says what is possible. ValueError for a device
    without a peak in ``dtype`` or a bandwidth, and for a measurement of something that is no product here.
    """
    spec = catalogue.device(device) if isinstance(device, str) else device
    peak, bandwidth = spec.peak(dtype), spec.memory_bandwidth
    if not bandwidth:
        raise ValueError(f"{spec.name} has no known memory bandwidth; calibrate() measures this machine's")
    unknown = set(measured or {}) - set(products)
    if unknown:
        raise ValueError(
            f"measured {', '.join(sorted(unknown))}: no such product (there are: {', '.join(products)})"
        )
    points = _points(products, dtype, measured or {}, peak, bandwidth)
    figure, axis = new_figure(6.6, 3.6)
    ridge = peak / bandwidth
    _roof(axis, ridge, peak, [x for x, _, _ in points.values()])
    _draw_points(axis, points)
    rates = f"{peak / 1e12:,.4g} TFLOP/s, {bandwidth / 1e9:,.4g} GB/s"
    axis.set_title(f"{spec.name}, {dtype}: {rates}", fontsize=9, loc="left")
    words = f"roofline of {spec.name} in {dtype}, ridge at {ridge:.0f} FLOPs a byte: "
    return Picture(figure, words + _in_words(points, ridge, peak, bandwidth))


Operators = Mapping[str, tuple[float, float]]
Roof = tuple[float, float, Operators, Mapping[str, float] | None]


def rooflines(devices: Mapping[str, Roof]) -> Picture:
    """Devices side by side, each with its roof and the place of some operators under it, numbered.

    devices: name -> (peak FLOP/s, bandwidth in bytes per second, operators, seconds measured or None).
    Operators: name -> (FLOPs, bytes moved), the same names for each device. Filled points were measured;
    hollow ones lie on the roof, where that operator could be. ValueError without a device, and where names
    differ.
    """
    names = [tuple(operators) for _, _, operators, _ in devices.values()]
    if len(set(names)) != 1:
        raise ValueError(f"{len(set(names))} different lists of operators; each device needs the same ones")
    figure, axes = panels(4.2 * len(devices), 3.8, len(devices))
    words = []
    for axis, (name, roof) in zip(axes, devices.items(), strict=True):
        peak, bandwidth, operators, seconds = roof
        ridge, at = peak / bandwidth, [flops / moved for flops, moved in operators.values()]
        _roof(axis, ridge, peak, at)
        groups: list[list[tuple[int, float, float]]] = []
        for number, (operator, (flops, moved)) in enumerate(operators.items(), 1):
            x = flops / moved
            rate = flops / seconds[operator] if seconds else min(peak, bandwidth * x)
            near = (group for group in groups if _same_place(group[0][1:], (x, rate / 1e12)))
            if group := next(near, None):
                group.append((number, x, rate / 1e12))
            else:
                groups.append([(number, x, rate / 1e12)])
        for points in groups:
            _numbered_points(axis, points, hollow=not seconds)
        axis.set_title(f"{name}: {peak / 1e12:,.3g} TFLOP/s, {bandwidth / 1e9:,.0f} GB/s", fontsize=9)
        words.append(f"{name}: ridge at {ridge:.0f} FLOPs a byte")
    numbered = "     ".join(f"{number} {name}" for number, name in enumerate(names[0], 1))
    figure.supxlabel(numbered, fontsize=9)
    return Picture(figure, "rooflines of " + "; ".join(words) + "; " + ", ".join(names[0]))


def _same_place(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether labels of two points would lie on each other: powers of ten apart."""
    return all(abs(math.log10(a / b)) < near for a, b, near in zip(one, other, (0.2, 0.15), strict=True))


def _numbered_points(axis: Any, points: list[tuple[int, float, float]], hollow: bool) -> None:
    """Operators of about one place, each as (number, x, y); they share a label."""
    for _, x, y in points:
        axis.plot([x], [y], "o", markerfacecolor="white" if hollow else MEASURED, markeredgecolor=MEASURED)
    label = ", ".join(str(point[0]) for point in points)
    axis.annotate(
        label, points[0][1:], (0, -14), textcoords="offset points", fontsize=9, ha="center", bbox=ON_WHITE
    )


def _points(
    products: Mapping[str, Shape], dtype: str, measured: Mapping[str, float], peak: float, bandwidth: float
) -> dict[str, tuple[float, float, bool]]:
    """Name -> (intensity, FLOP/s, whether it was measured)."""
    points = {}
    for name, (rows, cols, depth) in products.items():
        for what, size in (("rows", rows), ("cols", cols), ("depth", depth)):
            check_positive(f"{name}: {what}", size)
        x = intensity((rows, cols, depth), ELEMENT_BYTES[dtype])
        seconds = measured.get(name)
        if seconds is not None and seconds <= 0:
            raise ValueError(f"{name}: measured {seconds} seconds; it must be positive")
        rate = min(peak, bandwidth * x) if seconds is None else 2.0 * rows * cols * depth / seconds
        points[name] = (x, rate, seconds is not None)
    return points


def _draw_points(axis: Any, points: Mapping[str, tuple[float, float, bool]]) -> None:
    """Products of one place (queries and keys, gate and up) share a point and a label."""
    together: dict[tuple[float, float, bool], list[str]] = {}
    for name, point in points.items():
        together.setdefault(point, []).append(name)
    for place, ((x, rate, is_measured), names) in enumerate(sorted(together.items())):
        face = MEASURED if is_measured else "white"
        axis.plot([x], [rate / 1e12], "o", markerfacecolor=face, markeredgecolor=MEASURED, markersize=6)
        axis.annotate(
            ", ".join(names), (x, rate / 1e12), (0, -16 - 12 * (place % 3)), textcoords="offset points",
            fontsize=8, ha="left", arrowprops={"arrowstyle": "-", "color": "#BBBBBB", "linewidth": 0.5},
        )  # fmt: skip


def _roof(axis: Any, ridge: float, peak: float, at: list[float]) -> None:
    low, high = min([*at, ridge]) / 4, max([*at, ridge]) * 6
    axis.plot(
        [low, ridge, high],
        [peak / ridge * low / 1e12, peak / 1e12, peak / 1e12],
        color="#333333",
        linewidth=1.5,
    )
    axis.axvline(ridge, color=LIMIT, linewidth=0.8, linestyle=":")
    axis.text(ridge, peak / ridge * low / 1e12, f" ridge: {ridge:.0f} FLOPs a byte", fontsize=8, color=LIMIT)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(top=2 * peak / 1e12)
    name_axes(axis, "intensity, FLOPs a byte", "TFLOP/s")


def _in_words(
    points: Mapping[str, tuple[float, float, bool]], ridge: float, peak: float, bandwidth: float
) -> str:
    words = []
    for name, (x, rate, is_measured) in points.items():
        side = "memory" if x < ridge else "arithmetic"
        share = f", reaches {rate / min(peak, bandwidth * x):.0%} of its roof" if is_measured else ""
        words.append(f"{name} {x:.0f} ({side}{share})")
    return "; ".join(words)
