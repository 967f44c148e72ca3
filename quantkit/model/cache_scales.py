"""The scales of a KV cache that a checkpoint stores beside the weights of each attention."""

from collections.abc import Mapping
from math import inf

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.core.errors import InputError
from quantkit.core.format import KEY_SCALE, VALUE_SCALE
from quantkit.grid.kv_cache import CacheScales

SCALES = (KEY_SCALE, VALUE_SCALE)
REMEDY = "quantize again, or remove `kv_cache_scheme` from config.json"


def read_scales(checkpoint: Checkpoint, holders: Mapping[str, str]) -> dict[str, CacheScales]:
    """The stored scales, by the path of the attention in the model; `holders` as in `WeightMap`.

    Raises:
        InputError: there are none, one of a pair is missing, or one is no positive number.
    """
    found = {
        path: CacheScales(*(_scale(checkpoint, f"{stored}.{name}") for name in SCALES))
        for path, stored in holders.items()
        if {f"{stored}.{name}" for name in SCALES} & checkpoint.names.keys()
    }
    if not found:
        raise InputError(
            f"`{checkpoint.folder}` has no scales of its KV cache",
            why="its config.json says that keys and values are cached in 8 bits",
            hint=REMEDY,
        )
    return found


def _scale(checkpoint: Checkpoint, name: str) -> float:
    info = checkpoint.names.get(name)
    if info is None:
        raise InputError(f"`{name}` is not in `{checkpoint.folder}`", hint=REMEDY)
    if info.dtype not in ("F32", "F16", "BF16") or info.shape not in ((), (1,)):
        raise InputError(
            f"`{name}` is {info.dtype} {info.shape}",
            why="a float of shape (1,) is expected",
            hint=REMEDY,
        )
    scale = checkpoint.tensor(name).item()
    if not 0 < scale < inf:
        what = f"`{name}` contains {scale}"
        raise InputError(what, why="a scale is a positive number", hint=REMEDY)
    return scale
