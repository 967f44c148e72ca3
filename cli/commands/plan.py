"""Tell what a model weighs, and whether it fits a GPU, before anything is fetched or run."""

from typing import Annotated, Any

import typer

from quantkit.cli.console import Console
from quantkit.cli.options import parse_tokens
from quantkit.core.errors import InputError

EXAMPLES = """\b
Examples:
  quantkit plan org/name --gpu 4090 --context 32k --batch 4
  quantkit plan ./model --gpu 24GB@1008GB/s --engine sglang --tp 2 --explain
"""
SERVED = ("pp", "ep")


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
    batch: Annotated[int, typer.Option(min=1, help="Sequences served at once.")] = 1,
    engine: Annotated[str, typer.Option(help="vllm, sglang or transformers.")] = "vllm",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks, a GPU each.")] = 1,
    kv: Annotated[int, typer.Option(help="Bits of a cached element: 16 or 8.")] = 16,
    recipe: Annotated[str | None, typer.Option(help="Recipe of the build, as in quantize.")] = None,
    method: Annotated[str | None, typer.Option(help="Method, as in quantize.")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits, as in quantize.")] = None,
    group_size: Annotated[
        str | None, typer.Option(metavar="N|channel", help="Group size, as in quantize.")
    ] = None,
    format_: Annotated[str | None, typer.Option("--format", help="As in quantize.")] = None,
    fail_over: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="End in exit code 3 where more is needed: 24GB, 20GiB."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="The rule of every figure.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="pp, ep, an engine's setting, a recipe's key."
        ),
    ] = None,
) -> int:
    """Tell what a model weighs and whether it fits a GPU, from its headers alone."""
    from quantkit import api
    from quantkit.cli.planned import forecast_document, forecast_text, gate

    served, other = split_settings(settings or [])
    flags: dict[str, Any] = {
        "method": method, "bits": bits, "group_size": group_size, "format": format_,
    }  # fmt: skip
    recipes = None
    if recipe or other or any(value is not None for value in flags.values()):
        from quantkit.recipes.loader import build_recipe

        recipes = (build_recipe(recipe, settings=other, **flags),)
    if kv not in (16, 8):
        raise InputError(f"a cache of {kv} bits is not known", hint="--kv 16 or --kv 8")
    found = api.plan(
        model,
        gpu=gpu,
        context=None if context is None else parse_tokens(context),
        batch=batch,
        engine=engine,
        tp=tp,
        **{key: parse_degree(key, served.pop(key, "1")) for key in SERVED},
        kv=8 if kv == 8 else 16,
        recipes=recipes,
        settings=served,
    )
    console.result(forecast_document(found), forecast_text(found, explain=explain))
    return gate(console, found, fail_over)


def split_settings(settings: list[str]) -> tuple[dict[str, str], list[str]]:
    """Settings of the deployment, and those of the recipe, by their names."""
    from dataclasses import fields

    from quantkit.planning.serving import Settings

    known = {*SERVED, *(field.name for field in fields(Settings))}
    served, other = {}, []
    for setting in settings:
        key, _, value = setting.partition("=")
        if key.strip() in known:
            served[key.strip()] = value.strip()
        else:
            other.append(setting)
    return served, other


def parse_degree(key: str, text: str) -> int:
    """A number of ranks.

    Raises:
        InputError: not a positive number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{key} is `{text}`", hint=f"--set {key}=2")
    return int(text)


COMMAND = plan
