"""The libraries are asked once for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.configs.library import answers


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Name of a question (`tests.configs.library.name_of`) -> what the library made of the file."""
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    return answers(tmp_path_factory.mktemp("library"))
