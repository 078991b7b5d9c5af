"""What a learner is told: verdict, next hint, what the name holds now; as text and as HTML."""

import pytest

from workshop.exercises import all_exercises, find, solution
from workshop.exercises.engine.feedback import ProgressTable, answer
from workshop.exercises.engine.progress import Progress


@pytest.fixture
def progress():
    return Progress(None)


def test_unsolved_word_for_word(progress):
    exercise, namespace = find("ring_bytes"), {}
    feedback = answer(exercise, exercise.stub, namespace, progress)
    assert str(feedback) == (
        "ring_bytes: not solved yet. `...` on line 4 waits for your code.\n"
        f"{exercise.question}\n"
        "For now `ring_bytes` is the reference solution, so the cells below run."
    )
    assert namespace["ring_bytes"](1000, 4) == 1500
    assert not feedback.solved


def test_a_fresh_lab_reads_the_same_each_time():
    for exercise in all_exercises():
        first, second = (str(answer(exercise, exercise.stub, {}, Progress(None))) for _ in range(2))
        assert first == second


@pytest.mark.parametrize(
    "source",
    [
        "def ring_bytes(num_bytes, world_size):\n    return num_bytes * ...\n",
        "def ring_bytes(num_bytes, world_size):\n    return num_bytes\n",
        "def ring_bytes(num_bytes, world_size):\n",
    ],
)
def test_hints_come_with_tries_and_the_last_says_where_the_solution_is(progress, source):
    exercise = find("ring_bytes")
    assert "Hint" not in str(answer(exercise, exercise.stub, {}, progress))
    said = [str(answer(exercise, source, {}, progress)) for _ in range(4)]
    assert "Hint" not in str(answer(exercise, exercise.stub, {}, progress))
    for text, number in zip(said, [1, 2, 3, 3], strict=True):
        assert f"Hint {number} of 3: {exercise.hints[number - 1]}" in text
        assert ("`%exercise ring_bytes --solution` shows a solution" in text) == (number == 3)


def test_wrong_binds_the_solution_and_right_binds_the_learners(progress):
    exercise, namespace = find("ring_bytes"), {}
    wrong = answer(exercise, exercise.wrong_answers[0].source, namespace, progress)
    assert str(wrong).startswith("ring_bytes: not right. `ring_bytes(1_000, 4)` gave 2,000; wanted 1,500.")
    assert namespace["ring_bytes"](1000, 4) == 1500
    right = answer(
        exercise,
        "def ring_bytes(n, w):\n    '''Mine.'''\n    return 2 * n - 2 * n / w\n",
        namespace,
        progress,
    )
    assert right.solved
    assert str(right).startswith("ring_bytes: right. A rank sends")
    assert exercise.shows in str(right)
    assert "Hint" not in str(right)
    assert namespace["ring_bytes"].__doc__ == "Mine."
    assert (progress["ring_bytes"].tries, progress["ring_bytes"].solved) == (2, True)


def test_html_is_escaped_and_has_the_code_marked(progress):
    exercise = find("ring_bytes")
    feedback = answer(exercise, "def ring_bytes(n, w):\n    return '<b>'\n", {}, progress)
    html = feedback._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "<code>ring_bytes(1_000, 4)</code>" in html


def test_complaints_about_the_file_are_told(tmp_path):
    path = tmp_path / "p.json"
    path.write_text("broken")
    exercise = find("ring_bytes")
    progress = Progress(path)
    assert "starting anew" in str(answer(exercise, exercise.stub, {}, progress))
    assert "starting anew" not in str(answer(exercise, exercise.stub, {}, progress))


def test_progress_table(progress):
    answer(find("ring_bytes"), find("ring_bytes").solution, {}, progress)
    answer(find("ddp_bytes"), find("ddp_bytes").wrong_answers[0].source, {}, progress)
    answer(find("alpha_beta"), find("alpha_beta").stub, {}, progress)
    table = ProgressTable(all_exercises(), progress)
    lines = [" ".join(line.split()) for line in str(table).splitlines()]  # the columns' widths are its own
    assert lines[0] == "Day Exercise State Tries Hints"
    assert lines[1] == "0 who_am_i not begun 0 0 of 3"
    assert "2 ring_bytes solved 1 0 of 3" in lines
    assert "2 ddp_bytes tried 1 1 of 3" in lines
    assert "2 alpha_beta not begun 0 0 of 3" in lines
    assert lines[-1] == f"1 of {len(all_exercises())} solved"
    assert table._repr_html_().count("<tr>") == len(all_exercises()) + 1


def test_an_unknown_exercise_lists_the_known_and_the_nearest():
    with pytest.raises(
        ValueError, match=r"no exercise is called 'ring_byte'. Did you mean 'ring_bytes'\?"
    ) as caught:
        find("ring_byte")
    assert all(exercise.name in str(caught.value) for exercise in all_exercises())


def test_solution_shows_its_source():
    import workshop

    shown = solution("ring_bytes")
    assert shown.source == find("ring_bytes").solution
    assert str(shown) == repr(shown) == f"# The reference solution of ring_bytes\n{shown.source}"
    assert "-&gt; float" in shown._repr_html_()
    assert workshop.solution("ring_bytes") == shown
    with pytest.raises(ValueError, match="Known:"):
        solution("nothing_like_it")


def test_an_exercise_shows_itself():
    text = str(find("who_am_i"))
    head = (
        "Who am I among the ranks?\n(who_am_i, in lesson 00_welcome, checked on 4 ranks)\n\nEvery rank runs"
    )
    assert text.startswith(head)
    assert text.endswith(f"%%exercise who_am_i\n{find('who_am_i').stub}")
    assert "%%exercise who_am_i" in find("who_am_i")._repr_html_()
