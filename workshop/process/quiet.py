"""Libraries that talk while they are loaded, asked to be quiet for that while.

Importing transformers imports torchao where it is installed, which reports each kernel that is not for
this machine; DeepSpeed says which accelerator it found; a model being read draws progress bars. None of it is
about the reader's work, and all of it would stand on a lesson's page. Errors and exceptions come through.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Inside the block no logger says less than an error, and nothing warns; afterwards all is as before.

    transformers' progress bars are off too, if it is loaded by then: import it in a block of its own first.
    """
    before = logging.root.manager.disable
    talk = sys.modules.get("transformers.utils.logging")
    bars = talk is not None and talk.is_progress_bar_enabled()
    logging.disable(max(before, logging.WARNING))
    if talk is not None and bars:
        talk.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        if talk is not None and bars:
            talk.enable_progress_bar()


def without_loading_noise() -> None:
    """For good, in this process: the loggers that report what a library could not load for another machine's
    kernels say only errors. transformers loads these libraries whether the reader uses them or not.
    """
    for name in ("torchao", "torch.utils._pytree", "bitsandbytes.backends.cpu.ops"):
        logging.getLogger(name).setLevel(logging.ERROR)
