"""QTensors of floats that no weight was rounded to."""

import torch

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
    """Codes, uint8, with scales that can be stored, one a group: no NaN among either."""
    kind = getattr(torch, scheme.scale_dtype(str(dtype).removeprefix("torch.")))
    stored = torch.randint(1, 127, groups, generator=draw, dtype=torch.uint8)
    scales = stored if kind == torch.uint8 else stored.view(torch.float8_e4m3fn)
    if kind == dtype:
        scales = (torch.rand(groups, generator=draw) + 0.01).to(dtype)
    if scheme.bits == 8:
        codes[codes & 127 == 127] = 0  # no number
    return QTensor(
        codes,
        scales,
        None,
        scheme,
        global_scale=torch.tensor([2.0**7]) if scheme.grid == "nvfp4" else None,
        input_scale=torch.tensor([2.0**5]) if scheme.activation in STATIC else None,
    )
