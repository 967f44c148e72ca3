"""A closed loop of requests to an OpenAI-compatible server, with the arrival time of each token."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import httpx2


@dataclass(frozen=True)
class Answer:
    """One request: times of sending and of each chunk in seconds, and the number of tokens.

    A vLLM chunk is one token unless the server falls behind. `error` is "" on success.
    """

    sent: float
    arrivals: tuple[float, ...] = ()
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """All answers of a loop, and the seconds from the first request to the last answer."""

    answers: tuple[Answer, ...]
    seconds: float

    @property
    def complete(self) -> list[Answer]:
        """The answers that did not fail."""
        return [answer for answer in self.answers if not answer.error]

    def first_token_seconds(self) -> list[float]:
        """TTFT of each answer: time of the first token minus time of sending."""
        return [answer.arrivals[0] - answer.sent for answer in self.complete]

    def whole_seconds(self) -> list[float]:
        """Seconds of each answer from sending to the last chunk."""
        return [answer.arrivals[-1] - answer.sent for answer in self.complete]

    def gaps(self) -> list[list[float]]:
        """ITL: seconds between chunks, one list per answer."""
        return [[b - a for a, b in pairwise(answer.arrivals)] for answer in self.complete]

    def seconds_per_later_token(self) -> list[float]:
        """TPOT of each answer: seconds after the first token / tokens after the first."""
        return [
            (a.arrivals[-1] - a.arrivals[0]) / (a.tokens - 1) for a in self.complete if a.tokens > 1
        ]


def closed_loop(
    url: str,
    prompts: Sequence[Sequence[int]],
    *,
    concurrency: int,
    output_tokens: int,
    timeout_seconds: float = 300.0,
) -> Outcome:
    """Send every prompt (token ids), with `concurrency` requests at any time.

    `url` is the server's, without /v1. A request that fails or times out is an answer with an
    error.
    """

    async def run() -> Outcome:
        waiting = iter(prompts)
        limits = httpx2.Limits(max_connections=concurrency)
        async with httpx2.AsyncClient(
            base_url=url, limits=limits, timeout=timeout_seconds, trust_env=False
        ) as client:
            started = perf_counter()
            workers = [_serve(client, waiting, output_tokens) for _ in range(concurrency)]
            answers = await asyncio.gather(*workers)
            return Outcome(tuple(a for found in answers for a in found), perf_counter() - started)

    # in its own thread, because the caller (a notebook) may have a running event loop
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(lambda: asyncio.run(run())).result()


async def _serve(
    client: httpx2.AsyncClient, waiting: Iterator[Sequence[int]], output_tokens: int
) -> list[Answer]:
    """One user: sends the next prompt as soon as the last answer is complete."""
    return [await _ask(client, prompt, output_tokens) for prompt in waiting]


async def _ask(client: httpx2.AsyncClient, prompt: Sequence[int], output_tokens: int) -> Answer:
    body = {
        "model": "quantkit",
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = perf_counter()
    arrivals: list[float] = []
    tokens = 0
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                return Answer(sent, error=f"HTTP {response.status_code}: {text[:200]}")
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if not line.startswith("data: ") or data == "[DONE]":
                    continue
                event = json.loads(data)
                if event.get("choices"):
                    arrivals.append(perf_counter())
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    except (httpx2.HTTPError, ValueError) as error:
        return Answer(sent, error=f"{type(error).__name__}: {error}")
    fault = "" if tokens == output_tokens else f"received {tokens} of {output_tokens} tokens"
    return Answer(sent, tuple(arrivals), tokens, fault)
