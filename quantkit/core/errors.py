"""Errors that a user can cause, with exit code and remedy.

QuantkitError (1)
|- InputError (2)      wrong usage, or an input file that is not what it should be
|- RefusedError (4)    this model, recipe, format or engine cannot do that
|- ResourceError (5)   memory, disk, permission, I/O
|- IntegrityError (6)  a hash differs, a source changed, a check failed
|- HubError (7)        hub or network: gated, not found, offline
`- StoppedError (75)   by a signal; the work can go on

Exit code 3 reports a missed gate. It is not an error: the output is kept.
"""


class QuantkitError(Exception):
    """What went wrong, why, and what to try; `exit_code` is stable and documented."""

    exit_code = 1
    remedy = "run again with --debug and report the traceback"
    """What to try where nothing better is known."""

    def __init__(self, what: str, *, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint or self.remedy

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(self.why)
        lines.append(f"try: {self.hint}")
        return "\n".join(lines)


class InputError(QuantkitError):
    """Wrong usage, or an input file that is not what it should be."""

    exit_code = 2
    remedy = "another file or value; the documentation lists what is accepted"


class RefusedError(QuantkitError):
    """A combination that the model, format or engine cannot hold."""

    exit_code = 4
    remedy = "another model, format or setting"


class ResourceError(QuantkitError):
    """Not enough memory or disk, no permission, or an I/O error."""

    exit_code = 5
    remedy = "check the disk, its free space and your permissions"


class IntegrityError(QuantkitError):
    """A hash differs, a source changed while it was read, or a check failed."""

    exit_code = 6
    remedy = "fetch or write the files again"


class HubError(QuantkitError):
    """The hub or the network: gated, not found, offline."""

    exit_code = 7
    remedy = "try again later, or use a local folder"


class StoppedError(QuantkitError):
    """A signal has ended the work, which can go on."""

    exit_code = 75
    remedy = "the same command again"
