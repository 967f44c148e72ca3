"""Tiny checkpoints of every family, built in memory; no network, no GPU."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings

# a machine may be busy with other things: slowness alone is no failure
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# plans learn from finished runs: those of tests are nobody's
os.environ["QUANTKIT_CACHE"] = tempfile.mkdtemp(prefix="quantkit-tests-")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHAPE = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
GPT2_SHAPE = {
    "vocab_size": 256,
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SHAPE),
    "llama_tied": ("LlamaConfig", SHAPE | {"tie_word_embeddings": True}),
    "mistral": ("MistralConfig", SHAPE | {"sliding_window": 64}),
    "qwen2": ("Qwen2Config", {k: v for k, v in SHAPE.items() if k != "head_dim"}),
    "qwen3": ("Qwen3Config", SHAPE),
    "gemma3": (
        "Gemma3TextConfig",
        SHAPE
        | {
            "tie_word_embeddings": True,
            "sliding_window": 64,
            "query_pre_attn_scalar": 32,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": ("GPT2Config", GPT2_SHAPE),
}
OLD_SHAPE = {
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
GPTJ_SHAPE = GPT2_SHAPE | {"rotary_dim": 16, "tie_word_embeddings": False}
LONG_TAIL: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomConfig", OLD_SHAPE),
    "codegen": ("CodeGenConfig", GPTJ_SHAPE),
    "falcon": ("FalconConfig", OLD_SHAPE | {"tie_word_embeddings": False}),
    "falcon_alibi": ("FalconConfig", OLD_SHAPE | {"alibi": True, "parallel_attn": False}),
    "gemma2": ("Gemma2Config", SHAPE | {"tie_word_embeddings": True, "sliding_window": 64}),
    "gpt_neox": ("GPTNeoXConfig", OLD_SHAPE | {"intermediate_size": 256}),
    "gptj": ("GPTJConfig", GPTJ_SHAPE),
    "mixtral": ("MixtralConfig", SHAPE | {"num_local_experts": 2}),
    "mpt": (
        "MptConfig",
        {
            "vocab_size": 256,
            "d_model": 128,
            "n_layers": 2,
            "n_heads": 4,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
    ),
    "opt": (
        "OPTConfig",
        OLD_SHAPE | {"ffn_dim": 256, "word_embed_proj_dim": 128, "max_position_embeddings": 512},
    ),
    "phi": ("PhiConfig", OLD_SHAPE | {"intermediate_size": 256}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        SHAPE | {"num_experts": 2, "moe_intermediate_size": 128, "num_experts_per_tok": 1},
    ),
    "stablelm": (
        "StableLmConfig",
        OLD_SHAPE | {"intermediate_size": 256, "num_key_value_heads": 2},
    ),
}
EXPERTS = {"num_experts": 8, "moe_intermediate_size": 64, "num_experts_per_tok": 2}
WIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "experts_apart": ("Qwen3MoeConfig", SHAPE | EXPERTS | {"norm_topk_prob": True}),
    "experts_renamed": (
        "MixtralConfig",
        SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 128},
    ),
    "experts_fused": (
        "GptOssConfig",
        SHAPE
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 128,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "shared_expert": (
        "Qwen2MoeConfig",
        {k: v for k, v in SHAPE.items() if k != "head_dim"}
        | EXPERTS
        | {"shared_expert_intermediate_size": 128},
    ),
    "hybrid": (
        "NemotronHConfig",
        SHAPE
        | {
            "layers_block_type": ["mamba", "attention", "mlp", "moe"],
            "num_hidden_layers": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "moe_shared_expert_intermediate_size": 64,
            "mamba_num_heads": 4,
            "mamba_head_dim": 64,
            "ssm_state_size": 16,
            "n_groups": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "linear_attention": (
        "Qwen3NextConfig",
        SHAPE
        | EXPERTS
        | {
            "shared_expert_intermediate_size": 64,
            "num_hidden_layers": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
        },
    ),
    "latent_attention": (
        "DeepseekV3Config",
        {k: v for k, v in SHAPE.items() if k != "head_dim"}
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 64,
            "kv_lora_rank": 64,
            "qk_rope_head_dim": 32,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
        },
    ),
}
"""Experts however they are stored, hybrids, and blocks that are unlike."""
"""Families that have no test but their own: how they store, call and return differs most."""


class TinyCheckpoint(Protocol):
    """The folder of a seeded model; see `tiny_checkpoint`."""

    def __call__(
        self,
        family: str = "llama",
        *,
        dtype: str = "float32",
        shards: int = 1,
        seed: int = 0,
        private: bool = False,
        **config: Any,
    ) -> Path: ...


@pytest.fixture(scope="session", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """Each family's name in turn."""
    return str(request.param)


@pytest.fixture
def tiny_checkpoint(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> TinyCheckpoint:
    """Folder of a tiny model with tokenizer: `tiny_checkpoint("qwen2", dtype="float16", shards=3)`.

    The same arguments give the same folder for the whole session, so a test that writes into it
    asks for `private=True`. Further keywords go to the config, e.g. `num_hidden_layers=3`.
    """

    def make(family: str = "llama", *, private: bool = False, **options: Any) -> Path:
        folder = tiny_checkpoint_cache(family, **options)
        if not private:
            return folder
        return shutil.copytree(folder, tmp_path_factory.mktemp("private") / folder.name)

    return make


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder that all workers of a run share: `made_once(name, make, key)`; it stays unchanged.

    `make(folder)` is called by the first who asks, with a folder of that name that is not there;
    folders of one name differ in `key`.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"

    def once(name: str, make: Callable[[Path], object], key: str = "") -> Path:
        home = shared / hashlib.sha256(f"{name} {key}".encode()).hexdigest()[:16]
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (home / "done").exists():
                shutil.rmtree(home / name, ignore_errors=True)
                make(home / name)
                (home / "done").touch()
        return home / name

    return once


@pytest.fixture(scope="session")
def tiny_checkpoint_cache(made_once: Callable[..., Path]) -> Callable[..., Path]:
    """What `tiny_checkpoint` gives, for fixtures of wider scope."""

    def make(
        family: str = "llama",
        *,
        dtype: str = "float32",
        shards: int = 1,
        seed: int = 0,
        **config: Any,
    ) -> Path:
        def build(folder: Path) -> None:
            build_checkpoint(folder, family, dtype=dtype, shards=shards, seed=seed, **config)

        key = json.dumps([seed, config], sort_keys=True)
        return made_once(f"{family}-{dtype}-{shards}", build, key)

    return make


@pytest.fixture(scope="session")
def embedded_w4(made_once: Callable[..., Path]) -> Path:
    """The embedded model in 4 bits, rounded to nearest, calibrated on next to nothing."""

    def make(folder: Path) -> None:
        import quantkit
        from quantkit.model.embedded_model import FOLDER
        from quantkit.recipes.loader import build_recipe

        recipe = build_recipe("rtn", samples=1, sequence_length=64)
        quantkit.quantize(str(FOLDER), folder, recipe=recipe, evaluate=False)

    return made_once("embedded-w4", make)


def build_checkpoint(
    folder: Path,
    family: str,
    *,
    dtype: str = "float32",
    shards: int = 1,
    seed: int = 0,
    **config: Any,
) -> None:
    """Write config, weights in `shards` files and tokenizer of a seeded tiny model to `folder`."""
    import torch
    import transformers

    kind, values = (FAMILIES | LONG_TAIL | WIDE)[family]
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, kind)(**values | config)
    )
    centered = family.startswith("gemma")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() > 1:
                weight.copy_(noise * weight.shape[-1] ** -0.5)
            else:
                is_norm = name.endswith(".weight") and not centered
                weight.copy_(noise * 0.1 + float(is_norm))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    if shards > 1:
        _split(folder, shards)
    byte_tokenizer().save_pretrained(folder)


def byte_tokenizer() -> Any:
    """A tokenizer with one token a byte: `<s>` 0, `</s>` 1, then the bytes that UTF-8 can hold."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # thirteen bytes never occur in UTF-8, which leaves room for the two marks below 256
    never = {chr(c) for c in (0xC0, 0xC1, *range(0xF5, 0x100))}
    letters = [c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c not in never]
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", model_max_length=512
    )


def _split(folder: Path, shards: int) -> None:
    """Deal the tensors of `model.safetensors` to `shards` files in turn, with an index."""
    from safetensors.torch import load_file, save_file

    single = folder / "model.safetensors"
    tensors = load_file(single)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = sorted(tensors)[i::shards]
        save_file({key: tensors[key] for key in part}, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    single.unlink()
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.fixture
def random_qtensor() -> Callable[..., Any]:
    """A QTensor of any scheme: `random_qtensor(scheme, outputs=64, inputs=128, seed=0)`.

    Symmetric scales have both signs, as the signed full range makes them.
    """
    import torch

    from quantkit.core.scheme import Scheme
    from quantkit.grid.dynamic8 import nested_scales
    from quantkit.grid.qtensor import DoubleQuant, QTensor
    from tests.random_floats import random_floats

    def make(
        scheme: Scheme,
        outputs: int = 64,
        inputs: int = 128,
        *,
        dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
    ) -> QTensor:
        draw = torch.Generator().manual_seed(seed)
        shape = (outputs, inputs)
        codes = torch.randint(0, 2**scheme.bits, shape, generator=draw, dtype=torch.uint8)
        if scheme.storage.flattened:
            blocks = -(-codes.numel() // (scheme.group_size or 64))
            outer = torch.rand(-(-blocks // 256), generator=draw) + 0.5
            inner = torch.randint(0, 256, (blocks,), generator=draw, dtype=torch.uint8)
            nested = DoubleQuant(inner, outer, torch.rand((), generator=draw) + 1.5)
            if scheme.double_quant:
                return QTensor(codes, nested_scales(nested), None, scheme, nested)
            return QTensor(codes, torch.rand(blocks, generator=draw), None, scheme)
        groups = (scheme.scale_rows(outputs), scheme.groups(inputs))
        if not scheme.storage.zero_points:
            return random_floats(scheme, codes, groups, draw, dtype)
        scales = (torch.randn(groups, generator=draw) * 0.02).to(dtype)
        if scheme.symmetric:
            return QTensor(codes, scales, None, scheme)
        zeros = torch.randint(1, 2**scheme.bits, groups, generator=draw, dtype=torch.uint8)
        return QTensor(codes, scales.abs(), zeros, scheme)

    return make
