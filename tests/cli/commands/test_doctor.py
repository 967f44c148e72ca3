import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.model.embedded_model import FOLDER
from quantkit.pipeline.doctor import Finding

Call = Callable[..., tuple[int, str, str]]


def test_a_fault_is_shown_with_its_remedy_and_ends_in_5(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = (
        Finding("torch", ok=True, detail="2.13.0", hint="pip install torch"),
        Finding("disk", ok=False, detail="0.1 GB free", hint="another disk"),
    )
    monkeypatch.setattr("quantkit.api.planning.doctor", lambda **_: findings)
    code, out, _ = quantkit("doctor")
    assert code == 5
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["torch", "ok", "2.13.0"],
        ["disk", "FAULT", "0.1", "GB", "free"],
        ["try:", "another", "disk"],
    ]
    monkeypatch.setattr("quantkit.api.planning.doctor", lambda **_: findings[:1])
    code, out, _ = quantkit("doctor", "--json")
    assert code == 0
    assert json.loads(out) == [
        {"check": "torch", "ok": True, "detail": "2.13.0", "hint": "pip install torch"}
    ]


@pytest.mark.long
def test_a_machine_is_timed_once_and_plans_tell_the_time(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    asked = ("plan", str(FOLDER), "--bits", "4", "--json")
    before = json.loads(quantkit(*asked)[1])["run"]
    assert "most_seconds" not in before
    assert "not timed" in quantkit("doctor")[1]
    code, out, _ = quantkit("doctor", "--time")
    assert code == 0
    assert "GMAC/s" in out
    assert out.splitlines()[-1] == quantkit("doctor")[1].splitlines()[-1]
    after = json.loads(quantkit(*asked)[1])["run"]
    assert 0 < after["least_seconds"] < after["most_seconds"]
    assert after["peak_rss_bytes"] > after["work_bytes"]
