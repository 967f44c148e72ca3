"""How the builds of a model fill a GPU: plain figures, computed by `quantkit.planning`."""

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
    """What is to be served: `sequences` of `context` tokens at once, and what the cache holds."""

    context: int
    sequences: int = 1
    cache: CacheDtype = "16-bit"


@dataclass(frozen=True)
class Server:
    """An engine on GPUs of one kind; it may take `budget` bytes of each."""

    gpu: Gpu
    engine: str
    degrees: Degrees
    budget: int


@dataclass(frozen=True)
class ModelSummary:
    """What a model is, for people: its family, size and where the figures come from.

    `extra_bytes` are of prediction layers beyond the blocks, which no figure counts. `origin` names
    the source of the sizes. `quantized` is the format of a model that is quantized already.
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
    """A build under a load, on the rank with least room; all sizes in bytes.

    `fixed` are the figures but for the cache. `tokens` fit into the cache at the length of the
    load's sequences; `longest` is the longest context at the load's number of sequences, `most` the
    largest number at its context; 0 is none at all.
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
        """Bytes left to the cache; below 0 where not even the model fits."""
        return self.budget.bytes - self.weights - self.other

    @property
    def total(self) -> int:
        """Bytes that are needed."""
        return self.weights + self.other + self.cache.bytes

    @property
    def fits(self) -> bool:
        """Whether the load does."""
        return self.total <= self.budget.bytes


@dataclass(frozen=True)
class Bound:
    """At most so many tokens a second, and the arithmetic it follows from."""

    tokens_per_second: float
    rule: str


@dataclass(frozen=True)
class Split:
    """Blocks and bytes by place; `seconds` is the least that a token takes over the links."""

    blocks: Mapping[str, int]
    bytes: Mapping[str, int]
    seconds: float | None


@dataclass(frozen=True)
class PlannedBuild:
    """One build: bytes of its weights by part and, where a GPU was named, how it fills that.

    `recipe` is None for the model as it is. `rule` says how bytes are counted. `fault` says why the
    build cannot be made, or the engine does not load it; then there is no deployment. Bounds of
    speed are of what fits, `offload` of what does not, if it can run so.
    """

    name: str
    recipe: Recipe | None
    parts: Mapping[str, int]
    rule: str
    fault: str | None = None
    deployment: Deployment | None = None
    decode: Bound | None = None
    prefill: Bound | None = None
    offload: Split | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all tensors of the build."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether it serves the load."""
        return self.deployment is not None and self.deployment.fits


@dataclass(frozen=True)
class Serving:
    """The builds of a model in falling size, the one to choose, and options that help.

    `server` is None where no GPU was named. `requested`: the builds but for the model as it is were
    named by the caller. `hints` are options at which the smallest build would fit. `refusal`: why
    `quantize` does not make the chosen one.
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
        """Why a build that was requested cannot be had, or none can; None if it can."""
        wanted = [b for b in self.builds if b.recipe] if self.requested else []
        if all(b.fault for b in self.builds):
            wanted = list(self.builds)
        fault = next((f"{b.name}: {b.fault}" for b in wanted if b.fault), None)
        return fault or (self.refusal if self.requested else None)

    @property
    def candidates(self) -> list[PlannedBuild]:
        """The builds in question that could be served at all."""
        wanted = (b for b in self.builds if b.recipe or not self.requested)
        return [b for b in wanted if b.deployment is not None]

    @property
    def chosen(self) -> PlannedBuild | None:
        """The largest build that fits, else the smallest that could be served at all."""
        candidates = self.candidates
        return next((b for b in candidates if b.fits), candidates[-1] if candidates else None)
