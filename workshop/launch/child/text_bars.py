"""Progress bars of a rank are text: a widget would live in the notebook's page, out of a rank's reach.

`tqdm.auto`, which transformers and others use, takes widgets wherever ipykernel is loaded, and a rank has it
loaded. So `tqdm.autonotebook` and `tqdm.notebook` are tqdm's text bars here.
"""

from __future__ import annotations

import sys
import types

from tqdm import std


def text_bars() -> None:
    """From now on every tqdm of this process, and of what is forked from it, draws text."""
    for name in ("tqdm.autonotebook", "tqdm.notebook"):
        module = types.ModuleType(name, __doc__)
        module.__dict__.update(
            tqdm=std.tqdm, trange=std.trange, tqdm_notebook=std.tqdm, tnrange=std.trange, IProgress=None
        )
        sys.modules[name] = module
