"""What a place leaves to the weights, and what schemes of linears take of it on one rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from quantkit.checkpoint.sizes import parse_size
from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts
from quantkit.core.format import Format
from quantkit.core.scheme import Scheme
from quantkit.core.serving import Degrees, Deployment, Load
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.parallel import Kind, rank_elements
from quantkit.planning.model.served import as_served
from quantkit.planning.model.weights import (
    Build,
    PlannedModel,
    quantized_bytes,
    stored_build,
    weigh,
)
from quantkit.planning.options import applies
from quantkit.planning.serve.deploy import deploy, load_of
from quantkit.planning.serve.legal import kinds_by_linear, require_legal
from quantkit.planning.serve.place import Place, named_place


@dataclass(frozen=True)
class Room:
    """A place under a load, and how the model as it is would fill it."""

    model: PlannedModel
    place: Place
    deployment: Deployment

    @property
    def bytes(self) -> int:
        """What the weights of a rank may take."""
        deployment = self.deployment
        return deployment.budget.bytes - deployment.other - deployment.cache.bytes


def weight_room(model: PlannedModel, place: Place, load: Load) -> Room:
    """What activations, overheads and the cache of the load leave to the weights.

    Raises:
        RefusedError: nothing, or the engine does not run the model at these degrees.
    """
    engine: Engine = registry.load("engines", place.engine, "ENGINE")
    require_legal(engine, model, stored_build(model), place.degrees)
    model = as_served(model, place.engine, place.gpu.capability)
    room = Room(model, place, deploy(model, stored_build(model), place, load))
    if room.bytes <= 0:
        found = room.deployment
        raise RefusedError(
            f"the KV cache leaves no memory for weights on {place.gpu.name}",
            why=f"of {found.budget.bytes:,} bytes the cache takes {found.cache.bytes:,} and "
            f"{place.engine} {found.other:,}",
            hint="a larger GPU, more GPUs, or fewer or shorter sequences",
        )
    return room


@dataclass(frozen=True)
class Budget:
    """Where the weights have to fit: into `size` bytes of files, or into a GPU under a load."""

    engine: str
    size: int | str | None = None
    gpu: str | None = None
    context: int | None = None
    sequences: int = 1
    tensor: int = 1

    def checked(self) -> "Budget":
        """The same, where it makes sense of itself.

        Raises:
            InputError: neither or both were stated, or there is no such GPU, size or engine.
        """
        registry.load("engines", self.engine, "ENGINE")
        if (self.size is None) == (self.gpu is None):
            hint = "--size 5.5GB, or --gpu 4090" if self.size is None else "the same without --size"
            raise InputError("the budget must be a size or a GPU, and not both", hint=hint)
        stated = {
            "--context": self.context is not None,
            "--batch": self.sequences != 1,
            "--tp": self.tensor != 1,
        }
        ignored = [option for option, given in stated.items() if given]
        if self.gpu is None and ignored:
            raise InputError(
                f"{applies(ignored)} to a served model, and --size is of files",
                hint=f"the same without {', '.join(ignored)}, or --gpu 4090 in place of --size",
            )
        if self.size is not None:
            parse_size(self.size, "--size ")
        if self.gpu is not None:
            named_place(self.gpu, self.engine, Degrees(self.tensor))
        return self

    def room(self, folder: Path) -> Room | None:
        """What the GPU leaves to the weights of the model in a folder; None for files.

        Raises:
            RefusedError: as `weight_room`.
        """
        if self.gpu is None:
            return None
        place = named_place(self.gpu, self.engine, Degrees(self.tensor))
        model = open_model(str(folder)).as_dense()
        load = load_of(model.architecture, self.context, self.sequences, 16)
        return weight_room(model, place, load)


@dataclass(frozen=True)
class RankSizes:
    """Bytes of one rank's weights, as `plan` counts them.

    `names`: of a module as planning knows it, which reads no more than the files.
    """

    room: Room
    format: Format
    names: Mapping[str, str]

    @cached_property
    def _kinds(self) -> dict[str, Kind]:
        return kinds_by_linear(self.room.model)

    @cached_property
    def _rest(self) -> int:
        """What is not in quantizable linears."""
        place = self.room.place
        padded = place.engine != "transformers"
        parts = weigh(self.room.model, stored_build(self.room.model), place.degrees, padded=padded)
        return sum(parts.values()) - sum(self._of(kind, None) * kind.count for kind in self._dense)

    @property
    def _dense(self) -> list[Kind]:
        return [kind for kind in self.room.model.kinds if kind.quantizable]

    def _of(self, kind: Kind, scheme: Scheme | None) -> int:
        degrees = self.room.place.degrees
        if scheme is None:
            return rank_elements(kind, degrees) * DTYPE_BYTES[kind.tensor.dtype]
        return quantized_bytes(Build("", format=self.format), kind, scheme, degrees)

    def _known(self, name: str) -> str:
        """The name by which planning knows a linear.

        Raises:
            RefusedError: it takes it for none, so that its bytes on a rank are not known.
        """
        known = self.names.get(name)
        if known is None or known not in self._kinds:
            raise RefusedError(
                f"`{name}` is not a linear that planning knows, so its bytes on a GPU are unknown",
                why=f"the linears of {self.room.model.architecture.model_type} have other names",
                hint="--size in place of --gpu",
            )
        return known

    def linear(self, linear: LinearFacts, scheme: Scheme | None) -> int:
        """Bytes of a linear in a scheme."""
        return self._of(self._kinds[self._known(linear.name)], scheme)

    def whole(self, schemes: Mapping[str, Scheme]) -> int:
        """Bytes of all weights, with these linears quantized."""
        stored = {self._known(name): scheme for name, scheme in schemes.items()}
        return self._rest + sum(
            self._of(kind, stored.get(tensor.linear or ""))
            for kind in self._dense
            for tensor in kind.linears
        )
