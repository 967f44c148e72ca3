import json
from collections.abc import Callable
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def generate(artifact: str, prompt: str, **arguments: Any) -> str:
        seen.update(arguments, artifact=artifact, prompt=prompt)
        pieces = [" there", " was\x1b[2J"]
        if arguments["emit"]:
            for piece in pieces:
                arguments["emit"](piece)
        return "".join(pieces)

    monkeypatch.setattr("quantkit.api.evaluation.generate", generate)
    return seen


def test_text_streams_and_is_free_of_terminal_codes(quantkit: Call, called: dict[str, Any]) -> None:
    code, out, err = quantkit("generate", "out", "Once", "--chat", "--max-new-tokens", "9")
    assert (code, out, err) == (0, " there was\\x1b[2J\n", "")
    assert (called["chat"], called["max_new_tokens"]) == (True, 9)


def test_json_is_prompt_and_text(quantkit: Call, called: dict[str, Any]) -> None:
    code, out, _ = quantkit("generate", "out", "Once", "--json")
    assert code == 0
    assert called["emit"] is None
    assert json.loads(out) == {"prompt": "Once", "text": " there was\x1b[2J"}
