from pathlib import Path
from typing import Any

from quantkit.eval.report.load import load_study
from quantkit.eval.report.sections import sections


def test_ranges_are_named_by_both_ends_and_limits_by_their_figure(
    tmp_path: Path, generated: Any
) -> None:
    found = sections(load_study([generated.write_sweep(tmp_path, count=9)]))
    _, confidence, context = found["heats"]
    assert confidence.names[0] == "0\u201325\u00a0%"
    assert confidence.names[-1] == "95\u2013100\u00a0%"
    assert context.names == [
        "1",
        "2\u20138",
        "9\u201332",
        "33\u201396",
        "97\u2013256",
        "257\u20131024",
    ]
    limits = dict(found["protocol"])["Smallest detectable difference"]
    assert limits == "KL 3.0\u00a0%, perplexity 0.33\u00a0%"
    assert all("in some setting; the slowest is" in sentence for sentence in found["slower"])
    cells = {cells[1]: cells for _, _, cells in found["local"]}
    assert cells["64"][3:] == ["out of memory", "", "out of memory", "", "", ""]
    assert all(cells["16"])
