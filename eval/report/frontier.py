"""Which builds nothing of their size beats."""

from quantkit.eval.report.study import Build, Study, Target

SLACK = 1.01


def frontier(study: Study, target: Target) -> list[Build]:
    """Builds with a KL that no rival at most 1 % larger betters beyond chance, by size.

    Plain dominance would let a few kilobytes, or the draw of the text, decide.
    """
    points = [
        (size, build)
        for build in study.builds
        if build.kl and (size := study.size_at(build, target)) is not None
    ]
    kept = [
        (size, build)
        for size, build in points
        if not any(
            other_size <= SLACK * size and study.better(rival, build)
            for other_size, rival in points
            if rival is not build
        )
    ]
    return [build for _, build in sorted(kept, key=lambda point: point[0])]
