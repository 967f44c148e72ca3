from hypothesis import given
from hypothesis import strategies as st

from quantkit.eval.report.frontier import SLACK, frontier
from quantkit.eval.report.study import Build, Study, Target
from quantkit.results.schema import Divergence, EvalResult, Perplexity, Protocol, Subject

PROTOCOL = Protocol(name="p", text="t", tokens_sha256="0", windows=1, sequence_length=8)
DISK = Target("disk")
points = st.lists(
    st.tuples(st.integers(100, 10_000), st.floats(1e-4, 1.0), st.floats(0, 0.05)),
    min_size=1,
    max_size=12,
)


def study_of(rows: list[tuple[int, float, float]]) -> Study:
    builds = []
    for index, (size, mean, error) in enumerate(rows):
        result = EvalResult(
            schema="quantkit.eval/1",
            artifact=Subject(name="x", bytes=size),
            protocol=PROTOCOL,
            tokens=8,
            perplexity=Perplexity(value=2.0),
            kl=Divergence(mean=mean, standard_error=error),
        )
        builds.append(Build(str(index), str(index), "gptq", result=result))
    return Study("model", PROTOCOL, None, tuple(builds))


@given(points)
def test_what_is_off_the_frontier_has_a_rival_and_what_is_on_it_has_none(
    rows: list[tuple[int, float, float]],
) -> None:
    study = study_of(rows)
    kept = frontier(study, DISK)
    for build in study.builds:
        rivals = [
            other
            for other in study.builds
            if (other.disk_bytes or 0) <= SLACK * (build.disk_bytes or 0)
            and study.better(other, build)
        ]
        assert any(build is one for one in kept) == (not rivals)


@given(points)
def test_the_lowest_divergence_is_always_on_it_and_sizes_rise(
    rows: list[tuple[int, float, float]],
) -> None:
    kept = frontier(study_of(rows), DISK)
    best = min(row[1] for row in rows)
    assert any(build.kl and build.kl.mean == best for build in kept)
    sizes = [build.disk_bytes or 0 for build in kept]
    assert sizes == sorted(sizes)


def test_chance_and_a_few_bytes_take_nothing_off() -> None:
    exact = [(1000, 0.020, 0.0), (1005, 0.010, 0.0), (2000, 0.011, 0.0)]
    assert [b.key for b in frontier(study_of(exact), DISK)] == ["1"]
    noisy = [(size, mean, 0.01) for size, mean, _ in exact]
    assert [b.key for b in frontier(study_of(noisy), DISK)] == ["0", "1", "2"]
