"""transformers with gptqmodel and optimum, bitsandbytes, or compressed-tensors installed."""

from quantkit.core.engine import Engine
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme

GPTQMODEL_GROUPS = (16, 32, 64, 128, 256, 512, 1024)
AWQ_GROUPS = (16, 32, 64, 128)
BLOCK = 128
NEEDS = {
    "compressed-tensors": "compressed-tensors accelerate",
    "gptq": "gptqmodel optimum accelerate",
    "gptq-v2": "gptqmodel optimum accelerate",
    "awq": "gptqmodel accelerate",
    "bitsandbytes": "bitsandbytes accelerate",
    "fp8": "accelerate",
}
"""The formats that it loads, and the packages that it needs for each."""

FLOAT_EXPERTS = ("compressed-tensors", "fp8")
"""The formats from which it decodes experts in FP8."""

READ = (
    *("falcon", "falcon_mamba", "gpt_bigcode", "mamba", "mamba2", "modernbert-decoder", "nanochat"),
    *("recurrent_gemma", "rwkv", "xlstm"),
)
"""Model types whose own code reads the weight of a linear, which compressed-tensors replaces."""
CONVERTED = (
    *("bailing_hybrid", "glm5_next", "kimi_linear", "kosmos-2", "longcat_flash", "olmo_hybrid"),
    "qianfan_ocr",
)
"""Model types of which it converts tensors as it loads them, and fails at quantized parts.

Both were seen in 5.23 on tiny models, `benchmarks/reload.py`.
"""


def refuses(output: str, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why transformers would not load `linear`, or load it wrong."""
    if output == "compressed-tensors" and linear.model_type in (*READ, *CONVERTED):
        why = "reads" if linear.model_type in READ else "converts"
        return f"transformers' code of {linear.model_type} {why} weights that {output} replaces"
    if ".experts." in linear.name:
        return _expert_fault(output, scheme, linear)
    if output == "fp8":
        return _cut_fault(linear)
    if output in ("gptq", "gptq-v2", "awq"):
        return _packed_fault(output, scheme, linear)
    if output == "compressed-tensors" and not scheme.symmetric:
        return (
            "transformers cannot load asymmetric compressed-tensors (packed zero points do not "
            "fit its buffer); try: --format gptq-v2"
        )
    return None


def _packed_fault(output: str, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why GPTQModel, which loads these formats there, would not load `linear`."""
    if linear.transposed:
        return (
            f"transformers fails when it loads {output} into GPT-2's Conv1D; "
            "try: --method nf4 --format bitsandbytes"
        )
    legal = AWQ_GROUPS if output == "awq" else GPTQMODEL_GROUPS
    if scheme.group_size and scheme.group_size not in legal:
        return f"transformers loads {output} with groups of {_list(legal)} or whole channels"
    return None


def _cut_fault(linear: LinearFacts) -> str | None:
    """Why it would decode blocks wrong: it divides a weight evenly among its scales."""
    for count, along in ((linear.in_features, "inputs"), (linear.out_features, "outputs")):
        if count > BLOCK and count % BLOCK:
            return (
                f"transformers takes cut blocks for smaller ones: {count} {along} are not whole "
                f"blocks of {BLOCK}; try: --recipe fp8"
            )
    return None


def _expert_fault(output: str, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why it cannot load experts: transformers 5 fuses them, which few loaders support.

    They are decoded as they load, and run on activations as these are. It loads NVFP4 without its
    scale of all scales, fails at the exponents of MXFP8, and is left with static scales of inputs.
    """
    if output == "compressed-tensors" and (
        (scheme.grid == "int" and scheme.symmetric and not scheme.activation)
        or scheme.grid == "mxfp4"
    ):
        return None
    if scheme.grid == "fp8" and scheme.activation != "fp8-tensor" and output in FLOAT_EXPERTS:
        return _cut_fault(linear) if scheme.block else None
    if output in ("gptq", "gptq-v2", "awq"):
        return (
            f"transformers ignores experts in {output} and runs them with random weights, "
            "with only a warning; try: --format compressed-tensors"
        )
    return f"transformers cannot load experts in {output} {scheme.label()}; try: leave them out"


def _list(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))


def usage(output: str) -> str:
    """How a folder is loaded."""
    floats = '# MXFP4, MXFP8 and NVFP4: dtype="bfloat16"\n'
    plain = "# without a GPU it decodes the weights, and leaves activations as they are\n"
    remark = {"compressed-tensors": floats, "fp8": plain}.get(output, "")
    return f"""\
```python
# pip install transformers {NEEDS[output]}
from transformers import AutoModelForCausalLM, AutoTokenizer

{remark}model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto", device_map="auto")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```"""


ENGINE = Engine(
    name="transformers",
    summary="Hugging Face transformers",
    versions="transformers 5.23, gptqmodel 7.7, optimum 2.3, bitsandbytes 0.50, "
    "compressed-tensors 0.20",
    formats=tuple(NEEDS),
    refuses=refuses,
    usage=usage,
    kv_caches=("fp8-tensor",),
)
