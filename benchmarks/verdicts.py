"""Print the table of verdicts in docs/planning.md: public models by GPU, and the time each took.

    python benchmarks/verdicts.py

The models are those of tests/planning/known_models.json, by the facts of their own configs.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import quantkit
from quantkit.planning.forecast import Forecast

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
GPUS = ("3060", "4090", "l40s", "h100", "b200")
RUNS = 3
HEAD = f"| model | {' | '.join(GPUS)} | seconds |"


def configs() -> dict[str, dict[str, Any]]:
    """The config of each model in the table."""
    known = {model["name"]: model["config"] for model in json.loads(KNOWN.read_text())}
    return {name: known[name] for name in MODELS}


def verdict(found: Forecast) -> str:
    """The build to take and its longest context; or on how many GPUs the smallest fits."""
    chosen = found.chosen
    if chosen is None or chosen.deployment is None:
        return "refused"
    name = chosen.build.name.split(" ")[0]
    if chosen.fits:
        return f"{name}, {chosen.deployment.longest // 1024}k"
    ranks = [hint.removeprefix("--tp ") for hint in found.hints if hint.startswith("--tp ")]
    return f"{name} on {ranks[0]} GPUs" if ranks else "no"


def row(name: str, config: Path) -> str:
    """Name and verdicts, as a row of the table without its last column."""
    cells = (verdict(quantkit.plan(str(config), gpu=gpu)) for gpu in GPUS)
    return f"| {name} | {' | '.join(cells)} |"


def seconds(config: Path) -> float:
    """Wall time of the command for one GPU, interpreter included: the least of some runs."""
    command = [sys.executable, "-m", "quantkit", "plan", str(config), "--gpu", GPUS[1]]
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own command
        times.append(time.perf_counter() - begin)
    return min(times)


def rows() -> Iterable[str]:
    """Every row of the table."""
    with TemporaryDirectory() as folder:
        for name, config in configs().items():
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            yield f"{row(name, path)} {seconds(path):.2f} |"


def main() -> None:
    """Print the table."""
    print(HEAD)
    print("|---" * (len(GPUS) + 2) + "|")
    for line in rows():
        print(line, flush=True)


if __name__ == "__main__":
    main()
