"""A written folder against the model it was made from."""

from dataclasses import dataclass
from pathlib import Path

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core.progress import Progress, Report, silent
from quantkit.eval.session import Evaluation, evaluate_models, read_reference
from quantkit.eval.text import read_text
from quantkit.model.open import context_length, open_model

WINDOWS = 16
SEQUENCE_LENGTH = 512


@dataclass(frozen=True)
class TextChoice:
    """Which text is scored (None: the one that ships) and how much of it.

    Windows are no longer than the model's context.
    """

    text: str | None = None
    sequence_length: int = SEQUENCE_LENGTH
    windows: int = WINDOWS


def compare(
    artifact: Path,
    reference: Path | None,
    choice: TextChoice = TextChoice(),
    *,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> Evaluation:
    """Perplexity of `artifact` and, with a `reference`, its divergence from it.

    Raises:
        InputError: no tokenizer, or no such text.
        RefusedError: the two have different vocabularies.
    """
    model = open_model(artifact, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(artifact, trust_remote_code=trust_remote_code)
    length = min(choice.sequence_length, context_length(model))
    text = read_text(choice.text, tokenizer, length, choice.windows)
    known = None
    if reference is not None:
        original = open_model(reference, trust_remote_code=trust_remote_code)
        known = read_reference(original, text, _staged("reference", report))
    return evaluate_models(model, text, known, _staged("evaluate", report))


def _staged(stage: str, report: Report) -> Report:
    return lambda p: report(Progress(stage, p.done, p.total, p.detail, p.seconds_left))
