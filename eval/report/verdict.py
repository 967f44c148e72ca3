"""What the figures say, in sentences chosen by rule; page.js has the same rules for other loads."""

from dataclasses import dataclass
from math import inf

from quantkit.eval.report.figures import error, fixed, percent, significant, unit_of
from quantkit.eval.report.study import Build, Load, Study
from quantkit.results.answers import losses
from quantkit.results.schema import FLOOR_FACTOR, EvalResult, GateOutcome

SMALLER = 0.97


@dataclass(frozen=True)
class Statement:
    """A sentence and the words before it that bear it."""

    name: str
    text: str


@dataclass(frozen=True)
class Choice:
    """The build to take under a load, the verdict about it, and the neighbours worth a look."""

    pick: Build | None
    verdict: Statement
    others: tuple[Statement, ...] = ()


def choose(study: Study, load: Load) -> Choice:
    """The lowest KL that fits; among those not distinguishable from it, the smallest.

    The original, where it fits as well; nothing, where no build fits or meets its gates.
    """
    words = _Words(study, load)
    compared = [build for build in study.builds if build.kl]
    original = study.reference
    if not compared:
        return Choice(None, Statement("Nothing to compare.", "No build has a KL measured."))
    if original and load.usable_bytes and study.fits(original, load):
        size = f"{words.needs} {words.size(original)}"
        tail = f"It {size} and fits, so quantization would only buy speed."
        return Choice(original, Statement("Keep the original.", tail))
    good = [build for build in compared if meets(build, load)]
    if not good:
        closest = min(compared, key=_kl)
        tail = f"The closest, {closest.label}, has KL {significant(_kl(closest))}."
        return Choice(None, Statement("No build meets the limits.", tail))
    fitting = [build for build in good if study.fits(build, load)]
    if not fitting:
        return Choice(None, words.none_fits(good))
    best = min(fitting, key=_kl)
    equal = [build for build in fitting if build is best or not study.better(best, build)]
    pick = min(equal, key=lambda build: (study.size_at(build, load) or inf, _kl(build)))
    return Choice(pick, words.about(pick), words.neighbours(pick, good, compared))


def meets(build: Build, load: Load) -> bool:
    """Whether no gate was missed and the upper limit of KL is within the reader's."""
    if build.kl is None or build.missed:
        return False
    upper = build.kl.ci95[1] if build.kl.ci95 else _kl(build)
    return load.max_kl is None or upper <= load.max_kl


def task_clause(result: EvalResult) -> str:
    """What the tasks show, or nothing where there are none; the level is shared over the tasks."""
    if not result.tasks:
        return ""
    lost = losses(result.tasks)
    if not lost:
        return "no task loss can be shown"
    worst = min((t for t in result.tasks if t.name in lost), key=lambda task: task.recovery)
    return f"task accuracy drops to {percent(worst.recovery)} of the original's ({worst.name})"


def one_line(build: Build, study: Study) -> str:
    """The verdict on one recipe against its gates, or why there is none."""
    if build.status != "done" or build.result is None:
        return f"{build.status}: {build.why}" if build.why else build.status
    if build.result.status == "invalid":
        return f"Invalid: {'; '.join(build.result.notes) or 'its figures are not finite'}"
    told = _gates(build.result.gates)
    kl = build.kl
    if kl is None or kl.mean is None:
        return f"{told} No KL was measured."
    spread = f" {error(build.kl_half_width)}" if build.kl_half_width is not None else ""
    told += f" KL {significant(kl.mean)}{spread}"
    if study.noise and kl.mean < FLOOR_FACTOR * study.noise:
        told += ", not distinguishable from the original"
    size, whole = build.disk_bytes, study.reference and study.reference.disk_bytes
    if size and whole:
        change = 100 * (1 - size / whole)
        told += f", {fixed(abs(change), 0)}\u00a0% {'smaller' if change >= 0 else 'larger'}"
    return f"{told}."


def _gates(gates: list[GateOutcome]) -> str:
    by_status = {
        status: [gate.expression for gate in gates if gate.status == status]
        for status in ("failed", "undecided", "passed")
    }
    if by_status["failed"]:
        return f"Misses {', '.join(by_status['failed'])}."
    if by_status["undecided"]:
        return f"Undecided: {', '.join(by_status['undecided'])}."
    count = len(gates)
    return f"Passes {count} gate{'s' if count > 1 else ''}." if gates else "No gates set."


def _kl(build: Build) -> float:
    return build.kl.mean if build.kl and build.kl.mean is not None else inf


@dataclass(frozen=True)
class _Words:
    """Sentences about sizes under one load, all in one unit."""

    study: Study
    load: Load

    @property
    def needs(self) -> str:
        return "needs" if self.load.axis == "memory" else "takes"

    def bytes(self, count: float) -> str:
        name, factor = unit_of([build.disk_bytes for build in self.study.everything])
        return f"{significant(count / factor)}\u00a0{name}"

    def size(self, build: Build) -> str:
        return self.bytes(self.study.size_at(build, self.load) or 0)

    def about(self, build: Build) -> Statement:
        result = build.measured
        known = self.study.size_at(build, self.load) is not None
        fits = self.load.axis == "memory" and self.load.usable_bytes is not None
        facts = [f"{'fits in' if fits else self.needs} {self.size(build)}"] if known else []
        if result and result.top1_agreement is not None:
            share = percent(result.top1_agreement)
            facts.append(f"keeps the top token on {share} of positions")
        elif build.kl:
            facts.append(f"has KL {significant(_kl(build))}")
        clause = task_clause(result) if result else ""
        return Statement(build.label, " and ".join(facts) + (f"; {clause}." if clause else "."))

    def none_fits(self, good: list[Build]) -> Statement:
        smallest = min(good, key=lambda build: self.study.size_at(build, self.load) or inf)
        usable = self.bytes(self.load.usable_bytes or 0)
        text = (
            f"The smallest one that meets the limits, {smallest.label}, {self.needs} "
            f"{self.size(smallest)} of {usable} usable."
        )
        room = self.study.longest_context(smallest, self.load)
        if room and room >= 256:
            text += f" It fits with at most {room} tokens of context."
        return Statement("No build fits.", text)

    def neighbours(
        self, pick: Build, good: list[Build], compared: list[Build]
    ) -> tuple[Statement, ...]:
        own = self.study.size_at(pick, self.load)
        if own is None:
            return ()
        sized = {build.key: self.study.size_at(build, self.load) or inf for build in compared}
        told = []
        smaller = [build for build in good if sized[build.key] < SMALLER * own]
        if smaller:
            build = min(smaller, key=_kl)
            told.append(
                Statement(
                    f"Smaller: {build.label}",
                    f"saves {self.bytes(own - sized[build.key])}; KL goes from "
                    f"{significant(_kl(pick))} to {significant(_kl(build))}.",
                )
            )
        better = [b for b in compared if sized[b.key] > own and self.study.better(b, pick)]
        better = [build for build in better if sized[build.key] < inf]
        if better:
            build = min(better, key=lambda found: sized[found.key])
            over = sized[build.key] - (self.load.usable_bytes or inf)
            told.append(
                Statement(
                    f"Better: {build.label}",
                    f"has KL {significant(_kl(build))} and {self.needs} "
                    f"{self.bytes(sized[build.key] - own)} more"
                    + (f", {self.bytes(over)} over the limit." if over > 0 else "."),
                )
            )
        return tuple(told)
