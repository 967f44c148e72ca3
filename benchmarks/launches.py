"""What one block asks of a device, by method: launches, waits of the host, and copies.

    python -m benchmarks.launches [--only rtn nf4] [--hidden 4096] [--package CHECKOUT]

A Llama-3.1-8B block, or a narrower one in proportion, on 2 windows of 128 tokens: reading, forward,
Hessians and solving, without encoding. Counted on the tests' pretended device with shapes alone;
launches hardly depend on the number of tokens. `--package` counts the code of another checkout.
GPTQ takes two minutes, the others half a minute each.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.device.shapes import LLAMA_8B, prepared_for, run_blocks, write_models

METHODS = ("gptq", "awq", "smoothquant", "nf4", "rtn")
WINDOWS, LENGTH, COLUMNS = 2, 128, 128
WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")


def main() -> None:
    """Print a row a method as soon as it is counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--hidden", type=int, default=LLAMA_8B["hidden_size"])
    parser.add_argument("--package", type=Path)
    wanted = parser.parse_args()
    if wanted.package:
        sys.path.insert(0, str(wanted.package))
    with tempfile.TemporaryDirectory() as folder:
        for line in table(Path(folder), tuple(wanted.only), wanted.hidden):
            print(line, flush=True)


def table(folder: Path, methods: tuple[str, ...], hidden: int) -> Iterator[str]:
    """The rows in Markdown. A group is 128 columns of linears that are solved together."""
    share = hidden / LLAMA_8B["hidden_size"]
    shape = LLAMA_8B | {name: int(LLAMA_8B[name] * share) for name in WIDTHS}
    write_models(folder, **shape)
    groups = (3 * hidden + shape["intermediate_size"]) // COLUMNS
    yield f"| method | launches | a group, of {groups} | waits | to the device | to the host |"
    yield "|---|---|---|---|---|---|"
    for method in methods:
        try:
            seen, _ = run_blocks(prepared_for(folder, method), WINDOWS, LENGTH)
        except RuntimeError as error:
            yield f"| {method} | fails: {type(error).__name__} | | | | |"
            continue
        launches = seen.launches.total()
        counts = (seen.waits, seen.to_device, seen.to_host)
        rest = " | ".join(str(count.total()) for count in counts)
        yield f"| {method} | {launches:,} | {launches / groups:,.0f} | {rest} |"


if __name__ == "__main__":
    main()
