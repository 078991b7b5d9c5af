"""The script at a lesson's end is saved by its cell, runs by plain torchrun, and goes on where it was saved.

Plain torchrun is three processes that import torch, and the ranks import half of the compiler with their first
optimizer: seven seconds of a core. So one script of one rank and one of several get new Pythons; for the others the
command torchrun and its ranks are forks of a warm one, and `workshop` is refused to them (`tests.plain_torchrun`).
That a second run goes on from the first one's file is tried on ranks of ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm_python
from workshop import launch
from workshop.launch.script import save

SOURCES = sorted((Path(__file__).parents[2] / "notebooks" / "source").rglob("*.py"))
SCRIPT = re.compile(r'(?s)# %% tags=\["script"\]\n# (%%torchrun[^\n]*)\n(.*?)\n# %% ')
SCRIPTS = {path.stem: found for path in SOURCES if (found := SCRIPT.search(path.read_text(encoding="utf-8")))}

EPOCH = re.compile(r"epoch (\d+): mean loss ([\d.]+)")
PRINTED = {
    # scaled, the error is near that of three bits of mantissa, 1 / (16 sqrt(7)) = 2.4 %; a few are subnormal
    "11_numbers_and_tensors": r"(?s)bfloat16 .* error +0\.16\d%.*float8_e4m3fn  .*error 28\.\d+%, 37\.\d+% became zero\n"
    r"float8_e4m3fn scaled .* error +2\.6\d\d%, +0\.00% became zero\n",
    # 6 FLOPs for each of 256 samples and 512 x 256 + 256 x 256 weights of products
    "12_flops_and_mfu": r"(?s)301,989,888 FLOPs.*(epoch \d: [\d,]+ samples/s, MFU [\d.]+ %, loss [123]\.\d\d\s*){3}",
    # checkpointing leaves the state alone, and of the activations the layers' inputs and the last output
    "13_memory_of_a_step": r"plain: (weights [\d.]+ MB, gradients .*, moments [\d.]+ MB), activations 1\d\.\d+ MB, "
    r"(loss \S+)\ncheckpoint: \1, activations 1\.31 MB, \2\n",
    # Muon keeps 4 bytes for the 64 x 64 matrix inside, AdamW 8 for the rest
    "15_optimizers": r"(?s)sgd: 4\.00 bytes.*adamw: 8\.00 bytes.*loss 0\.\d+\nmuon: 4\.92 bytes.*loss 0\.0\d+",
    # three quarters of the rows were padding; the loss falls, by three epochs of real tokens
    "16_faster_step": r"padding \d\.\d% instead of [345]\d\.\d%\n(epoch \d: mean loss \d\.\d{3}, [\d,]+ real tokens/s\s*){3}",
    # the four names leave next to nothing of a step over
    "17_profile_and_monitor": r"trace_\d+\.json: (\w+ \d+%, ){4}together (8\d|9\d|100)% of a step\n"
    r"most self time: aten::\w+\n",
    # with muP the wide model moves about as far; with one rate for all several times as far
    "18_scale_the_recipe": r"(?s)muP True: .* (0\.\d|1\.\d) times.*muP False: .* ([3-9]|\d\d)\.\d times as far\n"
    r"tuned at 32: rate [\d.]+, loss \d\.\d+\nat 512: loss \d\.\d+, with one rate for all \d+\.\d+\n",
    # the same losses are asserted in the script; without a C++ compiler it runs the graphs as they are
    "19_compile_and_kernels": r"(inductor|eager): 2 graphs for 4 layers\nfirst step [\d.]+ s, eager [\d.]+ s\n"
    r"eager: a step [\d.]+ ms\ncompiled: a step [\d.]+ ms\nboth: loss [12]\.\d\d to 0\.0\d\n",
    "21_collectives": r"alpha \d+ us, beta \d+\.\d+ GB/s",
    "23_ddp_limits": r"optimizer: 8\.00 bytes a parameter",
    # two stages of one time would be 8 (1 + 1) / (8 + 1) = 1.78 times as quick; the clock decides where the cut is
    "36_vision_lab": r"(?s)0 Conv2d .*cut before layer \d: [\d.]+ ms a step\n"
    r"one device: [\d.]+ ms, 1\.[0-7]\d times as long\na stage holds [\d.]+ MB, [\d.]+ MB\n",
    # (tensor, pipeline, data) as published; 18 bytes for each of a 280th of 529 billion weights, and what is kept
    "37_plan_the_layout": r"1\.7B: tensor 1 x pipeline 1 x data 32: (?s:.*) 1T: tensor 8 x pipeline 64 x data 6: "
    r"(?s:.*)530B: tensor 8 x pipeline 35 x data 16: 27\.6 s, 46 GB\n +4 fit, 1 within 2 % of the fastest\n",
    # E4M3 is off by 2.4 % of a typical number; an outlier costs what shares its scale
    "41_fp8_scaling": r"calm +2\.4%, +0% +2\.4%, +0% +2\.4%, +0% +tensor\n"
    r"row outlier +100\.0%,100% +2\.4%, +0% +2\.4%, +0% +row\n"
    r"column outlier +100\.0%,100% +100\.0%,100% +3\.\d%, 25% +16 bits\n",
    # a byte for each of 2 * 64 * 256 weights, four for each of 320 biases and 4 scales
    "43_fp8_inference": r"error of the outputs [345]\.\d%, 34,064 bytes for 132,352 in fp32",
    # half a byte for each of 128 * 256 + 256 * 64 weights, two for each 64 of them, four for each of 64 biases
    "53_quantization": r"round to nearest: error of the outputs 1\d\.\d%\nGPTQ: error of the outputs [345]\.\d%\n"
    r"26,368 bytes for 196,864 in the same layers before\n",
    "55_pruning": r"dense: loss 0\.00\d+\nhalf of the weights gone: loss 0\.0[3-9]\d+\n"
    r"trained on with the masks: loss 0\.00\d+\n",
    # 2 x 4 layers x 4 heads x 32 numbers of 4 bytes for each of 80 tokens
    "56_serving": r"1 users: first token .*, cache 0\.33 MB\n4 users: .* 1\.31 MB\n16 users: .* 5\.24 MB\n"
    r"prompt lookup: \d+% the same",
    # 15e12 tokens of 6 (70.6e9 - 128,256 * 8,192) + 12 * 80 * 4,096 * 8,192 FLOPs, on 1,024 * 989e12 * 0.448
    "64_plan_a_run": r"3,576,279 steps of 4\.2 s: 172 days\n(?s:.*)a failure every 50 h, a save every 65 min\n2\.5% lost",
}
"""What those print that train nothing; the others print a loss for each epoch."""


COLD = {"11_numbers_and_tensors", "22_ddp", "26_accelerate", "27_fewer_bytes"}
"""Run by a new Python. DDP keeps the group until the interpreter ends, and then it is destroyed under the
interpreter's lock, for which gloo's thread may wait, to let go of the last collective's tensor: neither goes on. A
rank that is a fork ends so quickly that 13 of 40 hung (27, torch 2.13, Debian's Python); of new Pythons none of 40.
A barrier before the end leaves the thread time; with it 3 of 60 forks hung."""


def test_a_lesson_ends_in_a_script() -> None:
    lessons = {path.stem for path in SOURCES} - {"00_welcome"}
    assert lessons == set(SCRIPTS)
    assert set(SCRIPTS) >= COLD


def test_a_rank_of_the_warm_torchrun_has_no_workshop(tmp_path: Path) -> None:
    """Both have printed before either fails: torchrun ends the others at the first failure that it sees."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, time\n"
        "rank, here = int(os.environ['RANK']), pathlib.Path(__file__).parent\n"
        "os.write(1, f\"{rank} {os.environ['WORLD_SIZE']}\\n\".encode())\n"
        "(here / f'printed.{rank}').touch()\n"
        "end = time.monotonic() + 60\n"
        "while not (here / f'printed.{1 - rank}').exists() and time.monotonic() < end:\n"
        "    time.sleep(0.01)\n"
        "import workshop\n"
    )
    done = warm_torchrun(script, 2)
    assert done.returncode != 0
    assert sorted(done.stdout.splitlines()) == ["0 2", "1 2"]
    assert "import of workshop halted" in done.stderr


@pytest.mark.second_try(
    reason="gloo's threads now and then abort a process that is leaving (pytorch pull request 179291), or hold it up"
)
@pytest.mark.parametrize("lesson", SCRIPTS)
def test_tomorrows_script_needs_nothing_of_ours(
    lesson: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / "saved.pt"))
    script, ranks = written(lesson, tmp_path)
    done = (torchrun if lesson in COLD else warm_torchrun)(script, ranks)
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    if lesson in PRINTED:
        assert re.search(PRINTED[lesson], printed), printed
        return
    assert (tmp_path / "saved.pt").exists(), "CHECKPOINT says where"
    first = EPOCH.findall(printed)
    second = EPOCH.findall(launch.torchrun(launch.Script(script), ranks).text)
    assert [epoch for epoch, _ in first] == ["0", "1", "2"], printed
    assert [epoch for epoch, _ in second] == ["3", "4", "5"]
    assert float(second[-1][1]) < 0.5 * float(first[0][1])


def written(lesson: str, folder: Path) -> tuple[Path, int]:
    """The script as the lesson's cell leaves it, and the ranks that the cell asks for."""
    line, cell = SCRIPTS[lesson].groups()
    assert "workshop" not in cell
    (ranks,) = re.findall(r" -n (\d+)", line)
    return save(folder / "script.py", line.replace("{folder}", str(folder)), cell, {}), int(ranks)


def words(script: Path, ranks: int) -> list[str]:
    """What the learner types after torchrun."""
    return ["--standalone", f"--nproc-per-node={ranks}", str(script)]


def torchrun(script: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    """The script on so many ranks, each a new Python."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words(script, ranks)],
        cwd=script.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def warm_torchrun(script: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    """The same command in a fork of a Python that has torch, and its ranks too."""
    command = [sys.executable, "-m", "tests.plain_torchrun", *words(script, ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return warm_python.run(command, cwd=script.parent, env=environment, timeout=120)
