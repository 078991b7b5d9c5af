"""`workshop plan`: the best layout first, the same as `plan()`, and exit codes."""

from __future__ import annotations

import json
import re
import time

import pytest

from workshop.cli import main
from workshop.cli.counts import parse_count, sequences
from workshop.cli.plan import progress_bar
from workshop.predict.plan import Search, plan

CALL = ["plan", "--model", "llama-3-70b", "--cluster", "64xH100", "--global-batch", "4M"]


def test_the_table_says_what_was_asked_and_why(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # the terminal in which the tests were started
    assert main([*CALL, "--top", "2"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "llama-3-70b on 64xH100: 1,024 sequences of 4,096 tokens a step (4,194,304 tokens)"
    assert "layouts timed" in lines[1]
    assert [line[0] for line in lines if re.match(r"[12] +\d", line)] == ["1", "2"]
    (why,) = [line for line in lines if line.startswith("tensor ")]
    assert "slower" in why or "less than is known of such a ratio" in why
    assert captured.err == ""  # no progress bar where nobody watches


@pytest.mark.parametrize("columns", [None, 80])
def test_no_line_is_wider_than_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    assert main([*CALL, "--top", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= (columns or 113)
    blocks = sum(line.startswith("5 ") for line in lines)  # each with its number
    assert blocks >= (2 if columns else 1)
    assert "min" not in " ".join(line for line in lines if line[:2] in {f"{n} " for n in range(1, 6)})


def test_json_is_what_plan_returns(capsys):
    assert main([*CALL, "--seq-len", "8192", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    planned = plan("llama-3-70b", "64xH100", 512, seq_len=8192)
    best = planned.best
    assert found["proposals"][0]["seconds"] == best.seconds
    assert found["proposals"][0]["layout"]["tensor"] == best.run.layout.tensor
    assert found["proposals"][0]["reasons"] == best.reasons
    assert [p["seconds"] for p in found["proposals"]] == [p.seconds for p in planned.proposals]


def test_nothing_that_fits_has_exit_code_1(capsys):
    assert main(["plan", "--model", "llama-3-70b", "--cluster", "2xA100-40GB", "--global-batch", "4M"]) == 1
    assert "fits no layout of 2xA100-40GB: the least any needs is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--model", "llama-3-70", "unknown model 'llama-3-70'; did you mean 'llama-3-70b'"),
        ("--cluster", "64xH10", "unknown cluster or device 'H10'; did you mean 'H100'"),
        ("--cluster", "64xMI250X", "no time constants are known for 'MI250X'"),
        ("--global-batch", "4Q", "--global-batch '4Q' is no count: write it like 512, 4M or 1.5T"),
        ("--global-batch", "0", "a count must be above zero"),
        ("--seq-len", "5000", "the nearest that would do is 839 sequences (4,195,000 tokens)"),
        ("--seq-len", "-1", "--seq-len must be a whole number of at least 1, not -1"),
    ],
)
def test_a_wrong_call_has_exit_code_2(capsys, flag, value, said):
    assert main([*CALL, flag, value]) == 2
    assert said in capsys.readouterr().err


def test_progress_counts_up_to_all_that_fit():
    told = []
    found = plan("deepseek-v3", "2048xH100", 15360, 4096, Search(top=1, progress=lambda *x: told.append(x)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (found.fitted, found.fitted)
    assert len(told) >= found.fitted // 200_000


def test_counts_of_tokens_and_of_sequences():
    assert parse_count("15T", "x") == (15e12, "t")
    assert sequences("512", 4096) == 512
    assert sequences("4M", 8192) == 512
    with pytest.raises(
        ValueError, match=r"is 0\.50 sequences of 8,192 tokens; the nearest that would do is 1"
    ):
        sequences("4K", 8192)


def test_a_bar_is_drawn_where_somebody_watches_a_long_search(capsys, monkeypatch):
    monkeypatch.setattr("workshop.cli.plan.BAR_AFTER_SECONDS", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar() as progress:
        for done in (4096, 8192):
            time.sleep(0.15)  # tqdm draws ten times a second
            progress(done, 8192)
    drawn = capsys.readouterr().err
    assert "layouts timed:  50%" in drawn
    assert "4.10k/8.19k" in drawn
