"""A cell's code without its comments: what tells whether two cells do the same."""

from __future__ import annotations

import io
import tokenize

NOT_PYTHON = ("%%sbatch", "%%bash", "%%sh", "%%writefile", "%%html")


def without_comments(code: str) -> str:
    """The lines of a cell that a comment alone does not fill, each without the comment at its end.

    What is no Python comes back as it is: the lines of a magic that takes another language, and a text that
    Python's tokenizer cannot read. So does a magic's own line, and what looks like a comment in a string.
    """
    if code.lstrip().startswith(NOT_PYTHON):
        return code
    lines = code.splitlines()
    first = next((i for i, line in enumerate(lines) if not line.startswith("%%")), len(lines))
    body = "\n".join(lines[first:]) + "\n"
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(body).readline))
    except (tokenize.TokenError, SyntaxError):
        return code
    begins = {t.start[0] - 1 + first: t.start[1] for t in tokens if t.type == tokenize.COMMENT}
    kept = [(line, line[: begins.get(i)].rstrip()) for i, line in enumerate(lines)]
    return "\n".join(rest for line, rest in kept if rest or not line.strip())
