"""Run by vLLM's interpreter: how many blocks of KV cache it makes of each config of a job.

`python page_cache.py job.json`, where the job says the folders, the longest context and the tokens
of a batch. The answers lie beside it, in `pages.json`. The weights are made up by vLLM.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any


def page(folder: str, context: int, batch: int) -> dict[str, Any]:
    """Blocks, their tokens, and what vLLM logs as its capacity."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    engine = LLM(
        model=folder,
        dtype="bfloat16",
        load_format="dummy",
        enforce_eager=True,
        max_model_len=context,
        max_num_batched_tokens=batch,
        max_num_seqs=2,
        skip_tokenizer_init=True,
    )
    config = engine.llm_engine.vllm_config
    found = {
        "blocks": config.cache_config.num_gpu_blocks,
        "block_tokens": config.cache_config.block_size,
        "concurrency": config.cache_config.kv_cache_max_concurrency,
        "in_flight": config.max_in_flight_tokens,
        "available": config.cache_config.kv_cache_memory_bytes,
    }
    del engine
    gc.collect()
    cleanup_dist_env_and_memory()
    return found


def main() -> None:
    """Answer every folder of the job."""
    path = Path(sys.argv[1])
    job = json.loads(path.read_text())
    answers = {
        name: page(folder, job["context"], job["batch"]) for name, folder in job["folders"].items()
    }
    (path.parent / "pages.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
