"""Run by the engine's interpreter: load one folder with vLLM on the CPU, keep log-probabilities."""

import json
import os
import sys
from pathlib import Path

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_INT4_W4A8="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
)

import torch  # noqa: E402 - vLLM reads the variables when it is imported
from safetensors.torch import save_file  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

job = json.loads(Path(sys.argv[1]).read_text())
((name, folder),) = job["artifacts"].items()
answers = Path(job["answers"])
report = {"error": ""}
logits = torch.zeros(0)
try:
    engine = LLM(
        model=folder,
        dtype=job["dtype"],
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=2,
        max_logprobs=256,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )
    ask = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=256, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in job["tokens"]]
    rows = [
        [[position[token].logprob for token in range(256)] for position in out.prompt_logprobs[1:]]
        for out in engine.generate(prompts, ask, use_tqdm=False)
    ]
    logits = torch.tensor(rows)
except Exception as error:
    report["error"] = f"{type(error).__name__}: {error}"
save_file({"logits": logits}, answers / f"{name}.safetensors")
(answers / f"{name}.json").write_text(json.dumps(report))
