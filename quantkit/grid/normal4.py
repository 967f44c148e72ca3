"""The NF4 grid: 16 quantiles of a normal distribution (QLoRA, arXiv 2305.14314, appendix E)."""

import torch

# float32 (16,), ascending; do not modify. Copied from bitsandbytes, which computes them with scipy:
# they must agree to the last bit. 0 is exact, hence 8 positive values and 7 negative ones.
NF4 = torch.tensor(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    dtype=torch.float32,
)
