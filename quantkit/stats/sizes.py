"""Bytes of the statistics of a group's inputs, known without torch."""

FP32 = 4
CHUNK = 2048
"""Tokens of one product; sums of chunks are rounded, so it is part of the result."""
SAMPLE = 1024
"""At least this many tokens are kept as they were, and fewer than twice as many."""
ALIGN = 64
"""Products in fp32 whose sides are multiples of it are alike for any number of threads."""


def statistics_bytes(inputs: int, itemsize: int, models: int = 1) -> tuple[int, int]:
    """Bytes while the statistics of `inputs` channels are gathered, and once they are complete.

    `itemsize`: bytes of a number of the inputs themselves. `models`: 2 if they are compared with
    those of the original model.
    """
    padded = -(-inputs // ALIGN) * ALIGN
    sample = 2 * SAMPLE * inputs * itemsize
    gathering = models * FP32 * padded * (padded + CHUNK) + sample
    return gathering, models * FP32 * inputs**2 + sample


def sampled(tokens: int) -> int:
    """How many of so many tokens a sample keeps: every n-th, where n is a power of two."""
    stride = 1
    while -(-tokens // stride) >= 2 * SAMPLE:
        stride *= 2
    return -(-tokens // stride)
