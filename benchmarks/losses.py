"""Which method loses least, linear by linear: losses from the manifests of finished artifacts.

    python benchmarks/losses.py GPTQ_OUT OTHER_OUT...

Artifacts of one model and one scheme; each is compared with the first.  A loss is the squared error
of a linear's output over the calibration tokens, in units of the output itself.
"""

import argparse
import json
import statistics
from pathlib import Path


def losses(artifact: Path) -> dict[str, float]:
    """The loss of each linear that has one."""
    modules = json.loads((artifact / "quantkit.json").read_text())["modules"]
    return {module["name"]: module["loss"] for module in modules if module["loss"]}


def label(artifact: Path) -> str:
    """Method and scheme, as the recipe says."""
    recipe = json.loads((artifact / "quantkit.json").read_text())["recipe"]
    scheme = recipe["scheme"]
    return f"{recipe['method']} W{scheme['bits']} {scheme['group_size']}"


def main() -> None:
    """Print a row for each artifact but the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("others", type=Path, nargs="+")
    arguments = parser.parse_args()
    base = losses(arguments.first)
    print(f"| losses in units of {label(arguments.first)} | linears | middle | least | below 1 |")
    print("|---" * 5 + "|")
    for other in arguments.others:
        found = losses(other)
        ratios = [found[name] / base[name] for name in base if name in found]
        below = sum(ratio < 1 for ratio in ratios)
        middle = statistics.geometric_mean(ratios)
        print(f"| {label(other)} | {len(ratios)} | {middle:.2f} | {min(ratios):.2f} | {below} |")


if __name__ == "__main__":
    main()
