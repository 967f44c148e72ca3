"""Builds `quantkit/calibration/text/default.jsonl` and `eval/smoke.jsonl`, byte for byte.

    python -m tools.calibration.build [FOLDER]

The calibration text is what `text/written/` holds plus generated documents of the stream
CALIBRATION; the smoke text is what `tools/calibration/evaluation/` holds plus generated documents
of the stream HELD_OUT. No run of RUN characters is in both.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from tools.embedded.generators import CALIBRATION, HELD_OUT, documents

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ROOT / "quantkit" / "calibration" / "text" / "written"
EVALUATION = ROOT / "tools" / "calibration" / "evaluation"

TOTAL_BYTES = 400_000

# Kind -> (generator, share of the bytes in per cent). Shares follow the usual mix of instructions
# with answers, running text, code, and the rest; a judgement, not a measurement.
KINDS = {
    "chat": ("dialogue", 32),
    "prose": ("narrative", 13),
    "essay": ("exposition", 14),
    "code": ("code", 16),
    "math": ("mathematics", 8),
    "howto": ("instructions", 5),
    "table": ("table", 2),
    "json": ("json", 2),
    "language": ("notes", 8),
}
ROLES = ("[system]", "[user]", "[assistant]")
SMOKE_GENERATED = 2
TRIED = 300  # some kinds are built from few sentences: none of theirs may be new
RUN = 50

Content = str | list[dict[str, str]]


@dataclass(frozen=True)
class Piece:
    """A document of the text, written or generated."""

    kind: str
    content: Content

    def line(self, key: str) -> str:
        """The JSON line, with the kind under `key`."""
        field = "text" if isinstance(self.content, str) else "messages"
        return json.dumps({key: self.kind, field: self.content}, ensure_ascii=False) + "\n"

    def size(self) -> int:
        """Bytes of UTF-8 without the JSON around them."""
        if isinstance(self.content, str):
            return len(self.content.encode())
        return sum(len(message["content"].encode()) for message in self.content)


def written(folder: Path) -> Iterator[Piece]:
    """Documents of the `.txt` files, by file name; each begins with a line `%%% kind`."""
    for path in sorted(folder.glob("*.txt")):
        for part in f"\n{path.read_text(encoding='utf-8')}".split("\n%%% ")[1:]:
            kind, _, text = part.partition("\n")
            yield Piece(kind, _turns(text) if kind == "chat" else text.strip("\n") + "\n")


def _turns(text: str) -> list[dict[str, str]]:
    """Messages of a chat whose turns begin with a line `[role]`."""
    messages: list[dict[str, str]] = []
    for line in text.strip("\n").split("\n"):
        if line in ROLES:
            messages.append({"role": line[1:-1], "content": ""})
        else:
            messages[-1]["content"] += line + "\n"
    return [{**message, "content": message["content"].strip("\n")} for message in messages]


def generated(kind: str, seed: int) -> Iterator[Piece]:
    """Endless documents of a kind of ours."""
    return (Piece(kind, doc.content) for doc in documents(seed, KINDS[kind][0]))


def calibration_text() -> str:
    """All documents, mixed so that any prefix has the kinds in their shares.

    Within a kind, written and generated documents alternate until the written ones are used up:
    whoever takes only the beginning gets the better half.
    """
    by_kind: dict[str, list[Piece]] = {kind: [] for kind in KINDS}
    for piece in written(WRITTEN):
        by_kind[piece.kind].append(piece)
    queues = {kind: _alternate(pieces, kind) for kind, pieces in by_kind.items()}
    sizes: Counter[str] = Counter()
    lines, taken = [], 0
    while sizes.total() < TOTAL_BYTES:
        kind = min(KINDS, key=lambda k: sizes[k] / KINDS[k][1])
        piece = next(queues[kind])
        sizes[kind] += piece.size()
        taken += piece in by_kind[kind]
        lines.append(piece.line("kind"))
    if taken != sum(map(len, by_kind.values())):
        raise ValueError("TOTAL_BYTES has no room for all that is written")
    return "".join(lines)


def _alternate(pieces: list[Piece], kind: str) -> Iterator[Piece]:
    extra = generated(kind, CALIBRATION)
    for piece in pieces:
        yield piece
        yield next(extra)
    yield from extra


def smoke_text(calibration: str) -> str:
    """The evaluation's default: every written document and a few generated ones of each kind.

    Generators repeat themselves; of theirs only what shares no run with the calibration text.
    """
    seen = {run for line in calibration.splitlines() for run in _runs(json.loads(line))}
    pieces = list(written(EVALUATION))
    for kind in KINDS:
        tried = islice(generated(kind, HELD_OUT), TRIED)
        new = (p for p in tried if seen.isdisjoint(_runs(json.loads(p.line("domain")))))
        pieces += islice(new, SMOKE_GENERATED)
    # By hash: no kind stands together, and a new document moves no other.
    pieces.sort(key=lambda piece: sha256(piece.line("domain").encode()).digest())
    return "".join(piece.line("domain") for piece in pieces)


def _runs(record: dict[str, Any]) -> Iterator[int]:
    """Hashes of all runs of RUN characters in a document."""
    for text in [record.get("text", ""), *(m["content"] for m in record.get("messages", ()))]:
        yield from (hash(text[i : i + RUN]) for i in range(len(text) - RUN + 1))


def main(folder: Path) -> None:
    """Writes both files below `folder` and says their sizes and hashes."""
    calibration = calibration_text()
    for name, text in (
        ("quantkit/calibration/text/default.jsonl", calibration),
        ("eval/smoke.jsonl", smoke_text(calibration)),
    ):
        data = text.encode()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        sys.stdout.write(f"{sha256(data).hexdigest()}  {name}  {len(data)} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
