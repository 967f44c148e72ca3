"""What a multimodal config has beside its text model: tensors of its vision tower and projector."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from quantkit.core.errors import InputError
from quantkit.planning.model.families import MOST_LAYERS, Family, Fields
from quantkit.planning.model.inventory import PlannedTensor

BESIDE = ("vision_config", "audio_config", "encoder_config", "speech_config", "vq_config")
"""Fields of a config in which a model lies that is not the text model."""


def towers(
    config: Mapping[str, Any], hidden: int, dtype: str
) -> tuple[tuple[PlannedTensor, ...], tuple[str, ...]]:
    """Tensors of towers and projector, and the fields that the config describes in part.

    Either all of a tower and what joins it to a text model of width `hidden` is listed, or nothing.
    Files leave out what is as in the tower's class: transformers writes inner configs so.

    Raises:
        InputError: a size is no size.
    """
    beside = {key: config[key] for key in BESIDE if isinstance(config.get(key), Mapping)}
    vision = beside.get("vision_config", {})
    tower, projector = _described(config)
    if tower is None or projector is None:
        return (), tuple(beside)
    fields = Fields(vision, Family(str(vision["model_type"]), defaults=tower["defaults"]))
    try:
        found = [*_vision(fields, tower, dtype)]
        found += _projector(config, fields, projector, hidden, dtype)
    except InputError as error:
        raise InputError(f"{error.what}, in vision_config", why=error.why) from error
    return tuple(found), tuple(key for key in beside if key != "vision_config")


def unlisted(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of a config in which a model lies that `towers` does not list."""
    beside = tuple(key for key in BESIDE if isinstance(config.get(key), Mapping))
    tower, projector = _described(config)
    listed = tower is not None and projector is not None
    return tuple(key for key in beside if not (listed and key == "vision_config"))


def _described(
    config: Mapping[str, Any],
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """The rows of a config's vision tower and of what joins it to the text model."""
    vision = config.get("vision_config")
    kind = vision.get("model_type") if isinstance(vision, Mapping) else None
    return _row("towers", kind), _row("projectors", config.get("model_type"))


@cache
def _table() -> Mapping[str, Any]:
    path = resources.files("quantkit.planning.model") / "towers.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _row(kind: str, name: object) -> Mapping[str, Any] | None:
    return _table()[kind].get(name) if isinstance(name, str) else None


def _vision(fields: Fields, row: Mapping[str, Any], dtype: str) -> Iterator[PlannedTensor]:
    if (pixels := fields.maybe("image_size", least=1)) is not None:
        patches = (pixels // fields.size("patch_size")) ** 2
        fields = Fields({**fields.config, "patches": patches}, fields.family)
    yield from _placed("vision_tower.", row["around"], fields, dtype)
    block = _table()["towers"][row["block_of"]]["block"] if "block_of" in row else row["block"]
    for index in range(fields.size("num_hidden_layers", most=MOST_LAYERS)):
        yield from _placed(f"vision_tower.layers.{index}.", block, fields, dtype)


def _projector(
    config: Mapping[str, Any], vision: Fields, row: Mapping[str, Any], hidden: int, dtype: str
) -> Iterator[PlannedTensor]:
    layers = config.get("vision_feature_layer")
    sides = {"vision": vision.size("hidden_size"), "text": hidden}
    sides["features"] = max(1, len(layers)) if isinstance(layers, list) else 1
    family = Family(str(config["model_type"]), defaults=row.get("defaults", {}))
    fields = Fields({**config, **sides}, family)
    yield from _placed("multi_modal_projector.", row["around"], fields, dtype)


def _placed(
    prefix: str, rows: Mapping[str, Mapping[str, Any]], fields: Fields, dtype: str
) -> Iterator[PlannedTensor]:
    for name, row in fields.shaped(rows):
        yield PlannedTensor(prefix + name, row["shape"], dtype, "tower")
