"""Show what a model weighs, and whether it fits a GPU, before anything is fetched or run."""

import gc
from collections.abc import Collection
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from quantkit.cli.console import Console
from quantkit.cli.hints import spoken
from quantkit.cli.options import parse_tokens
from quantkit.core.errors import InputError
from quantkit.core.registry import nearest

if TYPE_CHECKING:
    from quantkit.core.plan import Plan
    from quantkit.core.training import Training

EXAMPLES = """\b
Examples:
  quantkit plan org/name --gpu 4090 --context 32k --batch 4
  quantkit plan ./model --gpu h100 --train qlora --checkpointing full
"""
DEGREES = ("pp", "ep")
TRAINED = ("optimizer", "rank", "gradient_bytes")
MOST = {"rank": 65536, "gradient_bytes": 4}


def plan(
    console: Console,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, config.json, or org/name[@revision].")
    ],
    gpu: Annotated[
        str | None, typer.Option(help="4090, h100, 24GB@1008GB/s, or local (this machine's).")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Tokens of a sequence, such as 32k. Default: 8k at most.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences at once. Default: 1.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm, sglang or transformers. Default: vllm.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="Tensor-parallel ranks, a GPU each. Default: 1.")
    ] = None,
    kv: Annotated[
        int | None, typer.Option(help="Bits of a cached element: 16 or 8. Default: 16.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe of the build, as in quantize.")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits of the build, as in quantize.")] = None,
    train: Annotated[
        str | None, typer.Option(help="Plan a training run instead: full, lora or qlora.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="Data-parallel GPUs of the training run.")] = 1,
    zero: Annotated[str, typer.Option(help="What the GPUs share out: 0, 1, 2, 3 or fsdp.")] = "0",
    checkpointing: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    offload: Annotated[
        str, typer.Option(help="Optimizer states in RAM or on disk: none, cpu, nvme.")
    ] = ("none"),
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A second model to compare with.")
    ] = None,
    fail_over: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="End in exit code 3 if more is needed: 24GB, or gpu."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the rule of every figure.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="pp, ep, an engine's setting, a recipe's key."
        ),
    ] = None,
) -> int:
    """Show what a model weighs, and whether it fits a GPU."""
    from quantkit.api import planning
    from quantkit.checkpoint.sizes import parse_size
    from quantkit.cli.render.comparison import against_text
    from quantkit.cli.render.plan import plan_text
    from quantkit.cli.render.plan_document import plan_document
    from quantkit.cli.render.plan_verdict import gate

    if explain and against is not None:
        raise InputError(
            "--explain applies to one model, and --against names a second",
            hint="the same without --against",
        )
    if fail_over == "gpu" and gpu is None:
        raise InputError("--fail-over gpu needs a GPU, and none is named", hint="--gpu 4090")
    limit: int | Literal["gpu"] | None = None
    if fail_over is not None:
        limit = "gpu" if fail_over == "gpu" else parse_size(fail_over, "--fail-over ")
    served, other = split_settings(settings or [], console.options)
    ways = {"zero": zero, "checkpointing": checkpointing, "offload": offload}
    ways |= {key: served.pop(key) for key in TRAINED if key in served}
    states = {"zero": "0", "checkpointing": "none", "offload": "none"}
    if train is None and (gpus != 1 or ways != states):
        raise InputError(
            "--gpus, --zero, --checkpointing, --offload and the settings of an optimizer apply to "
            "a training run",
            hint="--train full",
        )
    stated: dict[str, Any] = {
        "gpu": gpu,
        "context": None if context is None else parse_tokens(context),
        "batch": batch,
        "engine": engine,
        "tp": tp,
        **{key: parse_count(key, served.pop(key)) for key in DEGREES if key in served},
        "kv": kv,
        "recipes": recipes_of(recipe, bits, other),
        "settings": served,
        "training": training_of(train, gpus, ways) if train else None,
    }
    found = followable(planning.plan(model, **stated), console.options)
    gc.freeze()  # a collector would look through 100,000 tensors, here and when Python ends
    if against is None:
        console.result(plan_document(found), plan_text(found, model, explain=explain))
    else:
        rival = followable(planning.plan(against, **stated), console.options)
        document = [plan_document(each) for each in (found, rival)]
        console.result(document, against_text(found, rival))
    return gate(console, found, limit)


def followable(plan: "Plan", options: Collection[str]) -> "Plan":
    """The plan with its remedies as options of this verb."""

    def said(text: str | None) -> str | None:
        return text and spoken(text, options)

    serving = plan.serving
    assert serving is not None
    builds = tuple(replace(build, fault=said(build.fault)) for build in serving.builds)
    serving = replace(serving, builds=builds, refusal=said(serving.refusal))
    return replace(plan, serving=serving)


def recipes_of(recipe: str | None, bits: int | None, settings: list[str]) -> Any:
    """The recipe that the options name; None where they name none."""
    if not (recipe or settings or bits is not None):
        return None
    from quantkit.recipes.loader import build_recipe

    return (build_recipe(recipe, settings=settings, bits=bits),)


def training_of(method: str, gpus: int, ways: dict[str, str]) -> "Training":
    """The training run that options describe.

    Raises:
        InputError: a word that is not known.
    """
    from quantkit.core import training as train

    known: dict[str, tuple[str, ...]] = {
        "train": get_args(train.TrainingMethod),
        "zero": get_args(train.Zero),
        "checkpointing": get_args(train.Checkpointing),
        "offload": get_args(train.Offload),
        "optimizer": get_args(train.Optimizer),
    }
    values: dict[str, Any] = {"train": method, **ways}
    for key, words in known.items():
        if (value := values.get(key)) is not None and value not in words:
            option = "--set optimizer=" if key in TRAINED else f"--{key} "
            raise InputError(
                f"`{option}{value}` is not known",
                why=f"known: {', '.join(words)}",
                hint=f"{option}{nearest(value, words)}",
            )
    if method == "full" and "rank" in values:
        raise InputError(
            "--set rank applies to adapters, and --train full has none", hint="--train lora"
        )
    for key, most in MOST.items():
        if key in values:
            values[key] = parse_count(key, values[key], most)
    return train.Training(method=values.pop("train"), gpus=gpus, **values)


def split_settings(
    settings: list[str], options: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Settings of the deployment or the training, and those of the recipe, by their names."""
    from dataclasses import fields

    from quantkit.planning.serve.settings import Settings

    known = {*DEGREES, *TRAINED, *(field.name for field in fields(Settings))}
    served, other = {}, []
    for setting in settings:
        key, _, value = setting.partition("=")
        near = get_close_matches(key.strip(), known, n=1)
        if key.strip() in known:
            served[key.strip()] = value.strip()
        elif f"--{key.strip()}" in options:
            raise InputError(
                f"`{key}` is an option, not a setting", hint=f"--{key.strip()} {value}"
            )
        elif near and "." not in key:
            raise InputError(f"`{key}` is not a setting", hint=f"--set {near[0]}={value}")
        else:
            other.append(setting)
    return served, other


def parse_count(key: str, text: str, most: int = 65536) -> int:
    """A number from 1 to `most`.

    Raises:
        InputError: it is none.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):
        why = f"it takes a whole number from 1 to {most}"
        raise InputError(f"`{key}` cannot be `{text}`", why=why, hint=f"--set {key}=2")
    return int(text)


COMMAND = plan
