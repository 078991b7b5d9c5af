"""`%%rehearse` in a real notebook kernel, driven by nbclient."""

from __future__ import annotations

import nbclient
import nbformat
import pytest

from workshop.jupyter.rehearse_magic import as_program
from workshop.rehearse import parse_ranks

CELL = """\
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
model = DistributedDataParallel(torch.nn.Linear(width, width, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[nbformat.NotebookNode]:
    sources = [
        "%load_ext workshop",
        "width = 64",
        f"%%rehearse --nproc_per_node=512 --rank 7 --pass width --into found\n{CELL}print('never reached')",
        "row = found.traffic[0]; found.rank, found.world_size, found.steps, row.name, row.group_size, row.payload_bytes",
        f"%%rehearse -n 2 --pass width --device H100\nprint('hello')\n{CELL}",
        "%%rehearse -n 2\nimport torch\nx = 1\nraise KeyError('mine')",
        "%%rehearse -n 2 --rank 2\nx = 1",
        "%%rehearse -n 2 --ranks 2\nx = 1",
        "%%rehearse -n 2\nif x:\nprint()",
        "import sys; 'torch' in sys.modules",
        f"%%rehearse -n 512 --rank 0,511 --pass width --into several\n{CELL}",
        "[found.rank for found in several], several.worst.peak_bytes == several[511].peak_bytes",
        "open('my train.py', 'w').write('import sys; width = int(sys.argv[2])\\nprint(sys.argv[1:])\\n' + CELL); None".replace(
            "CELL", repr(CELL)
        ),
        "%rehearse -n 4 --rank 3 --into scripted 'my train.py' --width 64 'two words'",
        "(scripted.rank, scripted.world_size, scripted.traffic[0].payload_bytes)",
        "%rehearse -n 4",
        "%%rehearse -n 4 train.py\nx = 1",
        "%rehearse -n 4 --pass width train.py",
        "%%rehearse -n 2\nprint('as far as here')\nraise KeyError('mine')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    resources = {"metadata": {"path": str(tmp_path_factory.mktemp("rehearse"))}}
    nbclient.NotebookClient(
        notebook, timeout=100, allow_errors=True, kernel_name="python3", resources=resources
    ).execute()
    return notebook.cells


def text_of(cell: nbformat.NotebookNode) -> str:
    words = []
    for output in cell.outputs:
        words.append(
            output.get("text") or "\n".join(output.get("traceback", [])) or output.data["text/plain"]
        )
    return "\n".join(words)


def test_the_result_is_bound_and_exact(cells: list[nbformat.NotebookNode]) -> None:
    assert text_of(cells[2]) == ""  # --into: nothing shown; two steps, so the last line was not reached
    assert text_of(cells[3]) == f"(7, 512, 2, 'all_reduce', 512, {64 * 64 * 4})"


def test_several_ranks_come_back_together(cells: list[nbformat.NotebookNode]) -> None:
    assert text_of(cells[10]) == ""
    assert text_of(cells[11]) == "([0, 511], True)"


def test_output_and_report_are_shown(cells: list[nbformat.NotebookNode]) -> None:
    said = text_of(cells[4])
    assert said.startswith("hello\n")
    assert "rehearsed rank 0 of 2: 2 steps" in said
    assert "all_reduce" in said
    assert "roofline of one step" in said


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (5, "line 4: raise KeyError('mine')"),
        (6, "rank 2 is not in a world of 2: ranks are 0 to 1"),
        (7, "Did you mean --rank?"),
        (8, "cell line 3"),
        (15, "%rehearse -n 64 train.py"),
        (16, "a script is rehearsed by %rehearse with one sign"),
        (17, "a script takes arguments, after its name"),
    ],
)
def test_errors_are_sentences(cells: list[nbformat.NotebookNode], place: int, message: str) -> None:
    said = text_of(cells[place])
    assert message in said
    assert "Traceback" not in said


def test_a_script_with_its_arguments(cells: list[nbformat.NotebookNode]) -> None:
    assert text_of(cells[13]) == "['--width', '64', 'two words']\n"
    assert text_of(cells[14]) == f"(3, 4, {64 * 64 * 4})"


def test_what_a_cell_printed_before_it_failed_is_kept(cells: list[nbformat.NotebookNode]) -> None:
    said = text_of(cells[18])
    assert said.startswith("as far as here\n")
    assert "line 3: raise KeyError('mine')" in said


def test_the_notebook_itself_needs_no_torch(cells: list[nbformat.NotebookNode]) -> None:
    assert text_of(cells[9]) == "False"


def test_line_one_sets_what_is_passed() -> None:
    assert as_program(" -n 2 ", "print(a)", {"a": 1.5}) == "a = 1.5  # %%rehearse -n 2\nprint(a)\n"
    with pytest.raises(ValueError, match="--pass x: a object cannot be written as Python text"):
        as_program("", "", {"x": object()})


def test_ranks_are_numbers_with_commas() -> None:
    assert parse_ranks("7") == [7]
    assert parse_ranks("0,7, 63") == [0, 7, 63]
    with pytest.raises(ValueError, match="--rank 1-3: a rank, or some with commas between"):
        parse_ranks("1-3")
