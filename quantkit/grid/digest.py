"""A hash of a quantized weight that does not depend on the format it is stored in."""

import hashlib

import torch

from quantkit.grid.qtensor import QTensor
from quantkit.grid.transfer import to_host


def codes_sha256(qtensor: QTensor) -> str:
    """SHA-256 of what `dequantize` computes the weight from: codes, scales and zero points.

    Codes are hashed a byte each in their natural order, scales as fp32 (those of 8 bits as they
    are), zero points a byte each also where the scheme implies them. So equal hashes mean equal
    weights, in every dtype and on every device, and a weight has one hash in all formats that can
    hold it. The reverse does not hold: codes under a scale of 0 and signs of zeros count, though
    they change no weight.
    """
    scheme, scales, zeros = qtensor.scheme, qtensor.scales, qtensor.zeros
    parts = {"codes": qtensor.codes, "scales": scales.float() if scales.itemsize > 1 else scales}
    grid: str = scheme.grid
    if scheme.storage.flattened:
        grid += f" in blocks of {scheme.group_size or qtensor.codes.numel()}"
    elif not scheme.storage.zero_points:
        grid += f" {scheme.spread}"
    elif zeros is None:
        parts["zeros"] = torch.full_like(scales, 1 << (scheme.bits - 1), dtype=torch.uint8)
    else:
        parts["zeros"] = zeros
    if qtensor.global_scale is not None:
        parts["global scale"] = qtensor.global_scale
    found = hashlib.sha256(f"{grid}\n".encode())
    for name, part in parts.items():
        dtype = str(part.dtype).removeprefix("torch.")
        found.update(f"{name} {dtype} {list(part.shape)}\n".encode())
        found.update(to_host(part.contiguous().reshape(-1).view(torch.uint8)).numpy().data)
    return found.hexdigest()
