"""What scoring adds to the forwards of an evaluation: CPU seconds, page faults, peak memory.

    python scoring.py MODEL REFERENCE --text FILE [--windows 6] [--rounds 2]

The forwards are the same evaluation with logits thrown away as soon as they are computed: blocks
and head products of both models and of the noise floor. Both run in turn, each in its own process;
what the process used before is not counted. Prints one JSON document.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import torch

from quantkit.calibration.tokens import load_tokenizer
from quantkit.eval import scoring
from quantkit.eval.side_by_side import evaluate_together
from quantkit.eval.text import TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.open import open_model
from quantkit.stats.running import RunningDivergence

Figures = dict[str, float]


class Discarded(RunningDivergence):
    """No divergence: the logits were computed, and that is all."""

    def add(self, z_p: torch.Tensor, z_q: torch.Tensor) -> None:
        """Nothing is added."""

    def kl(self) -> torch.Tensor:
        """Zeros (rows,)."""
        return torch.zeros_like(self.p.largest)

    reverse_kl = kl


def spent() -> Figures:
    """What this process has used since its start."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"user": used.ru_utime, "system": used.ru_stime, "faults": used.ru_minflt}


def evaluate(args: argparse.Namespace) -> Figures:
    """The figures of one evaluation in this process; nothing is scored with `--only forwards`."""
    if args.only == "forwards":
        scoring.RunningDivergence = Discarded  # type: ignore[misc]  # for this process
    text = read_text(TextChoice(str(args.text), windows=args.windows), load_tokenizer(args.model))
    pair = open_model(args.model), open_model(args.reference)
    before = spent()
    evaluate_together(*pair, text)
    found = {name: value - before[name] for name, value in spent().items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found | {"cpu": found["user"] + found["system"], "peak_rss_bytes": peak}


def main() -> None:
    """Prints the figures of each round and the median ratio of CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["evaluation", "forwards"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(evaluate(args)))
        return
    rounds = []
    for _ in range(args.rounds):
        found = {}
        for only in ("evaluation", "forwards"):
            command = [sys.executable, __file__, *sys.argv[1:], "--only", only]
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
            found[only] = json.loads(done.stdout)
        rounds.append(found)
    ratios = sorted(r["evaluation"]["cpu"] / r["forwards"]["cpu"] for r in rounds)
    print(json.dumps({"rounds": rounds, "ratio": ratios[len(ratios) // 2]}, indent=2))


if __name__ == "__main__":
    main()
