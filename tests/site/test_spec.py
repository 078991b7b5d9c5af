"""Site files: defaults, the examples, and every refusal in words."""

import re
from pathlib import Path

import pytest

from workshop.site.spec import SiteSpec, read_site, schema, site_from_table

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "sites").glob("*.toml"))


def test_an_empty_file_is_a_laptop(tmp_path):
    (tmp_path / "site.toml").write_text("")
    assert read_site(tmp_path / "site.toml") == SiteSpec()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_sites(path):
    site = read_site(path)
    assert site.source == str(path)
    assert site.name


def test_a_real_centre_says_where_its_values_were_read_and_when():
    made_up = {"laptop", "one-node", "slurm-apptainer"}
    centres = [path for path in EXAMPLES if path.stem not in made_up]
    assert {path.stem for path in centres} >= {
        "jean-zay",
        "tsubame4",
        "lumi",
        "perlmutter",
        "parallelcluster",
    }
    for path in centres:
        assert re.search(r"(?m)^# Sources?, read \d{4}-\d\d-\d\d: \S", path.read_text()), path


def test_there_are_the_three_kinds():
    found = {path.stem: read_site(path) for path in EXAMPLES}
    assert found["laptop"].scheduler == "none"
    assert found["laptop"].gpus == 0
    assert found["one-node"].gpus == 8
    assert (found["slurm-apptainer"].scheduler, found["slurm-apptainer"].runtime) == ("slurm", "apptainer")
    assert found["slurm-apptainer"].binds == ("/scratch", "/shared/workshop/data:/data:ro")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"schedular": "slurm"}, "unknown key 'schedular' in x.toml; did you mean 'scheduler'"),
        ({"node": {"gpuss": 4}}, r"unknown key 'gpuss' in \[node\] of x.toml; did you mean 'gpus'"),
        ({"node": {"gpu": 4}}, "gpu must be text in quotes, not 4"),
        ({"node": {"gpu": "arm"}}, r"unknown gpu 'arm'.* \(known: 'nvidia', 'amd'\)"),
        ({"node": {"interface": "hsn0,,hsn1"}}, "is no name of a network"),
        ({"node": {"interface": "hsn0,^hsn1"}}, "is no name of a network"),
        ({"node": {"cpu_bind": "cores --wrap=x"}}, "a word of srun's --cpu-bind"),
        ({"node": {"gpus": 1, "gpu_cpus": ["0-7;rm"]}}, "write the cores of a GPU as '0-7'"),
        ({"node": {"gpus": 2, "gpu_cpus": ["0-7"]}}, "1 lists of cores for 2 GPUs: one for each"),
        ({"node": {"threads": -1}}, "threads of a rank .* not -1"),
        ({"job": {"export": "some"}}, r"unknown export 'some'.* \(known: 'all', 'none'\)"),
        ({"job": {"prologue": ["a\nb"]}}, "prologue .* has more than one line"),
        ({"job": {"prologue": ["a\x1b[2J"]}}, "prologue .* holds a control character"),
        ({"job": {"keep": ["A-B"]}}, "'A-B' is no name of a variable"),
        ({"environment": {"A B": "1"}}, "'A B' is no name of a variable"),
        ({"environment": {"A": 1}}, r"\[environment\] A: a text in quotes .*, not 1"),
        ({"environment": {"A": "x\0y"}}, "environment .* holds a control character"),
        ({"environment": {"A": "x\ud800"}}, "environment .* is no UTF-8"),
        ({"environment": {"A": "x" * 20_000}}, "has 20000 bytes, and a line may have 16384"),
        ({"environment": {"RANK": "0"}}, "environment RANK: the launcher sets it for each rank"),
        ({"environment": {"SLURM_PROCID": "0"}}, "environment SLURM_PROCID: the launcher sets it"),
        ({"environment": "A=1"}, r"\[environment\] is a section, not 'A=1'"),
        ({"node": 4}, r"\[node\] is a section, not 4"),
        ({"scheduler": "slrum"}, "unknown scheduler 'slrum'; did you mean 'slurm'"),
        ({"node": {"gpus": -1}}, "0 .not given. or more, not -1"),
        ({"node": {"gpus": "4"}}, "gpus must be a whole number, not '4'"),
        ({"job": {"time": "10 minutes"}}, "time '10 minutes': write it as HH:MM:SS"),
        ({"job": {"directives": "--exclusive"}}, "directives must be a list of texts in quotes"),
        ({"job": {"directives": ["exclusive"]}}, "directive 'exclusive' is no flag"),
        ({"job": {"account": "a\n#SBATCH --wrap=x"}}, "account .* has more than one line"),
        ({"software": {"runtime": "apptainer"}}, "give both or neither"),
        ({"software": {"container": "a.sif"}}, "give both or neither"),
        ({"node": {"interface": "ib0; rm"}}, "is no name of a network"),
        ({"network": {"proxy": "host:3128"}}, "write it as http://host:port"),
    ],
)
def test_what_cannot_be_is_refused(entry, words):
    with pytest.raises(ValueError, match=words):
        site_from_table(entry, "x.toml")


def test_no_file_and_no_toml_are_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no site file"):
        read_site(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(ValueError, match="bad.toml is not TOML"):
        read_site(tmp_path / "bad.toml")


def test_the_schema_names_every_key_with_its_default():
    found = schema()
    assert found["node"]["gpus"] == "number; default 0"
    assert found[""]["scheduler"].startswith("none | slurm | sge; default 'none'")
    assert found["node"]["gpu"] == "nvidia | amd; default 'nvidia'"
    assert "for each variable" in found["environment"]["NAME"]
    assert sum(map(len, found.values())) == len(SiteSpec.__dataclass_fields__) - 1  # all but source


def test_the_environment_of_a_file_is_read():
    entry = {"environment": {"NCCL_CROSS_NIC": "1", "MIOPEN_USER_DB_PATH": "/tmp/$USER"}}
    assert site_from_table(entry).environment == entry["environment"]
    hash(site_from_table(entry))  # sites are compared and kept in sets
