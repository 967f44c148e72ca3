"""Are all tensors of published checkpoints accounted for? From config.json and index alone.

`python benchmarks/published_names.py FOLDER...`, each folder with the config.json and
model.safetensors.index.json of a published model. An index has names and no shapes; these follow
from the model that the config describes, so a name that leads nowhere is found, and so is a
parameter that nothing leads to.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import QuantkitError
from quantkit.model.complete import check_complete
from quantkit.model.float_codes import float_codes
from quantkit.model.skeleton import (
    Skeleton,
    build_skeleton,
    persistent_buffers,
    read_config,
    tied_to,
)
from quantkit.model.weight_map import Rules, map_weights

Shape = tuple[int, ...]


def main() -> None:
    """One line for each folder; exit 1 where a tensor is not accounted for."""
    failed = False
    for folder in map(Path, sys.argv[1:]):
        start = time.monotonic()
        try:
            line = account(folder)
        except QuantkitError as error:
            failed, line = True, f"refused: {error}".replace("\n", " | ")
        print(f"{folder.name}: {line}; {time.monotonic() - start:.1f} s", flush=True)
    sys.exit(failed)


def account(folder: Path) -> str:
    """What became of the tensors that an index names."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    skeleton = build_skeleton(read_config(folder))
    stored = headers(skeleton.rules, list(index["weight_map"]))
    coding = float_codes(stored, config)
    dense = dict(stored)
    if coding:
        for name in coding.parts | set(coding.dropped):
            dense.pop(name)
        dense |= {n: TensorInfo("BF16", c.shape, "", 0, 0) for n, c in coding.tensors.items()}
    weights = map_weights(skeleton.rules, dense)
    wanted = {
        name: (
            weights.places.get(name) or weights.places.get(tied_to(skeleton.model, name) or ""),
            s,
        )
        for name, s in parameters(skeleton).items()
    }
    check_complete(folder, dense, wanted, plain=True)
    used = {name for place in weights.places.values() for name in place.names}
    assert used | set(weights.unused) == set(dense)
    first = f", first {weights.unused[0]}" if weights.unused else ""
    codes = f", {len(coding.parts)} codes and scales of {len(coding.tensors)}" if coding else ""
    return (
        f"{config['model_type']}, {len(stored)} stored{codes}, {len(wanted)} of the model, "
        f"{len(weights.unused)} not used by its class{first}"
    )


def parameters(skeleton: Skeleton) -> dict[str, Shape]:
    """Every tensor that the model loads."""
    found = {}
    for path, module in skeleton.model.named_modules():
        for key, tensor in (*module.named_parameters(recurse=False), *persistent_buffers(module)):
            found[f"{path}.{key}" if path else key] = tuple(tensor.shape)
    return found


def headers(rules: Rules, names: list[str]) -> Mapping[str, TensorInfo]:
    """Header entries for an index's names, with the shapes that lead to the config's model."""
    fused = {each.name: each for each in rules.fused}
    known = set(names)

    def shape(name: str) -> Shape:
        target, pattern = rules.locate(name)
        whole = rules.before.get(target)
        if whole is None:
            return (1,)  # of no tensor of the model
        if pattern is None:
            return tuple(whole.shape)
        role = rules.converter(pattern).source_patterns.index(pattern)
        experts = fused.get(target)
        if experts is None or len(experts.roles) != len(rules.converter(pattern).source_patterns):
            return tuple(whole.shape)
        return tuple(experts.part(whole[0], role).shape)

    found = {}
    for name in names:
        if name.endswith("_blocks"):
            count, inputs, outputs = shape(name.removesuffix("_blocks"))
            entry = ("U8", (count, outputs, inputs // 32, 16))
        elif name.endswith("_scales"):
            count, inputs, outputs = shape(name.removesuffix("_scales"))
            entry = ("U8", (count, outputs, inputs // 32))
        elif name.endswith("_scale_inv"):
            sizes = shape(name.removesuffix("_scale_inv"))
            entry = ("F32", tuple(-(-size // 128) for size in sizes))
        else:
            entry = ("F8_E4M3" if f"{name}_scale_inv" in known else "BF16", shape(name))
        found[name] = TensorInfo(*entry, "", 0, 0)
    return found


if __name__ == "__main__":
    main()
