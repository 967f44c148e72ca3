"""Streams the documents of a dataset on the hub."""

import re
from collections.abc import Iterator

from quantkit.calibration.record import Document, record_document
from quantkit.core.errors import HubError, QuantkitError

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_DATASET_ID = re.compile(rf"({_NAME}/{_NAME})(?::([A-Za-z0-9._-]+))?(?:@([A-Za-z0-9._/-]+))?")


def is_dataset_id(source: str) -> bool:
    """Whether `source` has the form `org/name[:config][@revision]`."""
    return _DATASET_ID.fullmatch(source) is not None


def dataset_documents(source: str) -> Iterator[Document]:
    """One document per row of the split "train", or of the first split if there is no "train".

    Raises:
        HubError: the package `datasets` is missing, or the dataset cannot be read.
    """
    match = _DATASET_ID.fullmatch(source)
    if match is None:
        raise ValueError(source)
    name, config, revision = match.groups()
    try:
        import datasets
    except ImportError:
        raise HubError(
            f"the dataset `{source}` requires the package datasets, which is not installed",
            hint='pip install "quantkit-deploy[datasets]", or use a local file',
        ) from None
    try:
        splits = datasets.load_dataset(name, config, revision=revision, streaming=True)
        rows = splits["train"] if "train" in splits else next(iter(splits.values()))
        for number, row in enumerate(rows, 1):
            yield record_document(row, f"{source}, row {number}")
    except QuantkitError:
        raise
    except Exception as error:  # five libraries raise here, without a common base class
        raise HubError(
            f"cannot read the dataset `{source}`",
            why=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
            hint="use a local file, or `default`, which needs no network",
        ) from error
