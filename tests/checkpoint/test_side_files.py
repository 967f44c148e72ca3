import json
import os
from pathlib import Path
from typing import Any

import pytest

from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.side_files import carry_side_files, edited_config
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import InputError

CARRIED = (
    "LICENSE",
    "LICENCE.txt",
    "NOTICE",
    "USE_POLICY.md",
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "video_preprocessor_config.json",
    "vocab.json",
    "additional_chat_templates/rag.jinja",
    "params.json",
    "notes.md",
)
LEFT = {
    "README.md": "describes the original",
    "SHA256SUMS": "holds for the original only",
    "quantize_config.json": "describes another quantization",
    "pytorch_model.bin": "other weights",
    "pytorch_model.bin.index.json": "other weights",
    "consolidated.safetensors": "other weights",
    "model.gguf": "other weights",
    "flax_model.msgpack": "other weights",
    "modeling_x.py": "code, not trusted",
    "run.sh": "unknown file type",
    "lib.so": "unknown file type",
    ".env": "hidden",
    ".git/": "hidden",
    "original/": "a subfolder",
}


@pytest.fixture
def folder(tiny_checkpoint: Any) -> Path:
    path: Path = tiny_checkpoint(private=True)
    for name in (*CARRIED, *LEFT):
        (path / name).parent.mkdir(exist_ok=True)
        if name.endswith("/"):
            (path / name).mkdir()
        else:
            (path / name).write_bytes(name.encode() + b"\xff\r\n\x00")
    return path


def carry(folder: Path, output: Path, **options: Any) -> dict[str, str]:
    with ArtifactWriter(output, []) as writer:
        fates = carry_side_files(open_checkpoint(folder), writer, **options)
        writer.publish()
    return fates


def test_every_file_is_accounted_for(folder: Path, tmp_path: Path) -> None:
    fates = carry(folder, tmp_path / "out")
    made = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
    assert {name for name, fate in fates.items() if fate == "copied"} == {*CARRIED, *made}
    left = {name: fate for name, fate in fates.items() if fate != "copied"}
    assert left == {name: f"left: {reason}" for name, reason in LEFT.items()}


def test_files_are_copied_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    fates = carry(folder, tmp_path / "out")
    for name, fate in fates.items():
        if fate == "copied":
            assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    files = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")}
    assert not files & set(LEFT) - {"SHA256SUMS"}


def test_code_is_carried_only_with_trust(folder: Path, tmp_path: Path) -> None:
    fates = carry(folder, tmp_path / "out", trust_remote_code=True)
    assert fates["modeling_x.py"] == "copied"
    assert fates["lib.so"] == "left: unknown file type"


def test_a_large_file_of_unknown_use_is_left(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.md").write_bytes(bytes(2**20 + 1))
    assert carry(folder, tmp_path / "out")["notes.md"] == "left: larger than 1,048,576 bytes"


def test_links_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (folder / "extra.txt").symlink_to(tmp_path / "secret")
    fates = carry(folder, tmp_path / "out")
    assert fates["extra.txt"] == "left: not a regular file inside the folder"
    (folder / "vocab.json").unlink()
    (folder / "vocab.json").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"vocab.json` cannot be copied"):
        carry(folder, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_config_keeps_keys_and_order_and_puts_the_block_last() -> None:
    config = {"z": 1, "quantization_config": {"old": 1}, "a": [1e-05], "trust_remote_code": True}
    edited = edited_config(config, {"quant_method": "gptq"})
    assert list(edited.items()) == [
        ("z", 1),
        ("a", [1e-05]),
        ("quantization_config", {"quant_method": "gptq"}),
    ]
    assert "quantization_config" in config


def test_config_on_disk_differs_by_the_block_alone(tiny_checkpoint: Any, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint())
    with ArtifactWriter(tmp_path / "out", []) as writer:
        writer.write_json("config.json", edited_config(checkpoint.config, {"bits": 4}))
        output = writer.publish()
    before = (checkpoint.folder / "config.json").read_text().rstrip().removesuffix("\n}")
    after = (output / "config.json").read_text()
    assert after == before + ',\n  "quantization_config": {\n    "bits": 4\n  }\n}\n'
    assert json.loads(after)["quantization_config"] == {"bits": 4}


@pytest.mark.parametrize("name", ["tekken.json", "tiktoken.model", "de.tiktoken"])
def test_a_vocabulary_is_carried_whatever_its_size(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).write_bytes(bytes(3 * 2**20))
    assert carry(folder, tmp_path / "out")[name] == "copied"


@pytest.mark.parametrize("name", [b"Lizenz_f\xfcr.pdf", b"LICENSE\nother", b"back\\slash.txt"])
def test_a_name_that_no_list_of_files_can_hold_stays_behind(
    folder: Path, tmp_path: Path, name: bytes
) -> None:
    (folder / os.fsdecode(name)).write_bytes(b"text")
    fates = carry(folder, tmp_path / "out")
    assert list(fates.values()).count("left: unsupported file name") == 1
    assert all(n.isprintable() and n.encode() for n in fates)
