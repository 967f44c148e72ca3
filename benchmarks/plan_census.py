"""Planned sizes of published models beside what transformers itself builds and caches.

    python benchmarks/plan_census.py FOLDER [--json FILE] [--only WORD]

FOLDER holds a folder for each model with its config.json, and hf_quant_config.json where it has
one. For each: parameters as `plan` counts them and as the model's own class has them on the meta
device; seconds of `plan`, without the start of Python; and the bytes of a real cache after TOKENS
tokens. That is of a model with weights, made of the same config with few layers, experts and words,
a narrow MLP and its attention as it is.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TOKENS = 48
LAYERS = 8
FEW = {
    "vocab_size": 512,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "intermediate_size_mlp": 64,
    "vocab_size_per_layer_input": 512,
}
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
IN_16_BITS = {"dtype": "bfloat16"}
PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type")


def main() -> None:
    """Print a row for each model, and how many differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()
    print("| model | type | by | parameters | transformers | off, % | cache | real | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for path in sorted(given.folder.glob("*/config.json")):
        if given.only in path.parent.name:
            rows.append(examined(path.parent))
            print(row(rows[-1]), flush=True)
    sized = [each for each in rows if each["parameters"]]
    off = [each for each in sized if each["off"] is not None and each["off"] > 0.5]
    cached = [each for each in rows if each["real"] is not None]
    equal = sum(each["real"] == each["cache"] for each in cached)
    slow = max((each["seconds"] for each in sized if each["by"] == "table"), default=0)
    print(f"\n{len(sized)} sized, {len(rows) - len(sized)} refused; {len(off)} off by over 0.5 %; ")
    print(f"{equal} of {len(cached)} caches equal; slowest by the table {slow:.2f} s")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


def examined(folder: Path) -> dict[str, Any]:
    """What plan says of a config, and what transformers does with it."""
    from quantkit.core.errors import QuantkitError
    from quantkit.planning.model.opened import open_model
    from quantkit.planning.model.parameters import parameter_count
    from quantkit.planning.model.towers import unlisted

    config = json.loads((folder / "config.json").read_text())
    found: dict[str, Any] = {"model": folder.name, "type": config.get("model_type"), "by": ""}
    found |= dict.fromkeys(("parameters", "own", "off", "cache", "real", "refused"))
    start = time.perf_counter()
    try:
        model = open_model(str(folder))
        found["seconds"] = time.perf_counter() - start
        inventory = described(config).inventory if model.quantized else model.inventory
    except QuantkitError as error:
        reason = f"{error.what}: {error.why}" if error.why else error.what
        return found | {"refused": reason, "seconds": time.perf_counter() - start}
    assert inventory is not None
    listed = inventory.origin == "config.json" and not unlisted(config)
    found["by"] = "table" if listed else "class"
    found["parameters"] = parameter_count(inventory)
    found["own"] = own_count(config)
    if found["own"]:
        found["off"] = abs(100 * (found["parameters"] / found["own"] - 1))
    return found | caches(config)


def described(config: Mapping[str, Any]) -> Any:
    """What planning reads off a config, whatever format its files are in."""
    from quantkit.planning.model.described import describe

    return describe({**plain(config), "dtype": "bfloat16"}, has_files=False)


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the model before it was quantized; Infinity as transformers 5 writes it."""
    from quantkit.checkpoint import strict_json

    found = {key: value for key, value in config.items() if key != "quantization_config"}
    if isinstance(text := found.get("text_config"), Mapping):
        found["text_config"] = {k: v for k, v in text.items() if k != "quantization_config"}
    data = json.dumps(found).encode()
    return dict(strict_json.loads(data, max_bytes=len(data), infinite=True))


def built(config: Mapping[str, Any]) -> Any:
    """The transformers config of an object."""
    from quantkit.model.skeleton import read_config

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(plain(config)))
        return read_config(Path(folder))


def own_count(config: Mapping[str, Any]) -> int | None:
    """Parameters of the model's class in transformers; None where it has none."""
    from quantkit.core.errors import QuantkitError
    from quantkit.model.skeleton import build_model

    try:
        return sum(p.numel() for p in build_model(built(config)).parameters())
    except QuantkitError:
        return None


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model with few layers, experts and words; its attention is as it was."""
    found = plain(config)
    found.pop("architectures", None)
    if isinstance(text := found.get("text_config"), Mapping):
        vision = dict(found.get("vision_config") or {})
        vision |= {key: 2 for key in ("depth", "num_hidden_layers") if vision.get(key)}
        vision |= {key: [0] for key in ("deepstack_visual_indexes",) if vision.get(key)}
        return {**found, "text_config": shrunk(text), "vision_config": vision, **IN_16_BITS}
    found = {key: min(FEW[key], v) if key in FEW and v else v for key, v in found.items()}
    layers = min(LAYERS, found.get("num_hidden_layers") or LAYERS)
    found["num_hidden_layers"] = layers
    for key in PER_LAYER:
        if isinstance(found.get(key), list):
            found[key] = found[key][:layers]
    if isinstance(pattern := found.get("hybrid_override_pattern"), str):
        found["hybrid_override_pattern"] = pattern[:layers]
    found |= {key: 16 for key in EXPERTS if found.get(key)}
    found |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return found | IN_16_BITS


def caches(config: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes of the cache of a shrunk model, planned and real; empty where it cannot be made."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.initialization import no_init_weights

    from quantkit.planning.model.kv import dynamic_cache

    try:
        small = shrunk(config)
        auto = AutoModelForImageTextToText if "text_config" in small else AutoModelForCausalLM
        with no_init_weights():
            eager = built(small)
            eager._attn_implementation = "eager"  # noqa: SLF001 - all families have it
            model = auto.from_config(eager).to(torch.bfloat16).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            output = model(torch.ones(1, TOKENS, dtype=torch.long), use_cache=True)
        cache = output.get("past_key_values", output.get("cache_params"))
        real = sum(t.nbytes for layer in cache.layers for t in tensors(vars(layer)))
        planned = dynamic_cache(described(small).architecture, TOKENS).visible.bytes
    except Exception as error:  # noqa: BLE001 - what cannot be shrunk is left out of the count
        return {"unshrunk": f"{type(error).__name__}: {error}"[:200]}
    return {"cache": planned, "real": real}


def tensors(held: Any) -> Iterator[Any]:
    """Floating-point tensors inside lists and dicts, each once."""
    import torch

    if isinstance(held, torch.Tensor):
        if held.is_floating_point():
            yield held
    elif isinstance(held, dict | list | tuple):
        seen: set[int] = set()
        for entry in held.values() if isinstance(held, dict) else held:
            if id(entry) not in seen:
                seen.add(id(entry))
                yield from tensors(entry)


def row(found: Mapping[str, Any]) -> str:
    """A line of the table."""
    if found["refused"]:
        return f"| {found['model']} | {found['type']} | refused: {found['refused'][:120]} |"
    own = f"{found['own']:,}" if found["own"] else "no class"
    off = "" if found["off"] is None else f"{found['off']:.3f}"
    real = ("", "") if found["real"] is None else (f"{found['cache']:,}", f"{found['real']:,}")
    cells = (found["model"], found["type"], found["by"], f"{found['parameters']:,}", own, off)
    return "| " + " | ".join((*cells, *real, f"{found['seconds']:.2f}")) + " |"


if __name__ == "__main__":
    main()
