"""Reads documents from the bundled text, files, folders or a hub dataset.

A `.txt` file is one document; a long one is split about every BLOCK_BYTES, at a blank line. Module
`record` describes the records of the other file types.
"""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from quantkit.calibration import hub
from quantkit.calibration.parquet import parquet_documents
from quantkit.calibration.record import Document, record_document
from quantkit.checkpoint import strict_json
from quantkit.core.errors import InputError, IntegrityError

DEFAULT = Path(__file__).with_name("text") / "default.jsonl"
DEFAULT_SHA256 = "1abe1e6626036609bd13419c92f26a85f46cafa8a6be8b64756557bbbd73f51b"

SUFFIXES = (".txt", ".jsonl", ".parquet")
LINE_BYTES = 2 << 20
"""Of a line, and so of a document: tokenizers take 200 bytes of memory for each of its bytes."""
BLOCK_BYTES = 64 << 10
TOTAL_CHARACTERS = 1 << 30
BLANK_CHARACTERS = 4 << 20
MINIMUM_COST = 64  # characters counted for any record: empty ones must reach the limit, too


def read_documents(source: str) -> Iterator[Document]:
    """The documents of `source`, in its order, read lazily.

    `source`: "default"; a .txt, .jsonl or .parquet file; a folder, whose files of these types are
    read, sorted by path; or a hub dataset `org/name[:config][@revision]` (its split "train", or its
    first), streamed.

    Raises:
        InputError: the source does not exist, is blank or has more than TOTAL_CHARACTERS, or a
            file is not of the type that its suffix states (the message names file and line).
        IntegrityError: the bundled text was modified.
        HubError: the dataset cannot be read.
    """
    spent = blank = 0
    nothing = True
    for document in _open(source):
        nothing = False
        spent += max(document.size(), MINIMUM_COST)
        if spent > TOTAL_CHARACTERS:
            raise InputError(
                f"`{source}` has more than {TOTAL_CHARACTERS:,} characters",
                why=f"reading stopped at {document.source}",
                hint="use a smaller extract; calibration rarely needs more than 2 MB",
            )
        blank += 0 if document.is_told() else max(document.size(), MINIMUM_COST)
        if blank > max(BLANK_CHARACTERS, spent // 2):
            raise InputError(
                f"`{source}` is blank for the most part",
                why=f"reading stopped at {document.source}",
                hint="use another text",
            )
        yield document
    if nothing:
        raise InputError(f"`{source}` contains no documents", hint="`default`, the bundled text")


def _open(source: str) -> Iterator[Document]:
    path = Path(source)
    if source == "default":
        return _default()
    if path.is_dir():
        return (document for file in _files(path) for document in _read(file))
    if path.is_file() and path.suffix in SUFFIXES:
        return _read(path)
    if path.exists():
        raise InputError(
            f"cannot read `{source}` as calibration text",
            why=f"supported: {', '.join(SUFFIXES)} files and folders of them",
            hint="save plain text as a .txt file",
        )
    if hub.is_dataset_id(source):
        return hub.dataset_documents(source)
    raise InputError(
        f"`{source}` is neither a file or folder nor a hub dataset id such as org/name",
        hint="use `default`, or the path of a .txt, .jsonl or .parquet file",
    )


def _default() -> Iterator[Document]:
    data = DEFAULT.read_bytes()
    found = sha256(data).hexdigest()
    if found != DEFAULT_SHA256:
        raise IntegrityError(
            "the bundled calibration text has been modified",
            why=f"sha256 {found}, expected {DEFAULT_SHA256}",
            hint="reinstall quantkit, or pass a file of your own with --calibration",
        )
    for number, line in enumerate(data.splitlines(), 1):
        yield _line_document(line, f"default:{number}")


def _files(folder: Path) -> list[Path]:
    """Files to read, sorted by path, without hidden ones; refuses links out of the folder."""
    found = []
    inside = folder.resolve()
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(root, n) for n in names if not n.startswith(".")):
            if path.suffix not in SUFFIXES:
                continue
            if not path.resolve().is_relative_to(inside):
                raise InputError(
                    f"`{path}` is a symbolic link out of the folder", hint=str(path.resolve())
                )
            if path.is_file():
                found.append(path)
    if not found:
        raise InputError(
            f"`{folder}` contains no text", why=f"looked for {', '.join(SUFFIXES)} files"
        )
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _read(path: Path) -> Iterator[Document]:
    if path.suffix == ".parquet":
        return parquet_documents(path)
    return _jsonl(path) if path.suffix == ".jsonl" else _text(path)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines with their line ends, up to LINE_BYTES each, without a byte order mark."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            if len(line) > LINE_BYTES:
                raise InputError(f"{path}, line {number} is longer than {LINE_BYTES:,} bytes")
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _jsonl(path: Path) -> Iterator[Document]:
    for number, line in _lines(path):
        if line.strip():
            yield _line_document(line, f"{path}, line {number}")


def _line_document(line: bytes, where: str) -> Document:
    try:
        record = strict_json.loads(line, max_bytes=LINE_BYTES)
    except ValueError as error:
        raise InputError(f"{where} {error}") from None
    return record_document(record, where)


def _text(path: Path) -> Iterator[Document]:
    block: list[str] = []
    size = start = 0
    for number, line in _lines(path):
        if (size >= BLOCK_BYTES and not line.strip()) or size + len(line) > LINE_BYTES:
            yield Document("".join(block), None, f"{path}, line {start}")
            block, size = [], 0
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {number} is not UTF-8 at byte {error.start}",
                hint=f"iconv -f latin1 -t utf-8 {path.name}",
            ) from None
        start = start if block else number
        block.append(text)
        size += len(line)
    if block:
        yield Document("".join(block), None, f"{path}, line {start}")
