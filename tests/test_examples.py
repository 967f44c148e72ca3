"""The examples in docstrings of the public functions, run one after the other in one folder."""

import doctest
import inspect
from pathlib import Path

import pytest

import quantkit
from quantkit.model.embedded_model import FOLDER

ORDER = ("quantize", "evaluate", "generate", "sweep", "report")
"""Those that use what others before them made come in this order, all others after them."""


def functions() -> list[str]:
    named = [name for name in quantkit.__all__ if inspect.isfunction(getattr(quantkit, name))]
    return sorted(named, key=lambda name: (*ORDER, name).index(name))


@pytest.mark.long
def test_every_public_function_has_an_example_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(FOLDER)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for name in functions():
        docstring = inspect.getdoc(getattr(quantkit, name)) or ""
        example = doctest.DocTestParser().get_doctest(
            docstring, {"quantkit": quantkit}, name, None, None
        )
        assert example.examples, f"{name} has no example"
        assert runner.run(example).failed == 0, name


def test_the_package_says_what_each_public_name_is_for() -> None:
    assert quantkit.__doc__ is not None
    words = set(quantkit.__doc__.replace(",", " ").split())
    assert set(quantkit.__all__) - {"__version__"} <= words
