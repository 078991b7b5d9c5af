"""What is a comment, and what only looks like one."""

import pytest

from workshop.facts.comments import without_comments


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        ("x = 1  # one\n# and\ny = 2", "x = 1\ny = 2"),
        (
            "%%torchrun -n 2  # not Python's\n# a rank\nprint('# no')  # yes",
            "%%torchrun -n 2  # not Python's\nprint('# no')",
        ),
        ('a = """\n# in a string\n"""', 'a = """\n# in a string\n"""'),
        ("a = 1\n\n\nb = 2", "a = 1\n\n\nb = 2"),
        ("%%sbatch\n#SBATCH --nodes 2\nsrun true", "%%sbatch\n#SBATCH --nodes 2\nsrun true"),
        ("'''never closed # so not read", "'''never closed # so not read"),
        ("def f():\n    # nothing yet\n    pass", "def f():\n    pass"),
        ("%%guess a\n# What?\n...", "%%guess a\n..."),
    ],
)
def test_comments_go_and_nothing_else(code, plain):
    assert without_comments(code) == plain
