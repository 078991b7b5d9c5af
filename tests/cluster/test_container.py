"""apptainer.def built for real, its %test passed, two ranks inside it: by hand, under sbatch, by Charliecloud."""

import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import image as images
from tests.cluster.stand_in import play
from workshop.doctor import diagnose
from workshop.doctor.site import site_checks
from workshop.launch.nodes.ranks import StayingNodes
from workshop.launch.nodes.start import Commands
from workshop.launch.staying.ranks import Ranks
from workshop.site.apptainer_command import container_command, container_line

PROGRAM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
import workshop
seen = [os.environ.get(name) for name in ("SHOWN", "HIDDEN", "HF_HUB_OFFLINE")]
line = f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item()}, {seen}, {os.getcwd()}, {workshop.__file__}"
os.write(1, (line + chr(10)).encode())
dist.destroy_process_group()
"""
RANKS = ["python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "two ranks.py"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(images.FULL_SECONDS + 300 if images.full() else 300)]


@pytest.fixture(scope="module")
def image():
    """The image; its folder is not pytest's own, because a job's user must be able to enter it."""
    place = Path(tempfile.mkdtemp(prefix="workshop-image-"))
    place.chmod(0o755)
    try:
        yield images.build(place)
    finally:
        shutil.rmtree(place)


@pytest.fixture
def on_path(image, monkeypatch):
    """The runtime on PATH, and what only this shell has."""
    program, _ = images.apptainer()
    if program is not None:
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("USER", os.environ.get("USER") or "root")  # ch-run asks for it
    monkeypatch.setenv("HIDDEN", "of this shell")
    return image


def expected(folder, runtime):
    offline = "'1'" if runtime == "apptainer" else "None"  # %environment is Apptainer's
    seen = f"['a=1,b=2', None, {offline}], {folder}, /opt/workshop/workshop/__init__.py"
    return {f"rank {rank} of 2: 3.0, {seen}" for rank in range(2)}


def test_the_build_ran_its_test(image):
    assert "two ranks           two gloo ranks agree" in image.said
    assert re.search(r"\d+ ok, \d+ note, 0 no: this machine can run the workshop", image.said)
    inside = image.folder / "opt/workshop"
    for name in ("workshop/__init__.py", "notebooks", "data/published", "examples/sites/laptop.toml"):
        assert (inside / name).exists(), name


def test_two_ranks_by_the_line_that_workshop_prints(on_path, tmp_path):
    (tmp_path / "two ranks.py").write_text(PROGRAM)
    site = on_path.site(tmp_path)
    command = container_command(site, RANKS, folder=str(tmp_path), environment={"SHOWN": "a=1,b=2"})
    done = images.run(command, 60)
    assert done.returncode == 0, done.stdout
    assert expected(tmp_path, on_path.runtime) <= set(done.stdout.splitlines()), done.stdout


def ranks_inside(site, folder, monkeypatch):
    """What two ranks that stay say of where they are, on a node whose program is started in the container."""
    monkeypatch.chdir(folder)
    starter = Commands(("beside",), (("env",),))
    ranks = Ranks(2, nodes=StayingNodes(starter, interface="lo", here=False, site=site))
    try:
        cell = "import os, workshop\nx = torch.ones(1) * rank; dist.all_reduce(x)\n"
        cell += "print(x.item(), os.environ.get('HIDDEN'), os.getcwd(), workshop.__file__, given)"
        return ranks.run(cell, variables={"given": 7}).text
    finally:
        ranks.stop()


def test_ranks_that_stay_run_inside_it(on_path, tmp_path, monkeypatch):
    said = ranks_inside(on_path.site(tmp_path), tmp_path, monkeypatch)
    assert said == f"[ranks 0-1] 1.0 None {tmp_path} /opt/workshop/workshop/__init__.py 7\n"


def test_its_asset_is_there_without_a_network(on_path, tmp_path):
    if on_path.runtime != "apptainer" or not (on_path.folder / "opt/workshop-cache").is_dir():
        pytest.skip(
            f"{images.ASSET} was not in this machine's cache (`make assets`), or Charliecloud stands in"
        )
    inside = "from workshop.assets import folder, store; print(store.is_offline(), folder('digits-5k').name)"
    command = container_command(on_path.site(tmp_path), ["python3", "-c", inside], folder=str(tmp_path))
    done = images.run(command, 60)
    assert done.returncode == 0, done.stdout
    assert done.stdout.split()[-2] == "True"
    assert done.stdout.split()[-1].startswith("digits-5k-")
    assert [path.name.split("-")[0] for path in (on_path.folder / "opt/workshop-cache").iterdir()] == [
        "digits"
    ]


def test_the_site_check_knows_the_image(on_path, tmp_path):
    site = on_path.site(tmp_path)
    checks = [check for check in site_checks(site) if check.name in ("container", "runtime", "binds")]
    assert [line.verdict for line in diagnose(checks)] == ["ok", "ok", "ok"]
    gone = replace(site, container=str(tmp_path / "gone.sif"))
    checks = [check for check in site_checks(gone) if check.name == "container"]
    assert [line.verdict for line in diagnose(checks)] == ["no"]


def test_two_ranks_under_sbatch(request, on_path):
    try:
        slurm = request.getfixturevalue("slurm")
    except pytest.FixtureLookupError:
        pytest.skip("there is no Slurm in these tests")
    folder = slurm.jobs / "container"
    folder.mkdir()
    (folder / "two ranks.py").write_text(PROGRAM)
    line = container_line(on_path.site(folder), folder=str(folder), environment={"SHOWN": "a=1,b=2"})
    script = (
        f"#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --output={folder}/log\nsrun {line} {shlex.join(RANKS)}\n"
    )
    (folder / "job.sh").write_text(script)
    done = images.run(
        ["sbatch", "--parsable", folder / "job.sh"], 20, env={**os.environ, **slurm.environment()}
    )
    assert done.returncode == 0, done.stdout
    deadline = time.monotonic() + 90
    while done.stdout.strip() in slurm.queue() and time.monotonic() < deadline:
        time.sleep(0.2)
    said = (folder / "log").read_text() if (folder / "log").exists() else ""
    assert expected(folder, on_path.runtime) <= set(said.splitlines()), said


def test_charliecloud_plays_the_same_file(request, tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("building an image from packages needs root")
    if sys.version_info[:2] != images.SUITES_PYTHON:
        pytest.skip(f"the stand-in takes this environment's packages: for Python {images.SUITES_PYTHON}")
    if wrong := images.install(images.STAND_IN) or images.install(images.PACKAGES[:1]):
        pytest.skip(f"no Charliecloud: {wrong}")
    monkeypatch.setenv("USER", os.environ.get("USER") or "root")
    place = Path(tempfile.mkdtemp(prefix="workshop-image-"))
    request.addfinalizer(lambda: shutil.rmtree(place))
    played = play(images.base(), place)
    assert "two gloo ranks agree" in played.said
    (place / "two ranks.py").write_text(PROGRAM)
    command = container_command(
        played.site(place), RANKS, folder=str(place), environment={"SHOWN": "a=1,b=2"}
    )
    done = images.run(command, 60)
    assert done.returncode == 0, done.stdout
    assert expected(place, "charliecloud") <= set(done.stdout.splitlines()), done.stdout
    monkeypatch.setenv("HIDDEN", "of this shell")
    said = ranks_inside(played.site(place), place, monkeypatch)
    assert said == f"[ranks 0-1] 1.0 None {place} /opt/workshop/workshop/__init__.py 7\n"


def test_a_failing_post_fails_the_build(image, tmp_path):
    if image.runtime != "apptainer":
        pytest.skip("Charliecloud stands in")
    program, _ = images.apptainer()
    text = (images.ROOT / "apptainer.def").read_text()
    (tmp_path / "bad.def").write_text(text.split("%files")[0] + "%post\n    exit 7\n")
    command = [sys.executable, images.HERE / "in_user_namespace.py", program, "build", "--sandbox"]
    words = ["--build-arg", "BOOTSTRAP=localimage", "--build-arg", f"BASE={images.base()}"]
    environment = {**os.environ, "APPTAINER_TMPDIR": str(tmp_path)}
    done = images.run([*command, *words, tmp_path / "out", tmp_path / "bad.def"], 60, env=environment)
    assert done.returncode != 0
    assert "exit status 7" in done.stdout
