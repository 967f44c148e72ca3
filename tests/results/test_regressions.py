"""Equal reruns against their baseline: real evaluations, and real timings drawn again."""

import random
import statistics
from pathlib import Path

import pytest

from quantkit.calibration.tokens import load_tokenizer
from quantkit.checkpoint.stored import Source
from quantkit.eval.side_by_side import evaluate_models, read_reference
from quantkit.eval.subject import describe
from quantkit.eval.text import TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.model.open import open_model
from quantkit.results.decision import missed
from quantkit.results.gates import judge
from quantkit.results.schema import EvalResult, LocalSpeed, Speed, Subject

RERUNS = 20
REPEATS = 20


@pytest.mark.long
def test_twenty_equal_evaluations_never_fail_and_a_worse_one_does(
    embedded_w4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = read_text(
        TextChoice(str(HELDOUT), sequence_length=64, windows=16), load_tokenizer(FOLDER)
    )
    original = Subject(name="embedded", sha256="the same")
    reference = read_reference(open_model(FOLDER), text, original)
    model = open_model(embedded_w4)
    subject = describe(Source(embedded_w4), model.checkpoint)
    old = evaluate_models(model, text, reference, subject)
    for run in range(RERUNS):
        # Matrices of another shape are rounded otherwise, as by another machine.
        monkeypatch.setattr("quantkit.model.opened.TOKENS_PER_BATCH", (2048, 512)[run % 2])
        new = evaluate_models(open_model(embedded_w4), text, reference, subject)
        outcomes = judge((), new, old)
        assert {outcome.status for outcome in outcomes} == {"passed"}
        assert not missed(outcomes, "fail")
    assert old.kl is not None
    worse = [1.03 * s for s in old.documents.sum_kl_nats]
    documents = old.documents.model_copy(update={"sum_kl_nats": worse})
    found = judge((), old.model_copy(update={"documents": documents}), old)
    assert [o.expression for o in found if o.status == "failed"] == ["kl.mean <= baseline"]
    assert missed(found)


def times(text: str) -> list[float]:
    return [float(one) for one in text.split()]


CROWDED = times("""
17823 7841 1345 1348 25778 11965 1335 1337 20665 1456 1319 25993 1320 1366 21825 1368 21781
1332 1333 19453 17824 11723 1373 1325 21916 1352 1330 22174 1365 13901 1711 26917 1343 23192
1447 17887 1340 21845 1340 1386 17798 1344 25414 1342 1360 25792 1363 1335 21804 1324 1377
15622 18570 10714 8376 1320 1325 13789 1316 17843
""")
"""Microseconds of equal matrix products, measured where twelve processes shared two cores."""


def run_of(pool: list[float], generator: random.Random, slower: float = 1.0) -> EvalResult:
    """A result whose speed is the median of repeats drawn from `pool`, with its interval."""
    drawn = [slower * one for one in generator.choices(pool, k=REPEATS)]
    medians = sorted(1 / statistics.median(generator.choices(drawn, k=REPEATS)) for _ in range(400))
    cell = LocalSpeed(
        batch=1,
        context_tokens=512,
        kernel="mm",
        threads=1,
        repeats=REPEATS,
        decode_tokens_per_s=1 / statistics.median(drawn),
        decode_ci95=(medians[10], medians[-11]),
    )
    return EvalResult.model_validate(
        {
            "artifact": {"name": "a"},
            "protocol": {
                "name": "none",
                "text": "",
                "tokens_sha256": "",
                "windows": 0,
                "sequence_length": 0,
            },
            "tokens": 0,
            "perplexity": {"value": None},
            "speed": Speed(local=[cell]),
            "environment": {"cpu": "this one"},
        }
    )


@pytest.mark.parametrize("seed", range(5))
def test_equal_speeds_never_fail_even_on_a_crowded_machine(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(RERUNS):
        new, old = run_of(CROWDED, generator), run_of(CROWDED, generator)
        assert not missed(judge((), new, old))


def test_ten_percent_slower_fails_and_five_percent_faster_does_not() -> None:
    """Repeats that spread by 2 % know their median to 1 %."""
    generator = random.Random(1)
    pool = [0.02 * generator.lognormvariate(0, 0.02) for _ in range(200)]
    slow, found = 0, 0
    for _ in range(RERUNS):
        old = run_of(pool, generator)
        slow += missed(judge((), run_of(pool, generator, slower=1 / 0.9), old))
        found += missed(judge((), run_of(pool, generator, slower=0.95), old))
    assert (slow, found) == (RERUNS, 0)
