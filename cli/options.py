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
    str | None,
    typer.Option(help="Calibration text: file, folder or hub data set. Default: built-in."),
]
Device = Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:N or auto.")]
MaxRam = Annotated[str | None, typer.Option(metavar="SIZE", help="The same of a run on the CPU.")]
MaxVram = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Most memory of each GPU: 12GiB. Slower where it is short; the same result.",
    ),
]
Samples = Annotated[
    int | None, typer.Option(help="Number of calibration windows. Default: 128, or all.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow code from the model folder to run.")
]


def parse_tokens(text: str) -> int:
    """Tokens: `32k` is 32 * 1024, `1M` 1024 * 1024.

    Raises:
        InputError: not a positive number.
    """
    match = re.fullmatch(r"([0-9]{1,9})([kKmM]?)", text.strip())
    count = int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()] if match else 0
    if count < 1:
        raise InputError(f"`{text}` is not a number of tokens", hint="--context 32k")
    return count
