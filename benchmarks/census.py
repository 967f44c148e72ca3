"""Every type of transformers that generates text from text or images, made tiny and quantized.

    python benchmarks/census.py -o census.json [--only llama,qwen3_moe] [--keep FOLDER]

Each type's own config class is shrunk, its model made with random weights, saved as transformers
saves it, quantized with 8-bit rounding, and compared: our block-wise logits of the original with
transformers' own, KL of the artifact, share of the decoder's linear bytes that is quantized.
Random weights tell whether everything is wired rightly, and nothing about quality.
"""

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

SECONDS = 240
VOCABULARY = 288
SIZES = {
    128: "hidden_size d_model n_embd dim embed_dim hidden_dim model_dim",
    256: "intermediate_size ffn_dim d_ff n_inner ffn_hidden_size encoder_ffn_dim decoder_ffn_dim "
    "shared_expert_intermediate_size moe_shared_expert_intermediate_size intermediate_size_mlp "
    "dense_intermediate_size shared_intermediate_size",
    64: "moe_intermediate_size q_lora_rank kv_lora_rank expert_ffn_hidden_size expert_hidden_size "
    "expert_ff_hidden_size",
    32: "head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim attention_head_dim mamba_d_head "
    "linear_key_head_dim linear_value_head_dim global_head_dim kv_channels rotary_dim",
    16: "state_size ssm_state_size mamba_d_state mamba_state_dim hidden_size_per_layer_input",
    4: "num_attention_heads n_head num_heads encoder_attention_heads decoder_attention_heads "
    "num_experts n_routed_experts num_local_experts moe_num_experts num_routed_experts "
    "linear_num_value_heads mamba_n_heads mamba_num_heads num_q_heads n_heads",
    2: "num_hidden_layers n_layer num_layers n_layers depth encoder_layers decoder_layers "
    "num_key_value_heads num_kv_heads multi_query_group_num num_experts_per_tok top_k moe_top_k "
    "moe_topk moe_k num_experts_per_token linear_num_key_heads num_global_key_value_heads",
    1: "n_group topk_group n_groups mamba_n_groups n_shared_experts moe_num_shared_experts "
    "first_k_dense_replace num_nextn_predict_layers",
    512: "max_position_embeddings n_positions max_seq_len sliding_window",
    VOCABULARY: "vocab_size vocab_size_per_layer_input n_vocab",
}
SIZE_OF = {name: size for size, names in SIZES.items() for name in names.split()}
SCALES = {"image_size": 32, "patch_size": 16, "num_position_embeddings": 64}
HEADS = ("num_attention_heads", "num_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "num_kv_heads")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
MOST_LAYERS = 8


def identifiers() -> dict[str, str]:
    """Model types, with the auto class that makes each."""
    from transformers.models.auto import modeling_auto as auto

    image = dict.fromkeys(
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "AutoModelForImageTextToText"
    )
    return image | dict.fromkeys(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "AutoModelForCausalLM")


def shrunk(kind: type[Any], depth: int = 0) -> Any:
    """A config of class `kind` with small sizes, and each kind of layer at least once."""
    full = kind()
    values = full.to_dict()
    heads = {values.get(name) for name in HEADS} - {None}
    small = {name: fixed for name, value in values.items() if (fixed := sized(name, value))}
    small |= {n: SIZE_OF["num_attention_heads"] for n in KV_HEADS if values.get(n) in heads}
    if "head_dim" in values:
        small["head_dim"] = SIZE_OF["head_dim"]
    for name, value in values.items():
        if isinstance(value, dict) and "mrope_section" in value:
            head = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
            small[name] = value | {"mrope_section": sections(value["mrope_section"], head)}
    small |= layers_of(full, values, small)
    for name in getattr(kind, "sub_configs", {}):
        given = getattr(full, name, None)
        if given is not None and depth < 3:
            small[name] = shrunk(type(given), depth + 1)
    return made(kind, small)


def sized(name: str, value: Any) -> Any:
    """A small value for a key of a config; None where the key stays as it is."""
    token = name.endswith("_token_id")
    if token and isinstance(value, list):
        return [v if v < VOCABULARY else 1 for v in value]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return None
    if token:
        return VOCABULARY - 1 - len(name) % 32 if value >= VOCABULARY else None
    return SIZE_OF.get(name) or SCALES.get(name)


def sections(old: list[int], head: int) -> list[int]:
    """Sections of a multimodal rotary embedding for heads of 32, with the same rotated share."""
    half = int(16 * min(1.0, 2 * sum(old) / head))
    rest = half * 3 // 8
    return [half - 2 * rest, rest, rest]


def layers_of(full: Any, values: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """As few layers as show every kind that the config has."""
    kinds = (getattr(full, key, None) for key in ("layer_types", "layers_block_type"))
    types = next((found for found in kinds if isinstance(found, list | tuple) and found), None)
    if types is None:
        return {}
    count = next(n for n in range(1, len(types) + 1) if set(types[:n]) == set(types))
    count = min(max(2, count), MOST_LAYERS)
    found: dict[str, Any] = {name: count for name in LAYERS if name in small}
    key = "layer_types" if "layer_types" in values else "layers_block_type"
    return found | ({key: list(types[:count])} if key in values else {})


def made(kind: type[Any], values: dict[str, Any]) -> Any:
    """A config of `values`; those that its own checks refuse are left out one by one."""
    tried = dict(values)
    for _ in range(12):
        try:
            return kind(**tried)
        except Exception as error:
            named = [name for name in tried if name in str(error)]
            if not named:
                raise
            tried.pop(named[0])
    raise ValueError("no small config")


def make(identifier: str, auto_name: str, folder: Path) -> Any:
    """Save a tiny model with random weights; its class's name."""
    import torch
    import transformers

    from tests.conftest import byte_tokenizer

    auto = getattr(transformers, auto_name)
    kind = transformers.CONFIG_MAPPING[identifier]
    config = shrunk(kind)
    torch.manual_seed(0)
    model = auto.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() > 1 and "conv" not in name:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * weight.shape[-1] ** -0.5)
    model.to(torch.bfloat16).eval().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return type(model).__name__


def logits_of(folder: Path, name: str, ids: Any) -> Any:
    """Transformers' own logits, fp32."""
    import torch
    import transformers

    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.float()


def examine(identifier: str, auto_name: str, folder: Path) -> dict[str, Any]:
    """What becomes of one type."""
    import torch

    import quantkit
    from quantkit.core.errors import QuantkitError
    from quantkit.model.open import open_model
    from quantkit.model.skeleton import is_transposed

    found: dict[str, Any] = {}
    source, out = folder / "model", folder / "out"
    try:
        found["class"] = make(identifier, auto_name, source)
        ids = torch.randint(2, 250, (2, 24), generator=torch.Generator().manual_seed(0))
        expected = [logits_of(source, found["class"], row[None])[0] for row in ids]
    except Exception as error:  # noqa: BLE001 - what cannot be made is counted
        return found | {"outcome": "not made", "why": f"{type(error).__name__}: {error}"[:300]}
    try:
        model = open_model(source)
        head = model.head()
        ours = [head(rows) for rows in model.hidden_states(ids)]
        pairs = list(zip(ours, expected, strict=True))
        found["difference"] = [float((a - b).norm() / b.norm()) for a, b in pairs]
        conv = any(is_transposed(module) for module in model.skeleton.model.modules())
        name = {"format": "gptq"} if conv else {}
        recipe = quantkit.build_recipe("w8a16", samples=4, sequence_length=64, **name)
        result = quantkit.quantize(str(source), out, recipe=recipe, device="cpu", evaluate=False)
        found |= measured(source, out, result)
        found["outcome"] = "done"
    except QuantkitError as error:
        found |= {"outcome": "refused", "what": error.what[:300], "why": str(error.why)[:300]}
    except Exception as error:  # noqa: BLE001 - a crash is what is looked for
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}"[:300]
        found |= {"outcome": "crash", "what": text, "why": f"{where.filename}:{where.lineno}"}
    return found


def measured(source: Path, out: Path, result: Any) -> dict[str, Any]:
    """KL, and the share of the blocks' matrices that is quantized, by weights."""
    import torch

    from quantkit.model.open import open_model

    original, artifact = open_model(source), open_model(out)
    ids = torch.randint(2, 250, (2, 64), generator=torch.Generator().manual_seed(1))
    pairs = []
    for model in (original, artifact):
        head = model.head()
        rows = torch.cat(list(model.hidden_states(ids)))
        pairs.append(torch.log_softmax(head(rows), -1))
    kl = float((pairs[0].exp() * (pairs[0] - pairs[1])).sum(-1).mean())
    quantized = {module["name"] for module in result.modules}
    total = done = 0
    prefix = original.skeleton.prefix + "."
    for name, module in original.skeleton.model.named_modules():
        weight = getattr(module, "weight", None)
        for key, parameter in module.named_parameters(recurse=False):
            if name.startswith(prefix) and parameter.ndim in (2, 3) and "conv" not in name:
                if min(parameter.shape) < 8:
                    continue
                total += parameter.numel()
                done += parameter.numel() if name in quantized and key == "weight" else 0
        del weight
    return {"kl": kl, "share": done / total if total else 0.0, "remarks": list(result.remarks)}


def child(queue: Any, identifier: str, auto_name: str, folder: Path) -> None:
    """Examine one type in a process of its own."""
    import torch

    torch.set_num_threads(1)
    queue.put(examine(identifier, auto_name, folder))


def forked(identifier: str, auto_name: str, keep: Path | None) -> dict[str, Any]:
    """The outcome of one type; a process that dies or takes too long is an outcome, too."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    folder = Path(tempfile.mkdtemp(prefix=f"census-{identifier}-"))
    process = context.Process(target=child, args=(queue, identifier, auto_name, folder))
    process.start()
    try:
        found: dict[str, Any] = queue.get(timeout=SECONDS)
    except Exception:  # noqa: BLE001 - the queue's own error when time is over
        found = {"outcome": "crash", "what": "no answer"}
    process.kill()
    process.join()
    if keep:
        shutil.rmtree(keep / identifier, ignore_errors=True)
        shutil.move(folder, keep / identifier)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def warm() -> None:
    """Imports that every child would pay for."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, LlamaConfig

    import quantkit.runs.produce  # noqa: F401
    from quantkit.api import artifacts  # noqa: F401

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    AutoModelForCausalLM.from_config(LlamaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=9))


def main() -> None:
    """Run the census and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", help="types, separated by commas")
    parser.add_argument("--keep", type=Path, help="keep the models and artifacts in this folder")
    parser.add_argument("--part", default="1/1", help="I/N: the I-th of N equal parts")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    warm()
    wanted = identifiers()
    if arguments.only:
        wanted = {name: wanted[name] for name in arguments.only.split(",")}
    part, parts = map(int, arguments.part.split("/"))
    results: dict[str, Any] = {}
    for name in sorted(wanted)[part - 1 :: parts]:
        began = time.monotonic()
        results[name] = forked(name, wanted[name], arguments.keep)
        results[name]["seconds"] = round(time.monotonic() - began, 1)
        brief = {k: v for k, v in results[name].items() if k not in ("remarks", "class")}
        print(name, json.dumps(brief)[:260], flush=True)
        arguments.output.write_text(json.dumps(results, indent=1))
    print(Counter(result["outcome"] for result in results.values()))


if __name__ == "__main__":
    main()
