"""Say whether a quantized folder is what it claims to be."""

from enum import StrEnum
from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.options import TrustRemoteCode
from quantkit.cli.render.verification import lines

EXAMPLES = """\b
Examples:
  quantkit verify OUT
  quantkit verify org/name-awq --source org/name --engine vllm --tp 2 --json
"""
FAULTY = 6
INCOMPLETE = 4


class Engine(StrEnum):
    """Engines whose rules are known."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRANSFORMERS = "transformers"
    GPTQMODEL = "gptqmodel"


def verify(
    console: Console,
    artifact: Annotated[
        str, typer.Argument(metavar="ARTIFACT", help="Quantized model: folder or hub id.")
    ],
    source: Annotated[
        str | None,
        typer.Option(help="Original model to compare weights and tokenizer with."),
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option(help="Check that this engine loads it as it is.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks of the engine.")] = 1,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Say whether a quantized folder is what it claims to be.

    The exit code is 6 if something is wrong, and 4 if nothing is and a part could not be checked.
    """
    from quantkit.api import verification

    found = verification.verify(
        artifact,
        source=source,
        engine=engine.value if engine else None,
        tp=tp,
        trust_remote_code=trust_remote_code,
        report=console.report,
    )
    console.result(found.to_dict(), lines(found))
    return {"faulty": FAULTY, "incomplete": INCOMPLETE, "sound": 0}[found.status]


COMMAND = verify
