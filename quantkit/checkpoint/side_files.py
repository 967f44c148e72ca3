"""Which of the source's other files are copied to an artifact, and why the rest are left.

Loading and saving through transformers loses licences, vocabularies and processor configs and
rewrites the tokenizer's, so files are copied as bytes and only config.json is parsed.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.filenames import PICKLES, SUMS, TEMPLATES, VOCABULARIES
from quantkit.checkpoint.files import inside, opened, there_before
from quantkit.checkpoint.quantization import plain_config
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import InputError

NEEDED = (
    *VOCABULARIES,
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.j*",
    f"{TEMPLATES}/*.jinja",
    "*processor_config.json",
    "LICEN[CS]E*",
    "NOTICE*",
    "USE_POLICY*",
    "COPYING*",
)
OWN = {
    "README.md": "describes the original",
    "quantkit.json": "describes the original",
    SUMS: "holds for the original only",
    "quantize_config.json": "describes another quantization",
    "hf_quant_config.json": "describes another quantization",
}
OTHER_WEIGHTS = (
    *PICKLES,
    ".safetensors", ".index.json", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx", ".npz", ".npy",
    ".joblib", ".tflite", ".ot", ".mlmodel",
)  # fmt: skip
INERT = ("", ".json", ".jsonl", ".jinja", ".txt", ".md", ".model", ".yaml", ".yml", ".csv", ".pdf")
NEEDED_LIMIT = 256 * 2**20
OTHER_LIMIT = 2**20


def carry_side_files(
    checkpoint: Checkpoint, writer: ArtifactWriter, *, trust_remote_code: bool = False
) -> dict[str, str]:
    """Copy what belongs to the artifact; each file's name -> `copied`, or why it was left.

    Raises:
        InputError: a needed file is outside the folder, not a regular file, or too large.
        ResourceError: a file is gone since the checkpoint was opened.
    """
    decisions = {}
    for name in checkpoint.files:
        path = checkpoint.folder / name
        with nullcontext() if path.is_symlink() else there_before(path):  # which may lead nowhere
            reason = _left_because(checkpoint, name, trust_remote_code=trust_remote_code)
            if not reason:
                writer.copy_side_file(inside(checkpoint.folder, name), name)
        decisions[_shown(name)] = f"left: {reason}" if reason else "copied"
    return decisions


def _plain(name: str) -> bool:
    """Whether a name needs no escapes in SHA256SUMS and JSON."""
    return name.isprintable() and "\\" not in name


def _shown(name: str) -> str:
    return name if _plain(name) else name.encode("unicode_escape").decode("ascii")


def edited_config(config: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """The source's config, same keys in the same order, with `quantization_config` last.

    `trust_remote_code` is removed: trust is the user's decision, not the folder's.
    """
    kept = plain_config(config)
    kept.pop("trust_remote_code", None)
    return kept | {"quantization_config": dict(block)}


def _left_because(checkpoint: Checkpoint, name: str, *, trust_remote_code: bool) -> str:
    """Why a file is not copied; empty where it is."""
    suffix = PurePosixPath(name).suffix.lower()
    needed = any(fnmatchcase(name, pattern) for pattern in NEEDED)
    code = suffix == ".py"
    reasons = (
        (not _plain(name), "unsupported file name"),
        (name in OWN, OWN.get(name, "")),
        (name.startswith("."), "hidden"),
        (name.endswith("/"), "a subfolder"),
        (name.lower().endswith(OTHER_WEIGHTS), "other weights"),
        (code and not trust_remote_code, "code, not trusted"),
        (not (needed or code or suffix in INERT), "unknown file type"),
    )
    for applies, reason in reasons:
        if applies:
            return reason
    fault = _unfit(checkpoint, name, NEEDED_LIMIT if needed else OTHER_LIMIT)
    if fault and needed:
        raise InputError(
            f"`{checkpoint.folder / name}` cannot be copied",
            why=f"it is {fault}",
            hint="replace it with a regular file, or remove it",
        )
    return fault


def _unfit(checkpoint: Checkpoint, name: str, limit: int) -> str:
    try:
        with opened(inside(checkpoint.folder, name)) as (_, fingerprint):
            size = fingerprint.size
    except InputError:
        return "not a regular file inside the folder"
    return f"larger than {limit:,} bytes" if size > limit else ""
