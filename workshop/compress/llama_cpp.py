"""A GGUF file read by llama.cpp itself: logits of some tokens, from a process of its own.

    python -m workshop.compress.llama_cpp FILE.gguf TOKENS.npy LOGITS.npy

llama.cpp comes to Python as a compiled library. Here it is the one in ``pip install ik-llama-cpp-python``, a
fork that reads the same files and has wheels; it is optional. Such a library is built for some processors,
prints what it likes and may end its process where a file is not as it should be. So it runs in a child, whose
death is an error with words.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

LIBRARY = "ik_llama_cpp"
TIMEOUT_SECONDS = 120.0


def has_llama_cpp() -> bool:
    """Whether a build of llama.cpp can be imported."""
    return importlib.util.find_spec(LIBRARY) is not None


def logits(file: str | Path, tokens: list[int], vocab_size: int) -> np.ndarray:
    """llama.cpp's logits after each of the tokens, fp32 (tokens, vocab_size).

    Raises:
        ModuleNotFoundError: no build of llama.cpp is installed.
        ValueError: it did not read the file, and what it said last.
    """
    if not has_llama_cpp():
        raise ModuleNotFoundError(f"no {LIBRARY} here: pip install ik-llama-cpp-python", name=LIBRARY)
    with TemporaryDirectory(prefix="llama-cpp-") as folder:
        given, written = Path(folder, "tokens.npy"), Path(folder, "logits.npy")
        np.save(given, np.asarray([vocab_size, *tokens]))
        command = [sys.executable, "-m", "workshop.compress.llama_cpp", str(file), str(given), str(written)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, check=False
        )
        if done.returncode or not written.exists():
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise ValueError(
                f"llama.cpp did not read {file} (exit status {done.returncode}); it said last: {last}"
            )
        return np.asarray(np.load(written))


def _run(file: str, given: str, output: str) -> None:
    """In the child: all tokens in one batch, and the logits of each."""
    import ctypes

    from ik_llama_cpp import _ctypes_api as api
    from ik_llama_cpp._internals import IkContext, IkModel

    vocab_size, *tokens = np.load(given).tolist()
    model = IkModel(file, use_mmap=True, use_mlock=False, n_gpu_layers=0)
    context = IkContext(model, n_ctx=max(256, len(tokens)), n_threads=2, flash_attn=False)
    batch = api.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for place, token in enumerate(tokens):
        batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
    if context.decode(batch):
        raise SystemExit("llama_decode failed")
    read = api.llama_get_logits_ith
    read.restype = ctypes.POINTER(ctypes.c_float)
    rows = [np.ctypeslib.as_array(read(context.ctx, place), (vocab_size,)) for place in range(len(tokens))]
    np.save(output, np.stack(rows))


if __name__ == "__main__":
    _run(*sys.argv[1:])
