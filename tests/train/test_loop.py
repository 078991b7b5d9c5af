"""The loop: what it logs, how it counts, and that it can be read in one sitting."""

import inspect
import json

import pytest
import torch

from workshop.facts.layout import Layout
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.train import loop
from workshop.train.apply_layout import apply_layout
from workshop.train.group import join_group
from workshop.train.log import open_log
from workshop.train.settings import Settings

TINY = GPTConfig(
    vocab_size=256, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64
)


def trained(settings, log=None, **shape):
    torch.manual_seed(0)
    ready = apply_layout(GPT(TINY), Layout(precision="fp32"), settings)
    return ready, loop.train_loop(ready, TextBatches(16, 4, **shape), settings, log=log)


def test_it_is_the_loop_one_would_write():
    """The same numbers from a dozen lines of plain PyTorch."""
    settings = Settings(num_steps=5, learning_rate=1e-2, schedule="linear", warmup=2, clip_norm=0.3)
    _, found = trained(settings, accumulation=2)
    torch.manual_seed(0)
    model, losses = GPT(TINY), []
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step, rate in enumerate((5e-3, 1e-2, 1e-2, 1e-2 * 2 / 3, 1e-2 / 3)):
        optimizer.param_groups[0]["lr"] = rate
        tokens, targets = next(TextBatches(16, 4).step(step))
        loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert found.values == pytest.approx(losses, abs=1e-5)
    assert found.first_step == 0


def test_the_log_of_a_resumed_run_tells_of_the_steps_since_its_last_line(tmp_path):
    """Steps are counted from the beginning of the training, not from that of the process."""

    class FromTheFirstStep:
        def resume(self, ready, batches):
            return 1

    settings = Settings(num_steps=4, log_every=2, learning_rate=1e-3)
    torch.manual_seed(0)
    ready = apply_layout(GPT(TINY), Layout(precision="fp32"), settings)
    log = open_log("jsonl", tmp_path)
    found = loop.train_loop(ready, TextBatches(16, 4), settings, log=log, checkpoints=FromTheFirstStep())
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert [line["loss"] for line in lines] == pytest.approx([found.values[0], sum(found.values[1:]) / 2])


def test_a_line_of_log_every_few_steps_and_at_the_end(tmp_path):
    settings = Settings(num_steps=5, log_every=2, learning_rate=1e-3)
    log = open_log("jsonl", tmp_path)
    ready, found = trained(settings, log)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 5]
    means = [sum(found.values[a:b]) / (b - a) for a, b in ((0, 2), (2, 4), (4, 5))]
    assert [line["loss"] for line in lines] == pytest.approx(means, abs=1e-6)
    assert lines[-1]["gradient_norm"] == pytest.approx(float(ready.gradient_norm))
    assert all(line["tokens_per_second"] > 0 and line["learning_rate"] == 1e-3 for line in lines)


def test_no_step_has_no_last_loss():
    with pytest.raises(ValueError, match="no step was taken: step 7 was the last already"):
        loop.Losses(7).last  # noqa: B018


def test_it_can_be_read_in_one_sitting():
    lines, _ = inspect.getsourcelines(loop.train_loop)
    text = "".join(lines)
    code = text.split('"""')[2].strip().splitlines()
    assert len(code) <= 40


def test_a_process_that_is_no_rank_is_told_so(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="this process is no rank: start the program with torchrun"):
        join_group()
