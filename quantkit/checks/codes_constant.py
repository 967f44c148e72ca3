"""All codes of a weight, or all of its packed words, are the same."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import StoredWeight


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The one code, or the one value of a weight that is decoded."""
    seen = weight.qtensor.codes if weight.qtensor is not None else weight.dense
    if seen is None or seen.numel() < 2:
        return
    first = seen.flatten()[0]
    if bool((seen[0] != first).any()) or bool((seen != first).any()):
        return
    found = weight.whole.codes if weight.whole is not None else seen
    if bool((found != first).any()):
        return
    yield Fault(weight.name, f"all {found.numel():,} codes of `{weight.name}` are {first.item():g}")


CHECK = Check("weights", "all codes of a weight are equal", "quantize the linear again", find, 1)
