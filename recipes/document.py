"""Parses untrusted YAML 1.2 text to plain values, with the position of each value."""

from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from quantkit.core.errors import InputError

MAX_BYTES = 1_000_000
MAX_DEPTH = 16
MAX_NODES = 10_000

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """Plain values, and for each path into them its place: file, line and column, or a flag."""

    data: dict[str, Any]
    places: dict[Path, str]

    def place(self, path: Path) -> str:
        """The place of `path`, or of something below it, or of its nearest parent."""
        below = [p for p in self.places if p[: len(path)] == path]
        above = (path[:length] for length in range(len(path) - 1, -1, -1))
        known = (p for p in (path, *below, *above) if p in self.places)
        return next((self.places[p] for p in known), "")

    def without(self, key: str) -> "Document":
        """A copy without a key of the mapping."""
        return replace(self, data={name: part for name, part in self.data.items() if name != key})

    def merged(self, over: "Document") -> "Document":
        """A copy updated with `over`: mappings are merged key by key, other values are replaced."""
        places = dict(self.places)
        data = _merge(self.data, over.data, places, ())
        return Document(data, places | over.places)


def parse(text: str, label: str) -> Document:
    """The mapping in `text`; places have the form `label:line:column`.

    Refuses anchors, aliases, merge keys, tags and duplicate keys: with them a small text can expand
    to a huge value, or a value depends on the order of lines. Dates stay text.

    Raises:
        InputError: the text is not such YAML.
    """
    _guard(text, label)
    yaml = YAML(typ="safe", pure=True)
    root = yaml.compose(text)
    places: dict[Path, str] = {(): label}
    if root is None:
        return Document({}, places)
    if not isinstance(root, MappingNode):
        raise InputError(f"{_at(label, root)}: expected a mapping of keys to values")
    return Document(_value(yaml, root, (), label, places), places)


def parse_value(text: str, label: str) -> Any:
    """The single YAML value in `text`, e.g. `0.05`, `true` or `[vllm]`."""
    data = parse(f"value: {text}", label).data
    if len(data) != 1:
        raise InputError(f"{label}: expected one value, not `{text}`")
    return data["value"]


def dump(data: dict[str, Any]) -> str:
    """YAML text of plain values; keeps the order of keys."""
    readable = _dump(data, escape=False)
    # the emitter does not escape Unicode line breaks, which a reader treats as its own
    return readable if readable.replace("\n", "").isprintable() else _dump(data, escape=True)


def _dump(data: dict[str, Any], *, escape: bool) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = not escape
    yaml.width = 1_000_000  # never fold lines: the emitter loses blanks at folds
    yaml.representer.sort_base_mapping_type_on_output = False
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _merge(
    base: dict[str, Any], over: dict[str, Any], places: dict[Path, str], path: Path
) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = (*path, key)
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = _merge(old, value, places, below)
            continue
        for stale in [p for p in places if p[: len(below)] == below]:
            del places[stale]
        result[key] = value
    return result


def _guard(text: str, label: str) -> None:
    """Checks limits on the event stream, before any value is built: a bomb never expands."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InputError(f"{label} is larger than {MAX_BYTES:,} bytes")
    depth = nodes = documents = 0
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            nodes += isinstance(event, NodeEvent)
            documents += isinstance(event, DocumentStartEvent)
            fault = _refusal(event)
            if depth > MAX_DEPTH:
                fault = f"nested deeper than {MAX_DEPTH} levels"
            elif nodes > MAX_NODES:
                fault = f"more than {MAX_NODES:,} values"
            elif documents > 1:
                fault = "more than one document"
            if fault:
                raise InputError(f"{_at(label, event)}: {fault}")
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
        problem = getattr(error, "problem", None) or "character not allowed in YAML"
        raise InputError(f"{where}: {problem}") from None


def _refusal(event: Event) -> str:
    if isinstance(event, AliasEvent):
        return "aliases (`*`) are not supported; use `extends`, or repeat the value"
    if getattr(event, "anchor", None):
        return "anchors (`&`) are not supported; use `extends`, or repeat the value"
    if isinstance(event, DocumentStartEvent) and (event.version or event.tags):
        return "directives (`%`) are not supported; recipes are YAML 1.2"
    if getattr(event, "tag", None):
        return "tags (`!`) are not supported; use plain values"
    if isinstance(event, ScalarEvent) and event.value == "<<" and event.implicit[0]:
        return "merge keys (`<<`) are not supported; use `extends`, or repeat the values"
    return ""


def _value(yaml: YAML, node: Node, path: Path, label: str, places: dict[Path, str]) -> Any:
    if isinstance(node, SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            places[(*path, index)] = _at(label, item)
            items.append(_value(yaml, item, (*path, index), label, places))
        return items
    if not isinstance(node, MappingNode):
        value = _scalar(yaml, node)
        if isinstance(value, str) and not value.isascii():
            _require_text(value, _at(label, node))
        return value
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        where = _at(label, key_node)
        if not isinstance(key_node, ScalarNode) or not _is(key_node, "str"):
            raise InputError(f"{where}: a key must be text; put it in quotes")
        _require_text(key, where)
        if key in result:
            raise InputError(f"{where}: duplicate key `{key}`")
        places[(*path, key)] = where
        result[key] = _value(yaml, value_node, (*path, key), label, places)
    return result


def _require_text(value: str, where: str) -> None:
    """Refuse halves of surrogate pairs: escapes can state them, and UTF-8 cannot encode them."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: half of a surrogate pair is no character") from None


def _scalar(yaml: YAML, node: Node) -> Any:
    if _is(node, "timestamp") or _is(node, "value"):  # the second is a lone `=`
        return node.value
    try:
        return yaml.constructor.construct_object(node)
    except ValueError:  # Python refuses numbers of thousands of digits: keep text
        return node.value


def _is(node: Node, kind: str) -> bool:
    return str(node.tag) == f"tag:yaml.org,2002:{kind}"


def _at(label: str, thing: Any) -> str:
    return f"{label}:{thing.start_mark.line + 1}:{thing.start_mark.column + 1}"
