"""Tensor-parallel degrees that `plan` calls legal or not, against vLLM's own rules."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantkit.core import registry
from quantkit.core.serving import Degrees
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.parallel import rank_facts
from quantkit.planning.model.parameters import inventory_from_config
from quantkit.planning.model.weights import (
    Build,
    PlannedModel,
    planned_model,
    recipe_build,
    stored_build,
)
from quantkit.planning.serve.legal import degree_fault, joined, kinds_by_linear
from quantkit.recipes.loader import build_recipe

log = logging.getLogger(__name__)
KNOWN = Path(__file__).parents[1] / "planning" / "known_models.json"
MODELS = ("Llama-2-7B", "Llama-2-13B", "Llama-3-8B", "Qwen2.5-0.5B", "Qwen2.5-7B", "Qwen3-32B")
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
DEGREES = (1, 2, 3, 4, 5, 7, 8, 14, 16, 20, 32, 40)
BUILDS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "g128": {"group_size": 128},
    "g64": {"group_size": 64},
    "g32": {"group_size": 32},
    "8-bit g32": {"bits": 8, "group_size": 32},
    "channel": {"group_size": "channel"},
    "fp8 blocks": {"recipe": "fp8-block"},
}


def build_of(model: PlannedModel, flags: dict[str, Any]) -> Build | None:
    if not flags:
        return stored_build(model)
    if "recipe" in flags:
        return recipe_build(model, build_recipe(flags["recipe"]))
    sizes = {kind.tensor.shape[1] for kind in model.kinds if kind.quantizable}
    group = flags["group_size"]
    if group != "channel" and any(size % group for size in sizes):
        return None  # no quantizer could make it
    return recipe_build(model, build_recipe("gptq-compressed", **flags))


def linears(model: PlannedModel, build: Build, degrees: Degrees) -> list[dict[str, Any]]:
    """Every kind of linear of the first block, joined as vLLM joins them."""
    found, kinds = [], kinds_by_linear(model)
    for kind in model.kinds:
        if not kind.quantizable or kind.tensor.layer:
            continue
        members = [kinds[name] for name in kind.tensor.fused] or [kind]
        whole, part = joined(members), joined(members, degrees)
        scheme = next(iter(build.schemes_of(kind)))
        rows, columns = kind.tensor.shape
        parts = [rank_facts(member, degrees).out_features for member in members]
        sizes = {"rows": [rows], "columns": [columns]}
        found.append(
            {
                "whole": (whole.out_features, whole.in_features),
                "part": (part.out_features, part.in_features),
                "dealt": sizes.get(kind.tensor.split, []),
                "bits": scheme.bits if scheme else None,
                "group": (scheme.group_size or -1) if scheme else None,
                "parts": parts if scheme and scheme.rows != 1 else [],
            }
        )
    return found


def test_legal_degrees_are_those_that_vllm_does_not_refuse(
    run_script: Callable[[str, str, str], None],
    engine_python: Callable[[str], str],
    tmp_path: Path,
) -> None:
    engine_python("vllm")
    engine = registry.load("engines", "vllm", "ENGINE")
    known = {model["name"]: model["config"] for model in json.loads(KNOWN.read_text())}
    job, ours = {}, {}
    for name in MODELS:
        config = known[name] | {"architectures": [ARCHITECTURES[known[name]["model_type"]]]}
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        architecture = read_architecture(config)
        model = planned_model(name, inventory_from_config(config, architecture), architecture)
        mixer: Any = architecture.layers[0].mixer
        for label, flags in BUILDS.items():
            build = build_of(model, flags)
            for degree in DEGREES if build else ():
                assert build is not None
                case = f"{name} {label} tp={degree}"
                ours[case] = degree_fault(engine, model, build, Degrees(degree))
                job[case] = {
                    "folder": str(tmp_path / name),
                    "degree": degree,
                    "kv_heads": mixer.kv_heads,
                    "linears": linears(model, build, Degrees(degree)),
                }
    (tmp_path / "job.json").write_text(json.dumps(job))
    run_script("vllm", "shard_rules.py", str(tmp_path / "job.json"))
    theirs = json.loads((tmp_path / "verdicts.json").read_text())
    differ = {c: (ours[c], theirs[c]) for c in job if (ours[c] is None) != (theirs[c] is None)}
    assert differ == {}
    refused = [case for case in job if theirs[case]]
    by_group = [case for case in refused if "group_size" in theirs[case]]
    log.info("%d cases, %d refused, %d for a group", len(job), len(refused), len(by_group))
    assert 0.3 * len(job) < len(refused) < 0.9 * len(job)
    assert "Llama-2-7B g128 tp=4" in by_group
    blocks = [case for case in refused if "quantization block" in theirs[case]]
    assert "Llama-2-7B fp8 blocks tp=4" in blocks
    assert any("block_n" in theirs[case] for case in blocks)
