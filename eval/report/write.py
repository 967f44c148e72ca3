"""A report written as what its file name asks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.checkpoint.destination import require_file
from quantkit.checkpoint.durable import temporary, write_file
from quantkit.core.errors import InputError
from quantkit.eval.report.load import load_study
from quantkit.eval.report.page import render
from quantkit.eval.report.recommendation import choose, one_line
from quantkit.eval.report.study import Study
from quantkit.eval.report.table import as_csv, json_text, markdown
from quantkit.eval.report.targets import default_target

WRITERS: dict[str, Callable[[Study], str]] = {
    ".html": render,
    ".md": markdown,
    ".csv": as_csv,
    ".json": json_text,
}


@dataclass(frozen=True)
class WrittenReport:
    """Where a report is and what it says; `verdicts` has one line per build."""

    output: Path
    bytes: int
    verdict: str
    pick: str | None
    verdicts: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "output": str(self.output),
            "bytes": self.bytes,
            "verdict": self.verdict,
            "pick": self.pick,
            "verdicts": self.verdicts,
        }


def write_report(folders: Sequence[Path], output: Path) -> WrittenReport:
    """The report of all results in the folders, written to `output`.

    Raises:
        InputError: the name ends in no known form, a file of a model would be replaced, or a
            folder holds no results.
    """
    require_file(output)
    writer = WRITERS.get(output.suffix.lower())
    if writer is None:
        known = ", ".join(WRITERS)
        raise InputError(
            f"`{output}` does not say what to write", why=f"known: {known}", hint="-o report.html"
        )
    study = load_study(folders)
    content = writer(study).encode()
    temporary(output).unlink(missing_ok=True)  # of a run that was stopped
    write_file(output, [content])
    choice = choose(study, default_target(study))
    return WrittenReport(
        output=output,
        bytes=len(content),
        verdict=f"{choice.verdict.name} {choice.verdict.text}",
        pick=choice.pick.label if choice.pick else None,
        verdicts={build.label: one_line(build, study) for build in study.builds},
    )
