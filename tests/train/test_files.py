"""A folder that is whole or not there."""

import json

import pytest

from workshop.train import files


def make(root, step, text="weights"):
    """A small checkpoint, as `Checkpoints.save` makes one."""
    partial = root / (files.free_name(root, step) + files.PARTIAL)
    (partial / "sub").mkdir(parents=True)
    (partial / "a.bin").write_text(text)
    (partial / "sub" / "b.bin").write_text("more")
    return files.publish(partial, files.sums(partial, files.files_of(partial)))


def test_a_published_folder_is_the_latest_and_whole(tmp_path):
    assert files.latest(tmp_path) is None
    folder = make(tmp_path, 10)
    assert folder.name == "step-00000010"
    assert files.latest(tmp_path) == folder
    assert set(files.manifest(folder)) == {"a.bin", "sub/b.bin"}
    files.check_whole(folder)
    assert not list(tmp_path.glob(f"*{files.PARTIAL}"))


@pytest.mark.parametrize("name", ["a.bin", "sub/b.bin"])
def test_a_flipped_byte_is_refused_by_name_and_others_are_named(tmp_path, name):
    make(tmp_path, 10)
    folder = make(tmp_path, 20)
    data = bytearray((folder / name).read_bytes())
    data[2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(files.DamagedCheckpointError) as refused:
        files.check_whole(folder)
    assert f"checkpoint step-00000020: {name} is not the file that was saved" in str(refused.value)
    assert "step-00000010" in str(refused.value)
    files.check_whole(tmp_path / "step-00000010")


def test_a_missing_file_and_a_damaged_manifest_are_refused(tmp_path):
    folder = make(tmp_path, 10)
    (folder / "a.bin").unlink()
    with pytest.raises(files.DamagedCheckpointError, match=r"a\.bin is missing"):
        files.check_whole(folder)
    (folder / files.MANIFEST).write_text("{")
    with pytest.raises(files.DamagedCheckpointError, match=r"manifest\.json is damaged"):
        files.check_whole(folder)
    (folder / files.MANIFEST).unlink()
    with pytest.raises(files.DamagedCheckpointError, match=r"has no manifest\.json"):
        files.check_whole(folder)


def test_latest_that_names_nothing_is_refused(tmp_path):
    make(tmp_path, 10)
    (tmp_path / files.LATEST).write_text("step-00000099\n")
    with pytest.raises(
        files.DamagedCheckpointError, match=r"'step-00000099', which is not there.*step-00000010"
    ):
        files.latest(tmp_path)


def test_pruning_keeps_the_newest_and_the_latest_and_clears_what_a_kill_left(tmp_path):
    for step in (10, 20, 30):
        make(tmp_path, step)
    (tmp_path / "step-00000040.partial").mkdir()
    (tmp_path / files.LATEST).write_text("step-00000010\n")  # somebody went back
    files.prune(tmp_path, keep=1)
    assert [path.name for path in files.whole_steps(tmp_path)] == ["step-00000010", "step-00000030"]
    assert not list(tmp_path.glob(f"*{files.PARTIAL}"))


def test_a_second_save_of_a_step_leaves_the_first_alone_and_comes_after_it(tmp_path):
    first, second, third = (make(tmp_path, 10, text) for text in "abc")
    assert [p.name for p in (first, second, third)] == ["step-00000010", "step-00000010-1", "step-00000010-2"]
    assert files.whole_steps(tmp_path) == [first, second, third]
    assert files.latest(tmp_path) == third
    assert (first / "a.bin").read_text() == "a"


def test_a_small_file_is_replaced_whole(tmp_path):
    path = tmp_path / "x"
    files.write_whole(path, "old")
    files.write_whole(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert json.loads(json.dumps(files.sums(tmp_path, ["x"])))["x"] == files.sha256(path)
