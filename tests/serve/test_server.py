"""Whatever a server does with its requests, each text is the plain loop's. In fp64, where no two logits are close."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import workshop.serve
from workshop.models.gpt import GPT, TINY
from workshop.serve.blocks import slot_for
from workshop.serve.paged import Chunk, PagedCache, forward
from workshop.serve.server import Server, share_budget


@cache
def model(seed: int = 0, num_layers: int = 2) -> GPT:
    torch.manual_seed(seed)
    made = GPT(replace(TINY, num_layers=num_layers)).double().eval()
    for weight in made.parameters():
        if weight.ndim > 1:
            weight.data.mul_(6)  # as drawn, a model repeats one token whatever it has read
    return made


@torch.inference_mode()
def plainly(prompt: list[int], count: int, of: GPT | None = None) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int((of or model())(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def requests(seed: int = 0, num: int = 9) -> list[tuple[list[int], int]]:
    chance = random.Random(seed)
    alike = [chance.randrange(256) for _ in range(20)]
    drawn = [[chance.randrange(256) for _ in range(chance.randrange(1, 30))] for _ in range(num)]
    return [(alike * (n % 2) + tokens, chance.randrange(1, 12)) for n, tokens in enumerate(drawn)]


WAYS = [
    {},
    {"budget": 9},
    {"budget": 9, "prefix_cache": False},
    {"continuous": False},
    {"block_size": 1, "num_blocks": 200},
    {"block_size": 4, "num_blocks": 20},
    {"block_size": 7, "num_blocks": 12, "budget": 11},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_text_is_the_plain_loops(way: dict[str, int]) -> None:
    server = Server(model(), **way)  # type: ignore[arg-type]
    asked = [(server.add(prompt, count), prompt, count) for prompt, count in requests()]
    server.run()
    texts = [request.output for request, _, _ in asked]
    assert texts == [plainly(prompt, count) for _, prompt, count in asked]
    assert len({tuple(text) for text in texts}) > 5, "they are not all the same"
    assert server.cache.blocks.num_free == len(server.cache.blocks.holders)
    assert all(tokens <= server.budget for tokens, _ in server.steps)
    assert all(len(request.times) == count + 1 for request, _, count in asked)


def test_the_one_who_came_last_gives_way_and_is_read_again() -> None:
    server = Server(model(), 4, 4, budget=16, prefix_cache=False)
    first, last = server.add([1, 2, 3], 12), server.add([4], 12)
    server.run()
    assert server.preempted > 0
    assert first.times[-1] < last.times[-1]
    assert [first.output, last.output] == [plainly([1, 2, 3], 12), plainly([4], 12)]


def test_a_beginning_that_was_read_is_not_read_again() -> None:
    server = Server(model(), 64, 4)
    alike = list(range(17))
    server.add(alike, 2)
    server.run()
    before = sum(tokens for tokens, _ in server.steps)
    again, other = server.add(alike, 2), server.add([99, *alike[1:]], 2)
    server.run()
    assert server.reused == 16
    assert sum(tokens for tokens, _ in server.steps) - before == (1 + 1) + (17 + 1)
    assert [again.output, other.output] == [plainly(alike, 2), plainly([99, *alike[1:]], 2)]


def test_what_can_never_be_served_is_refused_at_once() -> None:
    server = Server(model(), 4, 4)
    with pytest.raises(ValueError, match="never fit into 4 blocks of 4"):
        server.add([1] * 10, 7)
    for prompt, count in (([], 3), ([1], 0)):
        with pytest.raises(ValueError, match="a token to read and one to write"):
            server.add(prompt, count)
    assert not server.waiting


def test_a_rule_that_gives_nobody_anything_does_not_run_forever() -> None:
    server = Server(model())
    server.share = lambda wants, budget: [0] * len(wants)
    server.add([1], 1)
    with pytest.raises(RuntimeError, match="no request got a token"):
        server.run()


def test_who_waits_for_one_token_never_waits_for_a_prompt() -> None:
    assert share_budget([40, 1, 30, 1], 16) == [14, 1, 0, 1]
    assert share_budget([], 4) == []


def test_two_sequences_part_where_one_writes() -> None:
    cache_of_both = PagedCache(model(), 8, 4)
    blocks, tokens = cache_of_both.blocks, [5, 6, 7, 8, 9, 10]
    first: list[int] = []
    slots = [slot_for(place, first, blocks) for place in range(6)]
    forward(model(), cache_of_both, [Chunk(tokens, 0, first, slots)])
    second = [blocks.share(block) for block in first]
    texts = []
    for table, last in ((second, 99), (first, 10)):
        slot = slot_for(5, table, blocks)
        logits = forward(model(), cache_of_both, [Chunk([last], 5, table, [slot])])
        wanted = model()(torch.tensor([[*tokens[:5], last]]))[0, -1]
        texts.append(torch.allclose(logits[0], wanted))
    assert texts == [True, True]


def test_the_room_is_small_enough_to_be_read() -> None:
    files = Path(workshop.serve.__path__[0]).glob("*.py")
    lines = [line for file in files for line in file.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) <= 500
