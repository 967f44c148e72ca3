"""Run by an engine's own interpreter: load each folder of a job, keep what it predicts.

`python predict.py job.json`, where the job says the engine, the folders and the tokens. The answers
lie beside it: `<name>.safetensors` with `logits`, `<name>.json` with `error` and further remarks.
"""

import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Answer = tuple[torch.Tensor, dict[str, Any]]


def transformers(
    folder: str, tokens: list[list[int]], dtype: torch.dtype = torch.float32
) -> Answer:
    """Logits of a model in `dtype`, and every key that was missing or left over."""
    import transformers as library

    config = json.loads((Path(folder) / "config.json").read_text())
    kind = getattr(library, config["architectures"][0])
    model, info = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    with torch.no_grad():
        logits = model.eval()(torch.tensor(tokens)).logits.float()
    return logits, {"keys": sorted(str(key) for part in info.values() for key in part)}


def gptqmodel(folder: str, tokens: list[list[int]]) -> Answer:
    """Logits of an fp16 model with GPTQModel's torch kernels."""
    from gptqmodel import BACKEND, GPTQModel

    config = json.loads((Path(folder) / "config.json").read_text())
    awq = config["quantization_config"]["quant_method"] == "awq"
    backend = BACKEND.AWQ_TORCH if awq else BACKEND.GPTQ_TORCH
    loaded = GPTQModel.load(folder, backend=backend, device="cpu", dtype=torch.float16)
    with torch.no_grad():
        return loaded.model.eval()(torch.tensor(tokens)).logits.float(), {}


def vllm(folder: str, tokens: list[list[int]]) -> Answer:
    """Log-probabilities of all tokens, after each place but the last, fp16."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    engine = LLM(
        model=folder,
        dtype="float16",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=2,
        max_logprobs=-1,
        skip_tokenizer_init=True,
    )
    ask = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in tokens]
    rows = [
        [[place[token].logprob for token in range(len(place))] for place in out.prompt_logprobs[1:]]
        for out in engine.generate(prompts, ask, use_tqdm=False)
    ]
    del engine
    gc.collect()
    cleanup_dist_env_and_memory()
    return torch.tensor(rows), {}


ENGINES: dict[str, Callable[[str, list[list[int]]], Answer]] = {
    "transformers": transformers,
    "transformers_bf16": partial(transformers, dtype=torch.bfloat16),
    "gptqmodel": gptqmodel,
    "vllm": vllm,
}


def main() -> None:
    """Answer every artifact of the job; an engine's error is an answer too."""
    path = Path(sys.argv[1])
    job = json.loads(path.read_text())
    torch.set_num_threads(1)
    for name, folder in job["artifacts"].items():
        report: dict[str, Any] = {"error": ""}
        logits = torch.zeros(0)
        try:
            logits, more = ENGINES[job["engine"]](folder, job["tokens"])
            report |= more
        except Exception as error:  # noqa: BLE001 - whatever stops an engine is its answer
            report["error"] = f"{type(error).__name__}: {error}"
        save_file({"logits": logits.contiguous()}, path.parent / f"{name}.safetensors")
        (path.parent / f"{name}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
