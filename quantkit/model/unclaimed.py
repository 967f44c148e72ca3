"""Stored tensors that nothing of the model is read from: refused where they mean another model."""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.core.errors import RefusedError
from quantkit.core.format import KEY_SCALE, VALUE_SCALE
from quantkit.model.float_codes import OF_ACTIVATIONS
from quantkit.model.skeleton import Skeleton
from quantkit.model.weight_map import Place, WeightMap

PASSED_OVER = (
    r"rotary_emb\.inv_freq$",
    r"\.attn\.(attention\.)?(masked_)?bias$",
    r"\.attention\.(masked_)?bias$",
    r"\.attn\.causal_mask$",
)
"""Tensors that old files have and no model needs: buffers that are computed."""
NEUTRAL = ("bias", "weight_zero_point")
"""What changes nothing where it is 0 throughout, as old versions of AutoGPTQ write biases."""
_IN_LIST = re.compile(r"(.*?\.)(\d+)\.")


def unclaimed(
    skeleton: Skeleton,
    checkpoint: Checkpoint,
    weights: WeightMap,
    places: Iterable[Place | None],
    *,
    plain: bool,
) -> tuple[str, ...]:
    """Stored tensors that no place uses, and that lie outside of all that the model computes.

    Towers that a class leaves out are such, and layers that draft tokens. `plain`: no tensor is
    quantized.

    Raises:
        RefusedError: a tensor belongs to a module or block of the model, which has no place for it,
            or to a block beyond the last: without it the model is another one than was stored.
    """
    used = frozenset(name for place in places if place for name in place.names)
    names = _Names(skeleton, checkpoint, weights, used)
    left = []
    for name in names.left(plain=plain):
        if (owner := names.module(name)) is not None:
            if not names.is_neutral(name):
                raise _refused(checkpoint, name, f"`{owner}` has no place for it")
        elif (index := names.block(name)) is None:
            left.append(name)
        elif index < names.depth:
            raise _refused(checkpoint, name, f"the model's block {index} has no place for it")
        elif names.is_block(index):
            raise _refused(checkpoint, name, f"the model of config.json has {names.depth} blocks")
        else:
            left.append(name)
    return tuple(left)


def _refused(checkpoint: Checkpoint, name: str, why: str) -> RefusedError:
    info = checkpoint.names[name]
    return RefusedError(
        f"`{name}`, {info.dtype} {info.shape} in `{checkpoint.folder / info.shard}`, "
        "belongs to nothing that config.json describes",
        why=f"{why}, and computes something else than what is stored",
        hint="use the config.json that belongs to these weights, or merge or remove the tensor",
    )


class _Names:
    """The stored names of a model: `used` ones, and where the others lie."""

    def __init__(
        self, skeleton: Skeleton, checkpoint: Checkpoint, weights: WeightMap, used: frozenset[str]
    ) -> None:
        self._skeleton = skeleton
        self._checkpoint = checkpoint
        self._weights = weights
        self._used = used
        self.depth = len(skeleton.blocks)

    def left(self, *, plain: bool) -> Iterator[str]:
        """Names that are not used, and that the model's class does not know either."""
        ignored = getattr(self._skeleton.model, "_keys_to_ignore_on_load_unexpected", None)
        patterns = (*PASSED_OVER, *(ignored or ()))
        rules = self._skeleton.rules
        caches = (KEY_SCALE, VALUE_SCALE)  # an engine may be asked to use them
        known = caches if plain else (*caches, *OF_ACTIVATIONS)
        for name in sorted(self._checkpoint.names.keys() - self._used):
            if name.rpartition(".")[2] in known or passed_over(name, patterns):
                continue
            if rules.locate(name)[0] in rules.before:
                continue
            yield name

    def module(self, name: str) -> str | None:
        """The stored module without children that a tensor lies in or below."""
        words = name.split(".")
        paths = (".".join(words[:count]) for count in range(len(words) - 1, 0, -1))
        return next((path for path in paths if path in self._leaves), None)

    def block(self, name: str) -> int | None:
        """The number of the block that a tensor lies in, if it is in the list of blocks."""
        found = _IN_LIST.match(name)
        return int(found[2]) if found and found[1] in self._lists else None

    def is_block(self, index: int) -> bool:
        """Whether all tensors of a block beyond the last are those of the model's blocks."""
        return all(within in self._in_blocks for within in self._beyond[index])

    def is_neutral(self, name: str) -> bool:
        """Whether a tensor adds nothing to what its module computes."""
        if not name.endswith(tuple(f".{end}" for end in NEUTRAL)):
            return False
        return not bool(self._checkpoint.tensor(name).count_nonzero())

    @cached_property
    def _leaves(self) -> frozenset[str]:
        stored = self._weights.modules
        return frozenset(
            stored.get(path, path)
            for path, module in self._skeleton.model.named_modules()
            if path and not list(module.children()) and list(module.parameters(recurse=False))
        )

    @cached_property
    def _lists(self) -> frozenset[str]:
        """What stands before a block's number in stored names."""
        prefix = f"{self._skeleton.prefix}."
        places = self._weights.places.items()
        inside = (n for name, place in places if name.startswith(prefix) for n in place.names)
        return frozenset(found[1] for n in inside if (found := _IN_LIST.match(n)))

    @cached_property
    def _in_blocks(self) -> frozenset[str]:
        """The tensors of blocks, by their names there."""
        found = ((name, _IN_LIST.match(name)) for name in self._used)
        return frozenset(name[m.end() :] for name, m in found if m and m[1] in self._lists)

    @cached_property
    def _beyond(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for name in self._checkpoint.names:
            match = _IN_LIST.match(name)
            if match and match[1] in self._lists and int(match[2]) >= self.depth:
                found.setdefault(int(match[2]), set()).add(name[match.end() :])
        return found


def passed_over(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of some patterns is found in a name."""
    return any(re.search(pattern, name) for pattern in patterns)
