"""Lines as people paste them from torchrun's pages."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest
from IPython.core.magic_arguments import magic_arguments

from workshop.jupyter.flags import (
    counted,
    explain_errors,
    live_output,
    live_view,
    node_count,
    nodes_of,
    rank_count,
    rank_list,
    read_flags,
)
from workshop.jupyter.magics import ParallelMagics
from workshop.launch import EngineError

LINE, CELL = ParallelMagics.torchrun_line, ParallelMagics.torchrun_cell


@pytest.mark.parametrize(
    "line",
    [
        "--nproc_per_node 4 train.py --lr_max 1e-3",
        "--nproc_per_node=4 train.py --lr_max 1e-3",
        "--standalone --nnodes=1 --nproc-per-node=4 train.py --lr_max 1e-3",
        "--nnodes 1:1 --master_addr localhost --master_port 29501 --node_rank=0 -n 4 train.py --lr_max 1e-3",
        "--nproc-per 4 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 -- train.py --lr_max 1e-3",
        "-n4 'train.py' --lr_max 1e-3",
    ],
)
def test_pasted_lines(line: str) -> None:
    args = read_flags(LINE, line)
    assert counted(args.nproc_per_node) == 4
    assert args.program == ["train.py", "--lr_max", "1e-3"]  # the program's own flags are not touched
    assert nodes_of(args, "") is None


def test_quotes_hold_words_together() -> None:
    args = read_flags(LINE, '-n 2 "my course/train.py" --name "two words" -m')
    assert args.program == ["my course/train.py", "--name", "two words", "-m"]
    assert not args.module
    assert read_flags(CELL, "--save 'a b.py'").save == "a b.py"
    with pytest.raises(ValueError, match="no closing quotation; quotes stand in pairs"):
        read_flags(CELL, "--save 'a b.py")


def test_a_module() -> None:
    args = read_flags(LINE, "--nproc_per_node=2 -m course.train --lr 1")
    assert (args.module, args.program) == (True, ["course.train", "--lr", "1"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--tee 3 train.py", "--tee is torchrun's: leave it out, each rank's output is kept"),
        ("--rdzv_conf=timeout=5 train.py", "--rdzv-conf=timeout=5 is torchrun's"),
        ("--timeot 3 train.py", "unrecognized arguments: --timeot. Did you mean --timeout?"),
        ("-n many train.py", "'many': a number of ranks, or gpu, cpu or auto"),
        ("--nnodes 1:4 train.py", "'1:4': one number of nodes"),
        ("--nnodes 0 train.py", "'0': 1 node or more"),
        ("--live slow train.py", "'slow': folded, time, or the number of a rank"),
    ],
)
def test_what_is_not_understood_is_told(line: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_flags(LINE, line)
    assert words in str(caught.value)


def test_nodes_meet_at_an_endpoint() -> None:
    static = read_flags(CELL, "--nnodes 2 --node_rank 0 --master_addr a")
    with pytest.raises(ValueError, match="needs --rdzv-endpoint.*leave --master-addr, --node-rank out"):
        nodes_of(static, "")
    with pytest.raises(ValueError, match="--standalone is one node, --nnodes 2"):
        nodes_of(read_flags(CELL, "--nnodes 2 --standalone"), "")
    nodes = nodes_of(read_flags(CELL, "--nnodes=2:2 --rdzv_endpoint a:1"), "ib0")
    assert nodes is not None
    assert (nodes.count, nodes.endpoint, nodes.interface) == (2, "a:1", "ib0")


def test_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    for gpus, count in ((0, {"cpu": cores, "auto": cores}), (8, {"cpu": cores, "auto": 8, "gpu": 8})):
        monkeypatch.setattr("workshop.jupyter.flags.gpus_here", lambda gpus=gpus: gpus)
        assert {word: counted(word) for word in count} == count
    monkeypatch.setattr("workshop.jupyter.flags.gpus_here", lambda: 0)
    with pytest.raises(ValueError, match="no GPU here; write cpu, auto, or a number"):
        counted("gpu")
    with pytest.raises(ValueError, match="0 ranks: a group has 1 to"):
        counted(0)
    assert counted(None) == 2
    assert rank_count("3") == 3
    assert node_count("2:2") == 2


def test_views() -> None:
    assert [live_view(text) for text in ("folded", "time", "3")] == ["folded", "time", 3]
    args: Any = argparse.Namespace(live=4)
    with pytest.raises(ValueError, match="--live 4: these are ranks 0 to 3"):
        live_output(args, print, 4)


def test_rank_list() -> None:
    assert rank_list("0,2-3") == [0, 2, 3]
    for bad in ("", "a", "1-", "-1"):
        with pytest.raises(argparse.ArgumentTypeError):
            rank_list(bad)


def test_a_file_that_is_not_to_be_had_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @explain_errors("%%torchrun")
    @magic_arguments()
    def saved(_line: str) -> None:
        Path("nowhere/x.py").write_text("")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        saved("")
    (told,) = caught.value._render_traceback_()  # type: ignore[attr-defined]
    assert "nowhere/x.py" in told
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(EngineError, match="the folder in which this notebook runs has been removed"):
        saved("")
