"""The contract of an engine: which formats and schemes it loads, as rules."""

from collections.abc import Callable
from dataclasses import dataclass

from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme


def same_dtype(dtype: str, _model_type: str, _capability: str | None) -> str:
    """The dtype itself."""
    return dtype


def no_fault(*_: object) -> None:
    """No fault at all."""


@dataclass(frozen=True)
class Engine:
    """One inference engine.

    `formats`: those that it loads, the one to propose first at first; all others are refused and
        none of its rules is asked about them (`core.rules.load_fault`).
    refuses(format, scheme, linear): a sentence saying why the engine does not load a linear in one
        of its formats, or None; a remedy may follow after `; try: `.
    usage(format): Markdown that shows how to load a folder in that format, `FOLDER` in its place;
        the model card of each artifact that the engine loads has it.
    refuses_slice(format, scheme, whole, slice): the same of what one of several tensor-parallel
        ranks holds of a linear, or of linears that the engine makes one of.
    refuses_gpu(format, scheme, capability): the same of a GPU; `capability` is CUDA's ("8.9"), or
        the name of another maker's architecture. Without a scheme of linears that are as they were.
    serves(dtype, model type, capability): the dtype, as safetensors names it, in which it serves a
        model of that dtype unless told otherwise; the capability of a GPU may not be known.
    `serve`: the command that serves the folder that follows it; empty where it has no server.
    `methods`: each quant_method of a config.json that it has a loader for; empty where not listed.
    `versions` are those that the rules were checked against.
    """

    name: str
    summary: str
    versions: str
    formats: tuple[str, ...]
    refuses: Callable[[str, Scheme, LinearFacts], str | None]
    usage: Callable[[str], str]
    refuses_slice: Callable[[str, Scheme, LinearFacts, LinearFacts], str | None] = no_fault
    refuses_gpu: Callable[[str, Scheme | None, str], str | None] = no_fault
    serves: Callable[[str, str, str | None], str] = same_dtype
    serve: str = ""
    methods: tuple[str, ...] = ()
