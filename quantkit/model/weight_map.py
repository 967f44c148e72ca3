"""Where each tensor of a model lies in its checkpoint, by transformers' own conversion rules.

A checkpoint may name, cut and stack its tensors otherwise than the modules do. transformers has a
list of rules for each model (`get_model_conversion_mapping`): renamings of names, and converters,
which merge or split tensors. They are applied here to the names in the headers; the tensors follow
one group at a time.
"""

import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from quantkit.checkpoint.dtypes import TORCH_DTYPES
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError
from quantkit.model.experts import Fused
from quantkit.model.repeats import repeats_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Read = Callable[..., torch.Tensor]
"""Reads a stored tensor by its name, or of its first dimension one item or a slice of them."""


@dataclass(frozen=True, eq=False)
class Conversion:
    """A converter of transformers for one group: stored names by pattern -> the model's tensors."""

    rule: Any
    target: str
    sources: Mapping[str, tuple[str, ...]]
    rules: "Rules"

    def run(self, read: Read) -> dict[str, torch.Tensor]:
        """The tensors by name; stored ones are read now."""
        rule = copy.deepcopy(self.rule)
        for pattern, names in self.sources.items():
            for name in names:
                rule.add_tensor(self.target, name, pattern, read(name))
        model = Unsplit(self.rules)
        found = rule.convert(self.target, model=model, config=self.rules.model.config)
        return {n: t[0] if isinstance(t, list) else t for n, t in found.items()}


class Unsplit:
    """The model as converters ask about it: with the parameters of experts that were split."""

    def __init__(self, rules: "Rules") -> None:
        self._rules = rules

    def get_parameter(self, name: str) -> torch.Tensor:
        """Tensor `name` of the model before `split_experts`, on the meta device."""
        return self._rules.before[name]  # type: ignore[no-any-return]  # a state dict

    def __getattr__(self, name: str) -> Any:
        """Everything else is the model's."""
        return getattr(self._rules.model, name)


Convert = Callable[[Conversion], Mapping[str, torch.Tensor]]
"""Runs a conversion; many linears may need the result of one."""


@dataclass(frozen=True)
class Place:
    """Where a tensor of the model lies: in the stored tensors `names`, and how.

    Without `conversion` and `fused` it is the one stored tensor. `conversion` makes tensor `whole`
    of them first. `fused` cuts out the part of `expert` at place `role`. `whole_shape` is that of
    the tensor before the cut. `alone` names the tensor in an artifact that stores it by itself.
    """

    names: tuple[str, ...]
    whole: str = ""
    whole_shape: tuple[int, ...] = ()
    conversion: Conversion | None = None
    fused: Fused | None = None
    expert: int = 0
    role: int = 0
    alone: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it is a stored tensor as it is."""
        return self.conversion is None and self.fused is None

    def shape(self, stored: Mapping[str, TensorInfo]) -> tuple[int, ...]:
        """The tensor's shape, by the headers."""
        if self.fused is None:
            return self.whole_shape if self.conversion else stored[self.names[0]].shape
        count, *item_shape = self.fused.stack(self.whole_shape or (0,))
        if count != self.fused.count or len(item_shape) != 1 + (self.fused.tensor == "weight"):
            return self.whole_shape  # of no model with these experts: told as such
        item = torch.empty(item_shape, device="meta")
        return tuple(self.fused.part(item, self.role).shape)

    def tensor(self, read: Read, convert: Convert) -> torch.Tensor:
        """The tensor in the module's shape and the stored dtype."""
        if self.conversion is not None:
            whole = convert(self.conversion)[self.whole]
            if self.fused is None:
                return whole.clone()  # the caller may modify it
            return self.fused.part(whole[self.fused.item(self.expert, len(whole))], self.role)
        if self.fused is None:
            return read(self.names[0])
        item = self.fused.item(self.expert, self.whole_shape[0])
        return self.fused.part(read(self.names[0], item), self.role)


@dataclass(frozen=True)
class WeightMap:
    """Tensors of the model by name -> their places in the checkpoint.

    An artifact keeps the stored names. Linears that are stored merged with others are written by
    themselves: those of fused experts beside the fused parameter, all others under the model's
    names. `unused` names stored tensors that the model's class has no place for. `repeats`: modules
    with the stored tensors of others, by path.
    """

    places: Mapping[str, Place]
    unused: tuple[str, ...]
    repeats: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """The name of each module in the checkpoint and its artifacts."""
        return {
            name.rpartition(".")[0]: self.stored_as(name).rpartition(".")[0] for name in self.places
        }

    @cached_property
    def holders(self) -> Mapping[str, str]:
        """The name of each module that holds some of those."""
        found: dict[str, str] = {}
        for here, there in self.modules.items():
            (path, _, last), (stored, _, end) = here.rpartition("."), there.rpartition(".")
            while path and last == end:
                found.setdefault(path, stored)
                (path, _, last), (stored, _, end) = path.rpartition("."), stored.rpartition(".")
        return found

    @cached_property
    def cut(self) -> Mapping[str, tuple[str, ...]]:
        """Stored tensors that are converted or hold those of many linears -> the model's names.

        Of several stored tensors that are converted together the first one stands for all.
        """
        found: dict[str, list[str]] = {}
        for name, place in self.places.items():
            if not place.is_plain and name.rpartition(".")[0] not in self.repeats:
                found.setdefault(place.names[0], []).append(name)
                for other in place.names[1:]:
                    found.setdefault(other, [])
        return {name: tuple(parts) for name, parts in found.items()}

    def stored_as(self, name: str) -> str:
        """The name of a model's tensor in an artifact: the stored one, if it is stored as it is."""
        place = self.places[name]
        return place.names[0] if place.is_plain else place.alone or self._original(name)

    def module(self, path: str) -> str:
        """The path of a module, or of the one that it repeats."""
        return self.repeats.get(path, path)

    def places_of(self, path: str) -> tuple[str, ...]:
        """The paths of all modules with the tensors of a module that is repeated; else none."""
        first = self.module(path)
        again = tuple(here for here, there in self.repeats.items() if there == first)
        return (first, *again) if again else ()

    def _original(self, name: str) -> str:
        path = _owner(name, self.repeats)
        return f"{self.repeats[path]}{name[len(path) :]}" if path else name


@dataclass(frozen=True)
class Rules:
    """transformers' rules for a model: `renamings` of names first, then one of `converters`.

    `before` has the names of the model's tensors before `split_experts`, `fused` what that split.
    """

    model: "PreTrainedModel"
    renamings: tuple[Any, ...]
    converters: tuple[Any, ...]
    before: Mapping[str, Any]
    fused: tuple[Fused, ...] = ()

    def locate(self, stored: str) -> tuple[str, str | None]:
        """Transformers' name of a stored tensor, and the pattern of the converter that takes it."""
        from transformers.core_model_loading import rename_source_key

        prefix = self.model.base_model_prefix
        found: tuple[str, str | None] = rename_source_key(
            stored, list(self.renamings), list(self.converters), prefix, self.before
        )
        return (stored, None) if found[0] not in self.before and stored in self.before else found

    def converter(self, pattern: str) -> Any:
        """The converter with a source pattern."""
        return next(rule for rule in self.converters if pattern in rule.source_patterns)


def rules_of(model: "PreTrainedModel") -> Rules:
    """Transformers' conversion rules for a model whose experts are not split yet."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    found = get_model_conversion_mapping(model)
    converters = tuple(rule for rule in found if isinstance(rule, WeightConverter))
    renamings = tuple(rule for rule in found if not isinstance(rule, WeightConverter))
    return Rules(model, renamings, converters, model.state_dict(keep_vars=True))


def map_weights(rules: Rules, stored: Mapping[str, TensorInfo]) -> WeightMap:
    """The places of all tensors of a model in a checkpoint with the tensors `stored`.

    Tensors of quantized linears are found by the name of their weight: `X.qweight` lies where
    `X.weight` would.

    Raises:
        InputError: two stored tensors are one of the model's, or some do not fit together.
    """
    rules = replace(rules, renamings=copy.deepcopy(rules.renamings))  # some remember what they saw
    now = set(rules.model.state_dict(keep_vars=True))
    fused = {each.name: each for each in rules.fused}
    places: dict[str, Place] = {}
    groups: dict[str, dict[str, list[str]]] = {}
    unused = []
    for name in sorted(stored, key=_natural):
        target, pattern = rules.locate(name)
        if pattern is not None and target in rules.before:
            groups.setdefault(target, {}).setdefault(pattern, []).append(name)
        elif target in fused:
            whole = Place((name,), whole_shape=stored[name].shape)
            _add(places, _parts(rules, fused[target], whole))
        elif target in now:
            _add(places, [(target, Place((name,)))])
        elif quantized := _quantized(rules, name, now, fused):
            _add(places, [(quantized, Place((name,)))])
        else:
            unused.append(name)
    for target, sources in groups.items():
        count = fused[target].count if target in fused else len(rules.before[target])
        stacks = _only_stacks(rules.converter(next(iter(sources))))
        if stacks and count < len(rules.before[target]):  # LongCat's experts without a product
            unused += [name for names in sources.values() for name in names[count:]]
            for names in sources.values():
                del names[count:]
        _add(places, _converted(rules, target, sources, stored, fused))
    held = {name.rpartition(".")[0] for name in places}
    repeats = {here: there for here, there in repeats_of(rules.model).items() if here not in held}
    return WeightMap(places | dict(_repeated(places, repeats)), tuple(unused), repeats)


def _add(places: dict[str, Place], found: Iterable[tuple[str, Place]]) -> None:
    for name, place in found:
        if name in places:
            raise InputError(
                f"`{places[name].names[0]}` and `{place.names[0]}` are both `{name}` of the model",
                why="transformers' rules lead from either name to it, and engines may load either",
                hint="remove one of the two from the checkpoint",
            )
        places[name] = place


def _repeated(
    places: Mapping[str, Place], repeats: Mapping[str, str]
) -> Iterator[tuple[str, Place]]:
    """The places of the tensors of modules that repeat others."""
    again: dict[str, list[str]] = {}
    for here, there in repeats.items():
        again.setdefault(there, []).append(here)
    for name, place in places.items():
        path = _owner(name, again)
        for here in again.get(path, ()):
            yield f"{here}{name[len(path) :]}", place


def _owner(name: str, modules: Collection[str]) -> str:
    """Which of some modules a tensor is of, or none; parts of a weight have dots in their names."""
    path = name if modules else ""
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return path


def _natural(name: str) -> list[tuple[int, int, str]]:
    from transformers.core_model_loading import dot_natural_key

    return dot_natural_key(name)  # type: ignore[no-any-return]


def _parts(rules: Rules, fused: Fused, whole: Place) -> Iterator[tuple[str, Place]]:
    """The places of all linears' tensors in a fused parameter.

    They are named beside what is stored, `experts.gate_up_proj` -> `experts.7.gate_proj.weight`,
    unless transformers would not find the model's linear under that name.
    """
    beside = whole.names[0].rpartition(".")[0]
    for name, expert, role in fused.parts():
        alone = f"{beside}.{name.removeprefix(fused.experts + '.')}"
        if (expert, role) == (0, 0) and rules.locate(alone)[0] != name:
            beside = fused.experts
            alone = name
        yield name, replace(whole, fused=fused, expert=expert, role=role, alone=alone)


def _quantized(rules: Rules, stored: str, now: set[str], fused: Mapping[str, Fused]) -> str | None:
    """The model's name of a tensor of a quantized linear, such as `X.qweight`; None of others."""
    match = re.fullmatch(r"(.+?)\.(weight\..+|[^.]+)", stored)
    if match is None:
        return None
    linear, suffix = match.groups()
    target, pattern = rules.locate(f"{linear}.weight")
    if pattern is None and target in now:
        return f"{target.removesuffix('.weight')}.{suffix}"
    found, number = fused.get(target), re.search(r"\.(\d+)\.[^.]+$", linear)
    if pattern is None or found is None or number is None:  # it may be written under its own name
        return stored if f"{linear}.weight" in now else None
    role = found.roles[rules.converter(pattern).source_patterns.index(pattern)]
    return f"{found.experts}.{number[1]}.{role}.{suffix}"


def _converted(
    rules: Rules,
    target: str,
    sources: Mapping[str, Sequence[str]],
    stored: Mapping[str, TensorInfo],
    fused: Mapping[str, Fused],
) -> Iterator[tuple[str, Place]]:
    """The places of what one converter makes of stored tensors."""
    rule = rules.converter(next(iter(sources)))
    experts = fused.get(target)
    if experts is not None and _is_one_each(rule, experts, sources):
        for role, pattern in zip(experts.roles, rule.source_patterns, strict=True):
            names = sources.get(pattern, ())
            whole = len(names) == experts.count
            for expert, name in enumerate(names) if whole else _numbered(names):
                yield f"{experts.experts}.{expert}.{role}.{experts.tensor}", Place((name,))
        return
    named = {pattern: tuple(names) for pattern, names in sources.items()}
    conversion = Conversion(rule, target, named, rules)
    every = tuple(name for names in named.values() for name in names)
    try:
        found = conversion.run(lambda n: _meta(stored[n]))
    except Exception as error:  # an operation fails in its own way where shapes do not fit
        raise InputError(
            f"`{every[0]}` and the tensors beside it do not fit together as `{target}`",
            why=str(error).partition("\n")[0],
            hint="fetch the model again, with the config.json that belongs to its weights",
        ) from error
    for name, made in found.items():
        place = Place(every, name, tuple(made.shape), conversion)
        yield from _parts(rules, fused[name], place) if name in fused else [(name, place)]


def _is_one_each(rule: Any, experts: Fused, sources: Mapping[str, Sequence[str]]) -> bool:
    """Whether a converter only stacks experts that are stored one by one, in the linears' shape.

    In an artifact some of them, or of their matrices, may be quantized and stored otherwise.
    """
    return (
        _only_stacks(rule)
        and not experts.transposed
        and not experts.interleaved
        and set(sources) <= set(rule.source_patterns)
        and len(rule.source_patterns) == len(experts.roles)
        and all(len(names) <= experts.count for names in sources.values())
    )


def _numbered(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Names of experts' tensors with the experts' numbers."""
    for name in names:
        if number := re.search(r"\.(\d+)\.[^.]+\.[^.]+$", name):
            yield int(number[1]), name


def _only_stacks(rule: Any) -> bool:
    """Whether a converter makes one parameter of experts that are stored one by one."""
    kinds = [type(operation).__name__ for operation in rule.operations]
    return kinds in (["MergeModulelist"], ["MergeModulelist", "Concatenate"])


def _meta(info: TensorInfo) -> torch.Tensor:
    return torch.empty(info.shape, dtype=TORCH_DTYPES[info.dtype], device="meta")
