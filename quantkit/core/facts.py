"""Names, shapes and dtypes of linears and models, for formats, engines and plans."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from quantkit.core.errors import RefusedError
from quantkit.core.scheme import KVCache, Scheme

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""The tensors of one linear: suffix -> dtype as safetensors names it, and shape."""
STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""Dtypes of models and scales as safetensors names them."""

EXPERTS = ".experts."
"""What stands before the number in the name of each expert."""


@dataclass(frozen=True)
class LinearFacts:
    """Name, shape and kind of one linear, as a format or an engine sees it.

    `transposed` marks GPT-2's Conv1D, whose weight is stored (in_features, out_features).
    `fused` names the linears that read the same input (q, k, v or gate, up), itself included.
    `stored` is its name in the checkpoint, where that is another. `merged` marks one that the
    original stores in one tensor with others, as fused experts are; `shared` one whose weight is
    that of linears in other blocks, too. `model_type` is the config's.
    """

    name: str
    out_features: int
    in_features: int
    transposed: bool = False
    fused: tuple[str, ...] = ()
    merged: bool = False
    stored: str = ""
    model_type: str = ""
    shared: bool = False


Check = Callable[[Scheme, LinearFacts], str | None]
"""(scheme, linear) -> a sentence that states the broken rule, or None."""


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a whole model that its `quantization_config` block states.

    `schemes` maps each quantized linear to its scheme, `skipped` names the linears left dense, both
    by the name in the checkpoint and by that in transformers' model. `head` is the output head,
    `dtype` the model's own ("bfloat16", "float16", "float32").
    `block_prefix` is the path of the block list in the checkpoint, e.g. `model.layers`, and
    `block_module` that in transformers' model. `matrices` names what is no linear there, but has a
    matrix as a weight that is copied: routers, and layers that the model's class does not have.
    Engines make linears of them. `kv_cache` is what keys and values are cached in, if not as they
    are: then every linear may be dense.
    """

    schemes: Mapping[str, Scheme]
    skipped: tuple[str, ...]
    head: str | None
    dtype: str
    block_prefix: str
    block_module: str = ""
    matrices: tuple[str, ...] = ()
    kv_cache: KVCache | None = None

    @property
    def unquantized(self) -> tuple[str, ...]:
        """Sorted names of all that an engine must make no quantized linear of."""
        return tuple(sorted({*self.dense, *self.matrices, *self.dense_experts}))

    @property
    def dense_experts(self) -> tuple[str, ...]:
        """Sorted names of lists of experts of which none is quantized: vLLM asks for the list."""
        return tuple(sorted(_lists({*self.dense, *self.matrices}) - _lists(self.schemes)))

    @property
    def dense(self) -> tuple[str, ...]:
        """Sorted names of the unquantized linears; the head is always one of them."""
        return tuple(sorted({*self.skipped, self.head or "lm_head"}))

    def by_scheme(self) -> dict[Scheme, list[str]]:
        """Each scheme with its linears, both in a fixed order.

        Raises:
            RefusedError: no linear is quantized, or the head is.
        """
        nothing = not self.schemes and self.kv_cache is None
        if nothing or self.head in self.schemes:
            raise RefusedError(
                f"`{self.head}` cannot be quantized" if self.schemes else "no linear is quantized",
                why="transformers initializes quantized heads randomly, without an error",
                hint="quantize only linears of the blocks",
            )
        found: dict[Scheme, list[str]] = {}
        for name, scheme in self.schemes.items():
            found.setdefault(scheme, []).append(name)
        return dict(sorted(found.items(), key=lambda item: item[0].label()))

    def one_scheme(self, format_name: str) -> Scheme:
        """The scheme that all quantized linears share, for formats that can state only one.

        Raises:
            RefusedError: there are several.
        """
        schemes = list(self.by_scheme())
        if len(schemes) > 1:
            raise RefusedError(
                f"format `{format_name}` supports one scheme for all linears, not {len(schemes)}",
                why=f"requested: {', '.join(scheme.label() for scheme in schemes)}",
                hint="--format compressed-tensors",
            )
        return schemes[0]


def _lists(names: Iterable[str]) -> set[str]:
    return {f"{name.partition(EXPERTS)[0]}.experts" for name in names if EXPERTS in name}
