"""Statistics of an expert that few calibration tokens were sent to.

The Hessian of fewer tokens than channels has no full rank, and that of a few times as many is noise
in part. It is shrunk towards one that is better known, which weighs as much as one token a channel:
where all experts read the same inputs that of all tokens of the layer, and in any case one that
knows no direction. Own tokens outweigh it as they grow in number.
"""

from dataclasses import replace

import torch

from quantkit.stats.inputs import InputStats

ENOUGH = 4
"""Own tokens per channel from which on an expert needs no shrinkage."""


def known_enough(own: InputStats | None, layer: InputStats | None = None) -> InputStats | None:
    """The statistics that an expert is solved with: its `own` where they suffice, else shrunk.

    None where there are none: such an expert is rounded to nearest.
    """
    if own is not None and own.tokens >= ENOUGH * len(own.absmax):
        return own
    return shrunk(own, layer)


def shrunk(own: InputStats | None, layer: InputStats | None = None) -> InputStats | None:
    """The `own` statistics of an expert, or those of all tokens of its layer, shrunk.

    With d channels and n tokens, H + d / (n' + d) H' where H' are those of the `layer`, shrunk, and
    H + d / n mean(diag H) I without them. None without any.
    """
    if own is None:
        return None if layer is None else shrunk(layer)
    width, hessian = len(own.absmax), own.hessian.clone()
    if layer is None:
        hessian.diagonal().add_(width / own.tokens * hessian.diagonal().mean())
        return replace(own, hessian=hessian)
    target = shrunk(layer)
    assert target is not None
    return replace(
        own,
        hessian=hessian.add_(target.hessian, alpha=width / (layer.tokens + width)),
        absmax=torch.maximum(own.absmax, layer.absmax),
        sample=torch.cat([own.sample, layer.sample]),
    )
