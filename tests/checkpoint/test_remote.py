"""Cases ask a hub on loopback from a child process: the client reads its settings at import."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.remote import FIRST
from tests.float_forms import rewrite

REPO = "org/tiny-llama"
CLIENT = """
import json, sys
from quantkit.checkpoint.remote import remote_headers
from quantkit.core.errors import QuantkitError
try:
    found = remote_headers(*sys.argv[1:])
    print(json.dumps([found.config, found.names]))
except QuantkitError as error:
    print(json.dumps([error.exit_code, str(error)]))
assert not {"torch", "transformers"} & set(sys.modules)
"""


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., list[Any]]:
    """ask(url, repo): [config, tensors], or [exit code, message]."""

    def run(url: str, repo: str = REPO, code: str = CLIENT, *, offline: bool = False) -> Any:
        env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        env |= {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": url}
        env |= {"HF_HUB_OFFLINE": str(int(offline))}
        command = [sys.executable, "-c", code, repo]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def content_of(folder: Path) -> dict[str, bytes]:
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    return content | {"tokenizer.model": b"x" * 10**6, "README.md": b"x" * 1000}


@pytest.mark.parametrize("shards", [1, 3])
def test_only_config_index_and_headers_are_fetched(
    shards: int,
    tiny_checkpoint: Callable[..., Path],
    serve: Callable[..., Any],
    ask: Callable[..., list[Any]],
) -> None:
    folder = tiny_checkpoint(shards=shards)
    files = content_of(folder)
    hub = serve({REPO: files})
    config, tensors = ask(hub.url)
    local = open_checkpoint(folder)
    assert config == local.config
    assert {name: tuple(map(_plain, info)) for name, info in tensors.items()} == {
        name: tuple(info) for name, info in local.names.items()
    }
    weights = {name for name in files if name.endswith(".safetensors")}
    small = {"config.json"} | ({"model.safetensors.index.json"} if shards > 1 else set())
    assert hub.fetched() - weights <= small | {"model.safetensors.index.json"}
    assert set(hub.sent) == weights | small
    assert all(hub.sent[name] <= FIRST for name in weights)


@pytest.mark.parametrize("form", ["nvfp4_modelopt", "fp8_tensor"])
def test_modelopts_own_file_is_read_where_only_it_tells_of_the_codes(
    form: str,
    tiny_checkpoint: Callable[..., Path],
    serve: Callable[..., Any],
    ask: Callable[..., list[Any]],
) -> None:
    folder = tiny_checkpoint("llama", private=True)
    rewrite(folder, form)
    hub = serve({REPO: content_of(folder)})
    config, _ = ask(hub.url)
    assert config["quantization_config"]["quant_method"] == "modelopt"
    asked = any("hf_quant_config.json" in line for line in hub.requests)
    assert asked == (form == "nvfp4_modelopt")


def test_a_plain_model_is_not_asked_for_modelopts_file(
    tiny_checkpoint: Callable[..., Path], serve: Callable[..., Any], ask: Callable[..., list[Any]]
) -> None:
    hub = serve({REPO: content_of(tiny_checkpoint("llama"))})
    ask(hub.url)
    assert not any("hf_quant_config.json" in line for line in hub.requests)


PLAN = """
import sys
from quantkit.cli.main import run
assert run(["plan", sys.argv[1], "--gpu", "4090", "--json"]) == 0
assert not {"torch", "transformers"} & set(sys.modules)
"""


def test_a_hub_model_is_planned_without_its_weights(
    tiny_checkpoint: Callable[..., Path], serve: Callable[..., Any], ask: Callable[..., Any]
) -> None:
    files = content_of(tiny_checkpoint(shards=3))
    hub = serve({REPO: files})
    document = ask(hub.url, code=PLAN)
    assert (document["model"], document["origin"]) == (REPO, "safetensors headers")
    weights = sum(len(body) for name, body in files.items() if name.endswith(".safetensors"))
    assert 0.9 * weights < document["builds"][0]["bytes"] < weights
    assert set(hub.sent) == {n for n in files if n.endswith((".safetensors", "index.json"))} | {
        "config.json"
    }


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("ranges", [True, False])
def test_weights_are_not_fetched_even_where_the_server_sends_all(
    ranges: bool,
    tiny_checkpoint: Callable[..., Path],
    serve: Callable[..., Any],
    ask: Callable[..., list[Any]],
) -> None:
    """A file of 64 MB: of a server that knows no ranges the connection is closed early."""
    files = {
        "config.json": (tiny_checkpoint() / "config.json").read_bytes(),
        "model.safetensors": save({"weight": torch.zeros(2**26, dtype=torch.uint8)}),
    }
    hub = serve({REPO: files}, ranges=ranges)
    _, tensors = ask(hub.url)
    assert tensors == {"weight": ["U8", [2**26], "model.safetensors", *_span(files)]}
    if ranges:
        assert hub.sent["model.safetensors"] == FIRST


def _span(files: dict[str, bytes]) -> list[int]:
    size = len(files["model.safetensors"])
    return [size - 2**26, size]


def test_a_header_longer_than_the_first_request_is_fetched_whole(
    tiny_checkpoint: Callable[..., Path], serve: Callable[..., Any], ask: Callable[..., list[Any]]
) -> None:
    many = {f"layer.{i}.{'x' * 100}": torch.zeros(1) for i in range(2000)}
    config = (tiny_checkpoint() / "config.json").read_bytes()
    hub = serve({REPO: {"config.json": config, "model.safetensors": save(many)}})
    assert set(ask(hub.url)[1]) == set(many)


def test_a_model_without_safetensors_has_its_config_only(
    tiny_checkpoint: Callable[..., Path], serve: Callable[..., Any], ask: Callable[..., list[Any]]
) -> None:
    config = (tiny_checkpoint() / "config.json").read_bytes()
    hub = serve({REPO: {"config.json": config, "pytorch_model.bin": b"x"}})
    assert ask(hub.url) == [json.loads(config), {}]


@pytest.mark.parametrize(
    ("files", "rest", "code", "message"),
    [
        ({"x": b"{}"}, {}, 7, "no `config.json`"),
        ({"config.json": b"[]"}, {}, 2, "not a JSON object"),
        ({"config.json": b"{}", "model.safetensors": b"\xff" * 99}, {}, 6, "not a valid"),
        ({"config.json": b"{}"}, {"gated": {REPO}}, 7, "gated"),
    ],
)
def test_what_goes_wrong_is_told(
    files: dict[str, bytes],
    rest: dict[str, Any],
    code: int,
    message: str,
    serve: Callable[..., Any],
    ask: Callable[..., list[Any]],
) -> None:
    found = ask(serve({REPO: files}, **rest).url)
    assert found[0] == code
    assert message in found[1]


def sharded(tiny_checkpoint: Callable[..., Path]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a model in three shards, and its index."""
    files = content_of(tiny_checkpoint(shards=3))
    return files, json.loads(files["model.safetensors.index.json"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [("gone", "is incomplete"), ("nobody", "no shard contains it"), ("twice", "both in")],
)
def test_shards_that_do_not_belong_together_are_refused(
    wrong: str,
    message: str,
    tiny_checkpoint: Callable[..., Path],
    serve: Callable[..., Any],
    ask: Callable[..., list[Any]],
) -> None:
    files, index = sharded(tiny_checkpoint)
    first, second, *_ = sorted(name for name in files if name.endswith(".safetensors"))
    if wrong == "gone":
        del files[second]
    elif wrong == "nobody":
        index["weight_map"]["nobody.has.weight"] = first
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    else:
        files[second] = files[first]
    found = ask(serve({REPO: files}).url)
    assert found[0] == 6, found
    assert message in found[1]


@pytest.mark.parametrize(
    ("body", "faults", "message"),
    [
        (b"abc", {}, "not a valid"),
        (b"abc", {"model.safetensors": "size 5000000"}, "truncated"),
        (b"a" * 99, {"model.safetensors": "size -5"}, "does not state the size"),
        (b"a" * 99, {"model.safetensors": "size *"}, "does not state the size"),
    ],
)
def test_weights_of_which_nothing_can_be_known_are_no_missing_weights(
    body: bytes,
    faults: dict[str, str],
    message: str,
    serve: Callable[..., Any],
    ask: Callable[..., list[Any]],
) -> None:
    hub = serve({REPO: {"config.json": b"{}", "model.safetensors": body}}, faults=faults)
    found = ask(hub.url)
    assert found[0] == 6, found
    assert message in found[1]


def test_all_files_are_of_the_commit_that_the_config_is_of(
    tiny_checkpoint: Callable[..., Path], serve: Callable[..., Any], ask: Callable[..., Any]
) -> None:
    hub = serve({REPO: sharded(tiny_checkpoint)[0]})
    ask(hub.url)
    resolved = [line.split("/resolve/")[1] for line in hub.requests if "/resolve/" in line]
    moving = {name.split("/")[1] for name in resolved if name.startswith("main/")}
    assert moving == {"config.json"}
    assert any(name.endswith(".safetensors") for name in resolved)


def test_an_unknown_model_is_told(serve: Callable[..., Any], ask: Callable[..., list[Any]]) -> None:
    assert ask(serve({}).url, "org/nothing")[0] == 7


@pytest.mark.long
def test_a_hub_that_cannot_be_reached_is_no_missing_config(ask: Callable[..., list[Any]]) -> None:
    found = ask("http://127.0.0.1:9")
    assert found[0] == 7
    assert "cannot be reached" in found[1]


FETCH = """
import sys
from quantkit.checkpoint.source import resolve
resolve(sys.argv[1], weights=WEIGHTS)
print("0")
"""


@pytest.mark.parametrize("shards", [1, 3])
def test_a_model_in_the_cache_needs_no_network(
    shards: int,
    tiny_checkpoint: Callable[..., Path],
    serve: Callable[..., Any],
    ask: Callable[..., list[Any]],
) -> None:
    folder = tiny_checkpoint(shards=shards)
    hub = serve({REPO: content_of(folder)})
    ask(hub.url, code=FETCH.replace("WEIGHTS", "True"))
    _, names = ask(hub.url, offline=True)
    assert set(names) == set(open_checkpoint(folder).names)


def test_offline_with_the_small_files_alone_says_so(
    tiny_checkpoint: Callable[..., Path], serve: Callable[..., Any], ask: Callable[..., list[Any]]
) -> None:
    hub = serve({REPO: content_of(tiny_checkpoint(shards=3))})
    ask(hub.url, code=FETCH.replace("WEIGHTS", "False"))
    code, message = ask(hub.url, offline=True)
    assert code == 7
    assert "in offline mode" in message
    assert "try: set HF_HUB_OFFLINE=0" in message
