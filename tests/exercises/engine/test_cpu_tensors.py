"""Whether an answer would run on a GPU: as torch's fake GPU says, and what a learner is told."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.exercises.engine import device_samples
from tests.exercises.engine.device_samples import FAIL, RUN
from workshop.exercises import find
from workshop.exercises.engine import cpu_tensors
from workshop.exercises.engine.cpu_tensors import followed
from workshop.exercises.engine.judge import judge

ON_A_FAKE_GPU = "found (at least two|two different) devices"


def words_of(function):
    one = followed(function)
    one(torch.tensor([1.0, 2.0, 3.0]))
    return one.words


@pytest.mark.parametrize("function", FAIL, ids=lambda one: one.__name__)
def test_what_fails_on_a_gpu_is_told(function):
    assert words_of(function).startswith("On a GPU it would fail: line ")


@pytest.mark.parametrize("function", RUN, ids=lambda one: one.__name__)
def test_what_runs_there_is_left_alone(function):
    assert words_of(function) == ""


@pytest.mark.parametrize("function", FAIL + RUN, ids=lambda one: one.__name__)
def test_torch_on_a_fake_gpu_refuses_only_what_is_told(function):
    """Fake tensors do not decide all: an index of another device passes, `.to` and numpy are refused."""
    with FakeTensorMode():
        try:
            function(torch.empty(3, device="cuda"))
        except RuntimeError as error:
            refused = re.search(ON_A_FAKE_GPU, str(error)) is not None
        except Exception:  # noqa: BLE001  another thing that fake tensors cannot do
            refused = False
        else:
            refused = False
    assert not refused or words_of(function)


def test_a_fake_gpu_refuses_most_of_them():
    def refused(function):
        with FakeTensorMode(), pytest.raises(RuntimeError, match=ON_A_FAKE_GPU):
            function(torch.empty(3, device="cuda"))

    for function in (device_samples.added, device_samples.multiplied, device_samples.scattered):
        refused(function)


def test_a_tensor_that_is_returned_goes_on_beside_the_arguments():
    assert "and is returned like that" in words_of(device_samples.returned)


def test_both_lines_are_named():
    first = device_samples.added.__code__.co_firstlineno
    words = words_of(device_samples.added)
    assert f"line {first + 1}, `mask = torch.ones(3)`, makes a tensor on the CPU" in words
    assert f"on line {first + 2} it meets one on the GPU" in words
    assert "`device=x.device`" in words


def test_the_advice_fits_what_failed():
    def model_first(model, x):
        return model(x) + torch.ones(3)

    def of_a_list(shards):
        return shards[0] + torch.ones(3)

    one, two = followed(model_first), followed(of_a_list)
    one(torch.nn.Identity(), torch.ones(3))
    two([torch.ones(3)])
    assert "`device=x.device`" in one.words
    assert "device=" not in two.words
    words = words_of(device_samples.as_array)
    assert "`.cpu()`" in words
    assert "zeros_like" not in words


def test_functions_that_are_given_are_not_the_learners():
    def attend(x):
        return x + torch.ones(3)

    def answer(x, attend):
        return attend(x)

    def mixed(x, attend):
        return attend(x, torch.ones(3))

    one, two = followed(answer), followed(mixed)
    one(torch.ones(3), attend)
    two(torch.ones(3), torch.add)
    assert one.words == ""
    assert "meets one on the GPU" in two.words


def test_what_is_no_function_stays_as_it_is():
    assert followed(len) is len
    assert followed(3) == 3


ON_CPU = (
    ("chunk_loss", "torch.ones_like(right, dtype=error.dtype)", "torch.ones(right.shape)"),
    ("scales_of", "amax / largest, 1.0", "amax / largest, torch.ones(amax.shape)"),
    ("loss_of_own_words", ", device=logits.device", ""),
    ("send_to_experts", "torch.empty_like(sent)", "torch.empty(len(sent), dtype=torch.long)"),
    ("ring_all_reduce", "torch.empty_like(chunks[0])", "torch.empty(len(chunks[0]))"),
    ("rotate_the_ring", "torch.empty_like(block)", "torch.empty(block.shape)"),
)


@pytest.mark.parametrize(("name", "solution", "on_cpu"), ON_CPU)
def test_a_right_answer_is_told_that_it_would_fail_on_a_gpu(name, solution, on_cpu):
    exercise = find(name)
    assert solution in exercise.solution
    source = exercise.solution.replace(solution, on_cpu)
    changed = [
        one != other for one, other in zip(source.splitlines(), exercise.solution.splitlines(), strict=True)
    ]
    line = 2 + changed.index(True)  # line 1 is the magic's
    verdict = judge(exercise, source, {})
    assert verdict.state == "right"
    assert f"On a GPU it would fail: line {line}, " in verdict.message


def test_where_there_is_a_gpu_it_is_wrong_and_the_solution_stays(monkeypatch):
    name, solution, on_cpu = ON_CPU[0]
    exercise = find(name)
    monkeypatch.setattr(cpu_tensors.torch.accelerator, "is_available", lambda: True)
    assert judge(exercise, exercise.solution, {}).state == "right"
    verdict = judge(exercise, exercise.solution.replace(solution, on_cpu), {})
    assert verdict.state == "wrong"
    assert verdict.message.startswith("On a GPU it would fail: ")
