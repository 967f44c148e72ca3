"""YAML 1.2 text from anybody, as plain values that know where they stand."""

from dataclasses import dataclass
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
    """Plain values, and for each path into them the place it was stated at."""

    data: dict[str, Any]
    places: dict[Path, str]

    def place(self, path: Path) -> str:
        """Where `path` was stated, else something in it, else the nearest thing around it."""
        below = [p for p in self.places if p[: len(path)] == path]
        above = (path[:length] for length in range(len(path) - 1, -1, -1))
        known = (p for p in (path, *below, *above) if p in self.places)
        return next((self.places[p] for p in known), "")

    def merged(self, over: "Document") -> "Document":
        """This with `over` laid on it: mappings key by key, everything else replaced whole."""
        places = dict(self.places)
        data = _merge(self.data, over.data, places, ())
        return Document(data, places | over.places)


def parse(text: str, label: str) -> Document:
    """The mapping that `text` states; places read `label:line:column`.

    Anchors, aliases, merge keys, tags and duplicate keys are refused: they make a small text stand
    for a huge value, or a value depend on which of two lines wins. Dates stay text.

    Raises:
        InputError: it is no such YAML.
    """
    _guard(text, label)
    yaml = YAML(typ="safe", pure=True)
    root = yaml.compose(text)
    places: dict[Path, str] = {(): label}
    if root is None:
        return Document({}, places)
    if not isinstance(root, MappingNode):
        raise InputError(f"{_at(label, root)}: a mapping of keys to values is wanted")
    return Document(_value(yaml, root, (), label, places), places)


def parse_value(text: str, label: str) -> Any:
    """The one YAML value that `text` states, e.g. `0.05`, `true` or `[vllm]`."""
    data = parse(f"value: {text}", label).data
    if len(data) != 1:
        raise InputError(f"{label}: one value is wanted, not `{text}`")
    return data["value"]


def dump(data: dict[str, Any]) -> str:
    """YAML text of plain values, in their order."""
    readable = _dump(data, escape=False)
    # the emitter leaves line breaks of other scripts bare, where a reader takes them for its own
    return readable if readable.replace("\n", "").isprintable() else _dump(data, escape=True)


def _dump(data: dict[str, Any], *, escape: bool) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = not escape
    yaml.width = 1_000_000  # never fold: the emitter loses blanks where it does
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
    """Read lazily up to the first thing that is refused, so that no bomb is ever unfolded."""
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
        problem = getattr(error, "problem", None) or "not a character that YAML allows"
        raise InputError(f"{where}: {problem}") from None


def _refusal(event: Event) -> str:
    if isinstance(event, AliasEvent):
        return "an alias (`*`); use `extends`, or write it out"
    if getattr(event, "anchor", None):
        return "an anchor (`&`); use `extends`, or write it out"
    if isinstance(event, DocumentStartEvent) and (event.version or event.tags):
        return "a directive (`%`); recipes are YAML 1.2"
    if getattr(event, "tag", None):
        return "a tag (`!`); plain values are wanted"
    if isinstance(event, ScalarEvent) and event.value == "<<" and event.implicit[0]:
        return "a merge key (`<<`); use `extends`, or write it out"
    return ""


def _value(yaml: YAML, node: Node, path: Path, label: str, places: dict[Path, str]) -> Any:
    if isinstance(node, SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            places[(*path, index)] = _at(label, item)
            items.append(_value(yaml, item, (*path, index), label, places))
        return items
    if not isinstance(node, MappingNode):
        return _scalar(yaml, node)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        where = _at(label, key_node)
        if not isinstance(key_node, ScalarNode) or not _is(key_node, "str"):
            raise InputError(f"{where}: a key must be text; quote it if it is meant so")
        if key in result:
            raise InputError(f"{where}: key `{key}` is stated twice")
        places[(*path, key)] = where
        result[key] = _value(yaml, value_node, (*path, key), label, places)
    return result


def _scalar(yaml: YAML, node: Node) -> Any:
    if _is(node, "timestamp"):
        return node.value
    try:
        return yaml.constructor.construct_object(node)
    except ValueError:  # a number with thousands of digits
        return node.value


def _is(node: Node, kind: str) -> bool:
    return str(node.tag) == f"tag:yaml.org,2002:{kind}"


def _at(label: str, thing: Any) -> str:
    return f"{label}:{thing.start_mark.line + 1}:{thing.start_mark.column + 1}"
