from pathlib import Path

import pytest

from quantkit.cli.render.ending import next_lines

TRY = "quantkit generate 'my out' \"Once upon a time\""


@pytest.mark.parametrize(
    ("engines", "lines"),
    [
        (
            {"sglang": None, "transformers": None, "vllm": None},
            ["next: vllm serve 'my out'", f"or: {TRY}"],
        ),
        (
            {"sglang": None, "transformers": None, "vllm": "no loader"},
            ["next: python -m sglang.launch_server --model-path 'my out'", f"or: {TRY}"],
        ),
        ({"sglang": "no loader", "transformers": None, "vllm": "no loader"}, [f"next: {TRY}"]),
        ({}, [f"next: {TRY}"]),
    ],
)
def test_a_run_ends_with_the_engine_that_serves_its_format(
    engines: dict[str, str | None], lines: list[str]
) -> None:
    assert next_lines(Path("my out"), engines) == lines
