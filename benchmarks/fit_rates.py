"""Fit the time model's constants again, and say how far `rates.toml` is from what the fit finds.

    python benchmarks/fit_rates.py                    # every device: constants, errors on both halves
    python benchmarks/fit_rates.py --device H100
    python benchmarks/fit_rates.py --write            # put what was found into rates.toml
    python benchmarks/fit_rates.py --cross 4          # error on groups left out, in four turns
    python benchmarks/fit_rates.py --tensor           # error on a tensor-parallel degree that was left out

How it is done stands in `workshop/published/fit.py`: half of the groups of every table, a start that
is the same for every device, a leash for what the rows do not determine. `--cross` judges a change of the
*model*: every group is left out once, the constants fitted on the others, and the error on what was left out
printed. A change is kept when that falls.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path

import numpy as np

from workshop.predict.time import rates as rates_module
from workshop.predict.time.rates import Rates, rates_of
from workshop.published.fit import (
    BOUNDS,
    SETS,
    cases_on,
    fit_constants,
    held_out,
    leave_out_tensor,
)
from workshop.published.predicted import Constants, predict_times
from workshop.published.record import Observation

FILE = Path(rates_module.__file__).parents[1] / "data" / "rates.toml"


def fitted(device: str, folder: Path) -> tuple[Rates, list[Observation], tuple[str, ...]]:
    """The constants of a device on the half that may be seen, rounded as the file has them."""
    devices, names = SETS[device]
    cases = cases_on(folder, devices)
    seen = [case for case, held in zip(cases, held_out(cases), strict=True) if not held]
    rates, _ = fit_constants(seen, device, names, BOUNDS)
    return rates.with_values(**{name: rounded(getattr(rates, name)) for name in names}), cases, names


def rounded(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


def report(rates: Rates, cases: list[Observation], devices: tuple[str, ...]) -> None:
    """Errors by table, on the half that was fitted and on the half that was not."""
    predicted = predict_times(cases, Constants(dict.fromkeys(devices, rates), {}))
    errors = np.abs(predicted / np.array([case.measured for case in cases]) - 1)
    held = held_out(cases)
    tables = np.array([case.table for case in cases])
    for table in [*dict.fromkeys(tables), "all rows"]:
        mine = (tables == table) | (table == "all rows")
        halves = [
            f"{errors[mine & half].mean():>7.1%}" if (mine & half).any() else "      -"
            for half in (~held, held)
        ]
        seen, unseen = (
            f"{int((mine & half).sum()):>4} {text}" for half, text in zip((~held, held), halves, strict=True)
        )
        print(f"  {table:<44} fitted {seen}   held {unseen}")


def cross(device: str, folder: Path, turns: int) -> None:
    """Mean error by table on groups left out, each in one of `turns` fits on all others."""
    devices, names = SETS[device]
    cases = cases_on(folder, devices)
    turn = np.array([hashlib.sha256(f"{c.table}/{c.group}".encode()).digest()[3] % turns for c in cases])
    errors = np.zeros(len(cases))
    for left in range(turns):
        rates, _ = fit_constants(
            [c for c, t in zip(cases, turn, strict=True) if t != left], device, names, BOUNDS
        )
        out = [c for c, t in zip(cases, turn, strict=True) if t == left]
        if out:
            predicted = predict_times(out, Constants(dict.fromkeys(devices, rates), {}))
            errors[turn == left] = np.abs(predicted / np.array([c.measured for c in out]) - 1)
    tables = np.array([case.table for case in cases])
    means = {table: errors[tables == table].mean() for table in dict.fromkeys(tables)}
    for table, mean in means.items():
        print(f"  {table:<44} left out: {mean:.2%}")
    print(f"  {'mean of tables':<44} left out: {np.mean(list(means.values())):.2%}")


def write(device: str, rates: Rates, names: tuple[str, ...]) -> None:
    """Replace the constants of a device in the file, and leave all else as it stands."""
    text = FILE.read_text("utf-8")
    head = f'[device."{device}"]\n'
    start = text.index(head) + len(head)
    end = text.index("\n[", start)
    section = text[start:end]
    for name in names:
        line = f"{name} = {getattr(rates, name):.3g}"
        section, count = re.subn(rf"^{name} = .*$", line, section, flags=re.M)
        if not count:
            section = f"{line}\n{section}"
    FILE.write_text(text[:start] + section + text[end:], "utf-8")
    rates_module.all_rates.cache_clear()


def main() -> None:
    """Fit, compare, report; write if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, default=Path("data/published"))
    parser.add_argument("--device", choices=tuple(SETS), action="append")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tensor", action="store_true")
    parser.add_argument("--cross", type=int, default=0, metavar="TURNS")
    options = parser.parse_args()
    for device in options.device or SETS:
        print(device, flush=True)
        if options.cross:
            cross(device, options.tables, options.cross)
            continue
        if options.tensor:
            for degree, error in leave_out_tensor(options.tables, *SETS[device]).items():
                print(f"  tensor {degree} left out: {error:.1%}", flush=True)
            continue
        rates, cases, names = fitted(device, options.tables)
        before = rates_of(device)
        for name in names:
            old, new = getattr(before, name), getattr(rates, name)
            edge = " at its bound" if any(abs(new / bound - 1) < 0.01 for bound in BOUNDS[name]) else ""
            print(f"  {name:<16} {new:<9.3g} rates.toml {old:<9.3g} {new / old - 1:+.1%}{edge}")
        report(rates, cases, SETS[device][0])
        if options.write:
            write(device, rates, names)


if __name__ == "__main__":
    main()
