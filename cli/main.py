"""The command: verbs by their file names, and every way to end as an exit code."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import islice
from typing import Annotated, Any

import typer
from typer import TyperException

from quantkit.cli import stopping
from quantkit.cli.console import Console
from quantkit.cli.hints import options_of, spoken
from quantkit.core import registry
from quantkit.core.errors import QuantkitError, ResourceError
from quantkit.core.version import __version__

QUICK_START = """\b
Quick start:
  quantkit demo
  quantkit quantize MODEL -o OUT
  quantkit eval OUT --reference MODEL

\b
MODEL is a folder or a hub id, `org/name[@revision]`.
Exit codes: 0 done, 1 internal error, 2 wrong usage, 3 gate missed, 4 refused,
5 memory, disk or I/O, 6 integrity, 7 hub or network, 75 stopped and resumable, 130 Ctrl-C.
"""
INTERRUPTED = 130
COMPLETING = "_QUANTKIT_COMPLETE"
"""Set by the shell function that typer installs, whose words stand in the environment, too."""
MOST_LINES, MOST_LINE = 40, 500
"""Of an error: lines, and characters of one."""
CPU_MEMORY = "DefaultCPUAllocator"
"""In what torch says, as a RuntimeError, where the machine's memory does not suffice."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and the result.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
COMMON = (("json", Json), ("quiet", Quiet), ("debug", Debug))


def main() -> None:
    """Run the command line and end the process."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    stopping.install()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line; everything that goes wrong is told first."""
    console = Console(as_json="--json" in arguments)
    try:
        app = _app(arguments, console)
        code = app(args=arguments, prog_name="quantkit", standalone_mode=False)
    except TyperException as error:
        return _usage(console, error)
    except Exception as error:  # noqa: BLE001 - the one place where everything ends
        if "--debug" in arguments:
            traceback.print_exc()
        return _fail(console, error)
    finally:
        console.close()
    if code == INTERRUPTED:  # what typer makes of Ctrl-C
        console.note("interrupted")
        return stopping.exit_code()
    return code if isinstance(code, int) else 0


def _app(arguments: Sequence[str], console: Console) -> typer.Typer:
    """The application with the chosen verb, or with all of them where none is."""
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        epilog=QUICK_START,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_quantkit)
    verbs = registry.names("cli.commands")
    chosen = [verb for verb in _words(arguments)[:1] if verb in verbs]
    for verb in chosen or verbs:
        command = registry.load("cli.commands", verb, "COMMAND")
        epilog = registry.load("cli.commands", verb, "EXAMPLES")
        if isinstance(command, dict):
            group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=epilog)
            for name, function in command.items():
                group.command(name)(_with_console(function, console))
            summary = registry.load("cli.commands", verb, "__doc__")
            app.add_typer(group, name=verb, help=summary)
        else:
            app.command(verb, epilog=epilog)(_with_console(command, console))
    return app


def _words(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments; while a shell completes a line, those that it has so far."""
    if COMPLETING not in os.environ:
        return arguments
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return line.split()[1:]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"quantkit {__version__}")
        raise typer.Exit


def _quantkit(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Quantize language models, measure the loss, write folders that engines load."""


def _with_console(function: Callable[..., Any], console: Console) -> Callable[..., Any]:
    """A verb with the options that all verbs have, which become its first argument."""
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in COMMON
    ]

    @wraps(function)
    def command(*, json: bool, quiet: bool, debug: bool, **arguments: Any) -> Any:
        del debug  # run() looks for it: errors come before options are read, too
        console.as_json, console.quiet = json, quiet
        console.options = options_of(function)
        return function(console, **arguments)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _usage(console: Console, error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return error.exit_code
    path = context.command_path if context else "quantkit"
    message = error.format_message()
    _tell(console, error.exit_code, "UsageError", (message, None, f"{path} --help"))
    return error.exit_code


def _fail(console: Console, error: Exception) -> int:
    kind = type(error).__name__
    if isinstance(error, QuantkitError):
        code, told = error.exit_code, (error.what, error.why, error.hint)
    elif isinstance(error, MemoryError) or kind == "OutOfMemoryError" or CPU_MEMORY in str(error):
        hint = "fewer --samples, or --device cpu"
        code, told = 5, ("not enough memory", str(error) or None, hint)
    elif isinstance(error, ConnectionError):
        hint = "retry later, or pass a local folder as MODEL"
        code, told = 7, ("the network failed", str(error) or None, hint)
    elif isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        code, told = 5, (f"{error.strerror or error}{where}", None, ResourceError.remedy)
    else:
        why = f"this is a bug in quantkit; the traceback is in {_log(error)}"
        code, told = (
            1,
            (f"internal error: {kind}: {error}", why, "report the bug and attach that file"),
        )
    _tell(console, code, kind, told)
    return code


def _log(error: Exception) -> str:
    import tempfile

    with tempfile.NamedTemporaryFile(
        "w", prefix="quantkit-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        traceback.print_exception(error, file=log)
    return log.name


def shortened(text: str) -> str:
    """What a person can read of a text, which may hold what somebody else wrote."""
    lines = text.splitlines()
    cut = (
        f"{x[:MOST_LINE]}... ({len(x):,} characters)" if len(x) > MOST_LINE else x for x in lines
    )
    more = [f"and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join((*islice(cut, MOST_LINES), *more))


def _tell(console: Console, code: int, kind: str, told: tuple[str, str | None, str | None]) -> None:
    message, why, hint = (text and shortened(text) for text in told)
    hint = spoken(hint, console.options) if hint else None
    console.error({"code": code, "kind": kind, "message": message, "why": why, "hint": hint})
