"""Which blocks stay on the GPU and which lie in RAM or on disk, where a build does not fit.

As accelerate's device_map deals them out: in order, whole blocks, with room left on the GPU for the
largest block that has to be brought there.
"""

from quantkit.core.serving import Split
from quantkit.planning.model.weights import Build, PlannedModel, kind_bytes

ACHIEVED = 0.8
"""Part of a PCIe link's raw rate that copies from pinned memory reach."""
DISK = 5.5e9
"""Bytes a second that a PCIe 4.0 NVMe drive reads, of 7 GB/s raw."""


def split_blocks(
    model: PlannedModel, build: Build, room: int, ram: int | None, link: float | None
) -> Split | None:
    """The split for `room` bytes of weights on the GPU and `ram` of the host (None: enough).

    None where the room is too small for what lies around the blocks and the largest of them.

    `link` is the raw rate of the GPU's link to the host; without one there is no bound.
    """
    blocks, around = block_bytes(model, build)
    largest = max(blocks, default=0)
    if around + largest > room:
        return None
    places = {"GPU": 0, "RAM": 0, "disk": 0}
    held = {"GPU": around, "RAM": 0, "disk": 0}
    fits_whole = around + sum(blocks) <= room
    left = room - (0 if fits_whole else largest)
    place = "GPU"
    for size in blocks:
        if place == "GPU" and held["GPU"] + size > left:
            place = "RAM"
        if place == "RAM" and ram is not None and held["RAM"] + size > ram:
            place = "disk"
        places[place] += 1
        held[place] += size
    seconds = None
    if link:
        seconds = (held["RAM"] + held["disk"]) / (link * ACHIEVED) + held["disk"] / DISK
    return Split(places, held, seconds)


def block_bytes(model: PlannedModel, build: Build) -> tuple[list[int], int]:
    """Bytes of each block in order, and of all that lies around them."""
    blocks, around = [0] * len(model.architecture.layers), 0
    for kind in model.kinds:
        size = kind_bytes(build, kind)
        if kind.tensor.layer is None:
            around += size
        else:
            blocks[kind.tensor.layer] += size
    return blocks, around
