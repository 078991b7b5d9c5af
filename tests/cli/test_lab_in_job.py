"""`workshop lab --in-job` and `workshop container`, with a scheduler of small fakes."""

import os
import re
import shlex
import stat

import pytest

from workshop.cli import lab_job, main, server
from workshop.cli.server import Reached
from workshop.site import current as sites

LOG = """lab: JupyterLab is up, for this machine only:

    http://127.0.0.1:8888/lab/tree/a.ipynb?token=secret

    ssh -N -L 8888:127.0.0.1:8888 -J ada@login node3
"""


@pytest.fixture
def centre(tmp_path, monkeypatch):
    """A site with Slurm; `centre(sbatch=..., squeue=...)` says what its clients do."""
    for name in [n for n in os.environ if n.startswith(("WORKSHOP_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sites, "EVERYONE", tmp_path / "none")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(lab_job, "POLL_SECONDS", 0.05)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "workshop-site.toml").write_text(f'scheduler = "slurm"\n[paths]\njobs = "{tmp_path}/jobs"\n')

    def clients(**scripts):
        for name, script in scripts.items():
            path = tmp_path / "bin" / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return tmp_path

    return clients


def test_the_script_alone(centre, capsys):
    centre(sbatch="exit 9")
    assert main(["lab", "--in-job", "--dry-run", "--time", "00:20:00", "--tunnel", "ada@login"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=workshop-lab\n")
    assert "#SBATCH --time=00:20:00\n" in script
    assert script.rstrip().endswith("--tunnel ada@login")


def test_submitted_and_followed_until_the_tunnel_is_there(centre, capsys):
    folder = centre(
        squeue="test -e asked && { cp log jobs/workshop-lab-42.log; echo RUNNING node3; exit; }; touch asked; "
        "echo 'PENDING (Resources)'",
        sbatch='cp "$2" taken; umask > umask; echo "42;cluster"',
    )
    (folder / "log").write_text(LOG)
    assert main(["lab", "--in-job"]) == 0
    said = capsys.readouterr().out
    assert "lab: job 42, log " in said
    assert "lab: PENDING (Resources)\n" in said
    assert "ssh -N -L 8888:127.0.0.1:8888 -J ada@login node3" in said
    assert "scancel 42 ends it" in said
    assert (folder / "umask").read_text().strip() == "0077"
    assert stat.S_IMODE((folder / "jobs").stat().st_mode) == 0o700
    assert "-m workshop lab --dir" in (folder / "taken").read_text()


def test_a_job_that_ends_before(centre, capsys):
    centre(sbatch="mkdir -p jobs; echo no python > jobs/workshop-lab-7.log; echo 7", squeue="exit 0")
    assert main(["lab", "--in-job"]) == 1
    said = capsys.readouterr().out
    assert "no python" in said
    assert "the job ended before JupyterLab was up" in said


def test_a_job_that_waits_too_long(centre, capsys):
    centre(sbatch="echo 7", squeue="echo 'PENDING (Priority)'")
    assert main(["lab", "--in-job", "--wait", "0.3"]) == 1
    assert "not up after 0.3 s; the job stays: squeue --jobs 7, scancel 7" in capsys.readouterr().out


def test_a_job_that_is_refused(centre, capsys):
    centre(sbatch="echo 'sbatch: error: invalid partition specified: gpux' >&2; exit 1")
    assert main(["lab", "--in-job"]) == 2
    assert "invalid partition specified: gpux. `workshop site check` may say why" in capsys.readouterr().err


def test_an_interrupt_cancels_the_job(centre, monkeypatch, capsys):
    folder = centre(sbatch="echo 7", scancel='echo "$1" > cancelled')

    def interrupted(job):
        raise KeyboardInterrupt

    monkeypatch.setattr(lab_job, "state_of", interrupted)
    assert main(["lab", "--in-job"]) == 130
    assert (folder / "cancelled").read_text() == "7\n"
    assert "job 7 is cancelled" in capsys.readouterr().out


def test_a_laptop_has_no_jobs(centre, tmp_path, capsys):
    (tmp_path / "workshop-site.toml").write_text("")
    assert main(["lab", "--in-job"]) == 2
    assert "no scheduler: `workshop lab` starts JupyterLab here" in capsys.readouterr().err


def test_the_two_tunnels(monkeypatch):
    monkeypatch.setattr(server.socket, "gethostname", lambda: "node3")
    assert "    ssh -N -L 9000:127.0.0.1:9000 -J ada@login node3\n" in Reached("ada@login").said(9000)
    assert "    ssh -N -L 9000:node3:9000 ada@login\n" in Reached("ada@login", "10.0.0.3").said(9000)
    assert "ssh -L 9000:127.0.0.1:9000 THAT_MACHINE" in Reached().said(9000)


def test_a_node_that_is_only_on_loopback(centre, monkeypatch):
    monkeypatch.setattr(server, "own_address", lambda: "127.0.1.1")
    with pytest.raises(ValueError, match="no address but loopback: set interface"):
        server.node_address()
    monkeypatch.setattr(server, "own_address", lambda: "10.0.0.3")
    assert server.node_address() == "10.0.0.3"


# ---------------------------------------------------------------------------- the container's lines


def test_the_run_line(centre, tmp_path, capsys):
    (tmp_path / "workshop-site.toml").write_text(
        f'[node]\ninterface = "ib0"\n[software]\nruntime = "apptainer"\ncontainer = "/w.sif"\n[paths]\njobs = "{tmp_path}"\n'
    )
    assert main(["container", "command", "--", "python3", "my train.py", "--lr", "0.1"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[:2] == ["apptainer", "exec"]
    assert words[-5:] == ["/w.sif", "python3", "my train.py", "--lr", "0.1"]
    assert "NCCL_SOCKET_IFNAME=ib0" in words
    assert main(["container", "command"]) == 0
    assert capsys.readouterr().out.endswith(" /w.sif bash\n")


def test_a_site_without_a_container(centre, capsys):
    assert main(["container", "command"]) == 2
    assert "has no container: set runtime and container in [software]" in capsys.readouterr().err


def test_the_build_line(centre, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path))
    call = ["container", "build", "--torch", "torch==2.13.0+cpu", "--assets", "--output", "w.sif"]
    assert main(call) == 0
    line = capsys.readouterr().out
    assert re.match(r"cd \S+ && apptainer build --build-arg TORCH=torch==2\.13\.0\+cpu ", line)
    assert (
        f"--bind {tmp_path}:/opt/cache-of-the-host --build-arg CACHE=/opt/cache-of-the-host w.sif apptainer.def"
        in line
    )
    assert main([*call[:-1], "folder", "--run"]) == 2
    told = capsys.readouterr()
    assert "apptainer build --sandbox " in told.out
    assert "there is no apptainer on PATH" in told.err
    centre(apptainer="exit 3")
    assert main(["container", "build", "--run"]) == 3


def test_charliecloud_builds_no_def(centre, tmp_path, capsys):
    (tmp_path / "workshop-site.toml").write_text('[software]\nruntime = "charliecloud"\ncontainer = "/w"\n')
    assert main(["container", "build"]) == 2
    assert "Charliecloud builds no image from a .def" in capsys.readouterr().err
