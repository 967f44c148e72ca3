from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import load_tokenizer, tokenize
from quantkit.core.errors import InputError
from quantkit.eval.contamination import calibration_again
from quantkit.eval.overlap import GRAM, gram_hashes, gram_length, measure_overlap, without_overlap
from quantkit.eval.text import EvaluationText, ScoredDocument
from quantkit.model.embedded_model import FOLDER

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def text_of(windows: list[np.ndarray], documents: list[int]) -> EvaluationText:
    tokens = torch.tensor(np.stack(windows))
    count = max(documents) + 1
    return EvaluationText(
        tokens,
        spans=((0, tokens.shape[1] - 1),) * len(windows),
        clusters=tuple(documents),
        documents=tuple(ScoredDocument(f"prose-{i + 1}", "prose") for i in range(count)),
        vocabulary=50_000,
        vocabulary_sha256="",
        protocol={"name": "documents", "tokens_sha256": "", "windows": len(windows)},
    )


class Words:
    """Every token is a word of four letters and a blank."""

    def decode(self, ids: list[int]) -> str:
        return "word " * len(ids)


def random_ids(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.integers(0, 50_000, shape)


@given(IDS, IDS, st.integers(1, 5))
def test_covered_tokens_are_those_in_a_run_that_both_have(
    calibration: list[int], scored: list[int], gram: int
) -> None:
    known = {tuple(calibration[i : i + gram]) for i in range(len(calibration) - gram + 1)}
    covered = {
        place
        for i in range(len(scored) - gram + 1)
        if tuple(scored[i : i + gram]) in known
        for place in range(i, i + gram)
    }
    found = measure_overlap(np.array([calibration]), [[np.array(scored)]], gram)
    assert found.documents == (len(covered) / len(scored),)
    assert found.total == len(covered) / len(scored)


def test_a_million_runs_do_not_meet_by_chance() -> None:
    ids = np.random.default_rng(6).integers(0, 256, 1_000_000)
    hashes = gram_hashes(ids, GRAM)
    assert np.all(np.diff(np.sort(hashes)) > 0)


def test_two_random_texts_have_nothing_in_common_and_a_planted_run_is_found() -> None:
    generator = np.random.default_rng(0)
    calibration = random_ids(generator, 64, 2048)
    scored = [random_ids(generator, 513) for _ in range(8)]
    assert measure_overlap(calibration, [[ids] for ids in scored]).total == 0
    scored[3][100:160] = calibration[7, 500:560]
    scored[5][:12] = calibration[9, :12]  # one short of a run
    found = measure_overlap(calibration, [[ids] for ids in scored])
    assert found.documents[3] == 60 / 513
    assert sum(found.documents) == found.documents[3]


def test_a_million_tokens_take_less_than_three_seconds() -> None:
    calibration = random_ids(np.random.default_rng(1), 512, 2048)
    start = perf_counter()
    measure_overlap(calibration, [[calibration[i, :513] + 1] for i in range(512)])
    assert perf_counter() - start < 3


def test_documents_above_one_percent_are_left_out_and_named() -> None:
    generator = np.random.default_rng(2)
    calibration = random_ids(generator, 8, 512)
    windows = [random_ids(generator, 257) for _ in range(6)]
    windows[4][50:100] = calibration[2, 50:100]
    text = text_of(windows, [0, 1, 1, 2, 3, 3])
    left = without_overlap(text, calibration, Words())
    assert [document.id for document in left.documents] == ["prose-1", "prose-2", "prose-3"]
    assert left.clusters == (0, 1, 1, 2)
    assert torch.equal(left.tokens, text.tokens[:4])
    assert left.protocol["tokens_sha256"] != text.protocol["tokens_sha256"]
    assert (left.protocol["windows"], left.protocol["documents"]) == (4, 3)
    assert left.protocol["overlap_13gram_fraction"] == 0
    assert left.notes == ("seen in calibration, left out: prose-4 (10%)",)


def test_a_text_seen_in_calibration_is_refused_unless_allowed() -> None:
    calibration = random_ids(np.random.default_rng(3), 4, 257)
    text = text_of(list(calibration), [0, 1, 2, 3])
    with pytest.raises(InputError, match=r"100\.00% of the evaluation text"):
        without_overlap(text, calibration, Words())
    kept = without_overlap(text, calibration, Words(), allow=True)
    assert torch.equal(kept.tokens, text.tokens)
    assert kept.protocol["overlap_13gram_fraction"] == 1
    assert "prose-1 (100%)" in kept.notes[0]


def test_many_small_overlaps_are_an_error_too() -> None:
    generator = np.random.default_rng(4)
    calibration = random_ids(generator, 8, 2048)
    windows = [random_ids(generator, 2048) for _ in range(8)]
    for row, window in enumerate(windows):
        window[100:115] = calibration[row, 100:115]  # 0.7 % of each
    with pytest.raises(InputError, match="in many documents"):
        without_overlap(text_of(windows, list(range(8))), calibration, Words())


def test_nothing_in_common_changes_nothing_but_the_protocol() -> None:
    generator = np.random.default_rng(5)
    text = text_of([random_ids(generator, 65) for _ in range(3)], [0, 1, 2])
    left = without_overlap(text, random_ids(generator, 4, 65), Words())
    assert left.tokens is text.tokens
    assert left.notes == ()
    assert left.protocol["overlap_13gram_fraction"] == 0


def test_short_tokens_need_longer_runs() -> None:
    class Bytes:
        def decode(self, ids: list[int]) -> str:
            return "x" * len(ids)

    assert gram_length(Words(), range(100)) == GRAM
    assert gram_length(Bytes(), range(100)) == 51


def test_the_shipped_calibration_is_made_again_to_the_token() -> None:
    tokenizer = load_tokenizer(FOLDER)
    made = tokenize(read_documents("default"), tokenizer, 8, 128, "default")
    ledger = {"source": "default", "samples": 8, "sequence_length": 128}
    found, note = calibration_again(
        {"calibration": ledger | {"sha256": made.ledger.sha256}}, tokenizer
    )
    assert note is None
    assert found is not None
    assert np.array_equal(found, made.input_ids.numpy())
    assert "has changed" in str(calibration_again({"calibration": ledger}, tokenizer)[1])


@pytest.mark.parametrize(
    ("ledger", "reason"),
    [
        ({"source": "mine.jsonl", "samples": 1, "sequence_length": 8}, "not in the current folder"),
        ({"source": "org/name", "samples": 1, "sequence_length": 8}, "not downloaded again"),
        ({"source": "/etc/passwd", "samples": 1, "sequence_length": 8}, "not downloaded again"),
        (
            {"source": ["default"], "samples": 1, "sequence_length": 8},
            "does not name the calibration text",
        ),
        ({"source": "default", "samples": 1, "sequence_length": -8}, "leave no room for text"),
    ],
)
def test_unavailable_calibration_text_gives_a_note(
    ledger: dict[str, object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, note = calibration_again({"calibration": ledger}, load_tokenizer(FOLDER))
    assert found is None
    assert reason in str(note)


def test_an_artifact_of_others_says_nothing_of_calibration() -> None:
    assert calibration_again({}, load_tokenizer(FOLDER)) == (None, None)
