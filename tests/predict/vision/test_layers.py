"""A piece's closed forms against torch: parameters, FLOPs, and the bytes that autograd really keeps."""

import pytest

from workshop.facts.vision import CoAtNetSpec, ViTSpec
from workshop.predict.vision import pieces

VIT = ViTSpec("vit", 2, 64, 4, patch_size=7, image_size=28, num_classes=10, channels=1)
COATNET = CoAtNetSpec(
    "coatnet", (2, 2, 2, 2, 2), (8, 8, 16, 32, 64), image_size=64, num_classes=10, channels=1, head_dim=16
)


def kept_and_flops(model, images):
    """Per image: numbers autograd keeps of each piece (each storage once, weights left out), and FLOPs."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    own = [*model.parameters(), *model.buffers()]
    seen = {tensor.untyped_storage()._cdata for tensor in own}
    alive, x, found = [], images, []
    for names in model.pieces():
        new = {}

        def pack(tensor, new=new, seen=frozenset(seen)):
            storage = tensor.untyped_storage()
            alive.append(tensor)  # so that no address is used twice
            if storage._cdata not in seen and tensor.is_floating_point():
                new[storage._cdata] = storage.nbytes() // 4
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            counter = FlopCounterMode(display=False)
            with counter:
                for name in names:
                    x = model.get_submodule(name)(x)
        alive.append(x)
        seen |= new.keys()
        count = sum(p.numel() for name in names for p in model.get_submodule(name).parameters())
        found.append((sum(new.values()) / len(images), counter.get_total_flops() / len(images), count,
                      x.numel() / len(images)))  # fmt: skip
    return found


@pytest.mark.parametrize("spec", [VIT, COATNET], ids=lambda spec: spec.name)
def test_every_piece_costs_what_torch_says(spec):
    import torch

    from workshop.parallel.vision_stages import boundary_shape, build_vision

    images = torch.randn(4, 1, spec.image_size, spec.image_size)
    found = kept_and_flops(build_vision(spec), images)
    predicted = pieces(spec)
    assert len(found) == len(predicted)
    for number, (piece, (kept, flops, count, handed)) in enumerate(zip(predicted, found, strict=True)):
        assert piece.params == count, piece
        assert piece.handed == handed, piece
        assert piece.kept == pytest.approx(kept, rel=0.02), piece
        if piece.name == "layer":  # torch counts no FLOPs of its fused attention on a CPU
            flops += 4 * spec.num_tokens**2 * spec.hidden_size
        assert piece.flops == pytest.approx(flops, rel=1e-6), piece
        if piece is not predicted[-1]:
            shape = boundary_shape(spec, number, 1)
            assert torch.Size(shape).numel() == piece.handed


@pytest.mark.parametrize("spec", [VIT, COATNET], ids=lambda spec: spec.name)
def test_pieces_are_the_whole(spec):
    assert sum(piece.params for piece in pieces(spec)) == spec.num_params


def test_what_tensor_parallelism_cuts_is_what_the_plan_cuts():
    """tests/parallel/test_vision_plans.py measures that a rank holds so much."""
    layer = pieces(VIT)[1]
    assert layer.cut_params == 12 * 64 * 64 + 3 * 64 + 4 * 64
    stem, *_, block, head = pieces(COATNET)
    assert stem.cut_params == head.cut_params == 0
    assert block.cut_params == 12 * 64 * 64 + 7 * 64 + 4 * 9


def test_coatnets_weights_and_activations_lie_at_opposite_ends():
    half = len(pieces(COATNET)) // 2
    first, last = pieces(COATNET)[:half], pieces(COATNET)[half:]
    assert sum(p.params for p in last) > 10 * sum(p.params for p in first)
    assert sum(p.kept for p in first) > 10 * sum(p.kept for p in last)
