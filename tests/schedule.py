"""Which worker runs what: whole files, the longest first, so that no worker is left alone with a long one at the end.

xdist's own ``--dist loadfile`` begins with the files that hold the most tests, and what takes a minute is often one
test on real ranks. The list below is by measured time (``--durations=0``). The lessons follow, then every file that
is not on it, in its usual place: what is short comes last, and fills the end. A name that is no file any more is found
by `tests/rules/test_suite_rules.py`.

Some files go to one worker together, because they share what is dear: those of the Slurm, and those of the Grid
Engine. They come first of all, for most of the time their workers wait while the others compute.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# A group is called by its first file.
TOGETHER = (
    (  # the Slurm
        "tests/cluster/test_slurm_jobs.py",
        "tests/cluster/test_slurm_replicas.py",
        "tests/cluster/test_slurm_notebook.py",
        "tests/cluster/test_directives.py",
        "tests/cluster/test_lab_in_job.py",
        "tests/cluster/test_container.py",
        "tests/cluster/test_two_hosts_srun.py",
    ),
    ("tests/cluster/test_grid_engine_jobs.py", "tests/cluster/test_grid_engine_site.py"),
    # One wheel, built once.
    ("tests/packaging/test_wheel.py", "tests/packaging/test_hosted.py"),
    (  # one JupyterLab and one browser, in the order of a learner
        "tests/browser/test_first_lesson.py",
        "tests/browser/test_parallel_cells.py",
        "tests/browser/test_sliders.py",
        "tests/browser/test_themes_and_sizes.py",
    ),
    (  # an engine that has imported the libraries (`tests.loaded_engine`), and what they make of every file
        "tests/rehearse/test_against_gloo.py",
        "tests/rehearse/test_foreign_programs.py",
        "tests/configs/test_used.py",
        "tests/configs/test_truth.py",
        "tests/configs/test_foreign.py",
        "tests/adapt/test_qlora_ranks.py",
        "tests/adapt/test_adapter_memory.py",
        "tests/parallel/test_deepspeed_zero.py",
        "tests/parallel/test_tensor_plans.py",
        "tests/predict/memory/test_live.py",
    ),
)
LONGEST_FIRST = (
    "tests/cluster/test_slurm_jobs.py",
    "tests/cluster/test_grid_engine_jobs.py",
    "tests/cluster/test_two_hosts_torchrun.py",
    "tests/cluster/test_two_hosts_ranks.py",
    "tests/browser/test_first_lesson.py",
    "tests/launch/test_faults.py",
    "tests/exercises/test_tomorrows_scripts.py",
    "tests/rehearse/test_against_gloo.py",
    "tests/train/test_every_way.py",
    "tests/jupyter/test_canaries.py",
    "tests/train/test_checkpoint.py",
    "tests/train/test_faults.py",
    "tests/launch/test_torchrun.py",
    "tests/launch/test_examples.py",
    "tests/tools/test_gpu_day.py",
    "tests/cli/test_lab.py",
    "tests/launch/test_replicas.py",
    "tests/predict/traffic/test_traffic.py",
    "tests/train/test_traffic_by_axis.py",
    "tests/train/test_ready_cut.py",
    "tests/exercises/test_exercises.py",
    "tests/classroom/test_grading.py",
    "tests/attacks/test_hand_ins.py",
    "tests/classroom/test_many_writers.py",
    "tests/launch/test_node_parts.py",
    "tests/launch/test_session.py",
    "tests/doctor/test_doctor_cluster.py",
    "tests/tools/test_setup_environment.py",
    "tests/jupyter/test_magics.py",
    "tests/parallel/test_compressed.py",
    "tests/parallel/test_fsdp.py",
    "tests/jupyter/test_exercise.py",
    "tests/launch/test_job_rank.py",
    "tests/launch/test_ranks.py",
    "tests/jupyter/test_nsys_cell.py",
    "tests/jupyter/test_rehearse_magic.py",
    "tests/doctor/test_doctor.py",
    "tests/packaging/test_wheel.py",
    "tests/parallel/test_vision_plans.py",
    "tests/rehearse/test_rehearse.py",
    "tests/rehearse/test_process.py",
    "tests/train/test_launched.py",
    "tests/train/test_modules_crossed.py",
    "tests/rules/test_suite_rules.py",
    "tests/parallel/test_zero.py",
    "tests/parallel/test_context_cap.py",
    "tests/parallel/test_mesh.py",
    "tests/tools/test_notebooks.py",
    "tests/tools/test_docs.py",
    "tests/jupyter/test_monitor_magic.py",
    "tests/show/test_pictures.py",
    "tests/show/test_look.py",
    "tests/jupyter/test_restart.py",
    "tests/published/test_serving.py",
    "tests/published/test_left_out.py",
    "tests/predict/memory/test_rehearsed.py",
    "tests/tools/test_gpu_stages.py",
)
_PLACE = {name: place for place, name in enumerate(LONGEST_FIRST)}
_UNIT = {name: group[0] for group in TOGETHER for name in group}


def unit(nodeid: str) -> str:
    """What one worker runs as a whole: the test's file, or the files that stay together."""
    file = nodeid.split("::", 1)[0]
    return _UNIT.get(file, file)


class WholeUnits(LoadFileScheduling):
    """``--dist loadfile``, by `unit`."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the tests of a file keep their order."""
    items.sort(
        key=lambda item: _PLACE.get(name := unit(item.nodeid), len(_PLACE) + (not name.endswith(".ipynb")))
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have xdist keep that order."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Units in place of files."""
    return WholeUnits(config, log) if config.getoption("dist") == "loadfile" else None
