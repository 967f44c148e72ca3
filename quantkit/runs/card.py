"""The model card of an artifact: its README.md, made from its manifest."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from quantkit.checkpoint.files import inside, opened, read_into
from quantkit.core import registry
from quantkit.core.errors import QuantkitError
from quantkit.core.manifest import bits_text, schemes_of
from quantkit.recipes.document import dump, parse

CARD_BYTES = 64 * 2**10
"""Bytes of the original's card that are read: the front matter is at its beginning."""
PLAIN = ("number", "fraction")
"""Units of metrics that need no name."""
KEPT_FIELDS = ("license", "license_name", "license_link", "language", "pipeline_tag")

TEMPLATE = """\
---
{{ front }}---

# {{ title }}

{{ base }}, quantized with quantkit {{ manifest.quantkit }}: method **{{ recipe.method }}**, \
format **{{ manifest.format }}**, {{ schemes | join(", ") }}. \
Weight files: {{ "{:,}".format(manifest.bytes) }} bytes, \
{{ bits }}.
{%- if quality %}

## Quality

| | original | quantized |
|---|---:|---:|
{% for name, original, quantized in quality -%}
| {{ name }} | {{ original }} | {{ quantized }} |
{% endfor %}
{{ protocol }}
{%- if level %}

{{ level.meaning }}.
{%- for step in level.next %}
- To try: `{{ step }}`
{%- endfor %}
{%- endif %}
{%- endif %}

## Loading

Where `FOLDER` is this folder or its id on the hub:
{% for usage in usages %}
{{ usage }}
{% else %}
No engine that quantkit knows loads this folder; `quantkit generate FOLDER "..."` runs it.
{% endfor %}
{%- for engine, reason in refused.items() %}
{{ engine }} does not load it: {{ reason }}.
{% endfor %}
## How it was made

- Source: {{ base }}{% if manifest.source.revision %}, revision `{{ manifest.source.revision }}`\
{% endif %}
- Recipe: `{{ recipe.name }}`{% if recipe.description %}, {{ recipe.description }}{% endif %}

{%- if manifest.calibration %}
- Calibration: `{{ manifest.calibration.source }}`, {{ manifest.calibration.samples }} windows of \
{{ manifest.calibration.sequence_length }} tokens, SHA-256 of the token ids \
`{{ manifest.calibration.sha256 }}`
{%- endif %}
- Made with: {% for package, version in manifest.environment.items() -%}
{{ package }} {{ version }}{{ ", " if not loop.last }}{% endfor %}

`quantkit.json` contains the full recipe, the scheme and loss of every module, and the origin of \
each tensor.

## Limits

{% if manifest.modules -%}
- {{ manifest.modules | length }} linears are quantized; everything else keeps the \
precision of the original.
{%- else -%}
- Only the KV cache is quantized, while the model runs; the weights keep the precision of the \
original, and so the size.
{%- endif %}
{%- if smoke %}
- The quality figures are measured on the small bundled text of quantkit: they show whether the \
artifact is broken, not how well it suits your use. Measure that with \
`quantkit eval FOLDER --reference ORIGINAL --text YOURS`.
{%- endif %}
{%- for remark in manifest.remarks %}
- {{ remark[:1] | upper }}{{ remark[1:].rstrip(".") }}.
{%- endfor %}
- The original's limits, licence and terms of use also apply to this copy.
"""


def model_card(manifest: Mapping[str, Any], source: Path | None = None) -> str:
    """Markdown with YAML front matter, from a manifest's `to_dict()`.

    Licence and language come from the original's card in the folder `source`. Engines come from
    `engines` of the manifest (name -> why it does not load the artifact, or None); without that
    field only transformers is listed.
    """
    stated = manifest.get("engines") or {"transformers": None}
    evaluation = manifest.get("evaluation") or {}
    schemes = schemes_of(manifest)
    base = _base(manifest, source)
    # Markdown, not HTML, so nothing is escaped
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701
    return environment.from_string(TEMPLATE).render(
        manifest=manifest,
        recipe={"description": "", **manifest["recipe"]},
        schemes=schemes,
        bits=bits_text(manifest.get("quantized_bits_per_weight"), manifest["bits_per_weight"]),
        base=base,
        title=f"{base.rpartition('/')[2]} {' '.join(schemes)} ({manifest['recipe']['method']})",
        front=dump(_front_matter(manifest, schemes, source)),
        quality=_quality(evaluation),
        protocol=_protocol(evaluation.get("protocol", {})),
        level=evaluation.get("kl_level"),
        smoke=evaluation.get("protocol", {}).get("text") == "smoke",
        usages=_usages(manifest["format"], [e for e, reason in stated.items() if not reason]),
        refused={engine: reason for engine, reason in stated.items() if reason},
    )


def _usages(output: str, engines: Iterable[str]) -> list[str]:
    """How each of `engines` loads a folder in the format `output`; unknown engines are left out."""
    known = registry.names("engines")
    found = (registry.load("engines", name, "ENGINE") for name in engines if name in known)
    return [engine.usage(output) for engine in found if output in engine.formats]


def _base(manifest: Mapping[str, Any], source: Path | None) -> str:
    folder = source.resolve().name.encode(errors="replace").decode() if source else ""
    return str(manifest["source"].get("id") or folder or "a local model")


def _front_matter(
    manifest: Mapping[str, Any], schemes: list[str], source: Path | None
) -> dict[str, Any]:
    original = _card_fields(source)
    fields = {key: original[key] for key in KEPT_FIELDS if key in original}
    base = manifest["source"].get("id")
    if base:
        fields |= {"base_model": base, "base_model_relation": "quantized"}
    bits = dict.fromkeys(re.findall(r"\b(?:W|MXFP|NVFP|FP|NF)(\d+)", " ".join(schemes)))
    tags = [manifest["recipe"]["method"], manifest["format"], *(f"{b}-bit" for b in bits)]
    theirs = original.get("tags")
    inherited = (
        ["conversational"] if isinstance(theirs, list) and "conversational" in theirs else []
    )
    engines = manifest.get("engines") or {"transformers": None}
    loads = engines.get("transformers", "not known") is None  # else the hub shows a wrong snippet
    return {
        **fields,
        "pipeline_tag": fields.get("pipeline_tag", "text-generation"),
        **({"library_name": "transformers"} if loads else {}),
        "tags": list(dict.fromkeys(["quantkit", *tags, *inherited])),
    }


def _card_fields(source: Path | None) -> dict[str, Any]:
    """Front matter of the original's card; empty if it is missing or cannot be read."""
    if source is None:
        return {}
    try:
        card = inside(source, "README.md")
        with opened(card) as (fd, fingerprint):
            head = bytearray(min(fingerprint.size, CARD_BYTES))
            read_into(card, fd, memoryview(head), 0)
        first, *lines = head.decode("utf-8", errors="replace").splitlines() or [""]
        marks = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
        if first.rstrip() != "---" or not marks:
            return {}
        return parse("\n".join(lines[: marks[0]]), "README.md").data
    except QuantkitError:  # a broken card of the original must not end the run
        return {}


def _quality(evaluation: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows of the table: name, the original's figure, the quantized model's."""
    if evaluation.get("status") != "valid":
        return []
    reference = evaluation.get("reference_perplexity")
    original = _value(reference, "value", "standard_error") if reference else ""
    own = _value(evaluation["perplexity"], "value", "standard_error")
    rows = [("perplexity", original, own)]
    kl = evaluation.get("kl")
    if not kl:
        return rows
    for key, name in (("median", "median"), ("p99", "99th percentile"), ("max", "maximum")):
        rows.append((f"KL, {name}", "", _value(kl, key)))
    mean = ("KL(original, quantized), mean, nats per token", _value(kl, "floor_mean"))
    rows.insert(1, (*mean, _value(kl, "mean", "standard_error")))
    share = _value(evaluation, "top1_agreement", "top1_standard_error")
    rows.append(("same most likely token, share", "", share))
    further = (evaluation.get("metrics") or {}).values()
    return [*rows, *(_metric(figure) for figure in further if figure["value"] is not None)]


def _metric(figure: Mapping[str, Any]) -> tuple[str, str, str]:
    """The row of a registered metric that has no field of its own in a result."""
    unit = "" if figure["unit"] in PLAIN else f", {figure['unit']}"
    label = figure["label"].replace("|", "\\|")
    return f"{label}{unit}", "", _value(figure, "value", "standard_error")


def _value(figures: Mapping[str, Any], key: str, error: str = "") -> str:
    if figures.get(key) is None:
        return ""
    value = f"{figures[key]:.4g}"
    return f"{value} ± {figures[error]:.2g}" if figures.get(error) is not None else value


def _protocol(protocol: Mapping[str, Any]) -> str:
    if not protocol:
        return ""
    return (
        f"{protocol['windows']} windows of {protocol['sequence_length']} tokens of "
        f"`{protocol['text']}` (protocol `{protocol['name']}`), computed in {protocol['dtype']} "
        "with the weights decoded from the written files; ± is one standard error. The original's "
        "KL is its own noise floor: the same model run with other matrix shapes."
    )
