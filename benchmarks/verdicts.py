"""Print the table of verdicts in docs/planning.md: public models by GPU, and the time each took.

    python benchmarks/verdicts.py

The models are those of tests/planning/known_models.json, by the facts of their own configs.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import quantkit
from quantkit.core.serving import Serving

KNOWN = Path(__file__).parents[1] / "tests" / "planning" / "known_models.json"
MODELS = (
    "Llama-3-8B",
    "Llama-3-70B",
    "Llama-3.1-405B",
    "Mistral-Nemo-12B",
    "Mixtral-8x7B",
    "Qwen2.5-7B",
    "Qwen3-32B",
    "Qwen3-30B-A3B",
    "Gemma-3-27B",
    "DeepSeek-V3",
)
CONTEXTS = {  # where the known facts leave it to the family's default
    "Llama-3-8B": 8192,
    "Llama-3-70B": 8192,
    "Llama-3.1-405B": 131072,
    "Mixtral-8x7B": 32768,
    "Qwen2.5-7B": 131072,
    "Qwen3-32B": 40960,
    "Qwen3-30B-A3B": 40960,
}
GPUS = ("3060", "4090", "l40s", "h100", "b200")
RUNS = 3
HEAD = f"| model | {' | '.join(GPUS)} | seconds | of CPU |"


def configs() -> dict[str, dict[str, Any]]:
    """The config of each model in the table."""
    known = {model["name"]: model["config"] for model in json.loads(KNOWN.read_text())}
    context = "max_position_embeddings"
    return {n: known[n] | ({context: CONTEXTS[n]} if n in CONTEXTS else {}) for n in MODELS}


def verdict(config: Path, gpu: str) -> str:
    """The build to take and its longest context; or on how many GPUs which build fits.

    `*` behind one that `quantize` does not make.
    """
    found = served(config, gpu)
    chosen = found.chosen
    if chosen is None or chosen.deployment is None:
        return "refused"
    if chosen.fits:
        return f"{name_of(found)}, {chosen.deployment.longest // 1024}k"
    ranks = [hint.removeprefix("--tp ") for hint in found.hints if hint.startswith("--tp ")]
    if not ranks:
        return "no"
    return f"{name_of(served(config, gpu, tp=int(ranks[0])))} on {ranks[0]} GPUs"


def served(config: Path, gpu: str, tp: int | None = None) -> Serving:
    """The builds of a model on a GPU."""
    found = quantkit.plan(str(config), gpu=gpu, tp=tp).serving
    assert found is not None
    return found


def name_of(found: Serving) -> str:
    """The chosen build in short."""
    assert found.chosen is not None
    return found.chosen.name.split(" ")[0] + ("*" if found.refusal else "")


def row(name: str, config: Path) -> str:
    """Name and verdicts, as a row of the table without its last column."""
    cells = (verdict(config, gpu) for gpu in GPUS)
    return f"| {name} | {' | '.join(cells)} |"


def seconds(config: Path) -> tuple[float, float]:
    """Wall and CPU time of the command, interpreter included: the least of some runs."""
    command = [sys.executable, "-m", "quantkit", "plan", str(config), "--gpu", GPUS[1]]
    times = []
    for _ in range(RUNS):
        begin, used = time.perf_counter(), _children()
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own command
        times.append((time.perf_counter() - begin, _children() - used))
    return min(times)


def _children() -> float:
    """CPU seconds of all processes that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def rows() -> Iterable[str]:
    """Every row of the table."""
    with TemporaryDirectory() as folder:
        for name, config in configs().items():
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            wall, cpu = seconds(path)
            yield f"{row(name, path)} {wall:.2f} | {cpu:.2f} |"


def main() -> None:
    """Print the table."""
    print(HEAD)
    print("|---" * (len(GPUS) + 3) + "|")
    for line in rows():
        print(line, flush=True)


if __name__ == "__main__":
    main()
