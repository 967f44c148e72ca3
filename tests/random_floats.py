"""QTensors of grids without zero points that no weight was rounded to."""

import torch

from quantkit.core.grid import rounding_of
from quantkit.core.scheme import Scheme
from quantkit.grid.activation import STATIC
from quantkit.grid.qtensor import QTensor


def random_floats(
    scheme: Scheme,
    codes: torch.Tensor,
    groups: tuple[int, int],
    draw: torch.Generator,
    dtype: torch.dtype,
) -> QTensor:
    """Codes, uint8, with scales that the grid can store, one a group; codes of no number become 0.

    dtype: that of the model.
    """
    kind = getattr(torch, scheme.scale_dtype(str(dtype).removeprefix("torch.")))
    grid = rounding_of(scheme, kind, [torch.randn(4, 4, generator=draw)])
    scales = torch.exp2(torch.randn(groups, generator=draw) * 4 - 8)
    found = QTensor(
        codes,
        grid.stored(grid.storable(scales)),
        None,
        scheme,
        global_scale=grid.global_scale,
        input_scale=torch.tensor([2.0**5]) if scheme.activation in STATIC else None,
    )
    codes[~torch.isfinite(found.dequantize())] = 0
    return found
