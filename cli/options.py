"""Options that several verbs share, in one wording."""

from typing import Annotated

import typer

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
