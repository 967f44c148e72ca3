"""What the closed loop counts, against a small server whose answers are known."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from quantkit.bench.clients import Answer, Outcome, closed_loop

STEP = 0.02


class Completions(BaseHTTPRequestHandler):
    """Streams as many tokens as are asked for; the first prompt id says what goes wrong."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.running += 1
            server.most = max(server.most, server.running)
        fault, count = body["prompt"][0], body["max_tokens"]
        if fault == 500:
            self.send_error(500, "out of memory")
        else:
            self._stream(count - (fault == 1), hang=fault == 2)
        with server.lock:
            server.running -= 1

    def _stream(self, count: int, *, hang: bool) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for _ in range(count):
            time.sleep(1.0 if hang else STEP)
            self._event({"choices": [{"text": "a"}]})
        self._event({"choices": [], "usage": {"completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, event: dict[str, Any]) -> None:
        try:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        except (BrokenPipeError, ConnectionResetError):  # the client has given up
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing to say."""


@pytest.fixture
def server() -> Iterator[Any]:
    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
    found.lock, found.running, found.most = threading.Lock(), 0, 0
    found.daemon_threads = True
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def ask(server: Any, prompts: list[list[int]], **options: Any) -> Outcome:
    url = f"http://127.0.0.1:{server.server_port}"
    return closed_loop(url, prompts, **({"concurrency": 2, "output_tokens": 4} | options))


def test_every_token_is_timed_and_no_more_requests_run_than_asked(server: Any) -> None:
    outcome = ask(server, [[9, 9]] * 5)
    assert [(answer.tokens, answer.error) for answer in outcome.answers] == [(4, "")] * 5
    assert server.most == 2
    assert [len(gaps) for gaps in outcome.gaps()] == [3] * 5
    for first, whole in zip(outcome.first_token_seconds(), outcome.whole_seconds(), strict=True):
        assert whole > first + 3 * STEP / 2
    assert min(outcome.first_token_seconds()) > STEP / 2
    assert min(outcome.seconds_per_later_token()) > STEP / 2
    assert outcome.seconds > 3 * 4 * STEP  # three rounds of two users


def test_what_fails_is_counted_and_kept_out_of_the_times(server: Any) -> None:
    outcome = ask(server, [[500], [1], [2], [9]], concurrency=4, timeout_seconds=0.5)
    errors = {answer.error for answer in outcome.answers}
    assert "received 3 of 4 tokens" in errors
    assert any(error.startswith("HTTP 500") for error in errors)
    assert any("Timeout" in error for error in errors)
    assert len(outcome.complete) == 1
    assert [len(gaps) for gaps in outcome.gaps()] == [3]


def test_a_server_that_is_not_there_is_an_error_of_each_request() -> None:
    outcome = closed_loop("http://127.0.0.1:9", [[1], [2]], concurrency=1, output_tokens=2)
    assert [bool(answer.error) for answer in outcome.answers] == [True, True]


def test_the_three_times_are_those_of_their_definitions() -> None:
    answer = Answer(sent=10.0, arrivals=(10.5, 10.6, 11.0), tokens=3)
    outcome = Outcome((answer, Answer(0.0, error="lost")), seconds=2.0)
    assert outcome.first_token_seconds() == [0.5]
    assert outcome.gaps() == [pytest.approx([0.1, 0.4])]
    assert outcome.whole_seconds() == [1.0]
    assert outcome.seconds_per_later_token() == [0.25]


def test_a_caller_with_a_running_loop_may_ask(server: Any) -> None:
    async def notebook() -> Outcome:
        return ask(server, [[3]])

    # the tests of the page leave a loop running in the main thread
    with ThreadPoolExecutor(max_workers=1) as pool:
        found = pool.submit(lambda: asyncio.run(notebook())).result()
    assert len(found.complete) == 1
