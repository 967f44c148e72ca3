"""How a run was asked for, in a form that asks for it again from any folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from quantkit.checkpoint.stored import Source
from quantkit.core.recipe import CalibrationSpec, Recipe
from quantkit.core.session import Session
from quantkit.recipes.schema import document_of


def asked(
    verb: str, source: Source, recipe: Recipe | None, session: Session, options: dict[str, Any]
) -> dict[str, Any]:
    """A verb on a model with further `options` of its function, as JSON."""
    name = f"{source.id}@{source.revision}" if source.id else str(source.folder.resolve())
    stated = recipe and document_of(replace(recipe, calibration=absolute(recipe.calibration)))
    trusted = {"trust_remote_code": session.trust_remote_code}
    if options.get("baseline"):
        options = {**options, "baseline": str(Path(options["baseline"]).resolve())}
    return {"verb": verb, "model": name, "recipe": stated, **trusted, **options}


def absolute(calibration: CalibrationSpec) -> CalibrationSpec:
    """The calibration with the absolute path of a text that is a file."""
    path = Path(calibration.text)
    return replace(calibration, text=str(path.resolve())) if path.exists() else calibration
