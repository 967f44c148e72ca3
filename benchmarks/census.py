"""Every type of transformers that generates text from text or images, made tiny and quantized.

    python -m benchmarks.census -o census.json [--only llama,qwen3_moe] [--keep FOLDER]

Each type's own config class is shrunk, its model made with random weights, saved as transformers
saves it, quantized with 8-bit rounding, and compared: our block-wise logits of the original with
transformers' own, KL of the artifact, share of the decoder's linear bytes that is quantized.
Random weights tell whether everything is wired rightly, and nothing about quality.
"""

import argparse
import hashlib
import json
import multiprocessing
import re
import shutil
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers import GenerationMixin

import quantkit
import quantkit.runs.produce  # what every child would import by itself
from benchmarks.tiny import identifiers, make
from quantkit.api import artifacts  # noqa: F401
from quantkit.core.errors import QuantkitError
from quantkit.model.open import open_model
from quantkit.model.repeats import repeats_of
from quantkit.model.skeleton import Skeleton, block_list, build_model, is_linear, is_transposed
from quantkit.stats.divergence import token_kl

SECONDS = 240
NEVER = -1e4
"""Logits below it are those of tokens that a model's own code excludes."""
PRODUCTS = ("addbmm", "addmm", "baddbmm", "bmm", "einsum", "grouped_mm", "linear", "matmul", "mm")
MOST = 0.99
"""Types with a smaller share are looked at in their full size, too."""
MATRIX = 8
"""Parameters with a smaller side are vectors in effect."""


class Multiplied(TorchFunctionMode):
    """Notes the memory of each tensor that takes part in a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: set[int] = set()

    def __torch_function__(
        self, function: Any, _: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        if getattr(function, "__name__", "").strip("_") in PRODUCTS:
            given = (*arguments, *(keywords or {}).values())
            tensors = [each for each in given if isinstance(each, torch.Tensor)]
            self.memory |= {each.untyped_storage().data_ptr() for each in tensors}
        return function(*arguments, **(keywords or {}))


def reference(folder: Path, name: str, ids: torch.Tensor) -> tuple[list[torch.Tensor], set[str]]:
    """Transformers' own logits in fp32, and the names of the parameters that it multiplies by.

    The model is saved in fp32 beside the folder, for `own` to read.
    """
    kind = getattr(transformers, name)
    model = kind.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager").eval()
    model.save_pretrained(folder.with_name("wide"))
    with torch.no_grad(), Multiplied() as seen:
        try:
            logits = [model(input_ids=row[None], use_cache=False).logits[0] for row in ids]
        except Exception:  # some need images; the language model inside reads text
            speaks = [part for part in model.modules() if isinstance(part, GenerationMixin)]
            if len(speaks) == 1:
                raise
            logits = [speaks[1](input_ids=row[None], use_cache=False).logits[0] for row in ids]
    found = model.named_parameters()
    return logits, {key for key, p in found if p.untyped_storage().data_ptr() in seen.memory}


def examine(identifier: str, auto_name: str, folder: Path) -> dict[str, Any]:
    """What becomes of one type."""
    found: dict[str, Any] = {}
    source, out = folder / "model", folder / "out"
    try:
        found["class"] = make(identifier, auto_name, source)
    except Exception as error:  # noqa: BLE001 - what cannot be made is counted
        return found | {"outcome": "not made", "why": f"{type(error).__name__}: {error}"[:300]}
    ids = torch.randint(2, 250, (2, 24), generator=torch.Generator().manual_seed(0))
    expected: Any = None
    try:
        expected = reference(source, found["class"], ids)
    except Exception as error:  # noqa: BLE001 - some read more than text
        found["transformers"] = f"{type(error).__name__}: {error}"[:300]
    try:
        model = open_model(source)
        conv = any(is_transposed(module) for module in model.skeleton.model.modules())
        name = {"format": "gptq"} if conv else {}
        recipe = quantkit.build_recipe("w8a16", samples=4, sequence_length=64, **name)
        result = quantkit.quantize(str(source), out, recipe=recipe, device="cpu", evaluate=False)
        found |= {"outcome": "done", "kl": divergence(source, out)}
        found["sha256"] = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
        found["remarks"] = list(result.remarks)
        if expected is not None:
            logits, multiplied = expected
            ours = own(source.with_name("wide"), ids)
            found["difference"] = [apart(*pair) for pair in zip(ours, logits, strict=True)]
            quantized = {str(module["name"]) for module in result.modules}
            sizes = linear_sizes(model.skeleton, multiplied, quantized)
            found["share"] = share(sizes)
            found["left"] = dict(Counter(sizes[False]).most_common(2))
            if found["share"] < MOST:
                found["full"] = at_full_size(identifier, model.skeleton, sizes)
    except QuantkitError as error:
        found |= {"outcome": "refused", "what": error.what[:300], "why": str(error.why)[:300]}
    except Exception as error:  # noqa: BLE001 - a crash is what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}"[:300]
        found |= {"outcome": "crash", "what": text, "why": f"{where.filename}:{where.lineno}"}
    return found


def own(folder: Path, ids: torch.Tensor) -> list[torch.Tensor]:
    """Our block-wise logits, fp32, of a model or an artifact."""
    model = open_model(folder)
    head = model.head()
    return [head(rows) for rows in model.hidden_states(ids)]


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative distance of two sides' logits; those of tokens that a model never says are equal."""
    said = expected > NEVER
    return float((found - expected)[said].norm() / expected[said].norm())


def divergence(source: Path, out: Path) -> float:
    """Mean KL of an artifact's next tokens from those of its original, in nats."""
    ids = torch.randint(2, 250, (2, 64), generator=torch.Generator().manual_seed(1))
    p, q = (torch.log_softmax(torch.cat(own(folder, ids)), -1) for folder in (source, out))
    return float(token_kl(p, q).mean())


Sizes = dict[bool, dict[str, int]]
"""Elements of weights by name: of those that are quantized, and of the others."""


def linear_sizes(skeleton: Skeleton, multiplied: set[str], quantized: set[str]) -> Sizes:
    """The blocks' linear weights: those of linears, called or not, and what is multiplied by."""
    sizes: Sizes = {True: {}, False: {}}
    repeats = repeats_of(skeleton.model)
    quantized = {repeats.get(path, path) for path in quantized}
    for path, key, weight in block_weights(skeleton.model, skeleton.prefix):
        name = f"{path}.{key}"
        linear = is_linear(skeleton.model.get_submodule(path)) and key == "weight"
        wide = weight.ndim > 1 and min(weight.shape[-2:]) >= MATRIX
        if wide and (linear or name in multiplied):
            sizes[path in quantized and key == "weight"][name] = weight.numel()
    return sizes


def block_weights(model: Any, prefix: str) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Module, key and tensor of each parameter of the blocks; what several share is there once."""
    repeats = repeats_of(model)
    for path, module in model.get_submodule(prefix).named_modules(prefix=prefix):
        if path not in repeats:
            yield from ((path, *each) for each in module.named_parameters(recurse=False))


def share(sizes: Sizes) -> float:
    """Share of linear weights that is quantized."""
    done, left = (sum(sizes[side].values()) for side in (True, False))
    return done / (done + left or 1)


def at_full_size(identifier: str, skeleton: Skeleton, sizes: Sizes) -> float:
    """The share in a model of the type's own default config, by the names of the tiny one."""
    full = build_model(transformers.CONFIG_MAPPING[identifier]())
    found: Sizes = {True: {}, False: {}}
    known = {numberless(name): side for side in sizes for name in sizes[side]}
    for fused in skeleton.rules.fused:  # one parameter there, linears here
        known[numberless(fused.name)] = next(fused.parts())[0] in sizes[True]
    for path, key, weight in block_weights(full, block_list(full)):
        side = known.get(numberless(f"{path}.{key}"))
        if side is not None:
            found[side][f"{path}.{key}"] = weight.numel()
    return share(found)


def numberless(name: str) -> str:
    """A name without the numbers of blocks and experts."""
    return re.sub(r"\.\d+", "", name)


def child(queue: Any, identifier: str, auto_name: str, folder: Path) -> None:
    """Examine one type in a process of its own."""
    torch.set_num_threads(1)
    queue.put(examine(identifier, auto_name, folder))


def forked(identifier: str, auto_name: str, keep: Path | None) -> dict[str, Any]:
    """The outcome of one type; a process that dies or takes too long is an outcome, too."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    folder = Path(tempfile.mkdtemp(prefix=f"census-{identifier}-"))
    process = context.Process(target=child, args=(queue, identifier, auto_name, folder))
    process.start()
    try:
        found: dict[str, Any] = queue.get(timeout=SECONDS)
    except Exception:  # noqa: BLE001 - the queue's own error when time is over
        found = {"outcome": "crash", "what": "no answer"}
    process.kill()
    process.join()
    if keep:
        shutil.rmtree(keep / identifier, ignore_errors=True)
        shutil.move(folder, keep / identifier)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def warm() -> None:
    """Imports that every child would pay for."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    AutoModelForCausalLM.from_config(LlamaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=9))


def main() -> None:
    """Run the census and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", help="types, separated by commas")
    parser.add_argument("--keep", type=Path, help="keep the models and artifacts in this folder")
    parser.add_argument("--part", default="1/1", help="I/N: the I-th of N equal parts")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    warm()
    wanted = identifiers()
    if arguments.only:
        wanted = {name: wanted[name] for name in arguments.only.split(",")}
    part, parts = map(int, arguments.part.split("/"))
    results: dict[str, Any] = {}
    for name in sorted(wanted)[part - 1 :: parts]:
        began = time.monotonic()
        results[name] = forked(name, wanted[name], arguments.keep)
        results[name]["seconds"] = round(time.monotonic() - began, 1)
        brief = {k: v for k, v in results[name].items() if k not in ("remarks", "class")}
        print(name, json.dumps(brief)[:260], flush=True)
        arguments.output.write_text(json.dumps(results, indent=1))
    print(Counter(result["outcome"] for result in results.values()))


if __name__ == "__main__":
    main()
