"""The folder cannot be opened as a checkpoint, for a reason that no other check names."""

from collections.abc import Iterator

from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.survey import Survey
from quantkit.core.check import LAST, Check, Fault
from quantkit.core.errors import InputError, IntegrityError


def find(survey: Survey) -> Iterator[Fault]:
    """What opening it says; what is refused only because it is not supported is no fault."""
    try:
        open_checkpoint(survey.folder)
    except (InputError, IntegrityError) as error:
        yield Fault("config.json", f"{error.what}: {error.why}" if error.why else error.what)


CHECK = Check("files", "the folder is no model folder", "fetch the folder again", find, rank=LAST)
