"""Who makes an output: what a run leaves that is killed while it cleans up."""

import os
from pathlib import Path
from typing import Any

import pytest

from quantkit.checkpoint.claim import MARKER, discard
from quantkit.checkpoint.journal import journal_folder


class Killed(BaseException):
    """As SIGKILL, nothing catches it."""


def left_by_a_run(output: Path) -> None:
    """A partial folder of several files and a folder, and its journal."""
    folder = output.with_name(f"{output.name}.partial")
    (folder / "templates").mkdir(parents=True)
    for name in ("a.safetensors", "z.json", "templates/chat.jinja", MARKER):
        (folder / name).write_text("x")
    journal_folder(output).mkdir()
    (journal_folder(output) / "journal.jsonl").write_text("x")


@pytest.mark.parametrize("fatal", range(1, 9))
def test_a_kill_while_it_is_removed_leaves_what_the_next_one_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fatal: int
) -> None:
    left_by_a_run(tmp_path / "out")
    calls = 0

    def dying(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fatal:
                raise Killed
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for name in ("unlink", "rmdir"):
            patched.setattr(os, name, dying(getattr(os, name)))
        with pytest.raises(Killed):
            discard(tmp_path / "out")
    discard(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
