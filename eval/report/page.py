"""The report as one HTML file that loads nothing and sends nothing.

Verdict and tables are written here as HTML; the script sorts, filters and draws. Names from
results reach the page as text alone: escaped by jinja, or as JSON that the script writes into
text nodes.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

from quantkit.core.units import UNIT_NOTE
from quantkit.core.version import __version__
from quantkit.eval.report.columns import columns
from quantkit.eval.report.page_data import SHAPES, mark_of, page_data
from quantkit.eval.report.recommendation import choose, level_of, one_line
from quantkit.eval.report.sections import sections
from quantkit.eval.report.study import Study, Target
from quantkit.eval.report.targets import (
    default_target,
    offer,
    size_label,
)

SCRIPTS = ("base", "rules", "marks", "frontier", "panels", "page")
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def render(study: Study) -> str:
    """The page."""
    target = default_target(study)
    data = page_data(study, target)
    libraries = [_text("vendor/d3.min.js"), _text("vendor/plot.umd.min.js")]
    scripts = [*libraries, _own_script()]
    return _template().render(
        study=study,
        choice=choose(study, target),
        columns=columns(study, target),
        choices=_choices(study, target),
        marks=mark_of(study),
        shapes=SHAPES,
        verdict_of=lambda build: one_line(build, study),
        level_of=level_of,
        unit=data["unit"],
        units=UNIT_NOTE,
        **sections(study),
        data=_inert_json(data),
        style=_text("page.css"),
        scripts=scripts,
        policy=policy(scripts),
        licences=_text("vendor/LICENSES.txt"),
        version=__version__,
    )


def policy(scripts: Iterable[str]) -> str:
    """A content security policy under which nothing runs but these scripts."""
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    return POLICY.format(scripts=" ".join(f"'sha256-{found}'" for found in hashes))


def _choices(study: Study, target: Target) -> list[tuple[str, str, list[tuple[str, str, bool]]]]:
    """What the reader can set: id, label, options (value, text, chosen)."""
    offered = offer(study, target)
    limited = [(str(step), size_label(step)) for step in offered.limits if step]
    memory = "Memory" if study.kv_bytes_per_token else "Size at most"
    found = [("limit", memory, str(target.limit_bytes or ""), [("", "no limit"), *limited])]
    counts = [(str(n), str(n)) for n in offered.sequences]
    if study.kv_bytes_per_token:
        found += [
            (
                "context",
                "Context",
                str(target.context_tokens),
                [(str(n), f"{n:,}") for n in offered.contexts],
            ),
            ("sequences", "Sequences", str(target.sequences), counts),
        ]
    floor = [("", "any"), *((str(value), f"{value:g} nats") for value in offered.max_kls if value)]
    found.append(("floor", "KL at most", str(target.max_kl or ""), floor))
    return [
        (name, label, [(v, text, v == value) for v, text in options])
        for name, label, value, options in found
    ]


def _inert_json(data: object) -> str:
    """JSON that no HTML parser takes for markup."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _own_script() -> str:
    parts = "\n".join(_text(f"js/{name}.js") for name in SCRIPTS)
    return f'"use strict";(() => {{\n{parts}\n}})();'


@cache
def _text(name: str) -> str:
    return files("quantkit.eval.report").joinpath(name).read_text(encoding="utf-8")


def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_text("page.html.j2"))
