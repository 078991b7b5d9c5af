"""What is said where llama.cpp is not, or does not read a file. (That it reads one, lesson 43 shows.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.installed import skip_without
from workshop.compress import llama_cpp


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "LIBRARY", "no_such_library")
    assert not llama_cpp.has_llama_cpp()
    with pytest.raises(ModuleNotFoundError, match="pip install ik-llama-cpp-python"):
        llama_cpp.logits("any.gguf", [1], 8)


def test_a_file_that_is_none_is_an_error_with_words(tmp_path: Path) -> None:
    skip_without("ik_llama_cpp")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ValueError, match=r"did not read .*broken\.gguf"):
        llama_cpp.logits(broken, [1, 2], 8)
