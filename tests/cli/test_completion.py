import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "transformers", "safetensors", "huggingface_hub")


def completed(shell: str, line: str) -> list[str]:
    """What the shell is told for a line, whose last word may not be whole; nothing heavy loads."""
    code = (
        "import sys, atexit; from quantkit.cli.main import main\n"
        f"atexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules], flush=True))\n"
        "main()"
    )
    last = line.rpartition(" ")[2]
    words = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_WORD_TO_COMPLETE": last,
        "_QUANTKIT_COMPLETE": f"complete_{shell}",
    }
    if shell != "bash":
        del words["COMP_WORDS"]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        check=False,
    )
    *found, loaded = done.stdout.splitlines()
    assert (loaded, done.stderr) == ("[]", "")
    return found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("quantkit ", {"quantize", "eval", "recipes", "plan"}),
        ("quantkit ev", {"eval"}),
        ("quantkit eval OUT --ref", {"--reference"}),
        ("quantkit recipes ", {"list", "show"}),
    ],
)
def test_bash_completes_verbs_and_options(line: str, words: set[str]) -> None:
    found = completed("bash", line)
    assert words <= set(found)
    assert all(word.startswith(line.rpartition(" ")[2]) for word in found)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_with_the_help(shell: str) -> None:
    (found,) = completed(shell, "quantkit plan --exp")
    assert "--explain" in found
    assert "rule of every figure." in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_names_the_command(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quantkit", "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_QUANTKIT_COMPLETE=complete_" in done.stdout
    assert "quantkit" in done.stdout
