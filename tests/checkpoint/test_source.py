"""Cases ask a hub on loopback from a child process: the client reads its settings at import."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.checkpoint.source import resolve
from quantkit.checkpoint.stored import Source
from quantkit.core.errors import InputError, ResourceError

REPO = "org/tiny-llama"
CLIENT = """
import json, sys
from quantkit.checkpoint.source import resolve
from quantkit.core.errors import QuantkitError
try:
    source = resolve(sys.argv[1], **json.loads(sys.argv[2]))
    print(json.dumps([str(source.folder), source.id, source.revision]))
except QuantkitError as error:
    print(json.dumps([error.exit_code, str(error)]))
"""


@pytest.fixture
def files(tiny_checkpoint: Any) -> dict[str, bytes]:
    """A sharded model with much beside it that nobody needs."""
    folder: Path = tiny_checkpoint(shards=3)
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    unneeded = (
        "consolidated.safetensors",
        "pytorch_model.bin",
        "model-q4.gguf",
        "modeling_tiny.py",
        "original/params.json",
        "onnx/model.onnx",
        ".gitattributes",
    )
    content |= dict.fromkeys(unneeded, b"x" * 100)
    content |= {"LICENSE": b"do what you like", "additional_chat_templates/rag.jinja": b"{{ 1 }}"}
    return content


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., list[Any]]:
    """ask(model, url, **options): [folder, id, revision], or [exit code, message]."""

    def run(model: str, url: str, *, offline: bool = False, **options: Any) -> list[Any]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        env |= {
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": url,
            "HF_HUB_OFFLINE": str(int(offline)),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-c", CLIENT, model, json.dumps(options)]
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.mark.parametrize("form", [REPO, f"{REPO}@main", f"hf://{REPO}"])
def test_only_what_is_needed_is_fetched(
    serve: Any, files: dict[str, bytes], ask: Any, hub_server: Any, form: str
) -> None:
    hub = serve({REPO: files})
    folder, repo, revision = ask(form, hub.url)
    assert (repo, revision) == (REPO, hub_server.COMMIT)
    shards = {name for name in files if name.startswith("model-0")}
    needed = shards | {
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "LICENSE",
        "additional_chat_templates/rag.jinja",
    }
    assert hub.fetched() == needed
    assert all((Path(folder) / name).read_bytes() == files[name] for name in needed)


def test_a_fetched_model_opens(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    from quantkit.checkpoint.reader import open_checkpoint

    folder, _, _ = ask(REPO, serve({REPO: files}).url)
    checkpoint = open_checkpoint(Path(folder))
    assert checkpoint.tensor("lm_head.weight").shape == (256, 128)


def test_single_file_model_needs_no_index(serve: Any, tiny_checkpoint: Any, ask: Any) -> None:
    files = {path.name: path.read_bytes() for path in tiny_checkpoint().iterdir()}
    hub = serve({REPO: files})
    ask(REPO, hub.url)
    assert "model.safetensors" in hub.fetched()


def test_config_alone_fetches_no_weights(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    hub = serve({REPO: files})
    folder, _, _ = ask(REPO, hub.url, weights=False)
    assert (Path(folder) / "config.json").exists()
    assert not any(name.endswith(".safetensors") for name in hub.fetched())


def test_code_comes_only_with_trust(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    hub = serve({REPO: files})
    ask(REPO, hub.url, weights=False, trust_remote_code=True)
    assert "modeling_tiny.py" in hub.fetched()


def test_second_time_nothing_is_fetched(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    hub = serve({REPO: files})
    first = ask(REPO, hub.url)
    hub.requests.clear()
    assert ask(REPO, hub.url) == first
    assert hub.fetched() == set()


def test_offline_serves_from_the_cache(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    hub = serve({REPO: files})
    first = ask(REPO, hub.url)
    hub.requests.clear()
    assert ask(REPO, hub.url, offline=True) == first
    assert hub.requests == []


def test_offline_without_cache(ask: Any) -> None:
    code, message = ask(REPO, "http://127.0.0.1:9", offline=True)
    assert code == 7
    assert "`org/tiny-llama` is neither a local folder nor complete in the cache" in message
    assert "try: set HF_HUB_OFFLINE=0" in message


def test_offline_with_half_a_cache(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    hub = serve({REPO: files})
    ask(REPO, hub.url, weights=False)
    code, message = ask(REPO, hub.url, offline=True)
    assert code == 7
    assert "`org/tiny-llama` is neither a local folder nor complete in the cache" in message


def test_no_network(ask: Any) -> None:
    code, message = ask(REPO, "http://127.0.0.1:9")
    assert code == 7
    assert "cannot be reached" in message
    assert "try: " in message


def test_gated(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    code, message = ask(REPO, serve({REPO: files}, gated={REPO}).url)
    assert code == 7
    assert "is gated" in message
    assert "HF_TOKEN" in message


def test_missing_repository(serve: Any, ask: Any) -> None:
    code, message = ask("org/nothing", serve({}).url)
    assert code == 7
    assert "`org/nothing` is neither on the hub nor a local folder" in message


def test_missing_revision(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    code, message = ask(f"{REPO}@v9", serve({REPO: files}).url)
    assert code == 7
    assert "no revision `v9`" in message


@pytest.mark.parametrize(
    ("gone", "code", "words"),
    [
        ("config.json", 7, "contains no `config.json`"),
        ("model-00002-of-00003.safetensors", 7, "contains no `model-00002-of-00003.safetensors`"),
        ("model.safetensors.index.json", 4, "quantkit never loads pickles"),
    ],
)
def test_missing_files(
    serve: Any, files: dict[str, bytes], ask: Any, gone: str, code: int, words: str
) -> None:
    del files[gone]
    got, message = ask(REPO, serve({REPO: files}).url)
    assert got == code
    assert words in message


def test_hostile_index_is_refused_before_the_weights(
    serve: Any, files: dict[str, bytes], ask: Any
) -> None:
    files["model.safetensors.index.json"] = b'{"weight_map": {"a": "../../x.safetensors"}}'
    hub = serve({REPO: files})
    code, message = ask(REPO, hub.url)
    assert code == 2
    assert "which is not a valid shard" in message
    assert not any(name.endswith(".safetensors") for name in hub.fetched())


def test_a_flipped_bit_is_noticed(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    hub = serve({REPO: files}, faults={"model-00002-of-00003.safetensors": "flip"})
    code, message = ask(REPO, hub.url)
    assert code == 6
    assert "`model-00002-of-00003.safetensors` in the hub's cache is corrupt" in message


@pytest.mark.long
def test_a_broken_connection(serve: Any, files: dict[str, bytes], ask: Any) -> None:
    hub = serve({REPO: files}, faults={"model-00002-of-00003.safetensors": "cut"})
    code, message = ask(REPO, hub.url)
    assert code == 7
    assert f"fetching `{REPO}` failed" in message
    hub.faults.clear()
    assert ask(REPO, hub.url)[1] == REPO


def test_existing_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == Source(Path("org/name"))


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match="is a file"):
        resolve(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    "model",
    ["", "gpt2", "./nothing", "../a/b", "/nowhere/model", "a/b/c", "a b/c", "org/x@", "org/x@../y",
     "~/nothing-here", "~nobody/x", "org/x@a..b", "org/na\x00me", "a" * 5000],
)  # fmt: skip
def test_neither_folder_nor_id(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        resolve(model)
    assert caught.value.hint


def test_an_id_that_the_hub_forbids(ask: Any) -> None:
    code, message = ask("org/--x..y", "http://127.0.0.1:9")
    assert code == 2
    assert "is not a valid hub id" in message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_what_this_machine_refuses_is_not_the_hubs_fault(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> str:
        raise OSError(number, os.strerror(number), "/cache/blob")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ResourceError, match="/cache/blob") as caught:
        resolve(REPO)
    assert caught.value.why == os.strerror(number)
