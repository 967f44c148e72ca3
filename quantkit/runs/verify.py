"""Every check of a folder, stage by stage; one weight is in memory at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.sums import Sums, read_sums
from quantkit.checkpoint.survey import Survey, survey
from quantkit.core import registry
from quantkit.core.check import (
    LAST,
    Blamed,
    Check,
    Fault,
    Problem,
    Stage,
    Unchecked,
    Verification,
)
from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.core.progress import Progress
from quantkit.core.session import Session
from quantkit.model.beside import Beside
from quantkit.model.declared import Declared, declare
from quantkit.runs.served import serve
from quantkit.runs.verified_weights import (
    dense_tensors,
    raw_tensors,
    read_in_turn,
    stored_weights,
)

EACH: tuple[Stage, ...] = ("tensors", "weights")
"""Stages whose subjects are many: of each the first fault is told."""


@dataclass
class Findings:
    """What was found so far; `blamed`: the paths that a problem explains."""

    checks: Mapping[Stage, Sequence[tuple[str, Check]]]
    problems: list[Problem] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    blamed: Blamed = field(default_factory=Blamed)

    def run(self, stage: Stage, subject: object) -> bool:
        """Run the checks of a stage; whether one of them found something."""
        found = False
        for code, check in self.checks[stage]:
            if found and (check.rank == LAST or stage in EACH):
                break
            for fault in check.find(subject):
                found = self._tell(code, check, fault) or found
        return found

    def _tell(self, code: str, check: Check, fault: Fault) -> bool:
        if self.blamed.covers(fault.path):
            return False
        remedy = fault.remedy or check.remedy
        self.problems.append(Problem(code, fault.path, fault.sentence, remedy))
        self.blamed.add(fault.path, *fault.explains)
        return True

    def skip(self, path: str, error: QuantkitError) -> None:
        """Take down what cannot be checked."""
        reason = f"{error.what}: {error.why}" if error.why else error.what
        self.unchecked.append(Unchecked(path, reason))


def all_checks() -> dict[Stage, list[tuple[str, Check]]]:
    """The checks of each stage with their codes, in the order in which they run."""
    found: dict[Stage, list[tuple[str, Check]]] = {stage: [] for stage in get_args(Stage)}
    for code in registry.names("checks"):
        check: Check = registry.load("checks", code, "CHECK")
        found[check.stage].append((code, check))
    for checks in found.values():
        checks.sort(key=lambda pair: pair[1].rank)
    return found


def verify(
    folder: Path,
    source: Path | None = None,
    engine: str | None = None,
    tp: int = 1,
    session: Session = Session(),
) -> Verification:
    """All that is wrong with a folder, and all that could not be checked.

    Raises:
        RefusedError: its weights are pickles.
        ResourceError: a file cannot be read.
    """
    began = time.monotonic()
    findings = Findings(all_checks())
    seen = survey(folder)
    if not seen.shards and not seen.broken and not seen.index:
        open_checkpoint(folder)  # says what the folder is instead
    declared = None
    counts = (0, 0, 0)
    whole = not findings.run("files", seen) or _opens(folder)
    if whole:
        declared = _declared(folder, findings, session)
    if declared is not None:
        findings.run("headers", declared)
        beside = _beside(declared, source, findings, session) if source else None
        proven = _proven(folder, declared)
        counts = _weights(declared, beside, proven, findings, session)
        if engine is not None:
            _served(declared, engine, tp, findings)
    elif whole:
        counts = _raw(folder, findings, session)
    _sums(folder, seen, findings)
    label = None if declared is None else _label(declared)
    seconds = time.monotonic() - began
    problems, unchecked = tuple(findings.problems), tuple(findings.unchecked)
    against = str(source) if source else None
    return Verification(str(folder), label, problems, unchecked, *counts, seconds, against, engine)


def _opens(folder: Path) -> bool:
    """Whether the folder can be opened in spite of its faults."""
    try:
        open_checkpoint(folder)
    except QuantkitError:
        return False
    return True


def _declared(folder: Path, findings: Findings, session: Session) -> Declared | None:
    try:
        return declare(folder, session)
    except InputError as error:
        findings.run("opening", error)
    except RefusedError as error:
        findings.skip("config.json", error)
    return None


def _beside(
    declared: Declared, source: Path, findings: Findings, session: Session
) -> Beside | None:
    """The folder beside its source; None where the two cannot be compared weight by weight."""
    try:
        original = declare(source, session)
    except QuantkitError as error:
        findings.skip(str(source), error)
        return None
    beside = Beside(declared, original)
    findings.run("source", beside)
    return None if "source" in findings.blamed.paths else beside


def _served(declared: Declared, engine: str, tp: int, findings: Findings) -> None:
    """Check the engine's rules."""
    try:
        findings.run("engine", serve(declared, engine, tp))
    except QuantkitError as error:
        findings.skip(f"--engine {engine}", error)


def _label(declared: Declared) -> str | None:
    if declared.format is not None:
        return declared.format.name
    return declared.coding.label if declared.coding else None


def _weights(
    declared: Declared,
    beside: Beside | None,
    proven: Callable[[str], bool],
    findings: Findings,
    session: Session,
) -> tuple[int, int, int]:
    """Decode every quantized linear and read every other tensor once."""
    for path, error in declared.refused.items():
        if isinstance(error, RefusedError):
            findings.skip(path, error)
    dense, weights = (
        list(dense_tensors(declared, beside)),
        list(stored_weights(declared, beside, proven)),
    )
    total = sum(each.info.nbytes for each in dense) + sum(each.nbytes for each in weights)
    steps = _steps(len(dense) + len(weights), total, session)
    for tensor in dense:
        if not findings.blamed.covers(tensor.name):
            findings.run("tensors", tensor)
        steps(tensor.info.nbytes, tensor.name)
    for each, weight in read_in_turn(weights, declared.checkpoint, findings.blamed.covers):
        if weight is not None and not findings.blamed.covers(each.name):
            findings.run("weights", weight)
            if isinstance(weight.error, RefusedError) and not findings.blamed.covers(each.name):
                findings.skip(each.name, weight.error)
        steps(each.nbytes, each.name)
    return len(weights), len(dense), total


def _proven(folder: Path, declared: Declared) -> Callable[[str], bool]:
    """Whether a weight file has the hash that SHA256SUMS states; no if weights have none.

    The hash of a file takes a tenth of the time that those of its weights take. Threads compute
    them from here on, while tensors are looked at.
    """
    try:
        stated = read_sums(folder) if declared.manifest.get("modules") else {}
    except InputError:
        return lambda _: False
    sums = Sums(folder, stated)
    shards = {info.shard for info in declared.files.values()} & stated.keys()
    found = {name: sums.hashing(name) for name in sorted(shards)}
    return lambda name: name in found and found[name].result() == stated[name]


def _raw(folder: Path, findings: Findings, session: Session) -> tuple[int, int, int]:
    """Of a folder that is no known model every tensor is looked at by itself."""
    tensors = list(raw_tensors(open_checkpoint(folder)))
    total = sum(each.info.nbytes for each in tensors)
    steps = _steps(len(tensors), total, session)
    for tensor in tensors:
        findings.run("tensors", tensor)
        steps(tensor.info.nbytes, tensor.name)
    return 0, len(tensors), total


def _steps(count: int, total: int, session: Session) -> Callable[[int, str], None]:
    """A function that reports one more step, of so many bytes."""
    done = [0, 0]

    def step(size: int, name: str) -> None:
        done[0] += 1
        done[1] += size
        share = done[1] / total if total else 1.0
        session.report(Progress("verify", done[0], count, name, share))

    return step


def _sums(folder: Path, seen: Survey, findings: Findings) -> None:
    """Compare hashes; a file in which a tensor is known to be wrong is told by that."""
    told = set(findings.blamed.paths)
    for shard, tensors in seen.shards.items():
        if any(findings.blamed.covers(name) for name in tensors):
            told.add(shard)
    try:
        sums = Sums(folder, read_sums(folder), frozenset(told))
    except InputError as error:
        sums = Sums(folder, {}, frozenset(told), f"{error.what}: {error.why}")
    findings.run("sums", sums)
