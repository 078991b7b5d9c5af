import pytest


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A cache with nothing in it, and no network."""
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WORKSHOP_OFFLINE", "1")
    return tmp_path / "cache"


@pytest.fixture
def small_asset(empty_cache, tmp_path, monkeypatch):
    """An asset of our own, `tiny`, whose package's file lies in the folder that comes back."""
    import dataclasses
    import zipfile

    from workshop.assets import cache, store, table

    source = tmp_path / "source"
    source.mkdir()
    file = source / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr("tiny/data/words.txt", "one two three\n" * 1000)
        bundle.writestr("tiny/code.py", "raise SystemExit")
        bundle.writestr("tiny-1.0.dist-info/LICENSE", "do what you like")
    tiny = dataclasses.replace(
        table.asset("digits-5k"),
        name="tiny",
        package="tiny",
        version="1.0",
        file=file.name,
        sha256=cache.sha256(file),
        num_bytes=file.stat().st_size,
        keep=("tiny/data/*.txt", "*/LICENSE"),
    )
    monkeypatch.setattr(store, "asset", lambda name: {"tiny": tiny}[name])
    return source, tiny
