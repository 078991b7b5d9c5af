"""Training stacks: every one has both halves, and a half that is like another's is that one."""

import pytest

from workshop.facts.implementation import implementation, own_tables
from workshop.facts.stack import software, stack, stacks


def test_a_half_like_anothers_is_that_one():
    assert stack("nemo").implementation == implementation("megatron") == stack("megatron").implementation
    assert stack("torch").software is stack("litgpt").software is software("torchtitan")
    assert software("torchtitan").name == "torchtitan"


def test_compiled_is_the_same_implementation_compiled():
    plain, compiled = stack("torchtitan"), stack("torchtitan-compile")
    assert not plain.implementation.compile
    assert compiled.implementation == implementation("torchtitan", compile=True)
    assert compiled.software.kernels < plain.software.kernels


def test_choices_can_be_changed():
    found = stack("megatron-core", memory={"dropout": False}, time={"gradient_bytes": 4.0})
    assert (found.software.gradient_bytes, found.implementation.dropout) == (4.0, False)
    assert stack("megatron-core").software.gradient_bytes == 2


def test_every_implementation_is_that_of_a_stack_of_its_name():
    assert {stacks()[name].implementation.name for name in own_tables()} == set(own_tables())


def test_an_unknown_stack_gets_its_nearest():
    with pytest.raises(ValueError, match="'megatron-cor'; did you mean 'megatron-core'"):
        stack("megatron-cor")
