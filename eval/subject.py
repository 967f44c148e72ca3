"""The measured model: names, sizes and the hash of its bytes, without paths."""

import hashlib

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.manifest import read_manifest
from quantkit.checkpoint.stored import Source
from quantkit.core.manifest import schemes_of
from quantkit.results.schema import Subject


def describe(source: Source, checkpoint: Checkpoint) -> Subject:
    """The model or artifact in a folder; for ours, with method and scheme from the manifest."""
    folder = source.folder
    shards = sorted({info.shard for info in checkpoint.names.values()})
    manifest = read_manifest(folder)
    recipe = manifest.get("recipe") or {}
    return Subject(
        name=source.id or folder.resolve().name.removesuffix(".partial"),
        revision=source.revision,
        sha256=content_hash(checkpoint),
        bytes=sum((folder / shard).stat().st_size for shard in shards),
        bits_per_weight=manifest.get("bits_per_weight"),
        quantized_bits_per_weight=manifest.get("quantized_bits_per_weight"),
        method=recipe.get("method"),
        scheme=", ".join(schemes_of(manifest)) or None,
        format=manifest.get("format") or _stated_format(checkpoint),
    )


def content_hash(checkpoint: Checkpoint) -> str:
    """SHA-256 over config and shards by name and content: what the model computes depends on."""
    digest = hashlib.sha256()
    for name in sorted(checkpoint.fingerprints):
        digest.update(f"{name}\0{checkpoint.sha256(name)}\0".encode())
    return digest.hexdigest()


def _stated_format(checkpoint: Checkpoint) -> str | None:
    stated = checkpoint.config.get("quantization_config")
    return str(stated.get("quant_method")) if isinstance(stated, dict) else None
