"""What every metric of the registry owes its callers, and what a new one gets for its one file."""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import quantkit.eval.metrics
from quantkit.calibration.tokens import load_tokenizer
from quantkit.cli.render.figures import evaluation_lines, sweep_table
from quantkit.core import registry
from quantkit.core.errors import InputError
from quantkit.core.gate import FIGURES, metric_figures, parse_gate
from quantkit.eval.metric import Figure, Metric
from quantkit.eval.report.write import write_report
from quantkit.eval.side_by_side import evaluate_together
from quantkit.eval.text import TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.open import open_model
from quantkit.results.file import read_result
from quantkit.results.gates import judge
from quantkit.results.schema import EvalResult, SweepRun

TESTS = Path(__file__).parents[1] / "eval" / "metrics"
ODDS = '''"""How often a token is a surprise."""

from quantkit.eval.metric import Figure, Figures, Metric, Scores


def measure(scores: Scores) -> Figures:
    """Share of tokens that cost more than six nats, and the largest cost."""
    return {"surprise.share": (scores.nll > 6).float(), "surprise.max": float(scores.nll.max())}


METRIC = Metric(
    "surprise",
    "tokens that cost more than six nats",
    {
        "surprise.share": Figure("Surprising tokens", "fraction", "lower"),
        "surprise.max": Figure("Largest cost", "nats", "lower"),
    },
    measure,
)
'''


@pytest.fixture(params=registry.names("eval.metrics"))
def metric(request: pytest.FixtureRequest) -> Metric:
    found: Metric = registry.load("eval.metrics", request.param, "METRIC")
    return found


def test_a_metric_has_its_files_name_and_a_summary(metric: Metric) -> None:
    assert metric.name.replace("_", "-") in registry.names("eval.metrics")
    assert metric.summary


def test_every_figure_is_one_that_a_gate_can_name(metric: Metric) -> None:
    for name, figure in metric.figures.items():
        assert figure.label
        assert figure.better in ("lower", "higher")
        assert parse_gate(f"{name} <= 1").figure == name
        assert FIGURES.get(name, figure.unit) == figure.unit


def test_gates_know_no_figure_that_its_metric_does_not_state(metric: Metric) -> None:
    heads = {known for known in FIGURES if known.partition(".")[0] == metric.name}
    assert heads <= set(metric.figures)


def test_a_case_is_computed_by_hand(metric: Metric) -> None:
    """Its own test file measures something and compares it with a number."""
    path = TESTS / f"test_{metric.name}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {function.attr for function in calls if isinstance(function, ast.Attribute)}
    compared = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    assert {"measure", "approx"} <= called
    assert compared


@pytest.mark.parametrize(
    ("label", "unit", "better", "told"),
    [
        ("Odds", "", "lower", "figure `Odds` has the unit ``: use one of bytes, ms, nats"),
        ("Odds", "furlongs", "lower", "the unit `furlongs`"),
        ("Odds", "nats", "", "the direction ``: use one of lower, higher"),
        (" ", "nats", "lower", "no label"),
    ],
)
def test_a_figure_without_unit_direction_or_label_is_refused(
    label: str, unit: str, better: str, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        Figure(label, unit, better)  # type: ignore[arg-type]  # what a careless author writes


@pytest.mark.parametrize("names", [(), ("odd.mean",)])
def test_figures_are_named_for_their_metric(names: tuple[str, ...]) -> None:
    figures = {name: Figure("Odd", "number", "lower") for name in names}
    with pytest.raises(ValueError, match=r"name them `odds` or `odds.part`"):
        Metric("odds", "none", figures, lambda _: {})


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A metric in one new file of the registry's folder."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    (folder / "surprise.py").write_text(ODDS, encoding="utf-8")
    paths = [*quantkit.eval.metrics.__path__, str(folder)]
    monkeypatch.setattr(quantkit.eval.metrics, "__path__", paths)
    yield
    sys.modules.pop("quantkit.eval.metrics.surprise", None)
    vars(quantkit.eval.metrics).pop("surprise", None)


@pytest.fixture
def evaluated(tiny_checkpoint: Callable[..., Path]) -> Callable[[], EvalResult]:
    """What evaluates a small model against itself."""
    folder = tiny_checkpoint()
    text = read_text(TextChoice(sequence_length=48, windows=6), load_tokenizer(folder))
    return lambda: evaluate_together(open_model(folder), open_model(folder), text)[0]


@pytest.mark.usefixtures("registered")
def test_a_new_metric_reaches_json_gates_baselines_tables_and_page(
    evaluated: Callable[[], EvalResult], tmp_path: Path
) -> None:
    result = evaluated()
    path = tmp_path / "run" / "eval.json"
    path.parent.mkdir()
    path.write_text(result.model_dump_json(by_alias=True), encoding="utf-8")
    found = read_result(path, EvalResult)
    share, most = found.metrics["surprise.share"], found.metrics["surprise.max"]
    assert share.value is not None
    assert 0 < share.value < 1
    assert share.ci95 is not None
    assert share.ci95[0] < share.value < share.ci95[1]
    assert most.ci95 is None

    gates = ["surprise.share<2%", "surprise.share <= 100% @domain", "surprise.max <= 1e3 nats"]
    outcomes = judge([parse_gate(gate) for gate in gates], mine(found), mine(found))
    states = {outcome.expression: outcome.status for outcome in outcomes}
    assert states["surprise.share < 2%"] == "failed"
    assert sum("@domain:" in expression for expression in states) >= 1
    assert states["surprise.max <= 1000nats"] == "passed"
    assert states["surprise.share <= baseline"] == "passed"

    assert any(line.startswith("Surprising tokens  ") for line in evaluation_lines(found.to_dict()))
    run = SweepRun(key="a", label="a", family="f", summary=found.summary(), status="done")
    assert "Surprising tokens" in str(sweep_table([run]))
    for name in ("report.html", "report.md", "report.csv", "report.json"):
        page = write_report([path.parent], tmp_path / name).output.read_text(encoding="utf-8")
        named = "surprise_share" if name.endswith(("csv", "json")) else "Surprising tokens"
        assert named in page


@pytest.mark.usefixtures("registered")
def test_worse_than_the_baseline_fails(evaluated: Callable[[], EvalResult]) -> None:
    result = evaluated()
    sums = {"surprise.share": [value + 10 for value in result.documents.sums["surprise.share"]]}
    documents = result.documents.model_copy(update={"sums": sums})
    worse = mine(result.model_copy(update={"documents": documents}))
    (outcome,) = (
        o for o in judge((), worse, mine(result)) if o.expression.startswith("surprise.share")
    )
    assert outcome.status == "failed"
    assert "worse" in outcome.why


@pytest.mark.usefixtures("registered")
def test_a_wrong_unit_or_an_unstated_figure_is_refused_by_name() -> None:
    assert metric_figures("surprise") == {"surprise.share": "fraction", "surprise.max": "nats"}
    with pytest.raises(InputError) as caught:
        parse_gate("surprise.share < 5 GiB")
    assert "is not a unit of this figure; use %" in str(caught.value.why)
    with pytest.raises(InputError) as caught:
        parse_gate("surprise.shares < 5")
    assert "surprise.share" in str(caught.value.why)


@pytest.mark.usefixtures("registered")
def test_a_figure_that_a_metric_does_not_state_is_a_bug_with_a_name(
    evaluated: Callable[[], EvalResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = registry.load("eval.metrics", "surprise", "METRIC")
    other = replace(stated, measure=lambda _: {"surprise.mean": 1.0})
    monkeypatch.setattr(sys.modules["quantkit.eval.metrics.surprise"], "METRIC", other)
    with pytest.raises(ValueError, match=r"measures `surprise.mean`, which its `figures`"):
        evaluated()


def mine(found: EvalResult) -> EvalResult:
    """The result as if of a text of one's own: the small one passes no gate."""
    return found.model_copy(update={"protocol": found.protocol.model_copy(update={"text": "mine"})})
