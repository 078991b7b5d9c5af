"""Whatever a site or a job says, its batch script has exactly the directives that were meant, and bash reads it."""

import re
import shlex
import subprocess
from dataclasses import replace

import pytest

from workshop.site.job import Job
from workshop.site.lab_script import Lab, lab_script
from workshop.site.sge_script import sge_script
from workshop.site.slurm_script import LONGEST_VALUE, output_path, sbatch_line, slurm_script
from workshop.site.spec import SiteSpec

hypothesis = pytest.importorskip("hypothesis", reason="the property tests need hypothesis (the dev extra)")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

MANY = settings(max_examples=300, deadline=None, database=None)
# What people write, and what hostile people would; and any other text.
NASTY = ["My Course", "a#b", "a b --wrap=x", "'", '"', "\\", "a\\ b", "$(touch x)", "`x`", "%j", "ü 日本", "\t", "-x", "=",
         "a'b\"c", "\\\"", ";rm -rf", "a\\", "#SBATCH --wrap=x", "~", "*", "{a,b}", "!x"]  # fmt: skip
printable = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))
line = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(NASTY), max_size=3).map("".join),
    st.text(printable, max_size=20),
)
given_text = line.filter(bool)
folder = given_text.map("/{}".format)
SPLITS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def read_back(script):
    """``--flag`` to value, as sbatch reads it: `sbatch` stops at the first command.

    tests/cluster/test_directives.py holds this reading against a real sbatch.
    """
    found = []
    for text in SPLITS.split(script):
        if text.startswith("#SBATCH"):
            found += words(text.removeprefix("#SBATCH"))
        elif text.strip() and not text.lstrip().startswith("#"):
            break
    return [tuple(word.split("=", 1)) if "=" in word else (word,) for word in found]


def words(text):
    """The words of a directive: quotes, backslashes, and # for a comment."""
    found, at = [], 0
    while True:
        while at < len(text) and text[at].isspace() and text[at] in " \t":
            at += 1
        if at == len(text) or text[at] == "#":
            return found
        word, quote = "", ""
        while at < len(text) and (quote or text[at] not in " \t"):
            letter = text[at]
            if letter == "\\" and at + 1 < len(text):
                word += text[at + 1]
                at += 2
                continue
            if quote and letter == quote:
                quote = ""
            elif not quote and letter in "'\"":
                quote = letter
            elif not quote and letter == "#":
                return [*found, word]
            else:
                word += letter
            at += 1
        found.append(word)


@MANY
@given(given_text)
def test_a_value_comes_back_as_it_was(value):
    assert read_back(sbatch_line("comment", value)) == [("--comment", value)]


@MANY
@given(account=line, partition=line, reservation=line, name=given_text, at=folder, jobs=folder)
def test_a_job_has_exactly_the_directives_meant(account, partition, reservation, name, at, jobs):
    site = SiteSpec(
        scheduler="slurm", account=account, partition=partition, reservation=reservation, cpus=8,
        directives=("--exclusive",), prologue=("true",),
    )  # fmt: skip
    job = Job(
        name, "p.py", ("a b", "#SBATCH --wrap=x"), nnodes=2, folder=at, directory=jobs.replace("\\", "/")
    )
    meant = {
        "--job-name": job.title, "--account": account, "--partition": partition, "--reservation": reservation,
        "--nodes": "2", "--ntasks-per-node": "1", "--cpus-per-task": "1", "--time": "00:10:00", "--chdir": at,
        "--output": jobs.replace("\\", "/").replace("%", "%%") + "/%x-%j.out",
    }  # fmt: skip
    wanted = [(flag, value) for flag, value in meant.items() if value]
    assert read_back(slurm_script(site, job)) == [*wanted, ("--no-requeue",), ("--exclusive",)]


@MANY
@given(account=line, partition=line, at=folder, login=given_text, value=line)
def test_a_lab_has_exactly_the_directives_meant(account, partition, at, login, value):
    jobs = at.replace("\\", "/")
    site = SiteSpec(scheduler="slurm", account=account, partition=partition, jobs=jobs, gpus=2)
    script = lab_script(site, Lab(at, login), {"MINE": value})
    asked = {"--account": account, "--partition": partition}
    assert read_back(script) == [
        ("--job-name", "workshop-lab"), ("--nodes", "1"), ("--ntasks-per-node", "1"), ("--gpus-per-node", "2"),
        ("--time", "00:10:00"), *((flag, value) for flag, value in asked.items() if value),
        ("--output", jobs.replace("%", "%%") + "/workshop-lab-%j.log"),
    ]  # fmt: skip


def qsub_reads(script):
    """Flag to value of every ``#$`` line, which qsub reads wherever it stands in the file."""
    return [tuple(text[2:].split(None, 1)) for text in SPLITS.split(script) if text.startswith("#$")]


@MANY
@given(account=line, partition=line, value=line, argument=line, name=given_text)
def test_grid_engine_has_exactly_the_directives_meant_or_is_refused(
    account, partition, value, argument, name
):
    site = SiteSpec(scheduler="sge", account=account, partition=partition, prologue=("true",), gpus=1)
    job = Job(name, "p.py", (argument,), environment={"MINE": value}, directory="/jobs/1", folder="/home/ada")
    plain = all(re.fullmatch(r"[A-Za-z0-9_.,:/@=+-]*", text) for text in (account, partition))
    wanted = [(flag, text) for flag, text in (("-A", account), ("-q", partition)) if text]
    for made in (
        lambda: sge_script(site, job),
        lambda: lab_script(site, Lab("/home/ada", "ada@login"), {"MINE": value}),
    ):
        if not plain:
            with pytest.raises(ValueError, match="a directive of Grid Engine takes no blanks"):
                made()
            continue
        read = qsub_reads(made())
        assert [pair for pair in read if pair[0] in ("-A", "-q")] == wanted
        flags = [flag for flag, *_ in read]
        assert set(flags) <= {"-S", "-N", "-A", "-q", "-l", "-r", "-j", "-o"}
        assert len(flags) == len(set(flags))


@settings(max_examples=25, deadline=None, database=None)
@given(program=given_text, argument=line, at=folder, value=line)
def test_bash_hands_the_program_its_very_words(program, argument, at, value):
    """The line that starts the ranks, run by bash with stand-ins for srun and torchrun."""
    site = SiteSpec(scheduler="slurm")
    job = Job("j", program, ("--", argument), environment={"MINE": value}, folder=at, python="python3")
    text = slurm_script(site, job)
    exports = next(each for each in text.splitlines() if each.startswith("export MINE="))
    on_node = text[text.index("container=") : text.index("\nsrun ")]
    start = text[text.index("\nsrun ") :].replace("python3 -m torch.distributed.run", "show")
    show = 'show() { printf "%s\\0" "$MINE" "$@"; }; srun() { while [ "$1" != show ]; do shift; done; "$@"; }'
    script = f"SLURM_CPUS_PER_TASK=1 SLURM_JOB_NUM_NODES=1 SLURM_JOB_ID=1 head=h port=1\n{show}\n{exports}\n{on_node}\n{start}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=20, check=True)
    said = done.stdout.decode().split("\0")[:-1]
    assert said[0] == value
    assert said[-3:] == [program, "--", argument]
    assert shlex.split(exports)[1] == f"MINE={value}"


@pytest.mark.parametrize("what", ["account", "partition", "reservation", "container", "jobs", "prologue"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n#SBATCH --wrap=x", "more than one line"),
        ("a\r#SBATCH --wrap=x", "more than one line"),
        ("a\u2028b", "more than one line"),
        ("a\0b", "control character"),
        ("a\x1b]0;x\x07", "control character"),
        ("a\ud800", "is no UTF-8"),
        ("x" * 20_000, "has 20000 bytes"),
    ],
)
def test_what_no_line_can_hold_is_refused_in_a_site(what, text, said):
    value = (text,) if what == "prologue" else text
    with pytest.raises(ValueError, match=rf"{what} .*{said}"):
        SiteSpec(scheduler="slurm", **{what: value})


@pytest.mark.parametrize("field", ["name", "program", "folder", "directory", "args", "environment"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n#$ -l x", "one line"),
        ("a\rb", "one line"),
        ("a\0b", "control"),
        ("\udcff", "UTF-8"),
        ("x" * 20_000, "20000"),
    ],
)
def test_what_no_line_can_hold_is_refused_in_a_job(field, text, said):
    value = {"args": (text,), "environment": {"MINE": text}}.get(field, text)
    with pytest.raises(ValueError, match=said):
        replace(Job("j", "p"), **{field: value})


def test_what_slurm_would_refuse_is_refused_here():
    with pytest.raises(ValueError, match=f"--chdir '/xxx.* has more than {LONGEST_VALUE} bytes"):
        sbatch_line("chdir", "/" + "x" * LONGEST_VALUE)
    with pytest.raises(ValueError, match="has a backslash, which Slurm takes for a sign"):
        output_path("/a\\b", "%j.out")


@pytest.mark.parametrize("text", ["#SBATCH --wrap=x", "  #$ -l h_rt=1", "#PBS -q x"])
def test_a_line_of_the_prologue_is_no_directive(text):
    with pytest.raises(ValueError, match="is a directive to the scheduler: write it in directives"):
        SiteSpec(prologue=(text,))
