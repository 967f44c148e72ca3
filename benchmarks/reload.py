"""Whether transformers itself reads what the census made: `census.py --keep FOLDER` first.

    .engines/transformers/bin/python benchmarks/reload.py FOLDER -o reload.json

For each type that is done, the KL of the artifact's next tokens from the original's, both as
transformers computes them in fp32; or what it says instead, or a tensor that it misses.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationMixin


def logits_of(folder: Path, name: str, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities, fp32 (sequences, length, vocabulary).

    Raises:
        ValueError: a tensor is missing or left over.
    """
    model, info = getattr(transformers, name).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    odd = sorted(str(key) for part in info.values() for key in part)
    if odd:
        raise ValueError(f"{len(odd)} keys missing or left over, first {odd[0]}")
    speaks = [part for part in model.eval().modules() if isinstance(part, GenerationMixin)]
    with torch.no_grad():
        try:
            logits = model(input_ids=ids, use_cache=False).logits
        except (TypeError, ValueError):  # some need images; the language model inside reads text
            logits = speaks[1](input_ids=ids, use_cache=False).logits
    return torch.log_softmax(logits.float(), -1)


def reloaded(folder: Path) -> dict[str, Any]:
    """What becomes of one type's artifact."""
    config = json.loads((folder / "model" / "config.json").read_text())
    ids = torch.randint(2, 250, (2, 24), generator=torch.Generator().manual_seed(0))
    try:
        p, q = (
            logits_of(folder / part, config["architectures"][0], ids) for part in ("model", "out")
        )
    except Exception as error:  # noqa: BLE001 - whatever stops it is its answer
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"kl": float((p.exp() * (p - q)).sum(-1).mean())}


def main() -> None:
    """Load every artifact and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    results = {}
    for made in sorted(arguments.folder.glob("*/out/quantkit.json")):
        folder = made.parents[1]
        results[folder.name] = reloaded(folder)
        print(folder.name, json.dumps(results[folder.name])[:160], flush=True)
        arguments.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
