"""Reads the documents of a Parquet file in small batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.calibration.record import DOMAINS, FIELDS, Document, record_document
from quantkit.core.errors import InputError

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

BATCH_ROWS = 64
UNPACKED_BYTES = 1 << 30


def parquet_documents(path: Path) -> Iterator[Document]:
    """One document per row; reads only the columns that hold text.

    Raises:
        InputError: pyarrow is missing, or the file is damaged, has no text column, or decompresses
            to more than UNPACKED_BYTES in one row group.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path} requires the package pyarrow, which is not installed",
            hint='pip install "quantkit-deploy[parquet]"',
        ) from None
    row = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            columns = [name for name in file.schema_arrow.names if name in FIELDS]
            columns += [name for name in file.schema_arrow.names if columns and name in DOMAINS]
            if not columns:
                record_document(dict.fromkeys(file.schema_arrow.names), str(path))
            _check_size(file.metadata, path)
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                for record in batch.to_pylist():
                    row += 1
                    yield record_document(record, f"{path}, row {row}")
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} is not a readable Parquet file", why=reason) from None


def _check_size(metadata: "FileMetaData", path: Path) -> None:
    """Refuses decompression bombs: a file of kilobytes can decompress to terabytes."""
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if size > UNPACKED_BYTES:
            raise InputError(
                f"{path} decompresses to {size:,} bytes in row group {group}",
                why=f"the limit is {UNPACKED_BYTES:,} bytes",
                hint="use a file with smaller row groups, or a .jsonl extract",
            )
