"""What the exercise calls true is what torch does."""

import pytest

from workshop.exercises.which_copy.check import TRUTH, WHY


@pytest.mark.parametrize("expression", TRUTH)
def test_a_copy_has_another_storage(expression):
    torch = pytest.importorskip("torch")
    einops = pytest.importorskip("einops")
    x = torch.arange(12.0).view(3, 4)
    made = eval(expression, {"x": x, "torch": torch, "rearrange": einops.rearrange})
    assert (made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()) is TRUTH[expression]
    assert WHY[expression]
