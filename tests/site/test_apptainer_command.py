"""The container's run line: kept files for four sites, binds that are not said twice, what is refused."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.site.apptainer_command import all_binds, container_command, container_line
from workshop.site.spec import SiteSpec

GOLDEN = Path(__file__).parent / "golden_container"
CENTRE = SiteSpec(
    name="a centre",
    scheduler="slurm",
    gpus=4,
    runtime="apptainer",
    container="/shared/workshop.sif",
    binds=("/scratch", "/shared/data:/data:ro"),
    jobs="/scratch/ada/jobs",
    cache="/scratch/ada/cache",
    data="/data",
)
FOLDER = "/people/ada/course"
RANKS = {"OMP_NUM_THREADS": "1", "NCCL_SOCKET_IFNAME": "ib0", "WORKSHOP_CACHE": "/scratch/ada/cache"}
COMMAND = ["python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "my train.py"]
CASES = {
    "apptainer": (CENTRE, RANKS),
    "apptainer-cpu": (replace(CENTRE, gpus=0, binds=()), {}),
    "singularity": (replace(CENTRE, runtime="singularity", binds=("/scratch",)), RANKS),
    "charliecloud": (replace(CENTRE, runtime="charliecloud", binds=("/scratch",)), RANKS),
}


@pytest.mark.parametrize("name", CASES)
def test_the_line_is_the_kept_one(name):
    site, variables = CASES[name]
    words = container_command(site, COMMAND, folder=FOLDER, environment=variables)
    line = container_line(site, folder=FOLDER, environment=variables)
    kept = (GOLDEN / f"container-{name}.txt").read_text()
    assert "\n".join([*words, "", line, ""]) == kept


def test_a_site_without_a_container_runs_the_command_as_it_is():
    assert container_command(SiteSpec(), COMMAND, folder=FOLDER) == COMMAND
    assert container_line(SiteSpec(), folder=FOLDER) == ""


def test_only_the_named_variables_come_along():
    words = container_command(CENTRE, COMMAND, folder=FOLDER, environment={"A": "1"})
    assert "--cleanenv" in words
    given = [words[i + 1] for i, word in enumerate(words) if word == "--env"]
    assert given == ["PYTHONNOUSERSITE=1", "A=1"]


def test_gpus_follow_the_site_unless_said():
    assert "--nv" in container_command(CENTRE, COMMAND, folder=FOLDER)
    assert "--nv" not in container_command(CENTRE, COMMAND, folder=FOLDER, gpus=False)
    assert "--nv" in container_command(replace(CENTRE, gpus=0), COMMAND, folder=FOLDER, gpus=True)


def test_no_folder_is_bound_twice():
    assert all_binds(CENTRE, "/scratch/ada/run") == ["/scratch", "/shared/data:/data:ro"]
    assert all_binds(CENTRE, FOLDER) == ["/scratch", "/shared/data:/data:ro", FOLDER]
    assert all_binds(replace(CENTRE, binds=("/scratchy",)), FOLDER) == [
        "/scratchy", FOLDER, "/scratch/ada/jobs", "/scratch/ada/cache",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jobs": "$HOME/jobs"}, r"'\$HOME/jobs' holds a variable"),
        ({"container": "$PROJECT/w.sif"}, "holds a variable"),
        ({"binds": ("/a:/b:ro:x",)}, r"write it as SOURCE\[:TARGET\[:ro\]\]"),
        ({"binds": ("/a,/b",)}, "one folder each"),
        ({"runtime": "charliecloud"}, "Charliecloud cannot bind read-only"),
    ],
)
def test_what_cannot_be_had_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        container_command(replace(CENTRE, **given), COMMAND, folder=FOLDER)


def test_values_that_env_would_read_as_a_list_are_quoted():
    variables = {"A": "x=1,y=2", "B": "0,1", "C": 'a="b"'}
    words = container_command(CENTRE, [], folder=FOLDER, environment=variables)
    given = [words[i + 1] for i, word in enumerate(words) if word == "--env"]
    assert given[1:] == ['"A=x=1,y=2"', "B=0,1", '"C=a=""b"""']
    with pytest.raises(ValueError, match="drops a quote at the end"):
        container_command(CENTRE, [], folder=FOLDER, environment={"A": 'say "hi"'})


@pytest.mark.parametrize("gpus", [None, "", "2,3"])
def test_what_the_node_sets_is_passed_as_it_is_there(tmp_path, gpus):
    show = tmp_path / "apptainer"
    show.write_text('#!/bin/sh\nprintf "<%s>\\n" "$@"\n')
    show.chmod(0o755)
    line = container_line(CENTRE, folder=FOLDER) + " hostname"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | (
        {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
    )
    words = subprocess.run(
        ["bash", "-uc", line], env=environment, capture_output=True, text=True, timeout=20, check=True
    ).stdout.splitlines()
    plain = [f"<{word}>" for word in container_command(CENTRE, ["hostname"], folder=FOLDER)[1:]]
    added = [] if gpus is None else ["<--env>", f"<CUDA_VISIBLE_DEVICES={gpus}>"]
    assert words == [*plain[:-2], *added, *plain[-2:]]


def test_the_shell_reads_the_line_as_the_list():
    line = container_line(CENTRE, folder="/with a space", node_variables=())
    assert shlex.split(line) == container_command(CENTRE, [], folder="/with a space")
