"""Numbers that are none, files that are not to be had, options that nobody would read: each is one line."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.cli import in_words, main
from workshop.cli.counts import count, not_negative, positive
from workshop.cli.export import ranks_in

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "llama-3-8b-64xh100.toml")


DDP = """\
model = "llama-3-8b"
cluster = "8xH100"
micro_batch = 1
seq_len = 32
[layout]
replicate = 8
precision = "amp-bf16"
"""


def ended(arguments: list[str]) -> int:
    """The exit code, whoever gives it: the parser or the command."""
    try:
        return main(arguments)
    except SystemExit as exit_of_parser:
        return int(exit_of_parser.code or 0)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "two", ""])
@pytest.mark.parametrize("kind", [positive, not_negative, count])
def test_a_number_of_an_option_is_one(kind, text):
    with pytest.raises(argparse.ArgumentTypeError):
        kind(text)


def test_zero_is_not_negative_and_not_positive():
    assert not_negative("0") == 0
    for kind in (positive, count):
        with pytest.raises(argparse.ArgumentTypeError, match="'0' is"):
            kind("0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", EXAMPLE, "--tokens", "15T", "--price", "-3"], "'-3' is not above zero"),
        (["predict", EXAMPLE, "--tokens", "15T", "--price", "nan"], "'nan' is no number"),
        (["predict", EXAMPLE, "--engine", "foo"], "--engine: of a server; add --serve"),
        (["predict", EXAMPLE, "--serve", "9", "9", "--tokens", "1T"], "one of the two"),
        (["configs", "deepspeed", EXAMPLE, "--lr", "nan"], "'nan' is no number"),
        (["configs", "deepspeed", EXAMPLE, "--gradient-clipping", "-1"], "'-1' is below zero"),
        (["grade", ".", "--seconds", "inf"], "'inf' is no number"),
        (["grade", ".", "--seconds", "0"], "'0' is not above zero"),
        (["grade", ".", "--processes", "0"], "'0' is no whole number of at least 1"),
        (["validate", "--refit"], "--refit is with --left-out"),
        (["validate", "--runs", "x.csv", "--serving"], "--serving and --runs ask for different things"),
        (["validate", "--runs", "x.csv", "--tables", "."], "one of them"),
        (["calibrate", "--constants", "--output", "x.toml"], "--constants only lists"),
        (["calibrate", "--runs", "x.csv", "--like", "foo"], "no time constants are known for 'foo'"),
        (["calibrate", "--runs", "x.csv", "--output", "nowhere/x.toml"], "there is no folder nowhere"),
        (["export", "cell.txt", "--time", "00:10:00", "--gpus"], "--gpus, --time: of the batch file"),
        (["assets", "fetch", "sotu", "--from", "nowhere"], "--from nowhere: there is no such folder"),
    ],
    ids=lambda words: (
        " ".join(words[:1] + words[-2:]).replace(EXAMPLE, "run") if isinstance(words, list) else ""
    ),
)
def test_what_would_be_dropped_or_written_down_is_refused(capsys, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert ended(arguments) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_grading_says_what_memory_no_answer_can_do_with(capsys, tmp_path):
    (tmp_path / "who.ipynb").write_text("{}")
    assert main(["grade", str(tmp_path), "--memory", "0.1"]) == 2
    assert "102 MiB is too little" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["assets", "list", "--json", "sotu"], '"name": "sotu"'),
        (["site", "show", "--json", "laptop"], '"scheduler": "none"'),
        (["container", "command", "--site", "slurm-apptainer", "--", "ls", "--json"], "ls --json"),
        (["container", "command", "--site", "slurm-apptainer", "--folder", "/", "ls"], "workshop.sif ls"),
    ],
    ids=lambda words: " ".join(words[:3]) if isinstance(words, list) else "",
)
def test_options_may_stand_between_an_action_and_its_names(capsys, words, said):
    assert main(words) == 0
    assert said in capsys.readouterr().out


def test_an_unknown_option_between_them_is_still_one(capsys):
    assert ended(["assets", "list", "--jsn", "sotu"]) == 2
    assert "workshop assets: error: unrecognized arguments: --jsn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["validate", "--canonical", "."], "workshop validate: .: Is a directory"),
        (["validate", "--runs", "."], ".: Is a directory"),
        (["validate", "--canonical", "nowhere/x.csv"], "nowhere/x.csv: No such file or directory"),
        (["configs", "accelerate", "ddp.toml", "--output", "."], "workshop configs: .: Is a directory"),
        (["room", "open", "file"], "file"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, list) else "",
)
def test_a_file_that_is_not_to_be_had_is_named_in_one_line(capsys, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("ddp.toml").write_text(DDP)
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_words_for_an_error_without_a_file():
    assert in_words(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == "No space left on device"
    assert in_words(FileNotFoundError("there is no run here")) == "there is no run here"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_who_reads_no_further_and_a_full_disk(unbuffered):
    """As under ``| head -1``, however Python buffers what is printed."""
    words = [sys.executable, "-m", "workshop", "predict", EXAMPLE]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run(words, stdout=gone, stderr=subprocess.PIPE, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"workshop predict: No space left on device\n")


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [("-n 3", 3), ("-n4 --into r", 4), ("--nproc_per_node=2", 2), ("-n gpu", None), ("--nnodes 2", None)],
)
def test_ranks_of_a_cell(flags, ranks):
    assert ranks_in(flags) == ranks


def test_ranks_of_a_cell_that_are_no_number():
    with pytest.raises(ValueError, match="'two' where the number of ranks stands"):
        ranks_in("-n two")
