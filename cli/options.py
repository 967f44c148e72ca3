"""Options that several verbs share, in one wording."""

import re
from typing import Annotated

import typer

from quantkit.core.errors import InputError
from quantkit.core.registry import names


def entries(folder: str) -> str:
    """The entries of a registry, for a help text: `awq, gptq or rtn`."""
    *most, last = names(folder)
    return f"{', '.join(most)} or {last}" if most else last


Calibration = Annotated[
    str | None, typer.Option(help="File, folder or hub data set. Default: quantkit's own.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")]
Samples = Annotated[
    int | None, typer.Option(help="Windows of calibration text, if it fills them. Default: 128.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let code of the model folder run.")
]


def parse_tokens(text: str) -> int:
    """Tokens: `32k` is 32 * 1024, `1M` 1024 * 1024.

    Raises:
        InputError: not a positive number.
    """
    match = re.fullmatch(r"([0-9]{1,9})([kKmM]?)", text.strip())
    count = int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()] if match else 0
    if count < 1:
        raise InputError(f"`{text}` is no number of tokens", hint="--context 32k")
    return count
