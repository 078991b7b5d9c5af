"""Weights & Biases, Aim and TensorBoard: what our loop logged is what each one's file holds.

The loop runs once, in a warm Python, and every library writes the same numbers without a network. They are read
back here from the files: Aim in a Python of its own.
"""

import importlib.util
import json
import os
import struct
import sys
import zlib

import pytest

from tests import warm_python
from tools.aim_apart import FOLDER as AIM
from tools.aim_apart import STAMP as AIM_IS_THERE

PROGRAM = [sys.executable, "-m", "tests.train.programs.tracked"]
OFFLINE = {  # proxies that lead nowhere: a library that asks anybody fails
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
    "NO_PROXY": "127.0.0.1,localhost",
}


def available():
    return [name for name in ("tensorboard", "wandb") if importlib.util.find_spec(name)] + [
        "aim"
    ] * AIM_IS_THERE.is_file()


def need(name):
    if name not in available():
        why = (
            f"no wheels in {AIM}: tools/aim_apart.py says why"
            if name == "aim"
            else f"{name} is not installed"
        )
        pytest.skip(why)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that all logs have kept."""
    folder = tmp_path_factory.mktemp("tracked")
    done = warm_python.run(
        [*PROGRAM, str(folder), "jsonl", *available()], env=os.environ | OFFLINE, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def logged(folder):
    """The loop's own curves: name -> [[step, value], ...]; seconds, which nobody can say again, among them."""
    curves = {}
    for step, values in json.loads((folder / "logged.json").read_text()):
        for name, value in values.items():
            curves.setdefault(name, []).append([step, value])
    assert [step for step, _ in curves["loss"]] == [2, 4, 6]
    assert len({value for _, value in curves["loss"]}) == 3
    return curves


def test_json_lines(trained):
    lines = [json.loads(line) for line in (trained / "jsonl" / "log.jsonl").read_text().splitlines()]
    read = {name: [[line["step"], line[name]] for line in lines] for name in logged(trained)}
    assert read == logged(trained)


def test_tensorboard(trained):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained / "tensorboard"))
    events.Reload()
    read = {name: [[e.step, e.value] for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    in_four_bytes = {  # TensorBoard's scalars are floats of four bytes
        name: [[step, struct.unpack("f", struct.pack("f", value))[0]] for step, value in curve]
        for name, curve in logged(trained).items()
    }
    assert read == in_four_bytes


def test_wandb(trained):
    need("wandb")
    (file,) = (trained / "wandb").glob("wandb/offline-run-*/run-*.wandb")
    read = {}
    for row in history(file.read_bytes()):
        for name in row.keys() & logged(trained).keys():
            read.setdefault(name, []).append([row["_step"], row[name]])
    assert read == logged(trained)


def history(data):
    """The rows of a .wandb file, with wandb's own messages.

    wandb 0.31 reads its files in Go alone. They are logs as LevelDB has them ("log format", leveldb/doc/log_format.md)
    below a header of seven bytes: blocks of 32 KiB; before each piece its CRC-32, length and kind.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    assert data[:4] == b":W&B"
    place, whole = 7, b""
    while place < len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, place)
        piece = data[place + 7 : place + 7 + length]
        assert crc == zlib.crc32(piece, zlib.crc32(bytes([kind])))
        place, whole = place + 7 + length, whole + piece
        if kind in (1, 4):  # whole, or the last piece
            record, whole = Record.FromString(whole), b""
            if record.HasField("history"):
                yield {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }


def test_aim(trained):
    need("aim")
    folder = trained / "aim"
    done = warm_python.run([*PROGRAM, "--read-aim", str(folder)], env=os.environ | OFFLINE, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((folder / "read.json").read_text()) == logged(trained)
