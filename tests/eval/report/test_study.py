from typing import Any

import pytest

from quantkit.eval.report.columns import columns
from quantkit.eval.report.page_data import page_data
from quantkit.eval.report.study import Build, Study, Target
from quantkit.results.schema import EvalResult

GIB = 2**30


def study_of(result: EvalResult, context: int | None) -> tuple[Study, Build]:
    """One build whose model has that context, where its result knows it."""
    memory = result.memory.model_copy(update={"context_tokens": context})
    build = Build("a", "a", "gptq", result=result.model_copy(update={"memory": memory}))
    return Study("model", result.protocol, None, (build,)), build


@pytest.mark.parametrize("context", [None, 512, 10**9])
def test_the_longest_context_is_never_beyond_the_models_own(
    generated: Any, context: int | None
) -> None:
    study, build = study_of(generated.original(("memory",)), context)
    target = Target("memory", 64 * GIB, sequences=2)
    room = study.longest_context(build, target)
    assert room is not None
    usable, kv = target.usable_bytes, study.kv_bytes_per_token
    assert usable is not None
    assert kv is not None
    assert build.weight_bytes is not None
    left = usable - build.weight_bytes - build.rest_bytes
    if context == 512:
        assert room == 512
        assert left > 2 * kv * 512
    else:
        assert 2 * kv * room <= left < 2 * kv * (room + 1)
    (column,) = [c for c in columns(study, target) if c.field == "longest_context_tokens"]
    assert column.cell(build).value == room
    assert page_data(study, target)["context"] == context


def test_a_build_without_room_has_no_context(generated: Any) -> None:
    study, build = study_of(generated.original(("memory",)), 512)
    assert study.longest_context(build, Target("memory", 1 * GIB)) == 0
    assert study.longest_context(build, Target("disk", 1 * GIB)) is None
