import hashlib
from dataclasses import replace
from typing import Any

import pytest

from quantkit.checkpoint.reader import open_checkpoint
from quantkit.core.errors import IntegrityError

NAME = "model-00001-of-00003.safetensors"


def test_a_file_is_hashed_once_as_long_as_it_stays_the_same(
    tiny_checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoint(shards=3, private=True)
    expected = hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
    assert open_checkpoint(folder).sha256(NAME) == expected
    monkeypatch.setattr("quantkit.checkpoint.hashes.sha256", lambda _: pytest.fail("read again"))
    assert open_checkpoint(folder).sha256(NAME) == expected


def test_a_file_that_changed_since_it_was_opened_has_no_hash(tiny_checkpoint: Any) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint(shards=3, private=True))
    older = replace(checkpoint.fingerprints[NAME], mtime_ns=1)
    stale = replace(checkpoint, fingerprints={**checkpoint.fingerprints, NAME: older})
    with pytest.raises(IntegrityError, match="changed while it was being read"):
        stale.sha256(NAME)
