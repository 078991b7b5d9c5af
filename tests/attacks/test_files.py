"""Files and folders that another user has laid, changed or swapped: site files, jobs, results, checkpoints."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from tests.attacks.table import ADA, MALLORY, PAGE, as_user, attack, attempts, begin_as, end, page, read
from workshop.launch import jobs
from workshop.launch.jobs import directory as job_directory
from workshop.launch.jobs.record import Record, write_record
from workshop.launch.report import dumped, read_report
from workshop.launch.request import pickled, unpickled
from workshop.site.current import current_site
from workshop.site.job import Job
from workshop.site.owners import check_folder, check_folder_itself
from workshop.site.spec import SiteSpec, read_site

EVIL = 'name = "evil"\n[software]\npython = "/shared/mallory/python"\n'
GOOD = 'name = "good"\n'


def site_in(folder: Path):
    """What ada's notebook finds in the current folder."""
    os.chdir(folder)
    return current_site().name


@attack("a site file that mallory laid into a folder of hers, where ada opens a notebook")
def test_site_file_in_anothers_folder(shared):
    shared.file(shared.mallory / "workshop-site.toml", EVIL, MALLORY)
    return as_user(ADA, site_in, shared.mallory)


@attack("a site file that mallory laid into /tmp, where ada opens a notebook")
def test_site_file_in_tmp(shared):
    shared.file(shared.drop / "workshop-site.toml", EVIL, MALLORY)
    return as_user(ADA, site_in, shared.drop)


@attack(
    "a link in /tmp, mallory's, that leads to a site file of ada's own (and may lead elsewhere a moment later)"
)
def test_link_to_ones_own(shared):
    good = shared.file(shared.ada / "site.toml", GOOD, ADA)
    link = shared.drop / "workshop-site.toml"
    link.symlink_to(good)
    os.chown(link, MALLORY, MALLORY, follow_symlinks=False)
    return as_user(ADA, site_in, shared.drop)


@attack(
    "ada's own site file in a folder for all without the sticky bit: mallory could put another in its place"
)
def test_own_site_file_in_an_open_folder(shared):
    shared.file(shared.open / "workshop-site.toml", GOOD, ADA)
    return as_user(ADA, site_in, shared.open)


@attack("ada's own site file, which all may write to")
def test_own_site_file_that_all_can_write(shared):
    shared.file(shared.ada / "workshop-site.toml", GOOD, ADA, 0o666)
    return as_user(ADA, site_in, shared.ada)


@attack("mallory's site file, by its path in WORKSHOP_SITE, which ada set for a course")
def test_named_site_file(shared, monkeypatch):
    path = shared.file(shared.mallory / "course.toml", EVIL, MALLORY)
    monkeypatch.setenv("WORKSHOP_SITE", str(path))
    return as_user(ADA, site_in, shared.ada)


@attack("mallory's site file, once ada says that she trusts mallory", "ada herself")
def test_trusted_site_file(shared, monkeypatch):
    path = shared.file(shared.mallory / "course.toml", EVIL, MALLORY)
    monkeypatch.setenv("WORKSHOP_SITE", str(path))
    monkeypatch.setenv("WORKSHOP_TRUSTED_OWNERS", str(MALLORY))
    assert as_user(ADA, site_in, shared.ada) == "evil"
    return "read: nobody but ada can say so"


def swap(link: Path, targets: list[Path]):
    """Mallory makes the link anew for ever, now to ada's file and now to hers."""
    while True:
        for target in targets:
            link.unlink(missing_ok=True)
            link.symlink_to(target)


@attack("a link in /tmp that mallory swaps between ada's site file and her own while ada reads, for a second")
def test_race_by_link(shared):
    good = shared.file(shared.ada / "site.toml", GOOD, ADA)
    evil = shared.file(shared.mallory / "site.toml", EVIL, MALLORY)
    link = shared.drop / "workshop-site.toml"
    swapping = begin_as(MALLORY, swap, link, [good, evil])

    def reads():
        seen, until = {"read": 0, "refused": 0, "not there": 0}, time.monotonic() + 60
        while seen["refused"] <= 20 and time.monotonic() < until:
            try:
                read_site(link)
                seen["read"] += 1
            except FileNotFoundError:
                seen["not there"] += 1
            except ValueError:
                seen["refused"] += 1
        return seen

    try:
        seen = as_user(ADA, reads)
    finally:
        end(swapping)
    assert seen["read"] == 0, seen
    assert seen["refused"] > 20, seen
    return "refused every time"


@attack("an over-long site file, of ada's own (2 MiB)", "ada herself")
def test_long_site_file(shared):
    shared.file(shared.ada / "workshop-site.toml", "#" * (2 << 20), ADA)
    return as_user(ADA, site_in, shared.ada)


@attack("a site file that is no UTF-8", "ada herself")
def test_site_file_that_is_no_text(shared):
    shared.file(shared.ada / "workshop-site.toml", b'name = "\xff\xfe"\n', ADA)
    return as_user(ADA, site_in, shared.ada)


# ---------------------------------------------------------------------------- jobs and results


RECORD = Record("ddp", 1, 1, "CPU, gloo", "/x/cell.py", "cell", "2026-01-01T00:00:00", "00:10:00", job="12")


def job_of(folder: Path, name: str, loss: float, owner: int) -> Path:
    """A job's directory with a result, of that user."""
    directory = folder / name
    ranks = directory / "task_0" / "start_0" / "attempt_0" / "rank_0"
    ranks.mkdir(parents=True)
    (ranks / "report.data").write_bytes(b"".join(dumped({"loss": loss})))
    write_record(directory, RECORD)
    for path in (directory, *directory.rglob("*")):
        os.chown(path, owner, owner)
    directory.chmod(0o700 if owner == ADA else 0o755)
    return directory


def result_of_job_12(folder: Path):
    """What ada gets for the number of her job."""
    job = jobs.find(12, replace(SiteSpec(), jobs=str(folder)))
    return job.tasks[0].reports()[0].loss


@attack("a newer job's directory with the number of ada's, which mallory laid into the folder of jobs")
def test_planted_job(shared):
    job_of(shared.drop, "20260101-ddp", 1.0, ADA)
    job_of(shared.drop, "20270101-ddp", 666.0, MALLORY)
    assert as_user(ADA, result_of_job_12, shared.drop) == 1.0
    return "passed over: the result was that of ada's own"


@attack("the same as a link, to a directory of mallory's")
def test_planted_link_to_a_job(shared):
    theirs = job_of(shared.mallory, "theirs", 666.0, MALLORY)
    (shared.drop / "20270101-ddp").symlink_to(theirs)
    return as_user(ADA, result_of_job_12, shared.drop)


@attack("mallory's report in place of a rank's, within a job's directory of ada's that all may write to")
def test_report_in_an_open_directory(shared):
    directory = job_of(shared.drop, "20260101-ddp", 1.0, ADA)
    directory.chmod(0o777)
    return as_user(ADA, result_of_job_12, shared.drop)


@attack("mallory's report in a rank's folder that all may write to (ada's umask was 0)")
def test_planted_report(shared):
    directory = job_of(shared.drop, "20260101-ddp", 1.0, ADA)
    report = next(directory.rglob("report.data"))
    os.chown(report, MALLORY, MALLORY)
    return as_user(ADA, result_of_job_12, shared.drop).partition(", for")[0]


class Evil:
    """Reading its pickle makes a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@attack("a pickle that runs code, in the place of a report", "whoever can write to it")
def test_pickle_for_a_report(shared):
    import pickle

    mark = shared.drop / "ran"
    report = shared.file(shared.ada / "report.data", pickle.dumps({"loss": Evil(mark)}), ADA)
    said = as_user(ADA, lambda: str(read_report(report, allow_pickle=True)))
    assert not mark.exists()
    return said


@attack("a pickle that runs code, as one value of a job's report", "whoever can write to it")
def test_pickle_within_a_report(shared):
    mark = shared.drop / "ran"
    report = shared.file(shared.ada / "report.data", b"".join(dumped({"loss": 1.0, "gift": Evil(mark)})), ADA)
    said = as_user(ADA, lambda: repr(dict(read_report(report, allow_pickle=False)))[:92])
    assert not mark.exists()
    as_user(ADA, lambda: str(read_report(report, allow_pickle=True)))
    assert mark.exists()  # with --allow-pickle it does run: so this test can fail
    return said + "...: it runs with --allow-pickle only"


@attack("values for ada's ranks (passed.pkl) that mallory wrote")
def test_passed_values(shared):
    path = shared.file(shared.drop / "passed.pkl", pickled({"x": Evil(shared.drop / "ran")}), MALLORY)
    said = as_user(ADA, lambda: str(unpickled(path)))
    assert not (shared.drop / "ran").exists()
    return said


@attack("a folder of jobs in which mallory could swap the batch script before it is handed in")
def test_folder_of_jobs(shared):
    site = replace(SiteSpec(scheduler="slurm"), jobs=str(shared.open))
    return as_user(ADA, lambda: str(job_directory.prepare("print()", site, Job("j", ""))))


@attack("mallory's directory in the place of a job's, when its ranks begin on their node")
def test_swapped_directory_at_the_ranks(shared):
    theirs = job_of(shared.mallory, "job", 1.0, MALLORY)
    return as_user(ADA, check_folder_itself, theirs, "the job's directory")


@attack("one file of mallory's in a checkpoint from which ada's run goes on")
def test_checkpoint(shared):
    checkpoint = shared.ada / "step-00000010"
    checkpoint.mkdir()
    os.chown(checkpoint, ADA, ADA)
    shared.file(checkpoint / "__0_0.distcp", "x", ADA)
    shared.file(checkpoint / "random-00000.pt", "evil", MALLORY)
    return as_user(ADA, check_folder, checkpoint, "the checkpoint")


def test_the_table_has_every_attempt_and_no_other():
    import tests.attacks.test_hand_ins
    import tests.attacks.test_leases_and_sessions
    import tests.attacks.test_room
    import tests.attacks.test_scripts  # noqa: F401

    assert [row["attempt"] for row in read()] == attempts
    assert PAGE.read_text("utf-8") == page(PAGE.read_text("utf-8"), read())
    json.dumps(attempts)
