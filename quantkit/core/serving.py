"""GPU memory of the builds of a model: plain data, computed by `quantkit.planning`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quantkit.core.figure import Figure
from quantkit.core.gpu import Gpu
from quantkit.core.recipe import Recipe

CacheDtype = Literal["16-bit", "32-bit", "fp8", "int8-token-head", "fp8-token-head", "nvfp4"]


@dataclass(frozen=True)
class Degrees:
    """How many ranks share a layer's matrices, the layers, and the experts."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def gpus(self) -> int:
        """GPUs that hold one copy of the model; experts go over the tensor ranks, or over more."""
        return max(self.tensor, self.expert) * self.pipeline


@dataclass(frozen=True)
class Load:
    """The load of a server: `sequences` sequences of `context` tokens; `cache`: its dtype."""

    context: int
    sequences: int = 1
    cache: CacheDtype = "16-bit"


@dataclass(frozen=True)
class Server:
    """An engine on GPUs of one kind; it may allocate `budget` bytes of each."""

    gpu: Gpu
    engine: str
    degrees: Degrees
    budget: int


@dataclass(frozen=True)
class ModelSummary:
    """Family, size and source of a planned model.

    `extra_bytes`: multi-token prediction layers, which no other figure counts. `origin`: the source
    of the sizes. `quantized`: the format of a model that is already quantized.
    """

    name: str
    model_type: str
    parameters: int
    blocks: int
    origin: str
    quantized: str | None = None
    extra_bytes: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deployment:
    """A build under a load, on the rank with the least free memory; all sizes in bytes.

    `fixed`: all memory but the cache. `tokens`: capacity of the cache at the load's context.
    `longest`: the longest context at the load's number of sequences. `most`: the largest number of
    sequences at the load's context. 0: not even one fits.
    """

    load: Load
    budget: Figure
    fixed: tuple[Figure, ...]
    cache: Figure
    tokens: int
    longest: int
    most: int

    @property
    def weights(self) -> int:
        """Bytes of the rank's weights."""
        return sum(f.bytes for f in self.fixed if f.name.startswith("weights"))

    @property
    def other(self) -> int:
        """Bytes of activations and overheads."""
        return sum(figure.bytes for figure in self.fixed) - self.weights

    @property
    def available(self) -> int:
        """Bytes left for the cache; negative if the model itself does not fit."""
        return self.budget.bytes - self.weights - self.other

    @property
    def total(self) -> int:
        """Bytes of weights, activations, overheads and cache."""
        return self.weights + self.other + self.cache.bytes

    @property
    def fits(self) -> bool:
        """Whether the total is within the budget."""
        return self.total <= self.budget.bytes


@dataclass(frozen=True)
class Bound:
    """An upper bound of tokens per second, and its arithmetic as text."""

    tokens_per_second: float
    rule: str


@dataclass(frozen=True)
class Split:
    """Blocks and bytes on GPU, CPU and disk; `seconds`: least transfer time of one token."""

    blocks: Mapping[str, int]
    bytes: Mapping[str, int]
    seconds: float | None


@dataclass(frozen=True)
class PlannedBuild:
    """One build: bytes of its weights by part and, with a GPU, its memory there.

    `recipe` is None for the unquantized model. `rule` states how bytes are counted. `fault` states
    why the build cannot be made, or why the engine does not load it; then `deployment` is None.
    `note` states how the GPU runs it otherwise than the recipe says. `decode` and `prefill` bound
    the speed of a build that fits; `offload` splits one that does not.
    """

    name: str
    recipe: Recipe | None
    parts: Mapping[str, int]
    rule: str
    fault: str | None = None
    note: str | None = None
    deployment: Deployment | None = None
    decode: Bound | None = None
    prefill: Bound | None = None
    offload: Split | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all tensors of the build."""
        return sum(self.parts.values())

    @property
    def rank(self) -> tuple[int, float, bool, bool, int]:
        """What makes it the better build: see `Serving.chosen`."""
        scheme = self.recipe.scheme if self.recipe else None
        speed = self.prefill.tokens_per_second if self.prefill else 0.0
        bits, integers = (scheme.bits, scheme.grid == "int") if scheme else (16, False)
        return bits, speed, self.note is None, integers, self.bytes

    @property
    def fits(self) -> bool:
        """Whether it serves the load."""
        return self.deployment is not None and self.deployment.fits


@dataclass(frozen=True)
class Serving:
    """The builds of a model by falling size, and options that would help.

    `server` is None without a GPU. `requested`: the caller named the quantized builds. `hints`:
    options with which the smallest build would fit. `refusal`: why `quantize` does not make the
    chosen build.
    """

    model: ModelSummary
    server: Server | None
    load: Load
    builds: tuple[PlannedBuild, ...]
    requested: bool = False
    hints: tuple[str, ...] = ()
    refusal: str | None = None

    @property
    def refused(self) -> str | None:
        """Why a requested build, or every build, is refused; None if none is."""
        wanted = [b for b in self.builds if b.recipe] if self.requested else []
        if all(b.fault for b in self.builds):
            wanted = list(self.builds)
        fault = next((f"{b.name}: {b.fault}" for b in wanted if b.fault), None)
        return fault or (self.refusal if self.requested else None)

    @property
    def candidates(self) -> list[PlannedBuild]:
        """The requested builds that the engine can serve."""
        wanted = (b for b in self.builds if b.recipe or not self.requested)
        return [b for b in wanted if b.deployment is not None]

    @property
    def chosen(self) -> PlannedBuild | None:
        """The best build that fits, else the smallest that the engine can serve.

        Of those that fit, by most bits a weight, the fastest prompts, no note, integers, and size.
        """
        fitting = [build for build in self.candidates if build.fits]
        if fitting:
            return max(fitting, key=lambda build: build.rank)
        return self.candidates[-1] if self.candidates else None
