"""Where a build is served: an engine with its settings, on GPUs of one kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from quantkit.core.gpu import Gpu
from quantkit.core.serving import Degrees
from quantkit.planning.serve.hardware import find_gpu
from quantkit.planning.serve.settings import Settings, settings_of


@dataclass(frozen=True)
class Place:
    """Where: an engine with its settings, on GPUs of one kind."""

    gpu: Gpu
    engine: str
    settings: Settings
    degrees: Degrees = field(default_factory=Degrees)

    @property
    def stated(self) -> dict[str, float]:
        """Settings that are not the engine's defaults."""
        usual = vars(settings_of(self.engine, self.gpu, self.degrees))
        return {key: value for key, value in vars(self.settings).items() if value != usual[key]}

    def at(self, degrees: Degrees) -> "Place":
        """The same with other degrees: their defaults, but what is not the default stays."""
        usual = vars(settings_of(self.engine, self.gpu, degrees))
        return replace(self, settings=Settings(**usual | self.stated), degrees=degrees)

    def under(self, engine: str) -> "Place":
        """The same with another engine.

        Raises:
            InputError: it does not go by a setting that was stated.
        """
        settings = settings_of(engine, self.gpu, self.degrees, self.stated)
        return replace(self, engine=engine, settings=settings)


def named_place(
    gpu: str, engine: str, degrees: Degrees, settings: Mapping[str, str] | None = None
) -> Place:
    """The place of that name, with the engine's defaults but for the `settings` stated.

    Raises:
        InputError: there is no such GPU, engine or setting.
    """
    card = find_gpu(gpu)
    return Place(card, engine, settings_of(engine, card, degrees, settings), degrees)
