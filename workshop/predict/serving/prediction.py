"""What users of a server wait for, and how many it can serve.

    time to first token    one pass over the prompt (in chunks, where `batched_tokens` is smaller), alone
    time between tokens    one pass over one token of each request of the batch, half of the answer behind it
    throughput             batch * output / (passes over all prompts + (output - 1) passes over the batch)
    capacity               tokens and requests whose keys and values fit (`capacity`)

The first two pull apart what one number hides: a larger batch gives more tokens a second of all users
together, and each of them waits longer for the next. Under load a request also waits for the prompts of the
others, which are read between its tokens: `between_tokens_loaded`.

Queues are not modelled: requests that arrive faster than they are served wait as long as one likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, prod
from typing import Any

from workshop.facts.checks import check_positive
from workshop.facts.serving import Serving
from workshop.predict.interval import Interval
from workshop.predict.serving.capacity import KVCapacity, kv_capacity
from workshop.predict.serving.engines import Engine, read
from workshop.predict.serving.forward import Case, Forward, case, forward
from workshop.predict.weight_formats import weight_format

TTFT, BETWEEN, THROUGHPUT = "time_to_first_token", "time_between_tokens", "tokens_per_second"
QUANTITIES = (TTFT, BETWEEN, THROUGHPUT)


@dataclass(frozen=True)
class ServingPrediction:
    """What is predicted of a server whose replicas work on `batch` requests each, all alike.

    Attributes:
        capacity: what fits.
        prefill: the pass over one prompt alone (its last chunk, where it is cut).
        decode: the pass that gives each request of the batch its next token, half-way through the answer.
        time_to_first_token: seconds, of a request that finds the server idle.
        time_between_tokens: seconds between two tokens of a request, the batch full, no prompt in between.
        tokens_per_second: new tokens of all requests and replicas.
    """

    case: Case
    prompt: int
    output: int
    batch: int
    capacity: KVCapacity
    prefill: Forward
    decode: Forward
    time_to_first_token: float
    time_between_tokens: float
    tokens_per_second: float
    prompt_seconds: float

    @property
    def fits(self) -> bool:
        """Whether keys and values of the whole batch fit when the answers are complete."""
        return self.batch <= self.capacity.requests(self.prompt + self.output)

    @property
    def between_tokens_loaded(self) -> float:
        """Seconds between two tokens where each request that ends is followed by the next: prompts of the
        other requests are read in between.
        """
        others = (self.batch - 1) / self.batch * self.prompt_seconds
        return self.time_between_tokens + others / self.output

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """What makes this prediction less sure: a program or a device that no published row stands for."""
        doubts = [] if self.case.engine.measured else ["engine"]
        device = self.case.serving.run.cluster.device.name
        return (*doubts, "device") if device not in read()["intervals"]["devices"] else tuple(doubts)

    def interval(self, quantity: str) -> Interval:
        """From p10 to p90 of what would be measured, in the quantity's own unit (`QUANTITIES`).

        From residuals of published tables that were left out of the fit, source by source.
        """
        bars = read()["intervals"]
        if quantity not in QUANTITIES:
            raise ValueError(f"unknown quantity {quantity!r} (known: {', '.join(QUANTITIES)})")
        wider = prod(bars["wider"][doubt] for doubt in self.doubts)
        lower, upper = bars[quantity]
        value = getattr(self, quantity)
        return Interval(value * exp(lower * wider), value * exp(upper * wider))

    def as_json(self) -> dict[str, Any]:
        """What a program reads: seconds, tokens, bytes."""
        room, most = self.capacity, self.capacity.requests(self.prompt + self.output)
        return {
            "model": self.case.serving.model.name,
            "engine": self.case.engine.name,
            "batch": self.batch,
            **{name: getattr(self, name) for name in QUANTITIES},
            "intervals": {name: list(self.interval(name)) for name in QUANTITIES},
            "limited_by": {"prefill": self.prefill.limit, "decode": self.decode.limit},
            "kv_bytes_per_token": room.bytes_per_token,
            "tokens_that_fit": room.tokens,
            "requests_that_fit": most,
            "fits": self.fits,
            "doubts": list(self.doubts),
        }

    def _asked(self) -> str:
        return f"{self.batch} requests of {self.prompt:,} + {self.output:,} tokens"

    def __str__(self) -> str:
        serving, device = self.case.serving, self.case.serving.run.cluster
        cut = f" over {serving.tensor} ranks" if serving.tensor > 1 else ""
        first, between, speed = (self.interval(name) for name in QUANTITIES)
        most = self.capacity.requests(self.prompt + self.output)
        where = f"{cut} on {device.name}, served by {self.case.engine.name}"
        step = f"{_ms(self.time_between_tokens)} ({_ms(between[0])} to {_ms(between[1])})"
        lines = [
            f"{serving.model.name} in {serving.weights}{where}: {self._asked()}",
            f"first token after {_ms(self.time_to_first_token)} ({_ms(first[0])} to {_ms(first[1])})",
            f"between tokens    {step}, waiting for {self.decode.limit}",
            f"throughput        {self.tokens_per_second:,.0f} tokens/s ({speed[0]:,.0f} to {speed[1]:,.0f})",
            str(self.capacity),
        ]
        if not self.fits:
            lines.append(
                f"does not fit: {most:,} such requests fit at once, and {self.batch:,} are asked for"
            )
        if self.doubts:
            lines.append(f"less sure, for no published row stands for this {' and '.join(self.doubts)}")
        return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def predict_serving(
    serving: Serving, prompt: int, output: int, batch: int = 0, engine: str | Engine = "vllm"
) -> ServingPrediction:
    """What users of a server wait for.

    Args:
        serving: the run and how it is served.
        prompt: tokens of each prompt. output: new tokens of each answer.
        batch: requests that one replica works on at once; 0: the run's `micro_batch`.
        engine: the serving program by name (`workshop.predict.serving.engines`), or one of your own.

    Raises:
        ValueError: A length that the run does not allow, an unknown engine, a cut that is not modelled.
    """
    batch = batch or serving.run.micro_batch
    for name, value in (("prompt", prompt), ("output", output), ("batch", batch)):
        check_positive(name, value)
    if prompt + output > serving.run.seq_len:
        raise ValueError(
            f"prompt {prompt} + output {output} = {prompt + output} tokens, and the run's seq_len is "
            f"{serving.run.seq_len}: serve longer requests, or ask for fewer"
        )
    facts = case(serving, engine)
    prefill, first = _prompt(facts, 1, prompt)
    _, together = _prompt(facts, batch, prompt)
    prompts = min(batch * first, together)
    decode = forward(facts, batch, 1, prompt + output / 2)
    seconds = prompts + (output - 1) * decode.seconds
    return ServingPrediction(
        facts,
        prompt,
        output,
        batch,
        kv_capacity(serving),
        prefill,
        decode,
        first,
        decode.seconds,
        serving.run.layout.replicate * batch * output / seconds,
        prompts,
    )


def _prompt(facts: Case, sequences: int, prompt: int) -> tuple[Forward, float]:
    """Seconds over the prompts of some requests, and the last pass of them; cut into chunks where asked."""
    limit = facts.serving.batched_tokens
    tokens = sequences * prompt
    if not limit or tokens <= limit:
        whole = forward(facts, sequences, prompt, 0)
        return whole, whole.seconds
    chunks = ceil(tokens / limit)
    size = prompt / chunks
    passes = [forward(facts, sequences, size, size * done) for done in range(chunks)]
    return passes[-1], sum(one.seconds for one in passes)


def ridge_batch(serving: Serving, engine: str | Engine = "vllm") -> float:
    """Tokens of one pass at which its products compute as long as they read their weights.

    2 m / peak = bytes a weight / bandwidth, so m = bytes * peak / (2 * bandwidth). Decode of fewer requests
    waits for memory: one more costs next to nothing. A prompt of more tokens computes.
    """
    facts = case(serving, engine)
    form = weight_format(serving.weights)
    each = form.bytes_per_weight(serving.model.hidden_size)
    return each * facts.peak / (2 * facts.bandwidth * facts.engine.unpacks(form.name))


def throughput_by_batch(
    serving: Serving, prompt: int, output: int, batches: list[int], engine: str | Engine = "vllm"
) -> list[ServingPrediction]:
    """The same server at several batches: what one more user costs the others."""
    return [predict_serving(serving, prompt, output, batch, engine) for batch in batches]
