"""Try an artifact on a prompt."""

from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.options import Device, TrustRemoteCode

EXAMPLES = """\b
Examples:
  quantkit generate OUT "Once upon a time"
  quantkit generate OUT "What is a prime number?" --chat --max-new-tokens 200
"""


def generate(
    console: Console,
    artifact: Annotated[
        str, typer.Argument(metavar="ARTIFACT", help="Model or artifact: folder or hub id.")
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="Text to continue.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens.")] = 64,
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the model's chat template to the prompt.")
    ] = False,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Try an artifact on a prompt.

    Decodes greedily with the dequantized weights.
    """
    from quantkit.api import evaluation

    text = evaluation.generate(
        artifact,
        prompt,
        max_new_tokens=max_new_tokens,
        chat=chat,
        device=device,
        trust_remote_code=trust_remote_code,
        emit=None if console.as_json else console.piece,
        report=console.report,
    )
    if console.as_json:
        console.result({"prompt": prompt, "text": text}, text)
    else:
        console.piece("\n")


COMMAND = generate
