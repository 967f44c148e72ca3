import json
from collections.abc import Callable

import pytest

from quantkit.pipeline.doctor import Finding

Call = Callable[..., tuple[int, str, str]]


def test_a_fault_is_shown_with_its_remedy_and_ends_in_5(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = (
        Finding("torch", ok=True, detail="2.13.0", hint="pip install torch"),
        Finding("disk", ok=False, detail="0.1 GB free", hint="another disk"),
    )
    monkeypatch.setattr("quantkit.api.doctor", lambda: findings)
    code, out, _ = quantkit("doctor")
    assert code == 5
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["torch", "ok", "2.13.0"],
        ["disk", "FAULT", "0.1", "GB", "free"],
        ["try:", "another", "disk"],
    ]
    monkeypatch.setattr("quantkit.api.doctor", lambda: findings[:1])
    code, out, _ = quantkit("doctor", "--json")
    assert code == 0
    assert json.loads(out) == [
        {"check": "torch", "ok": True, "detail": "2.13.0", "hint": "pip install torch"}
    ]
