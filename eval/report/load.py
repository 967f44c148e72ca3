"""Folders of results as a study: a sweep, an evaluation, an artifact."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantkit.checkpoint.manifest import read_manifest
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.manifest import FILE_NAME as MANIFEST
from quantkit.eval.report.artifact import command_of, result_of
from quantkit.eval.report.numbers import visible
from quantkit.eval.report.study import Build, Study
from quantkit.results.file import read_result, validated
from quantkit.results.schema import (
    EVAL_FILE,
    ORIGINAL,
    SWEEP_FILE,
    EvalResult,
    Perplexity,
    SweepResult,
    SweepRun,
)


def load_study(folders: Sequence[Path]) -> Study:
    """All results of the folders, which must be of one model, one original and one protocol.

    Raises:
        InputError: a folder holds no results, or one that cannot be read.
        IntegrityError: a result is not the one that its sweep recorded.
        RefusedError: results of two protocols or two originals.
    """
    once = {path.resolve(): path for path in map(Path, folders)}
    studies = [_read(path) for path in once.values()]
    if not studies:
        raise InputError("no folder is given", hint="quantkit report DIR -o report.html")
    return _joined(studies)


def study_of_manifest(manifest: Mapping[str, Any], name: str) -> Study | None:
    """The study of one artifact from its `quantkit.json`; None where it was not evaluated."""
    stated = result_of(manifest, name)
    if stated is None:
        return None
    result = validated(stated, EvalResult, Path(name, MANIFEST))
    measured = manifest.get("measured") or {}
    build = replace(
        _build(result, name), command=command_of(manifest), seconds=measured.get("seconds")
    )
    return _joined([_single(result, build)])


def _joined(studies: Sequence[Study]) -> Study:
    """One study of all builds, with the original, the protocol and the environment they state."""
    first = studies[0]
    builds = _distinct([build for study in studies for build in study.builds])
    reference = next((study.reference for study in studies if study.reference), None)
    merged = replace(
        first,
        builds=builds,
        reference=reference or _implied_reference(builds),
        notes=tuple(dict.fromkeys(note for study in studies for note in study.notes)),
    )
    _one_protocol(merged)
    protocols = [build.result.protocol for build in merged.everything if build.result]
    environments = [build.result.environment for build in merged.everything if build.result]
    return replace(
        merged,
        title=visible(first.title) or "model",
        protocol=protocols[0] if protocols else None,
        environment=next(filter(None, environments), {}),
    )


def _read(folder: Path) -> Study:
    if (folder / SWEEP_FILE).is_file():
        return _read_sweep(folder)
    if (folder / MANIFEST).is_file():
        return _read_artifact(folder)
    if (folder / EVAL_FILE).is_file():
        result = read_result(folder / EVAL_FILE, EvalResult)
        return _single(result, _build(result, folder.name))
    if folder.is_file():
        result = read_result(folder, EvalResult)
        return _single(result, _build(result, folder.stem))
    if not folder.is_dir():
        raise InputError(
            f"no folder `{folder}`",
            hint="an output folder of sweep, eval or quantize",
        )
    raise InputError(
        f"`{folder}` holds no results",
        why=f"it contains no {SWEEP_FILE}, {EVAL_FILE} or {MANIFEST}",
        hint="quantkit eval ARTIFACT --reference MODEL -o results/eval.json",
    )


def _read_sweep(folder: Path) -> Study:
    sweep = read_result(folder / SWEEP_FILE, SweepResult)
    builds = [_run(folder, run) for run in sweep.runs]
    return Study(
        title=sweep.model.name,
        protocol=None,
        reference=next((build for build in builds if build.key == ORIGINAL), None),
        builds=tuple(build for build in builds if build.key != ORIGINAL),
        workload=sweep.workload,
        created_utc=sweep.created_utc,
    )


def _run(folder: Path, run: SweepRun) -> Build:
    build = Build(
        key=run.key,
        label=visible(run.label) or run.key,
        family=ORIGINAL if run.key == ORIGINAL else run.family,
        status=run.status,
        why=visible(run.why),
        command=run.command,
        seconds=run.seconds,
    )
    if run.eval is None:
        return build
    path = (folder / run.eval).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(
            f"{folder / SWEEP_FILE}: run `{run.key}` points out of the folder: {run.eval}"
        )
    return replace(build, result=read_result(path, EvalResult, run.eval_sha256))


def _read_artifact(folder: Path) -> Study:
    study = study_of_manifest(read_manifest(folder), folder.name)
    if study is None:
        raise InputError(
            f"`{folder}` was not evaluated",
            hint=f"quantkit eval {folder} --reference MODEL -o {folder.name}.json; report that",
        )
    return replace(study, reference=None)  # a sweep beside it may state the original better


def _single(result: EvalResult, build: Build) -> Study:
    title = result.reference.name if result.reference else result.artifact.name
    return Study(title, result.protocol, None, (build,), created_utc=result.created_utc)


def _build(result: EvalResult, folder: str) -> Build:
    subject = result.artifact
    label = visible(subject.name) or visible(folder) or "build"
    family = subject.method or "other"
    return Build(key=label, label=label, family=family, result=result)


def _implied_reference(builds: Iterable[Build]) -> Build | None:
    """The original as its builds describe it, where its perplexity or size is known."""
    for build in builds:
        result = build.measured
        if result is None or result.reference is None:
            continue
        known = EvalResult(
            schema="quantkit.eval/1",
            artifact=result.reference,
            protocol=result.protocol,
            tokens=result.tokens,
            perplexity=result.reference_perplexity or Perplexity(value=None),
        )
        return Build(key=ORIGINAL, label="original", family=ORIGINAL, result=known)
    return None


def _distinct(builds: Sequence[Build]) -> tuple[Build, ...]:
    """The builds with keys and labels that differ: a number after those that repeat."""
    seen: dict[str, int] = {ORIGINAL: 1}  # the key of the original itself
    named = []
    for build in builds:
        count = seen[build.label] = seen.get(build.label, 0) + 1
        label = build.label if count == 1 else f"{build.label} ({count})"
        named.append(replace(build, label=label, key=label))
    return tuple(named)


def _one_protocol(study: Study) -> None:
    """Refuse to put figures of two texts, or against two originals, beside each other."""
    results = [(b.label, b.result) for b in study.everything if b.result and b.result.status]
    for what, of in (
        ("protocols", lambda r: (r.protocol.name, r.protocol.tokens_sha256)),
        ("originals", lambda r: r.reference and (r.reference.sha256 or r.reference.name)),
    ):
        found = {of(result): label for label, result in results if of(result)}
        if len(found) > 1:
            one, other = list(found.values())[:2]
            raise RefusedError(
                f"`{one}` and `{other}` were measured with different {what}",
                why="their figures cannot be compared",
                hint="one report for each",
            )
