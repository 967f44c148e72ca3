import re

from quantkit.core.notebook import html_table
from quantkit.results.schema import EvalResult, SweepResult, SweepRun
from tests.results.test_kl_level import result


def test_cells_of_a_stranger_are_escaped() -> None:
    html = html_table("<b>", ("a & b", "n"), [("<script>", 1.23456), (None, 7)])
    assert html == (
        "<table><caption>&lt;b&gt;</caption><thead><tr><th>a &amp; b</th><th>n</th></tr></thead>"
        "<tbody><tr><td>&lt;script&gt;</td><td>1.235</td></tr><tr><td>-</td><td>7</td></tr></tbody>"
        "</table>"
    )


def test_results_show_themselves_as_tables() -> None:
    evaluated: EvalResult = result(0.2)
    found = evaluated._repr_html_()
    assert "<td>KL, nats a token</td><td>0.2</td>" in found
    run = SweepRun(key="<i>", label="<i>", family="rtn", status="failed", why="a & b")
    swept = SweepResult(schema="quantkit.sweep/1", model=evaluated.artifact, runs=[run])
    assert "<td>&lt;i&gt;</td>" in swept._repr_html_()
    assert "a &amp; b" in swept._repr_html_()
    for html in (found, swept._repr_html_()):
        assert not re.search(r"<(?!/?(table|caption|thead|tbody|tr|th|td)>)", html)
