"""A block in which libraries do not talk."""

import logging
import warnings

import pytest

from workshop.process.quiet import quietly, without_loading_noise


def test_warnings_and_loggers_are_quiet_inside_and_back_after(caplog, recwarn):
    log = logging.getLogger("some.library")
    with quietly():
        log.warning("hidden")
        log.error("heard")
        warnings.warn("hidden", stacklevel=1)
    log.warning("after")
    warnings.warn("after", stacklevel=1)
    assert [record.message for record in caplog.records] == ["heard", "after"]
    assert [str(warning.message) for warning in recwarn] == ["after"]


def test_back_after_an_error():
    with pytest.raises(RuntimeError), quietly():
        raise RuntimeError
    assert logging.root.manager.disable == 0


def test_what_a_library_could_not_load_is_quiet_for_good_and_its_errors_are_not(caplog):
    log = logging.getLogger("torchao.kernel")
    try:
        without_loading_noise()
        log.warning("no kernel for this machine")
        log.error("heard")
    finally:
        for name in ("torchao", "torch.utils._pytree", "bitsandbytes.backends.cpu.ops"):
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert [record.message for record in caplog.records] == ["heard"]


def test_progress_bars_of_transformers():
    talk = pytest.importorskip("transformers").utils.logging
    with quietly():
        assert not talk.is_progress_bar_enabled()
    assert talk.is_progress_bar_enabled()


def test_the_old_name_works_and_says_the_new():
    with pytest.warns(DeprecationWarning, match=r"workshop\.process\.quiet\.quietly now"):
        from workshop.launch.quiet import quietly as by_the_old_name
    assert by_the_old_name is quietly
    with pytest.raises(ImportError):
        from workshop.launch.quiet import loudly  # noqa: F401
