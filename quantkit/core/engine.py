"""The contract of an engine: which formats and schemes it loads, as rules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import KVCache, Scheme


def same_dtype(dtype: str, _model_type: str, _capability: str | None) -> str:
    """The dtype itself."""
    return dtype


def in_16_bits(_scheme: Scheme, _capability: str | None) -> str:
    """The products of an engine that decodes weights before it multiplies."""
    return "bf16"


def no_fault(*_: object) -> None:
    """None for any arguments: an engine without further rules."""


@dataclass(frozen=True)
class Engine:
    """One inference engine.

    `formats`: the formats that it loads, the one to propose first in front. All others are refused
        without calling its rules (`core.rules.load_fault`).
    refuses(format, scheme, linear): a sentence that states why the engine does not load a linear in
        one of its formats, or None; a remedy may follow after `; try: `.
    usage(format): Markdown that shows how to load a folder in that format; `FOLDER` stands for the
        folder. The model card of each artifact that the engine loads contains it.
    refuses_slice(format, scheme, whole, slice): as `refuses`, for the slice of a linear that one
        tensor-parallel rank holds, or for linears that the engine fuses into one.
    refuses_mix(schemes): why the engine does not load linears in these schemes together, by the
        name of each linear (None: dense).
    refuses_gpu(format, scheme, capability): as `refuses`, for a GPU. `capability` is CUDA's
        ("8.9"), or the architecture's name for other makers. `scheme` None: unquantized linears.
    multiplies(scheme, capability): in what a linear is multiplied, a key of `Gpu.rates`.
    serves(dtype, model type, capability): the default dtype, as safetensors names it, in which the
        engine serves a model of that dtype; `capability` None: the GPU is unknown.
    `serve`: the command that serves a folder, which is appended to it; empty without a server.
    `methods`: each quant_method of a config.json that it has a loader for; empty where not listed.
    `kv_caches`: the caches whose scales it has been seen to load and to apply.
    `versions`: the versions that the rules were checked against.
    """

    name: str
    summary: str
    versions: str
    formats: tuple[str, ...]
    refuses: Callable[[str, Scheme, LinearFacts], str | None]
    usage: Callable[[str], str]
    refuses_slice: Callable[[str, Scheme, LinearFacts, LinearFacts], str | None] = no_fault
    refuses_mix: Callable[[Mapping[str, Scheme | None]], str | None] = no_fault
    refuses_gpu: Callable[[str, Scheme | None, str], str | None] = no_fault
    multiplies: Callable[[Scheme, str | None], str] = in_16_bits
    serves: Callable[[str, str, str | None], str] = same_dtype
    serve: str = ""
    methods: tuple[str, ...] = ()
    kv_caches: tuple[KVCache, ...] = ()
