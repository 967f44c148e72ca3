"""What a report is about: a model, the original beside its builds, all measured alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from math import hypot
from typing import Any, Literal

from quantkit.results.paired import Difference, paired_differences
from quantkit.results.schema import Divergence, EvalResult, Protocol

WEIGHT_PARTS = ("linear", "scales", "unquantized")
CONTEXT_TOKENS = 2048
Z95 = 1.96

Axis = Literal["memory", "disk"]
USABLE: Mapping[Axis, float] = {"memory": 0.95, "disk": 1.0}
"""The share of a limit that can be used: allocators lose some of a memory."""


@dataclass(frozen=True)
class Build:
    """One recipe's outcome; `result` is None where it failed or was not reached."""

    key: str
    label: str
    family: str
    status: Literal["done", "failed", "pending"] = "done"
    why: str = ""
    command: str = ""
    seconds: float | None = None
    result: EvalResult | None = None

    @property
    def measured(self) -> EvalResult | None:
        """The result, if its figures can be believed."""
        return self.result if self.result and self.result.status == "valid" else None

    @property
    def kl(self) -> Divergence | None:
        """Its divergence from the original, if a mean was measured."""
        found = self.measured.kl if self.measured else None
        return found if found and found.mean is not None else None

    @property
    def kl_half_width(self) -> float | None:
        """Half of the 95 % interval of its mean KL, in nats."""
        if self.kl is None:
            return None
        if self.kl.ci95 is not None:
            return (self.kl.ci95[1] - self.kl.ci95[0]) / 2
        return None if self.kl.standard_error is None else Z95 * self.kl.standard_error

    @property
    def disk_bytes(self) -> int | None:
        """Size of the weight files."""
        return self.result.artifact.bytes if self.result else None

    @property
    def weight_bytes(self) -> int | None:
        """What the weights take in memory: as measured, else as much as on disk."""
        parts = self.result.memory.parts_bytes if self.result else {}
        return sum(parts.get(name, 0) for name in WEIGHT_PARTS) or self.disk_bytes

    @property
    def rest_bytes(self) -> int:
        """What was measured beside weights and KV cache: activations, context."""
        parts = self.result.memory.parts_bytes if self.result else {}
        return sum(size for name, size in parts.items() if name not in (*WEIGHT_PARTS, "kv"))

    @property
    def missed(self) -> bool:
        """Whether a gate says that this build is not to be used."""
        return any(gate.status == "failed" for gate in self.result.gates) if self.result else False


@dataclass(frozen=True)
class Target:
    """What the reader's machine holds; bytes, tokens of context, sequences, nats."""

    axis: Axis
    limit_bytes: int | None = None
    context_tokens: int = CONTEXT_TOKENS
    sequences: int = 1
    max_kl: float | None = None

    @property
    def usable_bytes(self) -> float | None:
        """The limit without what allocators lose; a disk is used up to the last byte."""
        if self.limit_bytes is None:
            return None
        return self.limit_bytes * USABLE[self.axis]

    def holds(self, size: int | None) -> bool:
        """Whether a size is known to be within the limit; always so where there is none."""
        if self.usable_bytes is None:
            return True
        return size is not None and size <= self.usable_bytes


@dataclass(frozen=True)
class Study:
    """Builds of one model under one protocol."""

    title: str
    protocol: Protocol | None
    reference: Build | None
    builds: tuple[Build, ...]
    workload: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    created_utc: str = ""

    @cached_property
    def differences(self) -> dict[tuple[int, int], Difference]:
        """KL of build a minus that of build b for each pair of indices a < b, where paired."""
        return paired_differences([build.measured if build.kl else None for build in self.builds])

    @property
    def everything(self) -> tuple[Build, ...]:
        """The original first, then the builds."""
        return (self.reference, *self.builds) if self.reference else self.builds

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Bytes of KV cache that a token of a sequence takes: one model, so one figure."""
        found = (b.result.memory.kv_bytes_per_token for b in self.everything if b.result)
        return next((size for size in found if size), None)

    @property
    def model_context(self) -> int | None:
        """The longest context that the model itself has, where a result knows it."""
        found = (b.result.memory.context_tokens for b in self.everything if b.result)
        return next((tokens for tokens in found if tokens), None)

    @property
    def noise(self) -> float | None:
        """KL of the original against itself: the largest floor that a build reports."""
        floors = [b.kl.floor_mean for b in self.builds if b.kl and b.kl.floor_mean is not None]
        return max(floors, default=None)

    def size_at(self, build: Build, target: Target) -> int | None:
        """Bytes of a build: on disk, or in memory under the target."""
        if target.axis == "disk":
            return build.disk_bytes
        weights, kv = build.weight_bytes, self.kv_bytes_per_token
        if weights is None or kv is None:
            return None
        return weights + build.rest_bytes + kv * target.context_tokens * target.sequences

    def fits(self, build: Build, target: Target) -> bool:
        """Whether a build is known to be within the limit; always so where there is none."""
        return target.holds(self.size_at(build, target))

    def longest_context(self, build: Build, target: Target) -> int | None:
        """Tokens per sequence that the limit leaves room for, no more than the model's own context.

        None without limit or KV size.
        """
        weights, kv = build.weight_bytes, self.kv_bytes_per_token
        if target.axis == "disk" or target.usable_bytes is None or weights is None or kv is None:
            return None
        room = target.usable_bytes - weights - build.rest_bytes
        tokens = max(0, int(room // (kv * target.sequences)))
        return tokens if self.model_context is None else min(tokens, self.model_context)

    def better(self, one: Build, other: Build) -> bool:
        """Whether the KL of `one` is lower than the choice of text could explain.

        By the paired difference of documents where both have them, else by both standard errors,
        else by the bare means.
        """
        return (one.key, other.key) in self._better

    @cached_property
    def _better(self) -> frozenset[tuple[str, str]]:
        pairs = permutations(self.builds, 2)
        return frozenset((a.key, b.key) for a, b in pairs if self._is_better(a, b))

    def _is_better(self, one: Build, other: Build) -> bool:
        if one.kl is None or other.kl is None or one.kl.mean is None or other.kl.mean is None:
            return False
        found = self.difference(one, other)
        if found is not None:
            return found.real and found.mean < 0
        spread = hypot(one.kl.standard_error or 0.0, other.kl.standard_error or 0.0)
        return one.kl.mean - other.kl.mean < -Z95 * spread

    def difference(self, one: Build, other: Build) -> Difference | None:
        """KL of `one` minus KL of `other`, paired, in nats; None where texts or sums differ."""
        a, b = self.builds.index(one), self.builds.index(other)
        found = self.differences.get((min(a, b), max(a, b)))
        if found is None or a < b:
            return found
        return replace(found, mean=-found.mean)
