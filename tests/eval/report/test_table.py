import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.units import UNIT_NOTE
from quantkit.eval.report.load import load_study
from quantkit.eval.report.study import Study
from quantkit.eval.report.table import as_csv, json_text, markdown

HOSTILE = "=cmd|'/C calc'!A0 <img src=x onerror=alert(1)> `tick` | pipe\nline [a](javascript:x)"


@pytest.fixture
def study(tmp_path: Path, generated: Any) -> Study:
    return load_study([generated.write_sweep(tmp_path, count=6, rename={1: HOSTILE})])


def test_markdown_has_a_row_a_build_and_no_markup_of_names(study: Study) -> None:
    text = markdown(study)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows[: 1 + len(study.everything)]}
    assert len(widths) == 1
    assert re.search(r"(?<!\\)<img", text) is None
    assert re.search(r"(?<!\\)\[a", text) is None
    assert "\\<img" in text
    assert "FP4 MoE" in text


def test_csv_holds_figures_in_full_and_no_formula(study: Study) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(study))))
    assert len(rows) == len(study.everything)
    assert not any(value.startswith(("=", "+", "@")) for row in rows for value in row.values())
    kl = study.builds[0].kl
    assert kl is not None
    assert float(rows[1]["kl_mean_nats"]) == kl.mean
    assert rows[-1]["kl_mean_nats"] == ""
    assert {row["frontier"] for row in rows} == {"True", "False"}


def test_both_bits_the_level_and_the_units_are_stated(tmp_path: Path, generated: Any) -> None:
    study = load_study([generated.write_sweep(tmp_path, count=9)])
    rows = {row["build"]: row for row in csv.DictReader(io.StringIO(as_csv(study)))}
    text = markdown(study)
    assert text.count(UNIT_NOTE) == 1
    assert text.index("Bits (quantized linears)") < text.index("Bits (whole model)")
    row = rows["RTN W3 g128"]
    assert float(row["quantized_bits_per_weight"]) < float(row["bits_per_weight"])
    assert row["kl_level"] == "large"
    assert row["kl_level_next"].startswith("'--method gptq; --group-size 64; quantkit fit")
    assert text.count("is large: 0.1 or more. To try: --method gptq;") == 1
    assert rows["GPTQ W4 g128"]["kl_level"] == "usual"
    assert rows["GPTQ W4 g128"]["kl_level_next"] == rows["FP4 MoE"]["kl_level"] == ""


def test_json_is_strict_and_holds_every_result(study: Study) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(json_text(study), parse_constant=refuse)
    assert found["schema"] == "quantkit.report/1"
    assert len(found["builds"]) == len(study.everything)
    assert found["builds"][1]["result"]["schema"] == "quantkit.eval/1"
    assert found["pick"] in [build["build"] for build in found["builds"]]
