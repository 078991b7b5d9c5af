"""Judge the predictor on regimes that it has never seen, and write down what was found.

    make predict-report                            # everything again (minutes)
    python -m benchmarks.predict_report            # intervals and page, from the predictions that are kept

Three files come of it: `data/measurements/left_out.csv` (every row, predicted without its regime),
`workshop/predict/data/intervals.toml` (how wide intervals are; for programs that nobody has described from
`data/measurements/blind_first.csv`) and `data/measurements/predict_report.md`.
After a change of the model or its constants all three must be made again.
"""

from __future__ import annotations

import argparse

from workshop.facts.published import FOLDER
from workshop.predict import interval
from workshop.published.blind import bars_with_blind
from workshop.published.left_out import FILE, LeftOut, as_csv, left_out, read
from workshop.published.left_out_report import page
from workshop.published.pairs import estimate as apart
from workshop.published.pairs import pairs
from workshop.published.record import MeasuredRun
from workshop.published.residuals import as_toml
from workshop.published.tables import read_folder

INTERVALS = interval.FILE
PAGE = FILE.with_name("predict_report.md")


def intervals(rows: list[LeftOut], records: list[MeasuredRun]) -> str:
    """The text of `intervals.toml`."""
    kinds = {kind: bars_with_blind(rows, records, kind) for kind in ("time", "memory")}
    return as_toml(kinds, apart(pairs(rows)))


def main() -> None:
    """Fit again if asked to, then write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refit", action="store_true", help="fit again for every regime")
    options = parser.parse_args()
    records, _ = read_folder(FOLDER)
    if options.refit:
        FILE.write_text(as_csv(left_out(records, lambda words: print(words, flush=True))), "utf-8")
    rows = read(records)
    INTERVALS.write_text(intervals(rows, records), "utf-8")
    PAGE.write_text(page(rows, records), "utf-8")
    print(PAGE.read_text("utf-8"))


if __name__ == "__main__":
    main()
