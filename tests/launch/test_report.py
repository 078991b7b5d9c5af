"""report() in a rank and its reading."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workshop.launch.report import REPORT_FILE, Damaged, Reported, own_report, read_report, report
from workshop.site.owners import NotOurs


def test_nobody_listens_without_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPORT_FILE, raising=False)
    report(loss=1.0)


def test_later_values_replace_and_every_call_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r"
    monkeypatch.setenv(REPORT_FILE, str(path))
    report(loss=2.0, step=0)
    report(loss=1.0)
    back = read_report(path, allow_pickle=True)
    assert back == {"loss": 1.0, "step": 0}
    assert back.loss == 1.0
    assert [call["loss"] for call in back.calls] == [2.0, 1.0]
    with pytest.raises(AttributeError, match="reported no 'los'; it reported loss, step"):
        back.los  # noqa: B018


def test_a_write_cut_short_costs_the_last_call_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r"
    monkeypatch.setenv(REPORT_FILE, str(path))
    report(a=1)
    report(b=list(range(1000)))
    path.write_bytes(path.read_bytes()[:-10])
    assert read_report(path, allow_pickle=True) == {"a": 1}


def test_tensors_arrive_as_arrays_without_torch_in_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "r"
    code = (
        "import torch; from workshop import report\n"
        "report(x=torch.ones(2, dtype=torch.bfloat16), nest={'y': [torch.arange(3)]}, p=torch.nn.Parameter(torch.ones(1)))"
    )
    env = {REPORT_FILE: str(path), "PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=env)
    check = (
        "import sys; from pathlib import Path; from workshop.launch.report import read_report\n"
        f"r = read_report(Path({str(path)!r}), allow_pickle=False); assert 'torch' not in sys.modules\n"
        "print(r['x'].dtype, r['nest']['y'][0].tolist(), r['p'].tolist())"
    )
    env.pop(REPORT_FILE)
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60, env=env
    )
    assert done.stdout == "float32 [0, 1, 2] [1.0]\n"


def test_absent_report_is_empty(tmp_path: Path) -> None:
    assert read_report(tmp_path / "none", allow_pickle=False) == Reported([])


def test_another_users_report_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r"
    monkeypatch.setenv(REPORT_FILE, str(path))
    report(a=1)
    path.chmod(0o666)
    with pytest.raises(NotOurs, match="r is not used, for anybody could change it"):
        read_report(path, allow_pickle=False)
    path.chmod(0o600)
    assert read_report(path, allow_pickle=False) == {"a": 1}
    path.rename(tmp_path / "mine")
    path.symlink_to(tmp_path / "mine")
    with pytest.raises(NotOurs, match="it is a link"):
        read_report(path, allow_pickle=False)


def test_what_is_no_report_is_named(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(pickle.dumps({"loss": 1.0}))
    with pytest.raises(Damaged, match=r"/r is no report: it does not begin as a report does"):
        read_report(tmp_path / "r", allow_pickle=True)


OF_THE_PROGRAM = """
from workshop.launch.report import report
class Z:
    pass
report(z=Z(), loss=1.0)
"""


def test_a_class_of_the_ranks_program_costs_its_own_value_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPORT_FILE, str(tmp_path / "r"))
    subprocess.run([sys.executable, "-c", OF_THE_PROGRAM], check=True, timeout=60)
    back = own_report(tmp_path / "r")
    assert back.loss == 1.0
    assert "a __main__.Z, which only the ranks can read" in repr(back.z)
    with pytest.raises(AttributeError, match="report the numbers, texts or arrays in it"):
        back.z.size  # noqa: B018


@pytest.mark.parametrize("value", [lambda: 1, threading.Lock()], ids=["lambda", "lock"])
def test_a_value_that_cannot_be_kept_is_named(
    value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPORT_FILE, str(tmp_path / "r"))
    with pytest.raises(TypeError, match=r"report\(f=...\): a (function|lock) cannot be handed"):
        report(f=value)
