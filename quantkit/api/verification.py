"""The function that verifies an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.api.loading import load_torch
from quantkit.checkpoint.source import check_name, resolve
from quantkit.core import registry
from quantkit.core.errors import InputError
from quantkit.core.progress import Report, silent
from quantkit.core.session import Session

if TYPE_CHECKING:
    from quantkit.core.check import Verification


def verify(
    artifact: str | Path,
    *,
    source: str | None = None,
    engine: str | None = None,
    tp: int = 1,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> Verification:
    """All that is wrong with a quantized folder, of quantkit's own or another tool's.

    It needs no GPU, runs no model, and holds one weight at a time.

    Example:
        >>> quantkit.verify("out").status
        'sound'

    Args:
        artifact: a folder, or a hub id `org/name[@revision]`.
        source: the model that it was made of; weights and tokenizer are compared with it.
        engine: the engine that is to load it; its rules are checked.
        tp: tensor-parallel ranks of that engine.
        trust_remote_code: whether code in the model's folder may run.
        report: called with a `Progress` after each tensor.

    Raises:
        QuantkitError: nothing could be checked: no such folder, or a file cannot be read. What is
            wrong with the folder is not raised.
    """
    if engine is not None:
        registry.find("engines", engine)
    if tp < 1 or (tp > 1 and engine is None):
        raise InputError(f"--tp {tp} needs an engine", hint="--engine vllm")
    check_name(str(artifact))
    if source is not None:
        check_name(source)
    load_torch(report)
    from quantkit.runs import verify as job

    folder = resolve(str(artifact), trust_remote_code=trust_remote_code).folder
    original = resolve(source, trust_remote_code=trust_remote_code).folder if source else None
    session = Session("cpu", trust_remote_code, report)
    return job.verify(folder, original, engine, tp, session)
