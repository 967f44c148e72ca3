"""What a pretended device was asked, and what it holds, by line of quantkit."""

import math
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType

import torch

lock = threading.RLock()  # a tensor may go while another one is counted


@dataclass
class Counts:
    """What the device was asked, by line of quantkit (`file:line function`).

    `launches`: kernels; `waits`: of the host for the device; `to_device`, `to_host`: copies.
    """

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    to_device: Counter[str] = field(default_factory=Counter)
    to_host: Counter[str] = field(default_factory=Counter)

    def table(self, lines: int = 12) -> str:
        """The most frequent lines of each count, for people."""
        parts = []
        for name, found in vars(self).items():
            parts.append(f"{name}: {found.total():,}")
            parts += [f"{count:>10,}  {line}" for line, count in found.most_common(lines)]
        return "\n".join(parts)


@dataclass
class Held:
    """Bytes of the tensors on the device by storage and by line: now, and at the peak."""

    owners: Counter[int] = field(default_factory=Counter)
    now: int = 0
    peak: int = 0
    limit: float = math.inf
    lines: Counter[str] = field(default_factory=Counter)
    at_peak: Counter[str] = field(default_factory=Counter)
    makers: dict[int, str] = field(default_factory=dict)

    def take(self, storage: int, size: int) -> None:
        """A tensor was made that lies in a storage of `size` bytes.

        Raises:
            OutOfMemoryError: as on a GPU, if more than `limit` bytes were held with it.
        """
        with lock:
            if storage not in self.owners and self.now + size > self.limit:
                raise torch.OutOfMemoryError("the pretended device is out of memory")
            self.owners[storage] += 1
            if self.owners[storage] == 1:
                self.makers[storage] = line = line_of_quantkit()
                self.lines[line] += size
                self.now += size
                if self.now > self.peak:
                    self.peak, self.at_peak = self.now, self.lines.copy()

    def pass_by(self, size: int) -> None:
        """An operator used so many bytes for itself."""
        with lock:
            if self.now + size > self.peak:
                line = f"{line_of_quantkit()}, inside"
                self.peak, self.at_peak = self.now + size, self.lines + Counter({line: size})

    def leave(self, storage: int, size: int) -> None:
        """A tensor is gone."""
        with lock:
            self.owners[storage] -= 1
            if not self.owners[storage]:
                del self.owners[storage]
                self.lines[self.makers.pop(storage)] -= size
                self.now -= size

    def table(self, lines: int = 16) -> str:
        """What was held at the peak, in MB by the line that made it, for people."""
        most = self.at_peak.most_common(lines)
        return "\n".join(f"{size / 1e6:>10,.1f}  {line}" for line, size in most)


def line_of_quantkit() -> str:
    """The innermost line of quantkit that is running, or of a model's code, if none is."""
    frame: FrameType | None = sys._getframe(2)
    model = "?"
    while frame is not None:
        path = frame.f_code.co_filename
        for package in ("/quantkit/", "/eval/", "/cli/"):
            if package in path and "/tests/" not in path and "/transformers/" not in path:
                file = path.rsplit(package, 1)[1]
                return f"{package[1:]}{file}:{frame.f_lineno} {frame.f_code.co_name}"
        if model == "?" and "/transformers/models/" in path:
            model = f"{path.rsplit('/', 1)[1]}:{frame.f_lineno}"
        frame = frame.f_back
    return model
