"""Nothing here needs a newer torch than the oldest that the package promises."""

import re
import tomllib
from pathlib import Path

import pytest

from tools import torch_names
from tools.torch_names import brought, recorded, too_new, uses_in

ROOT = Path(__file__).parents[2]
TEXT = torch_names.RECORD.read_text("utf-8")
NEW = recorded(TEXT)


def test_the_tree_uses_no_name_that_the_oldest_torch_lacks():
    pieces, said = 0, []
    for path, text in torch_names.sources():
        uses = uses_in(text)
        pieces += bool(uses)
        said += [f"{path}: {what}" for what in too_new(uses, NEW)]
    assert not said
    assert pieces > 500, "modules and cells with names of torch in them"


def test_the_record_spans_the_range_that_we_promise():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"][0]
    oldest, past = re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", wanted).groups()
    versions = [f"2.{minor}" for minor in range(int(oldest), int(past))]
    assert TEXT.split("\n")[0].removeprefix("# ").partition(":")[0].split() == versions
    assert set(NEW.values()) == set(versions[1:])
    assert NEW["torch.nn.functional.linear_cross_entropy"] == versions[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import torch.distributed as dist\ndist.all_gather_single(a, b)",
            "all_gather_single is of torch 2.13",
        ),
        (
            "from torch.nn.functional import linear_cross_entropy as f",
            "linear_cross_entropy is of torch 2.13",
        ),
        ("from torch import nn\nnn.functional.linear_cross_entropy(a, b).sum()", "linear_cross_entropy"),
        ("import torch\ntorch.distributed.barrier(timeout=5)", "barrier(..., timeout is of torch 2.12"),
        ("from torch import nn\nclass A(nn.LinearCrossEntropyLoss): ...", "LinearCrossEntropyLoss"),
        ("import torch\ntry: torch.ops.aten._foreach_mm\nexcept RuntimeError: ...", "_foreach_mm"),
        ("import torch\nif not hasattr(torch, 'x'):\n torch.compile(f, name='a')", "compile(..., name"),
    ],
)
def test_a_newer_name_is_found(text, said):
    (found,) = too_new(uses_in(text), NEW)
    assert said in found


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed as dist\ngetattr(dist, 'all_gather_single', None) or dist.barrier()",
        "try:\n from torch.nn.functional import linear_cross_entropy\nexcept ImportError: ...",
        "import torch.nn.functional as F\nif hasattr(F, 'linear_cross_entropy'):\n F.linear_cross_entropy(a, b)",
        "import torch\nif not hasattr(torch, 'a'):\n 1\nelse:\n torch.compile(f, name='a')",
        "from torch.nn import functional\ndef f(functional): return functional.linear_cross_entropy",
        "class store:\n def linear_cross_entropy(self): return self.linear_cross_entropy",
        "this is no Python, with torch in it",
    ],
)
def test_a_name_that_is_asked_for_first_is_fine(text):
    assert too_new(uses_in(text), NEW) == []


def test_what_is_new_in_a_new_name_is_left_out_and_what_went_again_too():
    last = {"a", "a.b", "a.b(c", "a.d"}
    lists = {"1": {"a", "a.b"}, "2": {*last, "a.d(e", "a.gone"}, "3": last}
    assert brought(lists) == {"a.b(c": "2", "a.d": "2"}
