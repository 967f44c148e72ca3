import pytest

from quantkit.core.progress import Progress
from quantkit.core.session import Session


def test_a_session_computes_on_the_cpu_trusts_nothing_and_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = Session()
    session.report(Progress("quantize", 1, 2))
    assert (session.device, session.trust_remote_code) == ("cpu", False)
    assert capsys.readouterr() == ("", "")


def test_another_device_leaves_the_rest() -> None:
    session = Session("cuda:1", trust_remote_code=True, report=print)
    assert session.on("cpu") == Session("cpu", trust_remote_code=True, report=print)


def test_a_part_of_a_run_names_its_stages() -> None:
    seen: list[Progress] = []
    session = Session(report=seen.append)
    session.under("W4 g64").under("compare").report(Progress("forward", 3, 4, "block", 1.5))
    assert seen == [Progress("W4 g64: compare: forward", 3, 4, "block", 1.5)]
