"""Site files: defaults, the three examples, and every refusal in words."""

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
        ({"node": {"gpu": 4}}, r"unknown key 'gpu' in \[node\] of x.toml; did you mean 'gpus'"),
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
    assert sum(map(len, found.values())) == len(SiteSpec.__dataclass_fields__) - 1  # all but source
