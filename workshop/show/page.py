"""Pictures on a live page: with alternative text, which JupyterLab cannot take from a PNG or an SVG.

Its renderers of ``image/png`` and ``image/svg+xml`` make an ``img`` without ``alt``, and an SVG inside an
``img`` shows no words when the mouse rests on a box. HTML can do both. But who stores a picture as HTML
loses it on pages that clean HTML (a repository's view of a notebook), and storing both is twice the size.
So HTML is for a kernel that JupyterLab has started for somebody who looks on; what is executed to be stored
keeps to the image, and has the words as its plain text.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping
from html import escape

_SESSION = "JPY_SESSION_NAME"  # Jupyter Server sets it for the kernels of its notebooks; nbclient does not


def is_live(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a page of Jupyter's shows what this process displays, while it runs."""
    return bool(environ.get(_SESSION))


def image(png: bytes, words: str) -> str:
    """A PNG as HTML: never wider than its place, never enlarged, and the words for who sees none."""
    data = b64encode(png).decode()
    return f'<img style="max-width:100%" alt="{escape(words)}" src="data:image/png;base64,{data}">'


def described(svg: str, words: str) -> str:
    """An SVG with the words for who sees none."""
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)
