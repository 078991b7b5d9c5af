"""The libraries are asked once for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.configs.library import answers
from tests.installed import skip_without


@pytest.fixture(scope="session")
def _asked():
    return {}


@pytest.fixture(scope="module")
def library(_asked, loaded_engine, tmp_path_factory):
    """Name of a question (`tests.configs.library.name_of`) -> what the library made of the file."""
    skip_without("accelerate", "deepspeed")
    if not _asked:
        _asked.update(answers(tmp_path_factory.mktemp("library")))
    return _asked
